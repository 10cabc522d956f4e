"""Partition group: loses nothing; the lowest head timestamp is first, for all run lengths."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.processing.engine.java_queue import JavaQueue
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.task.partition_group import PartitionGroup

PARTITIONS = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
RANKS = [{"a": 0, "b": 0}, {"a": 1, "b": 0}]
TIMES = st.lists(st.integers(0, 6), min_size=1, max_size=12)


def run_of(partition: TopicPartition, first: int, times: list[int]) -> SourceRecords:
    """Return records with values of partition and offset."""
    offsets = range(first, first + len(times))
    return SourceRecords(
        partition.topic,
        partition.partition,
        offsets,
        [None if offset % 3 == 0 else b"key" for offset in offsets],
        [f"{partition}@{offset}".encode() for offset in offsets],
        times,
        [(("n", b"%d" % offset),) for offset in offsets] if first % 2 else None,
    )


Row = tuple[str, int, int, bytes | None]


def rows(chunk: SourceRecords) -> list[Row]:
    return [
        (chunk.topic, chunk.partition, offset, value)
        for offset, value in zip(chunk.offsets, chunk.raw_values, strict=True)
    ]


def filled(inputs: list[list[list[int]]], ranks: Mapping[str, int] = RANKS[0]) -> PartitionGroup:
    """Return a group with runs of these timestamps, by partition."""
    group = PartitionGroup(PARTITIONS[: len(inputs)])
    group.rank_topics(ranks)
    for partition, runs in zip(PARTITIONS, inputs, strict=False):
        first = 0
        for times in runs:
            group.add(run_of(partition, first, times))
            first += len(times)
    return group


def record_by_record(
    inputs: list[list[list[int]]], ranks: Mapping[str, int] = RANKS[0]
) -> list[Row]:
    """Return the order of single records: the lowest (head timestamp, rank, partition) first."""
    queues = {
        partition: [
            (time, offset) for offset, time in enumerate(time for times in runs for time in times)
        ]
        for partition, runs in zip(PARTITIONS, inputs, strict=False)
    }
    left: list[Row] = []
    while any(queues.values()):
        partition = min(
            (queue[0][0], ranks[partition.topic], partition)
            for partition, queue in queues.items()
            if queue
        )[2]
        _, offset = queues[partition].pop(0)
        left.append((*partition, offset, f"{partition}@{offset}".encode()))
    return left


INPUTS = st.lists(st.lists(TIMES, max_size=3), min_size=1, max_size=3)


@given(
    inputs=INPUTS,
    ranks=st.sampled_from(RANKS),
    limits=st.lists(st.integers(1, 15), min_size=1),
    put_back=st.booleans(),
)
def test_runs_are_the_order_of_single_records(
    inputs: list[list[list[int]]], ranks: dict[str, int], limits: list[int], *, put_back: bool
) -> None:
    group = filled(inputs, ranks)
    left: list[Row] = []
    turn = 0
    while (chunk := group.pop(limits[turn % len(limits)])) is not None:
        assert 1 <= len(chunk) <= limits[turn % len(limits)]
        turn += 1
        if put_back and len(chunk) > 1:
            group.put_back(chunk.slice(1, len(chunk)))
            chunk = chunk.slice(0, 1)
        left += rows(chunk)
    assert left == record_by_record(inputs, ranks)
    assert group.records == 0


@given(
    inputs=INPUTS,
    ranks=st.sampled_from(RANKS),
    limits=st.lists(st.integers(1, 15), min_size=1),
)
def test_pop_joint_returns_the_order_of_single_records(
    inputs: list[list[list[int]]], ranks: dict[str, int], limits: list[int]
) -> None:
    group = filled(inputs, ranks)
    left: list[Row] = []
    turn = 0
    while taken := group.pop_joint(limits[turn % len(limits)]):
        placed = [
            (place, row)
            for chunk, places in taken
            for place, row in zip(places, rows(chunk), strict=True)
        ]
        assert 1 <= len(placed) <= limits[turn % len(limits)]
        assert sorted(place for place, _ in placed) == list(range(len(placed)))
        left += [row for _, row in sorted(placed)]
        turn += 1
    assert left == record_by_record(inputs, ranks)
    assert group.records == 0


@given(
    inputs=st.lists(st.lists(st.integers(0, 6), max_size=40), min_size=1, max_size=3),
    limit=st.integers(1, 40),
)
def test_short_runs_that_other_inputs_end_are_interleaved(
    inputs: list[list[int]], limit: int
) -> None:
    group = filled([[times] for times in inputs if times])
    while group.records:
        is_interleaved = group.is_interleaved(limit)
        before = {partition: buffer.records for partition, buffer in group.buffers.items()}
        run = group.pop(limit)
        assert run is not None
        full = min(limit, before[TopicPartition(run.topic, run.partition)])
        assert is_interleaved == (len(run) < min(full, 25))


class GroupMachine(RuleBasedStateMachine):
    """Compares a group with plain queues."""

    @initialize(count=st.integers(1, 3))
    def open(self, count: int) -> None:
        self.group = PartitionGroup(PARTITIONS[:count])
        self.queues: dict[TopicPartition, list[tuple[int, Row]]] = {
            partition: [] for partition in PARTITIONS[:count]
        }
        self.next = dict.fromkeys(self.queues, 0)
        self.stops: dict[TopicPartition, int] = {}

    def open_records(self, partition: TopicPartition) -> list[tuple[int, Row]]:
        stop = self.stops.get(partition, 1 << 60)
        return [entry for entry in self.queues[partition] if entry[1][2] < stop]

    @rule(which=st.integers(0, 2), ahead=st.none() | st.integers(0, 9))
    def close(self, which: int, ahead: int | None) -> None:
        partition = PARTITIONS[which % len(self.queues)]
        queue = self.queues[partition]
        head = queue[0][1][2] if queue else self.next[partition]
        stop = None if ahead is None else head + ahead
        self.group.buffers[partition].close(stop, self.next[partition])
        self.stops[partition] = head if stop is None else stop

    @precondition(lambda self: self.stops)
    @rule()
    def reopen(self) -> None:
        partition, _ = self.stops.popitem()
        self.group.buffers[partition].open()

    @rule(which=st.integers(0, 2), times=TIMES)
    def add(self, which: int, times: list[int]) -> None:
        partition = PARTITIONS[which % len(self.queues)]
        chunk = run_of(partition, self.next[partition], times)
        self.next[partition] += len(times)
        self.group.add(chunk)
        self.queues[partition] += zip(times, rows(chunk), strict=True)

    @precondition(lambda self: len(self.queues) < len(PARTITIONS))
    @rule()
    def add_partition(self) -> None:
        partition = PARTITIONS[len(self.queues)]
        self.group.add_partition(partition)
        self.queues[partition] = []
        self.next[partition] = 0

    @rule(limit=st.integers(1, 20), kept=st.integers(0, 20))
    def take(self, limit: int, kept: int) -> None:
        chunk = self.group.pop(limit)
        if chunk is None:
            assert not any(map(self.open_records, self.queues))
            return
        partition = TopicPartition(chunk.topic, chunk.partition)
        queue = self.queues[partition]
        assert (queue[0][0], partition) == min(
            (other[0][0], name) for name in self.queues if (other := self.open_records(name))
        )
        assert rows(chunk) == [row for _, row in queue[: len(chunk)]]
        done = min(kept, len(chunk))
        if done < len(chunk):
            self.group.put_back(chunk.slice(done, len(chunk)))
        del queue[:done]

    @invariant()
    def counts_buffered_records(self) -> None:
        if not hasattr(self, "group"):
            return
        assert self.group.records == sum(len(self.open_records(each)) for each in self.queues)
        for partition, every in self.queues.items():
            buffer, queue = self.group.buffers[partition], self.open_records(partition)
            assert buffer.waiting_records == len(every) - len(queue)
            assert (buffer.waiting_bytes > 0) == (buffer.waiting_records > 0)
            stop = self.stops.get(partition)
            assert buffer.stop == stop
            assert not buffer.is_ended or (stop is not None and self.next[partition] >= stop)
            assert buffer.records == len(queue)
            assert buffer.head_timestamp() == (queue[0][0] if queue else None)
            payload = sum(len(row[3] or b"") for _, row in queue)
            assert buffer.bytes >= payload if queue else buffer.bytes == 0


TestGroupMachine = pytest.mark.slow(GroupMachine.TestCase)
TestGroupMachine.settings = settings(max_examples=50, stateful_step_count=30)


def test_memory_of_a_run_counts_until_its_last_record_left() -> None:
    group = filled([[[1, 2, 3]]])
    full = group.buffers[PARTITIONS[0]].bytes
    assert full > sum(map(len, (b"a-0@0", b"a-0@1", b"a-0@2")))
    group.pop(2)
    assert group.buffers[PARTITIONS[0]].bytes == full
    group.pop(2)
    assert group.buffers[PARTITIONS[0]].bytes == 0


def test_headers_travel_with_their_records() -> None:
    group = PartitionGroup(PARTITIONS[:1])
    group.add(run_of(PARTITIONS[0], 1, [5, 6, 7]))
    first, rest = group.pop(1), group.pop(9)
    assert first is not None
    assert rest is not None
    assert first.headers == [(("n", b"1"),)]
    assert rest.headers == [(("n", b"2"),), (("n", b"3"),)]


def test_an_empty_group_returns_no_records() -> None:
    assert PartitionGroup(PARTITIONS).pop(10) is None
    assert PartitionGroup([]).pop(10) is None


# -- ties of the test driver -------------------------------------------------------------------------------------------


def test_a_queue_orders_equal_entries_as_in_java() -> None:
    queue: JavaQueue[str] = JavaQueue(len)
    for name in ("a", "b", "c", "dd", "e"):
        queue.offer(name)
    assert [queue.poll() for _ in range(len(queue))] == ["a", "e", "b", "c", "dd"]


def test_a_closed_input_does_not_keep_the_others_waiting() -> None:
    first, second = PARTITIONS[:2]
    group = PartitionGroup([first, second], max_task_idle_ms=1_000)
    group.add(run_of(first, 0, [5, 6]))
    assert group.waits
    assert not group.ready(0), "the second input may have earlier records"
    group.buffers[second].close(3, position=1)
    assert not group.ready(0), "records below 3 may come"
    group.add(run_of(second, 3, [1]))
    assert group.ready(0)
    assert not group.waits
    group.buffers[second].open()
    assert rows(group.pop(9) or run_of(first, 0, [])) == rows(run_of(second, 3, [1]))
