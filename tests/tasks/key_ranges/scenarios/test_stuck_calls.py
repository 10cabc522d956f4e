"""A stuck call delays only its key range: commits, releases and stops continue."""

import asyncio
import threading
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.tasks.key_ranges.programs import LONG, STRING, TEXT
from tests.tasks.loop.group_bench import APP, GroupBench, Host
from tidewheel import Processor, Record, Stores, StreamsBuilder, Topology
from tidewheel.rebalance.model import TopicPartition
from tidewheel.rebalance.protocol.orders import WorkerInCall
from tidewheel.rebalance.protocol.task_status import RunningCall
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import VectorPart

THREADS = 4
CALLS = pytest.mark.parametrize("awaits", [False, True], ids=["blocking", "awaiting"])


class Stuck:
    """Calls for key "stuck" wait for a release; plain functions or coroutines."""

    def __init__(self, awaits: bool) -> None:
        self.awaits = awaits
        self.entered = threading.Event()
        self.released = threading.Event()
        #: Started calls, one key each.
        self.begun: list[str] = []
        self.closed = 0

    def program(self) -> Topology:
        stuck = self

        class Count(Processor[str, str, str, int]):
            keyed = True

            def init(self, context: Any) -> None:
                super().init(context)
                self._store = context.get_state_store("counts")

            def process(self, record: Record[str, str]) -> None:
                stuck.begun.append(record.key)
                if record.key == "stuck":
                    stuck.entered.set()
                    stuck.released.wait(60)
                self.count(record)

            def count(self, record: Record[str, str]) -> None:
                count = (self._store.get(record.key) or 0) + 1
                self._store.put(record.key, count)
                self.context.forward(record.replace(value=count))

            def close(self) -> None:
                stuck.closed += 1

        class Awaiting(Count):
            async def process(self, record: Record[str, str]) -> None:  # type: ignore[override] # it may be either
                stuck.begun.append(record.key)
                if record.key == "stuck":
                    stuck.entered.set()
                    await asyncio.to_thread(stuck.released.wait, 60)
                self.count(record)

        builder = StreamsBuilder()
        builder.add_state_store(Stores.key_value("counts", key_serde=STRING, value_serde=LONG))
        counted = builder.stream("in", **TEXT).process(
            Awaiting if stuck.awaits else Count, stores=["counts"]
        )
        counted.to("out", key_serde=STRING, value_serde=LONG)
        return builder.build()


@contextmanager
def benches(*, awaits: bool = False) -> Generator[tuple[Stuck, GroupBench]]:
    stuck = Stuck(awaits)
    with GroupBench(stuck.program(), {"in": 1, "out": 1}, drain_timeout_ms=100) as group:
        try:
            yield stuck, group
        finally:
            stuck.released.set()


def ranges_of(group: GroupBench) -> tuple[VectorPart, ...]:
    found = group.broker.groups[APP].get(TopicPartition("in", 0))
    if found is None:
        return ()
    progress = Progress.decode(found.metadata, committed_offset=found.offset)
    assert progress is not None
    return progress.vector.parts


def start_stuck_call(stuck: Stuck, group: GroupBench, host: Host) -> int:
    host.run_task("0_0", 1)
    for number in range(40):
        group.send(f"k{number % 10}")
    offset = group.end()
    host.until(lambda: group.committed() == offset, "what came before is done")
    group.send("stuck")
    for number in range(200):
        group.send(f"k{number % 10}")
    assert stuck.entered.wait(20)
    mine = zlib.crc32(b"stuck")

    def other_ranges_are_done() -> bool:
        ranges = ranges_of(group)
        others = [each for each in ranges if not holds(ranges, each, mine)]
        return len(others) == THREADS - 1 and all(each.offset == group.end() for each in others)

    host.until(other_ranges_are_done, "the other ranges are done")
    assert group.committed() == offset
    return offset


def holds(ranges: tuple[VectorPart, ...], one: VectorPart, key_hash: int) -> bool:
    return one == [each for each in ranges if each.first_hash <= key_hash][-1]


