"""Windows and stream-time schedules in threads: results of factor 1, across crashes."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.key_ranges.by_hand import begun, begun_whole, end, halves
from tests.tasks.key_ranges.programs import STRING, TEXT
from tests.tasks.loop.bench import Bench
from tests.tasks.task.outputs import collector_of
from tidewheel import (
    Processor,
    PunctuationType,
    Record,
    Serdes,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    Topology,
)
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.task.lifecycle import TaskState

WINDOWS: dict[str, Any] = {
    "tumbling": TimeWindows(10, grace=5),
    "hopping": TimeWindows(10, advance=4, grace=3),
    "sliding": SlidingWindows(6, grace=4),
    "session": SessionWindows(4, grace=3),
}

#: (key, timestamp) of a record.
Row = tuple[str, int]
#: Threads (and factor) of a life, how many records come before it, and after how many steps it crashes, if it does.
Life = tuple[int, int, int | None]

_LIVES = st.lists(
    st.tuples(st.sampled_from([1, 2, 4, 16]), st.integers(0, 40), st.none() | st.integers(0, 60)),
    min_size=1,
    max_size=4,
)


def _timed(steps: list[tuple[str, int, int]]) -> list[Row]:
    now, rows = 0, list[Row]()
    for key, ahead, behind in steps:
        now += ahead
        rows.append((key, max(now - behind, 0)))
    return rows


#: Mostly later and later; every other one is behind, some so far that they are late.
_ROWS = st.lists(
    st.tuples(st.sampled_from("abcdefghij"), st.integers(0, 4), st.just(0) | st.integers(0, 20)),
    min_size=1,
    max_size=80,
).map(_timed)


def windowed(name: str) -> Topology:
    builder = StreamsBuilder()
    cut = builder.stream("in", **TEXT).group_by_key().windowed_by(WINDOWS[name])
    counts = cut.count().to_stream(lambda key, _count: f"{key.key} {key.start} {key.end}")
    counts.to("out", key_serde=STRING, value_serde=Serdes.json())
    return builder.build()


class ReportCounts(Processor[str, str, str, str]):
    """Reports counts per key at each step of stream time."""

    keyed = True

    def init(self, context: Any) -> None:
        super().init(context)
        self._counts: dict[str, int] = {}
        context.schedule(10, PunctuationType.STREAM_TIME, self.tell)

    def process(self, record: Record[str, str]) -> None:
        self._counts[record.key] = self._counts.get(record.key, 0) + 1

    def tell(self, now_ms: int) -> None:
        for key, count in self._counts.items():
            self.context.forward(Record(key, f"{count} at {now_ms}", now_ms))


def reporting_counts() -> Topology:
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).process(ReportCounts).to("out", **TEXT)
    return builder.build()


def run(topology: Topology, rows: Sequence[Row], lives: Sequence[Life]) -> dict[Any, list[Any]]:
    bench = Bench(topology, {"in": 1, "out": 1}, commit_interval_ms=3)
    bench.idle_polls = 3
    left = list(rows)
    for threads, records, crash_after in lives:
        now, left = left[:records], left[records:]
        _send(bench, now)
        bench.live(threads=threads, crash_after=crash_after)
    _send(bench, left)
    assert bench.live(threads=lives[-1][0])
    found: dict[Any, list[Any]] = {}
    for key, value in bench.outputs("out"):
        found.setdefault(key, []).append(value)
    return found


def _send(bench: Bench, rows: Sequence[Row]) -> None:
    for key, timestamp in rows:
        bench.send("in", key, "v", timestamp=timestamp)


@pytest.mark.parametrize("name", WINDOWS)
@settings(max_examples=10, deadline=None)
@given(rows=_ROWS, lives=_LIVES)
def test_K3_K6_windows_are_exact_over_crashes_and_changes_of_the_factor(
    name: str, rows: list[Row], lives: list[Life]
) -> None:
    assert run(windowed(name), rows, lives) == run(windowed(name), rows, [(1, 80, None)])


@settings(max_examples=10, deadline=None)
@given(rows=_ROWS, threads=st.sampled_from([2, 4, 16]))
def test_K3_schedules_of_stream_time_are_called_at_the_same_times(
    rows: list[Row], threads: int
) -> None:
    assert run(reporting_counts(), rows, [(threads, 80, None)]) == run(
        reporting_counts(), rows, [(1, 80, None)]
    )


def test_K6_a_commit_while_one_range_catches_up_has_the_time_of_earlier_records() -> None:
    done, left = b"a", b"b"
    old = halves({done: 2, left: 0})
    bench = Bench(windowed("tumbling"), {"in": 1, "out": 1})
    collector = collector_of()
    assert collector.policy is not None
    task = bench.make_worker()._hooks.make_task(TaskId(0, 0), collector, collector.policy)
    task.life.cycle.move_to(TaskState.RESTORING)
    task.stores.open()
    partition = TopicPartition("in", 0)
    task.start({partition: 0}, {}, (), {partition: old})
    task.group.add(SourceRecords("in", 0, [0, 1], [left, done], [b"v", b"v"], [7, 100], None))
    task.process(1)
    assert task.operator_times_ms()[0] == 7
    task.process(1)
    assert task.operator_times_ms()[0] == 100
    end(task)


def test_K3_ranges_without_a_started_thread_commit_their_earlier_progress() -> None:
    done, partition = b"a", TopicPartition("in", 0)
    builder = StreamsBuilder()
    counts = builder.stream("in", **TEXT).group_by_key().count()
    counts.to_stream().to("out", key_serde=STRING, value_serde=Serdes.json())
    task = begun(builder.build(), {partition: halves({done: 3, b"b": 0})})
    records = SourceRecords("in", 0, [0, 1, 2], [done] * 3, [b"v"] * 3, [1, 2, 3], None)
    task.group.add(records)
    task.process(2)
    lowest = task.offset_to_commit(partition, -1)
    assert lowest == 2
    assert task.progress(partition, lowest).lowest == lowest
    end(task)


@pytest.mark.parametrize("ranges", [1, 2])
def test_a_committed_offset_past_a_control_record_never_decreases(ranges: int) -> None:
    partition = TopicPartition("in", 0)
    level = {partition: halves({b"a": 0, b"b": 0})}
    task = (
        begun_whole(reporting_counts(), level) if ranges == 1 else begun(reporting_counts(), level)
    )
    behind_the_marker = 1
    assert task.offset_to_commit(partition, behind_the_marker) == behind_the_marker
    task.group.add(SourceRecords("in", 0, [1], [b"a"], [b"v"], [1], None))
    assert task.offset_to_commit(partition, 2) == behind_the_marker
    progress = task.progress(partition, behind_the_marker)
    assert set(progress.offsets) == {behind_the_marker}
    end(task)
