"""Operators' stream times in commit metadata: late records stay late after a restart."""

import logging
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.loop.bench import APP, Bench
from tidewheel import Serdes, Topology
from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector
from tidewheel.tasks.processing.api.topology_spec import ProcessorSpec
from tidewheel.tasks.processing.engine.operator import Operator, OperatorSupplier
from tidewheel.tasks.processing.engine.operator_times import OPERATOR_TIMES_MAX, OperatorTimes
from tidewheel.tasks.processing.engine.record_batch import RecordBatch
from tidewheel.tasks.restore.start_positions import StartPosition, operator_times

STRING = Serdes.string()


class OnTime(Operator):
    """Drops records more than 10 ms late."""

    made: ClassVar[list["OnTime"]] = []

    def __init__(self) -> None:
        self.observed_ms = -1
        self.made.append(self)

    def process(self, batch: RecordBatch) -> RecordBatch:
        kept: list[int] = []
        for index, timestamp in enumerate(batch.timestamps):
            self.observed_ms = max(self.observed_ms, timestamp)
            if timestamp >= self.observed_ms - 10:
                kept.append(index)
        if len(kept) < len(batch):
            first = next(index for index in range(len(batch)) if index not in kept)
            self.context.dropped(len(batch) - len(kept), "late", batch, first)
        return batch.take(kept)

    def times(self) -> tuple[int, ...]:
        return (self.observed_ms, -1)

    def restore_times(self, times: tuple[int, ...]) -> None:
        self.observed_ms = times[0]


def late_topology() -> Topology:
    """The filter moves the operator from the first position."""
    topology = Topology().add_source("read", "in", key_serde=STRING, value_serde=STRING)
    topology.add_node(
        ProcessorSpec(name="late", supplier=OperatorSupplier(OnTime), parents=("read",))
    )
    return topology.add_sink("write", "out", "late", key_serde=STRING, value_serde=STRING)


def passed(bench: Bench) -> list[bytes | None]:
    return [value for _, value in bench.outputs("out")]


def test_a_late_record_is_late_after_a_restart() -> None:
    bench = Bench(late_topology(), {"in": 1, "out": 1})
    bench.send("in", "k", "first", timestamp=100)
    assert bench.live()
    bench.send("in", "k", "late", timestamp=89)
    bench.send("in", "k", "on time", timestamp=90)
    assert bench.live()
    assert passed(bench) == [b"first", b"on time"]
    assert OnTime.made[-1].observed_ms == 100
    (found,) = bench.broker.groups[APP].values()
    progress = Progress.decode(found.metadata, committed_offset=3)
    assert progress is not None
    assert progress.operator_times_ms == (100, -1)


@settings(max_examples=40)
@given(
    rows=st.lists(st.integers(0, 60), min_size=1, max_size=30), cut=st.integers(0, 30), crash=st.integers(0, 40)
)  # fmt: skip
def test_a_restart_at_any_record_passes_the_same_records(
    rows: list[int], cut: int, crash: int
) -> None:
    whole = Bench(late_topology(), {"in": 1, "out": 1})
    for number, timestamp in enumerate(rows):
        whole.send("in", "k", str(number), timestamp=timestamp)
    assert whole.live()
    parts = Bench(late_topology(), {"in": 1, "out": 1})
    for number, timestamp in enumerate(rows[:cut]):
        parts.send("in", "k", str(number), timestamp=timestamp)
    parts.live(crash_after=crash)
    for number, timestamp in list(enumerate(rows))[cut:]:
        parts.send("in", "k", str(number), timestamp=timestamp)
    assert parts.live()
    assert passed(parts) == passed(whole)


def test_times_of_another_topology_are_not_used(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(late_topology(), {"in": 1, "out": 1})
    bench.send("in", "k", "first", timestamp=100)
    assert bench.live()
    bench.send("in", "k", "late", timestamp=5)
    with caplog.at_level(logging.WARNING):
        assert bench.live(topology_hash=b"changed!")
    assert passed(bench) == [b"first", b"late"]
    assert "in-0 was committed by another version of the topology" in caplog.text


def test_metadata_of_other_programs_is_not_used() -> None:
    bench = Bench(late_topology(), {"in": 1, "out": 1})
    bench.send("in", "k", "first", timestamp=100)
    assert bench.live()
    bench.broker.groups[APP][TopicPartition("in", 0)] = CommittedOffset(0, "set by hand")
    bench.send("in", "k", "late", timestamp=5)
    assert bench.live(accept_offsets=True)
    assert passed(bench) == [b"first", b"first"]


# -- what is found in the metadata -------------------------------------------------------------------------------------


def start(*times: int, topology_hash: bytes = bytes(8)) -> StartPosition:
    progress = Progress(
        task_epoch=0,
        transactional_id="app-fixed-0",
        topic_id=bytes(16),
        topology_hash=topology_hash,
        vector=Vector.at(1),
        operator_times_ms=times,
    )
    return StartPosition(offset=1, progress=progress)


A, B = TopicPartition("a", 0), TopicPartition("b", 0)


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        ({}, ()),
        ({A: StartPosition(offset=0)}, ()),
        ({A: start(5, 9)}, (5, 9)),
        ({A: start(5, 9), B: start(7, 3)}, (7, 9)),
        ({A: start(5, 9), B: StartPosition(offset=0)}, (5, 9)),
        ({A: start(5, 9), B: start()}, (5, 9)),
        ({A: start(5, 9), B: start(7)}, ()),
        ({A: start(5, 9), B: start(70, 90, topology_hash=b"changed!")}, (5, 9)),
    ],
)
def test_the_later_time_of_each_operator_counts(
    starts: dict[TopicPartition, StartPosition], expected: tuple[int, ...]
) -> None:
    assert operator_times(starts, bytes(8)) == expected


class Keeper:
    def __init__(self, *times: int) -> None:
        self.kept = times

    def times(self) -> tuple[int, ...]:
        return self.kept

    def restore_times(self, times: tuple[int, ...]) -> None:
        assert len(times) == len(self.kept)
        self.kept = times


def test_each_operator_gets_its_times_back() -> None:
    before = {"a": Keeper(1), "b": Keeper(), "c": Keeper(2, 3)}
    times = OperatorTimes(before).collect()
    assert times == (1, 2, 3)
    after: dict[str, Any] = {"a": Keeper(-1), "b": Keeper(), "c": Keeper(-1, -1)}
    OperatorTimes(after).restore(times, "0_1")
    assert [keeper.kept for keeper in after.values()] == [(1,), (), (2, 3)]


def test_another_number_of_times_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    keeper = Keeper(-1, -1)
    OperatorTimes({"a": keeper}).restore((4,), "0_1")
    assert keeper.kept == (-1, -1)
    assert "task 0_1 has 2 stream times of operators, but 1 were committed" in caplog.text


def test_times_beyond_the_maximum_restart(caplog: pytest.LogCaptureFixture) -> None:
    before = {str(number): Keeper(number, number) for number in range(20)}
    times = OperatorTimes(before).collect()
    assert len(times) == OPERATOR_TIMES_MAX
    after = {str(number): Keeper(-1, -1) for number in range(20)}
    OperatorTimes(after).restore(times, "0_1")
    assert [keeper.kept[0] for keeper in after.values()] == [*range(16), -1, -1, -1, -1]
    assert "those from 16 on restart" in caplog.text
