"""Inputs are merged by extracted timestamps, as in Kafka Streams' RecordQueue and PartitionGroup."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.tasks.loop.bench import Bench
from tests.tasks.task.outputs import collector_of
from tidewheel import ErrorResponse, RecordFailedError, Serdes, Topology
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.tasks.processing.api.topology_spec import ProcessorSpec
from tidewheel.tasks.processing.engine.operator import Operator, OperatorSupplier
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, SourceRecords
from tidewheel.tasks.task.active_task import ActiveTask
from tidewheel.tasks.task.lifecycle import TaskState

INT = Serdes.int64()
INPUTS = [TopicPartition(topic, 0) for topic in ("a", "b", "c")]

#: Records: an extracted time; -2 is later than all before; "bad" does not decode; "boom" fails the
#: extractor.
BAD = b"not eight bytes"
ReportContext = int | str
LATEST = 50

Event = tuple[str, str, int, int]


class Stage:
    def __init__(self, topics: int, *, record_by_record: bool, plain: str | None = None) -> None:
        self.events: list[Event] = []
        self.extracted: Counter[tuple[str, int]] = Counter()
        stage = self

        class Note(Operator):
            def process(self, batch: RecordBatch) -> None:
                assert batch.source is not None
                for index, timestamp in enumerate(batch.timestamps):
                    place = batch.source.metadata(batch.rows[index])
                    stage.events.append(("done", place.topic, place.offset, timestamp))

        topology = Topology()
        names = [each.topic for each in INPUTS[:topics]]
        for name in names:
            topology.add_source(
                f"read-{name}",
                name,
                key_serde=INT,
                value_serde=INT,
                timestamp_extractor=None if name == plain else self._extract,
            )
        topology.add_node(
            ProcessorSpec(
                name="note",
                supplier=OperatorSupplier(Note),
                parents=tuple(f"read-{name}" for name in names),
            )
        )
        bench = Bench(
            topology,
            dict.fromkeys(names, 1),
            deserialization_exception_handler=self._on_bad,
            max_task_idle_ms=-1,
        )
        collector = collector_of(bench.make_worker()._settings.handlers)
        assert collector.policy is not None
        worker = bench.make_worker()
        task = worker._hooks.make_task(TaskId(0, 0), collector, collector.policy)
        assert isinstance(task, ActiveTask)
        self.task = task
        self.task.life.cycle.move_to(TaskState.RESTORING)
        self.task.processing.graph.batched = not record_by_record
        self.task.start(dict.fromkeys(self.task.inputs, 0), {})

    def _extract(self, record: Any, partition_time: int) -> int:
        self.extracted[record.topic, record.offset] += 1
        if record.value == 99:
            raise ValueError("boom")
        return partition_time + 3 if record.value == LATEST else int(record.value)

    def _on_bad(self, context: Any, _record: Any, _error: Exception) -> ErrorResponse:
        self.events.append(("bad", context.topic, context.offset, -1))
        return ErrorResponse(action="continue")

    def add(self, partition: TopicPartition, first: int, says: list[ReportContext]) -> None:
        self.task.group.add(
            SourceRecords(
                partition.topic,
                0,
                range(first, first + len(says)),
                [None] * len(says),
                [BAD if say == "bad" else INT.serialize("t", 99 if say == "boom" else int(say)) for say in says],
                [1_000 - number for number in range(len(says))],
                None,
            )
        )  # fmt: skip


class Queue:
    """Kafka Streams' RecordQueue for one input: its head is known, what fails in front of it is skipped at once."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.says: list[tuple[int, ReportContext]] = []
        self.time = -1
        self.next = 0

    def head(self, skipped: list[Event]) -> int | None:
        while self.says:
            offset, say = self.says[0]
            if say == "bad":
                skipped.append(("bad", self.topic, offset, -1))
            elif (time := self.time + 3 if say == LATEST else int(say)) >= 0:
                return time
            self.says.pop(0)
        return None


SAYS = st.lists(
    st.one_of(st.integers(-2, 8), st.just(LATEST), st.just("bad")), min_size=1, max_size=12
)


