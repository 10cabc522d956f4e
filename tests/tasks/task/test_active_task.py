"""Active task: inputs, progress, and closing after errors."""

import re
from typing import Any

import pytest

from tests.tasks.loop.bench import Bench
from tests.tasks.task.outputs import collector_of
from tidewheel import Processor, RecordFailedError, Serdes, Stores, Topology
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.tasks.task.lifecycle import TaskState
from tidewheel.tasks.task.task import Task

STRING = Serdes.string()


class Sometimes(Processor[Any, Any, Any, Any]):
    """Fails or requests a commit on request; always fails to close."""

    def process(self, record: Any) -> None:
        if record.value == "boom":
            raise ValueError("as told")
        if record.value == "commit":
            self.context.commit()

    def close(self) -> None:
        raise OSError("can't close")


def topology() -> Topology:
    return (
        Topology()
        .add_source("read", ["big", "small"], key_serde=STRING, value_serde=STRING)
        .add_processor("work", Sometimes, "read")
        .add_state_store(Stores.key_value("store", key_serde=STRING, value_serde=STRING), "work")
    )


def task_of(partition: int, *, started: bool = True, built: Topology | None = None) -> Task:
    bench = Bench(built or topology(), {"big": 3, "small": 2})
    collector = collector_of()
    assert collector.policy is not None
    task = bench.make_worker()._hooks.make_task(TaskId(0, partition), collector, collector.policy)
    if started:
        task.life.cycle.move_to(TaskState.RESTORING)
        task.stores.open()
        task.start(dict.fromkeys(task.inputs, 0), {})
    return task


def fill(task: Task, *values: str, topic: str = "big", times: list[int] | None = None) -> None:
    from tidewheel.tasks.processing.engine.record_batch import SourceRecords  # noqa: PLC0415 - one helper needs it

    count = len(values)
    task.group.add(
        SourceRecords(
            topic,
            task.task_id.partition,
            range(10, 10 + count),
            [None] * count,
            [v.encode() for v in values],
            times or list(range(count)),
            None,
        )
    )


def test_a_task_reads_its_partition_of_every_topic_that_has_it() -> None:
    assert task_of(1).inputs == {TopicPartition("big", 1), TopicPartition("small", 1)}
    assert task_of(2).inputs == {TopicPartition("big", 2)}


def test_progress_is_the_next_record_to_process() -> None:
    task = task_of(0)
    big, small = TopicPartition("big", 0), TopicPartition("small", 0)
    fill(task, "1", "2", "3", times=[5, 9, 7])
    fill(task, "4", topic="small", times=[20])
    assert task.next_offsets == {big: 0, small: 0}
    while task.process(2):
        pass
    assert task.next_offsets == {big: 13, small: 11}
    assert task.partition_times_ms == {big: 9, small: 20}
    assert task.stream_time_ms == 20
    assert task.figures.metrics()["process-total"] == 4


def test_a_requested_commit_ends_the_run() -> None:
    task = task_of(0)
    fill(task, "1", "commit", "3", "4")
    assert task.process(10) == 2
    assert task.commit_requested
    assert task.next_offsets[TopicPartition("big", 0)] == 12
    assert task.group.records == 2
    task.commit_requested = False
    assert task.process(10) == 2
    assert task.next_offsets[TopicPartition("big", 0)] == 14


def test_a_failed_record_is_not_passed() -> None:
    task = task_of(0)
    fill(task, "1", "boom", "3")
    with pytest.raises(RecordFailedError, match="big-0 offset 11"):
        task.process(10)
    assert task.next_offsets[TopicPartition("big", 0)] == 11


def test_a_restarted_task_has_its_times() -> None:
    task = task_of(0, started=False)
    task.life.cycle.move_to(TaskState.RESTORING)
    task.stores.open()
    task.start(dict.fromkeys(task.inputs, 5), {TopicPartition("big", 0): 70})
    assert task.stream_time_ms == 70
    assert task.partition_times_ms == {TopicPartition("big", 0): 70, TopicPartition("small", 0): -1}


def test_every_input_needs_a_start() -> None:
    task = task_of(0, started=False)
    task.life.cycle.move_to(TaskState.RESTORING)
    task.stores.open()
    with pytest.raises(AssertionError, match="every input has an offset"):
        task.start({TopicPartition("big", 0): 0}, {})


def test_a_running_task_is_closed_with_its_stores() -> None:
    task = task_of(0)
    with pytest.raises(OSError, match="can't close"):
        task.life.close()
    assert task.life.cycle.state is TaskState.CLOSED
    assert task.stores.stores == {}
    task.life.close()


@pytest.mark.parametrize("state", [TaskState.CREATED, TaskState.RESTORING, TaskState.SUSPENDED])
def test_a_task_that_never_ran_is_closed_too(state: TaskState) -> None:
    task = task_of(0, started=False)
    if state is not TaskState.CREATED:
        task.life.cycle.move_to(TaskState.RESTORING)
        task.stores.open()
    if state is TaskState.SUSPENDED:
        task.life.cycle.move_to(TaskState.SUSPENDED)
    task.life.close()
    assert task.life.cycle.state is TaskState.CLOSED


def test_a_processor_whose_constructor_fails_is_made_once() -> None:
    made = list[None]()

    class Unmade(Processor[Any, Any, Any, Any]):
        def __init__(self) -> None:
            made.append(None)
            raise OSError("no page")

        def process(self, record: Any) -> None: ...

    read = Topology().add_source("read", ["big"], key_serde=STRING, value_serde=STRING)
    task = task_of(0, started=False, built=read.add_processor("work", Unmade, "read"))
    task.life.cycle.move_to(TaskState.RESTORING)
    task.stores.open()
    with pytest.raises(OSError, match="no page"):
        task.start(dict.fromkeys(task.inputs, 0), {})
    task.life.close()
    assert len(made) == 1


def test_topics_of_a_pattern_may_appear_later() -> None:
    built = Topology().add_source(
        "read", re.compile("big|late.*"), key_serde=STRING, value_serde=STRING
    )
    built.add_processor("work", Sometimes, "read")
    task = task_of(0, built=built)
    late = TopicPartition("late-1", 0)
    task.life.inputs.add(late, task.plan.spec.sources[0])
    fill(task, "1", topic="late-1", times=[3])
    assert task.process(5) == 1
    assert (task.next_offsets[late], task.partition_times_ms[late]) == (11, 3)
