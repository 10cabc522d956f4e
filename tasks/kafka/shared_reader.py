"""Shared reader: shards of a process that read one partition share its fetches.

Each shard has a position of its own. The client reads from the lowest one, and a shard skips the
records that it has.
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

    A partition is paused while one of its shards is.
    """

    def __init__(self, reader: PartitionReader) -> None:
        self._reader = reader
        #: By partition, the next offset of each shard's input, if it is above the reader's.
        self._inputs: dict[TopicPartition, dict[TopicPartition, int]] = {}
        self._paused: set[TopicPartition] = set()

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        self._reader.add({at: offset for at, offset in positions.items() if at.shard.is_whole})
        shared = {at: offset for at, offset in positions.items() if not at.shard.is_whole}
        if not shared:
            return
        now = self._reader.positions()
        starts: dict[TopicPartition, int] = {}
        for at, offset in shared.items():
            inputs = self._inputs.setdefault(at.whole, {})
            if at in inputs:
                continue
            if inputs:
                self._raise(at.whole, now.get(at.whole, -1))
            inputs[at] = offset
            starts[at.whole] = min(inputs.values())
        behind = [at for at, offset in starts.items() if offset < now.get(at, offset)]
        self._reader.remove(behind)
        self._reader.add(starts)
        self._reader.pause(sorted({at.whole for at in self._paused}.intersection(behind)))

    def _raise(self, partition: TopicPartition, position: int) -> None:
        inputs = self._inputs[partition]
        for at, offset in inputs.items():
            inputs[at] = max(offset, position)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        partitions = list(partitions)
        self.resume([at for at in partitions if not at.shard.is_whole and at in self._paused])
        unread = [at for at in partitions if at.shard.is_whole]
        for at in partitions:
            inputs = self._inputs.get(at.whole, {})
            if inputs.pop(at, None) is not None and not inputs:
                del self._inputs[at.whole]
                unread.append(at.whole)
        self._reader.remove(sorted(unread))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        partitions = list(partitions)
        self._paused.update(at for at in partitions if not at.shard.is_whole)
        self._reader.pause(sorted({at.whole for at in partitions}))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        partitions = list(partitions)
        self._paused.difference_update(partitions)
        held = {at.whole for at in self._paused}
        self._reader.resume(sorted({at.whole for at in partitions} - held))

    def shares(self, run: SourceRecords) -> list[tuple[TopicPartition, SourceRecords]]:
        """Return the inputs that read a run of records, each with those it does not have yet."""
        partition = partition_of(run)
        inputs = self._inputs.get(partition)
        if inputs is None:
            return [(partition, run)]
        return [
            (at, run.since(offset)) for at, offset in inputs.items() if run.offsets[-1] >= offset
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
        return {
            at: max(position, self._inputs.get(at.whole, {}).get(at, position))
            for at, position in self.of_inputs(self._reader.positions()).items()
        }


def partition_of(run: SourceRecords) -> TopicPartition:
    return TopicPartition(run.topic, run.partition)
