"""Worker input: partitions with many records do not keep others waiting."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

from tidewheel.rebalance.model import Shard, ShardInput, TopicPartition
from tidewheel.rebalance.protocol.rest import Rest
from tidewheel.tasks.key_ranges.key_ranges import shard_of
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.task.partition_group import PartitionGroup
from tidewheel.tasks.task.worker_input import WorkerInput

HOT, QUIET = TopicPartition("in", 0), TopicPartition("in", 1)
_POLL: Final = 100


def _records(partition: TopicPartition, count: int) -> SourceRecords:
    values = [b"v"] * count
    return SourceRecords(
        topic=partition.topic,
        partition=partition.partition,
        offsets=list(range(count)),
        timestamps=[0] * count,
        raw_keys=list(values),
        raw_values=list(values),
        headers=None,
    )


class Source:
    """A client with one queue for all partitions; records of paused partitions stay at the broker."""

    def __init__(self, *queue: SourceRecords) -> None:
        self.queue = list(queue)
        self.paused: set[TopicPartition] = set()
        self.events: list[tuple[str, list[TopicPartition]]] = []

    def assign(self, positions: object) -> None: ...

    def add(self, positions: object) -> None: ...

    def remove(self, partitions: Sequence[TopicPartition]) -> None: ...

    def positions(self) -> dict[TopicPartition, int]:
        return {}

    def poll(self, max_records: int, timeout_s: float) -> list[SourceRecords]:
        del max_records, timeout_s
        for index, chunk in enumerate(self.queue):
            if TopicPartition(chunk.topic, chunk.partition) not in self.paused:
                return [self.queue.pop(index)]
        return []

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self.paused.update(partitions)
        self.events.append(("pause", list(partitions)))

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self.paused.difference_update(partitions)
        self.events.append(("resume", list(partitions)))


class Stage:
    def __init__(self, *queue: SourceRecords) -> None:
        self.now_s = 100.0
        self.source = Source(*queue)
        settings: Any = SimpleNamespace(
            max_poll_records=_POLL,
            buffered_bytes_per_partition=1 << 20,
            buffered_records_per_partition=100_000,
        )
        clock: Any = SimpleNamespace(monotonic_s=lambda: self.now_s)
        source: Any = self.source
        self.input = WorkerInput(source, settings, clock, gathers=False)
        self.tasks: dict[TopicPartition, Any] = {
            each: SimpleNamespace(inputs={each}, group=PartitionGroup([each]), is_dealt=False)
            for each in (HOT, QUIET)
        }
        for each, task in self.tasks.items():
            self.input.add(task, {each: 0})

    def fetch(self) -> int:
        return self.input.fetch(self.tasks.values(), lambda: 0.0)

    def process(self, partition: TopicPartition, records: int) -> None:
        self.tasks[partition].group.pop(records)


def test_a_partition_with_many_slow_records_pauses_while_others_have_none() -> None:
    stage = Stage(_records(HOT, _POLL), _records(HOT, _POLL), _records(QUIET, 3))
    assert stage.fetch() == _POLL
    stage.now_s += 0.9
    assert stage.fetch() == 0, "a second has not passed"
    stage.now_s += 0.2
    assert stage.fetch() == 3
    assert stage.source.events == [("pause", [HOT])]
    stage.source.queue.append(_records(QUIET, 5))
    assert stage.fetch() == 5, "it waits for no second while the other is paused"
    stage.process(QUIET, 3)
    stage.process(QUIET, 5)
    stage.process(HOT, _POLL * 3 // 4 - 1)
    assert stage.fetch() == 0
    assert stage.source.paused == {HOT}
    stage.process(HOT, 1)
    stage.fetch()
    assert stage.source.events[1:] == [("resume", [HOT])]
    assert stage.fetch() == _POLL


def test_no_partition_pauses_for_time_while_all_have_records() -> None:
    stage = Stage(_records(QUIET, 3), _records(HOT, _POLL), _records(HOT, _POLL))
    assert (stage.fetch(), stage.fetch()) == (3, _POLL)
    stage.now_s += 5
    assert stage.fetch() == 0
    assert not stage.source.events


def test_shards_of_a_process_get_their_own_records_of_one_fetch() -> None:
    shards = [ShardInput.of(HOT, shard) for shard in Shard.all_of(2)]
    keys = [b"key-%d" % number for number in range(20)]
    records = _records(HOT, len(keys))
    records.raw_keys = keys
    stage = Stage(records)
    stage.input.remove(stage.tasks[HOT])
    for each in shards:
        group = PartitionGroup([each], shard=each.shard)
        stage.input.add(SimpleNamespace(inputs={each}, group=group, is_dealt=True), {each: 0})
        stage.tasks[each] = stage.input.owners[each]

    assert stage.fetch() == len(keys)

    by_shard = [stage.tasks[each].group.pop(100) for each in shards]
    for each, own in zip(shards, by_shard, strict=True):
        assert own.raw_keys == [key for key in keys if shard_of(key, 2) == each.shard]
        assert own.end_offset == len(keys)
    assert all(len(own) for own in by_shard)


def test_input_that_waits_for_the_end_of_a_rest_is_read_up_to_the_limit_of_memory() -> None:
    stage = Stage(_records(HOT, 60_000), _records(HOT, 7))
    stage.source.positions = lambda: {HOT: 0, QUIET: 0}  # type: ignore[method-assign]
    for task in stage.tasks.values():
        task.plan = SimpleNamespace(external_topics={HOT.topic})
    stage.input.set_rest(Rest(epoch=1))
    hot = stage.tasks[HOT].group
    assert [stage.fetch() for _ in range(3)] == [60_000, 0, 0]
    assert (hot.records, hot.buffers[HOT].waiting_records) == (0, 60_000)
    assert stage.source.events == [("pause", [HOT])]
    stage.input.set_rest(None)
    assert (hot.records, hot.buffers[HOT].waiting_records) == (60_000, 0)
    stage.process(HOT, 60_000)
    stage.now_s += 2
    assert [stage.fetch(), stage.fetch()] == [0, 7]
    assert stage.source.events[1:] == [("resume", [HOT])]
