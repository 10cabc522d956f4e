"""Range changes when workers join or leave: no record repeats or is lost (K2, K3)."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.tasks.key_ranges.programs import TEXT, counting, counting_slowly
from tests.tasks.loop.group_bench import GroupBench
from tidewheel import Processor, Record, StreamsBuilder

THREADS = 4


def _ranges(host: Any) -> dict[str, int]:
    return {str(task): len(each.ranges) for task, each in host.worker.tasks.items()}


def test_K2_threads_of_a_released_task_move_to_the_remaining_ones() -> None:
    with GroupBench(counting_slowly(0.001), {"in": 2, "out": 1}) as group:
        host = group.host("one", threads=THREADS)
        host.run_task("0_0", 1)
        host.run_task("0_1", 1)
        sent: dict[str, int] = {}

        def feed(count: int) -> None:
            for number in range(count):
                key = f"k{number % 17}"
                sent[key] = sent.get(key, 0) + 1
                group.send(key, partition=number % 17 % 2)

        def all_done() -> bool:
            return all(group.committed(each) == group.end(each) for each in (0, 1))

        host.until(lambda: _ranges(host) == {"0_0": 2, "0_1": 2}, "two ranges each")
        feed(340)
        host.until(all_done, "all is done")
        host.until(lambda: sum(_ranges(host).values()) <= THREADS, "ranges for all threads")
        released = host.release("0_1", 1)
        feed(170)
        host.until(lambda: _ranges(host) == {"0_0": 4}, "all threads are the other task's")
        host.until(lambda: group.committed(0) == group.end(0), "it goes on")
        feed(170)
        host.run_task("0_1", 2, released)
        host.until(lambda: _ranges(host).get("0_0", 0) < THREADS, "it gives threads back")
        host.until(all_done, "all is done")
        assert group.outputs() == {key: list(range(1, count + 1)) for key, count in sent.items()}


def test_K2_whole_tasks_share_no_store_while_they_keep_all_threads_busy() -> None:
    with GroupBench(counting(), {"in": 4, "out": 1}) as group:
        host = group.host("one", threads=2)
        for number in range(4):
            host.run_task(f"0_{number}", 1)
        host.until(lambda: list(_ranges(host).values()) == [1, 1, 1, 1], "one range each")


@pytest.mark.parametrize("number_of_tasks", [1, 2, 4])
def test_K5_awaits_overlap_up_to_the_factor_in_each_of_several_tasks(number_of_tasks: int) -> None:
    names = [f"0_{number}" for number in range(number_of_tasks)]
    current_task: Counter[str] = Counter()
    together = asyncio.Event()

    class Wait(Processor[str, str, str, str]):
        keyed = True

        async def process(self, record: Record[str, str]) -> None:
            task = self.context.task_id
            current_task[task] += 1
            assert current_task[task] <= THREADS
            if all(current_task[each] == THREADS for each in names):
                together.set()
            await together.wait()
            current_task[task] -= 1
            self.context.forward(record)

    builder = StreamsBuilder()
    builder.stream("in", **TEXT).process(Wait).to("out", **TEXT)
    with GroupBench(builder.build(), {"in": number_of_tasks, "out": 1}) as group:
        host = group.host("one", threads=THREADS)
        for name in names:
            host.run_task(name, 1)
        host.until(lambda: _ranges(host) == dict.fromkeys(names, THREADS), "each is cut in full")
        for key in range(40):
            for partition in range(number_of_tasks):
                group.send(f"k{key}", partition=partition)
        host.until(
            lambda: all(group.committed(each) == group.end(each) for each in range(len(names))),
            "as many as the factor are in hand in each task at once, and all is done",
        )