def of_other_ranges(group: GroupBench) -> list[str]:
    ranges = ranges_of(group)
    mine = zlib.crc32(b"stuck")
    keys = [f"k{number}" for number in range(10)]
    same = [each for each in ranges if holds(ranges, each, mine)]
    return [
        key
        for key in keys
        if not any(holds(ranges, each, zlib.crc32(key.encode())) for each in same)
    ]


@pytest.mark.parametrize("threads", [1, THREADS], ids=["one thread", "key ranges"])
def test_B9_a_worker_reports_its_long_call_until_it_ends(threads: int) -> None:
    with benches() as (stuck, group):
        host = group.host("one", threads=threads, max_call_ms=4_000)
        host.run_task("0_0", 1)
        group.send("k1")
        offset = group.end()
        group.send("stuck")

        def last() -> RunningCall | None:
            reports = host.member.all_of(WorkerInCall)
            return reports[-1].call if reports else None

        call = host.until(last, "it is reported")
        assert "Count.process (" in call.text
        assert f"in-0 offset {offset}" in call.text
        host.until(lambda: (found := last()) is not None and found.is_long, "it is long")
        calls = [each.call for each in host.member.all_of(WorkerInCall)]
        assert all(each.is_long is (each.ms >= 2_000) for each in calls if each is not None)
        stuck.released.set()
        host.until(lambda: host.member.all_of(WorkerInCall)[-1].call is None, "it is over")


@CALLS
def test_K4_other_ranges_commit_while_a_call_does_not_return(awaits: bool) -> None:
    with benches(awaits=awaits) as (stuck, group):
        host = group.host("one", threads=THREADS)
        offset = start_stuck_call(stuck, group, host)
        others = of_other_ranges(group)
        assert len(others) >= 3
        for key in others:
            assert group.outputs()[key] == list(range(1, 25))
        row = host.until(lambda: next(iter(host.status("0_0").ranges), None), "status says so")
        assert row[:2] == (zlib.crc32(b"stuck"), offset)
        stuck.released.set()
        host.until(lambda: group.committed() == group.end(), "all is done")
        assert group.outputs()["stuck"] == [1]


@CALLS
def test_K4_a_restart_after_a_kill_repeats_no_record_of_other_ranges(awaits: bool) -> None:
    with benches(awaits=awaits) as (stuck, group):
        host = group.host("one", threads=THREADS)
        start_stuck_call(stuck, group, host)
        others = of_other_ranges(group)
        host.kill()
        stuck.released.set()
        begun = len(stuck.begun)
        host.fuse.left, host.error = None, None
        host.start()
        host.run_task("0_0", 2)
        host.until(lambda: group.committed() == group.end(), "all is done")
        assert not set(stuck.begun[begun:]).intersection(others)
        assert group.outputs() == {f"k{n}": list(range(1, 25)) for n in range(10)} | {"stuck": [1]}


@CALLS
def test_K4_a_task_with_a_stuck_call_is_released_immediately_and_continues_elsewhere(
    awaits: bool,
) -> None:
    with benches(awaits=awaits) as (stuck, group):
        host = group.host("one", threads=THREADS)
        offset = start_stuck_call(stuck, group, host)
        others = of_other_ranges(group)
        released = host.release("0_0", 1)
        assert list(released.input.values()) == [offset]
        other = group.host("two", threads=THREADS)
        begun = len(stuck.begun)
        stuck.released.set()  # also the former owner's call, whose result is ignored
        other.run_task("0_0", 2, released)
        other.until(lambda: group.committed() == group.end(), "all is done")
        assert not set(stuck.begun[begun:]).intersection(others)
        assert group.outputs() == {f"k{n}": list(range(1, 25)) for n in range(10)} | {"stuck": [1]}


@CALLS
def test_K4_a_clean_stop_waits_for_a_stuck_call_no_longer_than_the_drain_timeout(
    awaits: bool,
) -> None:
    with benches(awaits=awaits) as (stuck, group):
        host = group.host("one", threads=THREADS)
        offset = start_stuck_call(stuck, group, host)
        host.close()
        assert host.error is None
        assert group.committed() == offset
        # A coroutine is cancelled, so its range's processor is closed, too.
        assert stuck.closed == THREADS - 1 + awaits
        stuck.released.set()
