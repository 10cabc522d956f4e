"""Shared reader: shards of a process that read one partition share its fetches.

Each shard has a position of its own. The client reads from the lowest one of those that are read
now, and a shard skips the records that it has.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.processing.engine.record_batch import SourceRecords


class PartitionReader(Protocol):
    """Methods that `RecordSource` and `ChangelogReader` share."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None: ...

    def add(self, positions: Mapping[TopicPartition, int]) -> None: ...

    def remove(self, partitions: Sequence[TopicPartition]) -> None: ...

    def pause(self, partitions: Sequence[TopicPartition]) -> None: ...

    def resume(self, partitions: Sequence[TopicPartition]) -> None: ...

    def poll(self, max_records: int, timeout_s: float) -> list[SourceRecords]: ...

    def positions(self) -> dict[TopicPartition, int]: ...


class SharedReader:
    """Inputs of shards over a reader of partitions; other partitions pass through.

    Args:
        parks: True: paused shards are left behind, and read again from their offsets later. False:
            a partition is paused while one of its shards is, so nothing is fetched twice.
    """

    def __init__(self, reader: PartitionReader, *, parks: bool = False) -> None:
        self._reader = reader
        self._parks = parks
        #: By partition, the next offset of each shard's input, if it is above the reader's.
        self._inputs: dict[TopicPartition, dict[TopicPartition, int]] = {}
        self._paused: set[TopicPartition] = set()
        self._paused_partitions: set[TopicPartition] = set()

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        self._reader.add({at: offset for at, offset in positions.items() if at.shard.is_whole})
        shared = {at: offset for at, offset in positions.items() if not at.shard.is_whole}
        for partition in sorted({at.whole for at in shared}):
            inputs = self._inputs.setdefault(partition, {})
            self._note_offsets(partition)
            new = {at: offset for at, offset in shared.items() if at.whole == partition}
            self._inputs[partition] = new | inputs
            self._read_on(partition)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        partitions = list(partitions)
        self._paused.difference_update(partitions)
        unread = [at for at in partitions if at.shard.is_whole]
        for partition in sorted({at.whole for at in partitions if not at.shard.is_whole}):
            inputs = self._inputs.get(partition, {})
            self._note_offsets(partition)
            for at in inputs.keys() & set(partitions):
                del inputs[at]
            if inputs:
                self._read_on(partition)
            elif self._inputs.pop(partition, None) is not None:
                self._paused_partitions.discard(partition)
                unread.append(partition)
        self._reader.remove(sorted(unread))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        partitions = list(partitions)
        self._reader.pause([at for at in partitions if at.shard.is_whole])
        shards = {at for at in partitions if not at.shard.is_whole}
        self._set_paused(self._paused | shards)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        partitions = list(partitions)
        self._reader.resume([at for at in partitions if at.shard.is_whole])
        self._set_paused(self._paused.difference(partitions))

    def _set_paused(self, paused: set[TopicPartition]) -> None:
        changed = sorted({at.whole for at in self._paused ^ paused} & self._inputs.keys())
        for partition in changed:
            self._note_offsets(partition)
        self._paused = paused
        for partition in changed:
            self._read_on(partition)

    def _is_read(self, at: TopicPartition) -> bool:
        return not (self._parks and at in self._paused)

    def _note_offsets(self, partition: TopicPartition) -> None:
        """Note how far the inputs of a partition have come, before others of them are read."""
        inputs = self._inputs.get(partition, {})
        position = self._reader.positions().get(partition, -1)
        for at, offset in inputs.items():
            if self._is_read(at):
                inputs[at] = max(offset, position)

    def _read_on(self, partition: TopicPartition) -> None:
        """Read a partition from the lowest offset of the inputs whose turn it is."""
        inputs = self._inputs[partition]
        reading = [offset for at, offset in inputs.items() if self._is_read(at)]
        position = self._reader.positions().get(partition)
        start = min(reading, default=min(inputs.values()) if position is None else position)
        if start != position:
            self._reader.remove([partition])
            self._reader.add({partition: start})
            self._paused_partitions.discard(partition)
        pauses = not reading or (not self._parks and not self._paused.isdisjoint(inputs))
        if pauses and partition not in self._paused_partitions:
            self._paused_partitions.add(partition)
            self._reader.pause([partition])
        elif not pauses and partition in self._paused_partitions:
            self._paused_partitions.discard(partition)
            self._reader.resume([partition])

    def shares(self, run: SourceRecords) -> list[tuple[TopicPartition, SourceRecords]]:
        """Return the inputs that read a run of records, each with those it does not have yet."""
        partition = partition_of(run)
        inputs = self._inputs.get(partition)
        if inputs is None:
            return [(partition, run)]
        return [
            (at, run.since(offset))
            for at, offset in inputs.items()
            if run.offsets[-1] >= offset and self._is_read(at)
        ]

    def of_inputs(self, figures: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return figures of partitions (positions, ends) by input."""
        if not self._inputs:
            return dict(figures)
        by_input: dict[TopicPartition, int] = {}
        for partition, figure in figures.items():
            inputs = self._inputs.get(partition)
            by_input |= {partition: figure} if inputs is None else dict.fromkeys(inputs, figure)
        return by_input

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset of each input."""
        positions = self.of_inputs(self._reader.positions())
        for inputs in self._inputs.values():
            for at, offset in inputs.items():
                positions[at] = max(positions[at], offset) if self._is_read(at) else offset
        return positions


def partition_of(run: SourceRecords) -> TopicPartition:
    return TopicPartition(run.topic, run.partition)
