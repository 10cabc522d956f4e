"""Repartitioning waits for a moment with little work, and delays no range (K2, K4)."""

import threading
import time
import zlib
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.key_ranges.programs import TEXT
from tests.tasks.loop.group_bench import GroupBench, Host
from tidewheel import Processor, Record, StreamsBuilder, Topology
from tidewheel.tasks.key_ranges.key_ranges import KeyRanges
from tidewheel.tasks.key_ranges.repartitioning import Repartitioning
from tidewheel.tasks.task.parallel_task import ParallelTask

CUT: Final = KeyRanges((0, 5))
SHORT: Final = [(3, 0.001), (0, 0.5), (1, 9.0)]
LONG: Final = [(3, 0.001), (100, 0.01)]


def _requested() -> Repartitioning:
    repartitioning = Repartitioning()
    repartitioning.request(CUT)
    return repartitioning


def test_K4_no_records_are_held_while_a_queue_is_long() -> None:
    repartitioning = _requested()
    for second in range(100):
        assert not repartitioning.is_due(LONG, quiet=False, now_s=float(second))
        assert not repartitioning.is_paused


def test_K2_short_queues_are_drained_and_then_cut() -> None:
    repartitioning = _requested()
    assert not repartitioning.is_due(SHORT, quiet=False, now_s=1.0)
    assert repartitioning.is_paused
    assert repartitioning.is_due([(0, 0.0)], quiet=True, now_s=1.1)
    assert repartitioning.pop() == CUT
    assert not repartitioning.is_paused
    assert not repartitioning.is_due([(0, 0.0)], quiet=True, now_s=1.2)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 500).map(lambda ms: ms / 1000), min_size=50, max_size=200))
def test_K4_queues_that_do_not_drain_are_held_only_briefly(
    steps: list[float],
) -> None:
    repartitioning, now_s, held_s, tries = _requested(), 0.0, 0.0, 0
    for step_s in steps:
        before = repartitioning.is_paused
        assert not repartitioning.is_due(SHORT, quiet=False, now_s=now_s)
        tries += repartitioning.is_paused and not before
        now_s += step_s
        held_s += step_s if repartitioning.is_paused else 0.0
    assert tries
    assert held_s <= 1.0 + now_s / 10 + 0.5 * tries


def test_K2_full_queues_shrink_while_records_are_processed() -> None:
    repartitioning, waiting, given_rows = _requested(), 1_000, 0

    def full() -> bool:
        return repartitioning.is_full([(waiting, 0.001)], waiting, waiting / 1_000, 2)

    for _ in range(2_000):
        waiting -= 10  # one slow row, and the fast ones with it
        while not full():
            rows = repartitioning.rows_max(500, waiting, 2)
            waiting += rows
            given_rows += rows
            repartitioning.record_rows(rows, waiting, full=full())
        if waiting <= 50:
            break
    assert waiting <= 50
    assert given_rows >= 1_000
    repartitioning.request(None)
    assert not repartitioning.is_full(LONG, 999, 0.999, 2)


@pytest.mark.parametrize("row_ms", [1, 5, 30, 100])
def test_K2_full_queues_shrink_with_one_slow_queue(
    row_ms: int,
) -> None:
    repartitioning, slow, now_ms = _requested(), 800, 0

    def backlogs() -> list[tuple[int, float]]:
        return [(slow, row_ms / 1_000), *[(0, 0.001)] * 7]

    def full() -> bool:
        return repartitioning.is_paused or repartitioning.is_full(backlogs(), slow, slow / 800, 8)

    while not repartitioning.is_paused:
        slow, now_ms = slow - 1, now_ms + row_ms
        assert now_ms < 2_000 * row_ms, f"{slow} rows wait, and the cut is never due"
        assert not repartitioning.is_due(backlogs(), quiet=False, now_s=now_ms / 1_000)
        while not full():
            rows = repartitioning.rows_max(100, slow, 8)
            slow += rows // 4
            repartitioning.record_rows(rows, slow, full=full())


class Hot:
    """One key that the test makes slow, among fast keys."""

    def __init__(self, slow_s: float) -> None:
        self.slow_s = slow_s
        self.done = 0
        self.over = threading.Event()

    def program(self) -> Topology:
        hot = self

        class Work(Processor[str, str, str, str]):
            keyed = True

            def process(self, record: Record[str, str]) -> None:
                if record.key != "hot":
                    hot.done += 1
                elif not hot.over.is_set():
                    time.sleep(hot.slow_s)
                self.context.forward(record)

        builder = StreamsBuilder()
        builder.stream("in", **TEXT).process(Work).to("out", **TEXT)
        return builder.build()


def _task(host: Host) -> Any:
    task = next(iter(host.worker.tasks.values()))
    assert isinstance(task, ParallelTask)
    return task


def test_K4_other_ranges_continue_while_a_cut_waits_for_a_slow_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidewheel.tasks.task.range_placement._PLACE_INTERVAL_S", 0.05)
    hot = Hot(0.01)
    with GroupBench(hot.program(), {"in": 1, "out": 1}) as group:
        host = group.host("one", threads=4)
        host.run_task("0_0", 1)
        host.until(lambda: len(_task(host).ranges) == 4, "it is cut")
        for _ in range(2_000):
            group.send("hot")
        host.until(
            lambda: _task(host)._repartitioning.requested is not None, "another cut is wished for"
        )
        ranges = list(_task(host).ranges)
        first_hashes = [each.setting.first_hash for each in ranges]
        keys = [f"k{number}" for number in range(100)]
        mine = _index(first_hashes, "hot")
        others = [key for key in keys if _index(first_hashes, key) != mine]
        assert len(others) >= 50
        for _ in range(5):
            _do(hot, group, host, others)
        assert _task(host)._repartitioning.requested is not None
        assert list(_task(host).ranges) == ranges
        assert ranges[mine].rows_done < 1_500
        hot.over.set()
        host.until(lambda: _task(host).ranges != ranges, "it is cut when queues are short")
        host.until(lambda: group.committed() == group.end(), "all is done")
        assert len(group.broker.records("out")) == group.end()


def _do(hot: Hot, group: GroupBench, host: Host, keys: list[str]) -> None:
    done = hot.done + len(keys)
    for key in keys:
        group.send(key)
    host.until(lambda: hot.done == done, "they are done")


def _index(first_hashes: list[int], key: str) -> int:
    return sum(first <= zlib.crc32(key.encode()) for first in first_hashes) - 1


@pytest.mark.slow
def test_K2_full_ranges_of_a_slow_key_are_cut_again_without_a_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidewheel.tasks.task.range_placement._PLACE_INTERVAL_S", 0.05)
    hot = Hot(0.002)
    with GroupBench(
        hot.program(), {"in": 1, "out": 1}, buffered_records_per_partition=200
    ) as group:
        host = group.host("one", threads=4)
        host.run_task("0_0", 1)
        host.until(lambda: len(_task(host).ranges) == 4, "it is cut")
        for number in range(4_000):
            group.send("hot" if number % 4 else f"k{number % 100}")
        ranges = list(_task(host).ranges)
        host.until(lambda: _task(host).ranges != ranges, "it is cut")
        assert group.committed() < group.end()
        hot.over.set()
        host.until(lambda: group.committed() == group.end(), "all is done")
        assert len(group.broker.records("out")) == group.end()
