"""The buffered input of one task: which partition's records come next, and how much is buffered.

As in Kafka Streams the partition with the lowest head timestamp goes first; records leave in runs as long as that
order allows, because a run is a batch.
"""

from collections import deque
from collections.abc import Iterable
from itertools import chain, takewhile

from rebalance.model import TopicPartition
from tasks.processing.record_batch import SourceRecords

#: What a buffered record costs in memory beside its key and value.
_RECORD_OVERHEAD_BYTES = 160


class PartitionBuffer:
    """Records of one partition that were fetched and not processed yet."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self._chunks: deque[tuple[SourceRecords, int]] = deque()
        #: Index of the next record in the first chunk.
        self._start = 0
        self.records = 0
        self.bytes = 0

    def add(self, chunk: SourceRecords) -> None:
        """Append a run of records."""
        size = _memory_bytes(chunk)
        self._chunks.append((chunk, size))
        self.records += len(chunk)
        self.bytes += size

    def put_back(self, chunk: SourceRecords) -> None:
        """Put records back in front that `take` gave."""
        size = 0
        if self._start:
            # Their run was not freed yet, so its bytes still count.
            first, first_size = self._chunks.popleft()
            self._chunks.appendleft((first.slice(self._start, len(first)), first_size))
            self._start = 0
        else:
            size = _memory_bytes(chunk)
        self._chunks.appendleft((chunk, size))
        self.records += len(chunk)
        self.bytes += size

    def head_timestamp(self) -> int | None:
        """Return the timestamp of the next record, or None if nothing is buffered."""
        return self._chunks[0][0].timestamps[self._start] if self._chunks else None

    def take(self, limit: int, before_ms: int | None) -> SourceRecords:
        """Remove and return up to `limit` records of the first chunk, all earlier than `before_ms` but the first."""
        chunk, size = self._chunks[0]
        stop = min(self._start + limit, len(chunk))
        if before_ms is not None:
            ahead = takewhile(
                lambda timestamp: timestamp < before_ms, chunk.timestamps[self._start : stop]
            )
            stop = self._start + max(1, sum(1 for _ in ahead))
        taken = chunk.slice(self._start, stop)
        self.records -= len(taken)
        if stop == len(chunk):
            self._chunks.popleft()
            self._start = 0
            self.bytes -= size
        else:
            self._start = stop
        return taken


class PartitionGroup:
    """The input buffers of one task."""

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.buffers = {partition: PartitionBuffer(partition) for partition in sorted(partitions)}

    @property
    def records(self) -> int:
        """Return how many records are buffered."""
        return sum(buffer.records for buffer in self.buffers.values())

    def add(self, chunk: SourceRecords) -> None:
        """Buffer a run of records of one of the task's partitions."""
        self.buffers[TopicPartition(chunk.topic, chunk.partition)].add(chunk)

    def add_partition(self, partition: TopicPartition) -> None:
        """Buffer one more partition."""
        self.buffers[partition] = PartitionBuffer(partition)

    def put_back(self, chunk: SourceRecords) -> None:
        """Put records back in front that `take` gave and that were not processed."""
        self.buffers[TopicPartition(chunk.topic, chunk.partition)].put_back(chunk)

    def take(self, limit: int) -> SourceRecords | None:
        """Remove and return the next run of at most `limit` records, or None if nothing is buffered.

        Equal head timestamps go by partition name, so that the same input gives the same order.
        """
        if len(self.buffers) == 1:
            (buffer,) = self.buffers.values()
            return buffer.take(limit, None) if buffer.records else None
        heads = sorted(
            (timestamp, partition)
            for partition, buffer in self.buffers.items()
            if (timestamp := buffer.head_timestamp()) is not None
        )
        if not heads:
            return None
        partition = heads[0][1]
        before_ms = None
        if len(heads) > 1:
            # The same rule holds inside the run, so that it does not matter how long a run may be.
            next_ms, next_partition = heads[1]
            before_ms = next_ms + 1 if partition < next_partition else next_ms
        return self.buffers[partition].take(limit, before_ms)


def _memory_bytes(chunk: SourceRecords) -> int:
    payload = chain(filter(None, chunk.raw_keys), filter(None, chunk.raw_values))
    return sum(map(len, payload)) + len(chunk) * _RECORD_OVERHEAD_BYTES
