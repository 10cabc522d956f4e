"""Inputs of a task: buffers, sources, next offsets, and earlier progress of key ranges."""

from collections.abc import Callable, Mapping
from functools import partial

from tidewheel.rebalance.model import ShardInput, TopicPartition
from tidewheel.tasks.key_ranges.key_ranges import key_hash, key_hashes
from tidewheel.tasks.key_ranges.keyed_analysis import counted, runs_users_objects
from tidewheel.tasks.key_ranges.shard_records import ShardRecords
from tidewheel.tasks.key_ranges.vector import Vector
from tidewheel.tasks.processing.api.record import RecordMetadata
from tidewheel.tasks.processing.api.topology_spec import SourceSpec
from tidewheel.tasks.processing.engine.error_policy import ErrorPolicy, input_failure
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, SourceRecords
from tidewheel.tasks.processing.engine.source import SourceNode
from tidewheel.tasks.task.partition_group import PartitionGroup
from tidewheel.tasks.task.task_parts import TaskParts

#: (records, row, error) of an undeserializable record: returns to skip it, raises to fail the task.
Corrupt = Callable[[SourceRecords, int, Exception], None]
Dropped = Callable[[str, int, str, RecordMetadata | None], None]


class TaskInputs:
    """Input partitions of one task.

    Attributes:
        next_offsets: Next offset to process. The task shares this dict: never replace it.
        partition_times_ms: Largest timestamp, -1 before the first record; shared likewise.
        old_maps: Progress of the last commit's key ranges; records that they finished are skipped.
            A shard always has one: it skips the records of other shards.
        takes_own_only: True for a shard whose operators use no time of other shards' records: these
            are dropped before they are decoded.
    """

    def __init__(self, parts: TaskParts, corrupt: Corrupt, dropped: Dropped) -> None:
        self._parts = parts
        self._corrupt = corrupt
        self._dropped = dropped
        self.partitions = parts.plan.inputs(parts.task_id.partition, parts.task_id.shard)
        self._shard = parts.task_id.shard
        self.group = PartitionGroup(
            self.partitions, max_task_idle_ms=parts.max_task_idle_ms, shard=self._shard
        )
        self.next_offsets: dict[TopicPartition, int] = {}
        self.partition_times_ms: dict[TopicPartition, int] = {}
        self.old_maps: dict[TopicPartition, Vector] = {}
        self.sources = {
            topic: self._make_source(source)
            for source in parts.plan.spec.sources
            for topic in parts.plan.source_topics[source.name]
        }
        self._decode_ahead_if_extracted()
        spec = parts.plan.spec
        self.takes_own_only = (
            not self._shard.is_whole
            and counted(spec) is None
            and not runs_users_objects(spec)
            and not any(source.extracts for source in self.sources.values())
        )

    def _make_source(self, source: SourceSpec) -> SourceNode:
        # Records of internal topics were written with extracted timestamps.
        default = None if source.internal else self._parts.default_timestamp_extractor
        return SourceNode(source, self._corrupt, self._dropped, default, own_of=self._own_of)

    def _decode_ahead_if_extracted(self) -> None:
        if len(self.partitions) > 1:
            for partition, buffer in self.group.buffers.items():
                if self.sources[partition.topic].extracts:
                    buffer.decode_ahead = partial(self._decode_ahead, partition)

    def _decode_ahead(
        self, partition: TopicPartition, records: SourceRecords
    ) -> list[SourceRecords]:
        source = self.sources[partition.topic]
        return source.decode_ahead(records, self.partition_times_ms[partition])

    def add(self, partition: TopicPartition, source: SourceSpec) -> None:
        self.partitions |= {partition}
        self.group.add_partition(partition)
        self.sources[partition.topic] = self._make_source(source)
        self._decode_ahead_if_extracted()
        self.next_offsets.setdefault(partition, 0)
        self.partition_times_ms.setdefault(partition, -1)

    def start(
        self,
        offsets: Mapping[TopicPartition, int],
        partition_times_ms: Mapping[TopicPartition, int],
        old_maps: Mapping[TopicPartition, Vector],
    ) -> int:
        """Set the start of all inputs; return their largest partition time, -1 if unknown."""
        assert set(offsets) == set(self.partitions), "every input has an offset"
        self.next_offsets.update(offsets)
        self.partition_times_ms.update(
            (partition, partition_times_ms.get(partition, -1)) for partition in self.partitions
        )
        if self._shard.is_whole:
            self.old_maps = {
                partition: old
                for partition, old in old_maps.items()
                if old.highest > offsets[partition]
            }
        else:
            first, end = self._shard.first_hash, self._shard.end_hash
            self.old_maps = {
                partition: old_maps[partition].restrict(first, end)
                if partition in old_maps
                else Vector.at(offset, first, end)
                for partition, offset in offsets.items()
            }
        return max(self.partition_times_ms.values(), default=-1)

    @property
    def progress_before(self) -> list[Vector]:
        """Return the old maps of inputs with records that faster key ranges had finished."""
        return [old for old in self.old_maps.values() if old.lowest < old.highest]

    def input_of(self, records: SourceRecords) -> TopicPartition:
        return ShardInput.of(TopicPartition(records.topic, records.partition), self._shard)

    def settle(self, partition: TopicPartition, lowest: int) -> None:
        """Drop the old map of an input if all records that it skips are below `lowest`."""
        old = self.old_maps.get(partition)
        if old is None or lowest < old.highest:
            return
        if self._shard.is_whole:
            del self.old_maps[partition]
        else:
            self.old_maps[partition] = old.after(lowest)

    @property
    def is_dealt(self) -> bool:
        """Return True if a fetch may drop other shards' records; several inputs merge with them."""
        return self.takes_own_only and len(self.partitions) == 1

    def skipping(self, records: SourceRecords) -> Vector | None:
        """Return the old map if it may skip some of the records; else None."""
        old = self.old_maps.get(self.input_of(records))
        if isinstance(records, ShardRecords) and old and records.offsets[0] >= old.highest:
            return None
        return old

    def take_unprocessed(self, records: SourceRecords) -> SourceRecords:
        """Return the records that no earlier key range has processed, of this shard only."""
        old = self.skipping(records)
        if old is None:
            return records
        offsets = records.offsets
        rows = old.to_do(key_hashes(records.raw_keys, offsets), offsets)
        return records if len(rows) == len(records) else records.take(rows)

    def unprocessed(self, partition: TopicPartition, batch: RecordBatch) -> RecordBatch:
        old, source = self.old_maps.get(partition), batch.source
        if old is None or source is None:
            return batch
        raw_keys = [source.raw_keys[row] for row in batch.rows]
        offsets = [source.offsets[row] for row in batch.rows]
        unprocessed = old.to_do(key_hashes(raw_keys, offsets), offsets)
        return batch if len(unprocessed) == len(batch) else batch.take(unprocessed)

    def _own_of(self, batch: RecordBatch) -> RecordBatch:
        return (
            batch if batch.source is None else self.unprocessed(self.input_of(batch.source), batch)
        )

    def is_processed(self, records: SourceRecords, row: int) -> bool:
        old = self.old_maps.get(self.input_of(records))
        offset = records.offsets[row]
        return old is not None and not old.to_do(
            [key_hash(records.raw_keys[row], offset)], [offset]
        )

    def refuse(
        self, policy: ErrorPolicy, records: SourceRecords, row: int, error: Exception
    ) -> None:
        """Call the exception handler of an undeserializable record; return if it skips."""
        node = self.sources[records.topic].spec.name
        task_id = str(self._parts.task_id)
        context, record = input_failure(records, row, node=node, task_id=task_id)
        policy.apply(context, record, error, raw=(context.raw_key, context.raw_value))