@settings(max_examples=150)
@given(
    steps=st.lists(st.tuples(st.integers(0, 2), SAYS), min_size=1, max_size=8),
    topics=st.integers(1, 3),
    limits=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    record_by_record=st.booleans(),
    eager=st.booleans(),
)
def test_inputs_are_merged_as_by_single_records(
    steps: list[tuple[int, list[ReportContext]]],
    topics: int,
    limits: list[int],
    *,
    record_by_record: bool,
    eager: bool,
) -> None:
    stage = Stage(topics, record_by_record=record_by_record)
    queues = [Queue(each.topic) for each in INPUTS[:topics]]
    expected: list[Event] = []
    skipped: list[Event] = []
    turn = 0
    all_steps: list[tuple[int, list[ReportContext]]] = [*steps, (0, [0])]
    for which, says in all_steps:
        queue = queues[which % topics]
        stage.add(INPUTS[which % topics], queue.next, says)
        queue.says += enumerate(says, queue.next)
        queue.next += len(says)
        last = turn == len(steps)
        turn += 1
        if not (eager or last):
            continue
        while stage.task.process(limits[turn % len(limits)]):
            turn += last
        while heads := [
            (time, each.topic, each) for each in queues if (time := each.head(skipped)) is not None
        ]:
            time, topic, queue = min(heads, key=lambda head: head[:2])
            offset, _ = queue.says.pop(0)
            queue.time = max(queue.time, time)
            expected.append(("done", topic, offset, time))
    event(f"{topics} inputs")
    assert [each for each in stage.events if each[0] == "done"] == expected
    for queue in queues if topics > 1 else ():
        mine = [each for each in stage.events if each[1] == queue.topic]
        assert mine == sorted(
            (each for each in expected + skipped if each[1] == queue.topic),
            key=lambda each: each[2],
        )
        assert stage.task.next_offsets[TopicPartition(queue.topic, 0)] == queue.next
    assert set(stage.extracted.values()) <= {1}
    assert stage.task.counters.skipped == len(skipped)
    total = sum(queue.next for queue in queues)
    assert stage.task.counters.dropped == total - len(expected) - len(skipped)
    assert stage.task.group.records == 0
    assert all(buffer.bytes == 0 for buffer in stage.task.group.buffers.values())


def test_an_input_without_an_extractor_uses_its_record_timestamps() -> None:
    stage = Stage(2, record_by_record=False, plain="a")
    stage.add(INPUTS[0], 0, [0, 0])
    stage.add(INPUTS[1], 0, [30, 45, 7])
    while stage.task.process(10):
        pass
    assert [(topic, time) for _, topic, _, time in stage.events] == [
        ("b", 30), ("b", 45), ("b", 7), ("a", 1_000), ("a", 999),
    ]  # fmt: skip
    assert stage.extracted.keys() == {("b", 0), ("b", 1), ("b", 2)}


def test_inputs_are_merged_in_long_runs() -> None:
    stage = Stage(2, record_by_record=False)
    stage.add(INPUTS[0], 0, [1, 2, 2, 3, 9, 9])
    stage.add(INPUTS[1], 0, [3, 4, 5])
    lengths: list[int] = []
    while done := stage.task.process(100):
        lengths.append(done)
    assert lengths == [4, 3, 2]


def test_an_extractor_that_fails_stops_the_worker_at_its_record() -> None:
    stage = Stage(2, record_by_record=False)
    stage.add(INPUTS[0], 0, [1, 2, "boom", 3])
    stage.add(INPUTS[1], 0, [5])
    assert stage.task.process(100) == 2
    with pytest.raises(RecordFailedError, match=r"extractor of read-a failed on a-0 at offset 2"):
        stage.task.process(100)
    assert [(topic, offset) for _, topic, offset, _ in stage.events] == [("a", 0), ("a", 1)]
    assert ("a", 3) not in stage.extracted


def test_a_single_input_is_not_decoded_ahead() -> None:
    stage = Stage(1, record_by_record=True)
    stage.add(INPUTS[0], 0, [1, 2, 3])
    late = iter([True])
    assert stage.task.process(100, lambda: next(late)) == 1
    assert stage.extracted == {("a", 0): 1}


def test_records_decoded_ahead_are_not_decoded_again_after_a_pause() -> None:
    stage = Stage(2, record_by_record=True)
    stage.add(INPUTS[0], 0, [1, 2, 3, 4])
    stage.add(INPUTS[1], 0, [9])
    while stage.task.process(100, lambda: True):
        pass
    assert [offset for _, topic, offset, _ in stage.events if topic == "a"] == [0, 1, 2, 3]
    assert set(stage.extracted.values()) == {1}
