"""The buffered input of one task: which partition's records come next, and how much is buffered.

As in Kafka Streams (PartitionGroup, RecordQueue) the partition with the lowest head timestamp goes first; records leave
in runs as long as that order allows, because a run is a batch. Where several inputs are merged and timestamps are
extracted, the first records of an input are decoded ahead of their turn, once.

Whether it is time to go on while an input is empty is Kafka Streams' `readyToProcess` (KIP-353, KIP-695).
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, compress, takewhile
from typing import Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.processing.engine.java_queue import JavaQueue
from tidewheel.tasks.processing.engine.record_batch import SourceRecords, memory_bytes
from tidewheel.tasks.processing.engine.source import DecodedRecords

#: Decodes records of one partition before their turn: the same records in pieces (`SourceNode.decode_ahead`).
DecodeAhead = Callable[[SourceRecords], list[SourceRecords]]

#: `max_task_idle_ms` that never waits.
NEVER_IDLE: Final = -1

#: So many records are decoded ahead at most.
_AHEAD_RECORDS_MAX = 1_000


class PartitionBuffer:
    """Records of one partition that were fetched and not processed yet."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        #: Set where the order is by extracted timestamps.
        self.decode_ahead: DecodeAhead | None = None
        self._chunks: deque[tuple[SourceRecords, int]] = deque()
        #: Index of the next record in the first chunk.
        self._start = 0
        self.records = 0
        self.bytes = 0

    def add(self, chunk: SourceRecords) -> None:
        """Append a run of records."""
        size = memory_bytes(chunk)
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
            size = memory_bytes(chunk)
        self._chunks.appendleft((chunk, size))
        self.records += len(chunk)
        self.bytes += size

    def head_timestamp(self, limit: int = 1) -> int | None:
        """Return the timestamp of the next record, or None if nothing is buffered.

        If it has to be extracted, up to `limit` records are decoded for it.
        """
        if not self._chunks:
            return None
        if self.decode_ahead is not None:
            self._look_ahead(self.decode_ahead, limit)
        return _order_ms(self._chunks[0][0])[self._start]

    def _look_ahead(self, decode: DecodeAhead, limit: int) -> None:
        """Have the first records decoded, unless they are."""
        chunk, size = self._chunks[0]
        if isinstance(chunk, DecodedRecords):
            return
        self._chunks.popleft()
        begin, self._start = self._start, 0
        stop = min(begin + min(limit, _AHEAD_RECORDS_MAX), len(chunk))
        pieces = [(piece, memory_bytes(piece)) for piece in decode(chunk.slice(begin, stop))]
        if stop < len(chunk):
            # What left before the first look ahead is freed with the rest.
            rest = size - sum(piece_size for _, piece_size in pieces)
            self._chunks.appendleft((chunk.slice(stop, len(chunk)), rest))
        else:
            self.bytes -= size - sum(piece_size for _, piece_size in pieces)
        self._chunks.extendleft(reversed(pieces))

    def times(self, limit: int) -> Sequence[int]:
        """Return the timestamps that order the records that `take` could give now."""
        return _order_ms(self._chunks[0][0])[self._start : self._start + limit]

    def take(self, limit: int, before_ms: int | None) -> SourceRecords:
        """Remove and return up to `limit` records of the first chunk, all earlier than `before_ms` but the first."""
        chunk, size = self._chunks[0]
        stop = min(self._start + limit, len(chunk))
        if before_ms is not None:
            ahead = takewhile(
                lambda timestamp: timestamp < before_ms, _order_ms(chunk)[self._start : stop]
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


#: Buffers with records, the lowest head timestamp first.
ArrivalQueue = JavaQueue[PartitionBuffer]


def arrival_queue() -> ArrivalQueue:
    """Return an empty queue for `PartitionGroup.order_by_arrival`."""
    return JavaQueue(lambda buffer: buffer.head_timestamp() or 0)


class PartitionGroup:
    """The input buffers of one task.

    Attributes:
        enforcing: Whether the last `ready` gave up waiting for an input that is empty.
        enforced: How many runs were taken so.
        queue: The partitions with records, in the order of Kafka Streams' PartitionGroup, where equal head timestamps go by
            arrival. Only where arrivals are the same in every run: in the test driver, whose tasks share it. None: they go
            by name.
    """

    def __init__(
        self, partitions: Iterable[TopicPartition], *, max_task_idle_ms: int = NEVER_IDLE
    ) -> None:
        self.buffers: dict[TopicPartition, PartitionBuffer] = {}
        self.enforcing = False
        self.enforced = 0
        self.queue: ArrivalQueue | None = None
        self._max_task_idle_ms = max_task_idle_ms
        self._lags: Mapping[TopicPartition, int] = {}
        #: Per empty input whose lag is 0: how long it is waited for.
        self._deadlines_ms: dict[TopicPartition, int] = {}
        for partition in sorted(partitions):
            self.add_partition(partition)

    @property
    def records(self) -> int:
        """Return how many records are buffered."""
        return sum(buffer.records for buffer in self.buffers.values())

    def add(self, chunk: SourceRecords) -> None:
        """Buffer a run of records of one of the task's partitions."""
        partition = TopicPartition(chunk.topic, chunk.partition)
        buffer = self.buffers[partition]
        is_empty = not buffer.records
        buffer.add(chunk)
        if self.queue is not None and is_empty:
            self.queue.offer(buffer)

    def add_partition(self, partition: TopicPartition) -> None:
        """Buffer one more partition."""
        self.buffers[partition] = PartitionBuffer(partition)

    # -- whether to wait -------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Return whether some inputs have records and others may have to be waited for: then lags are needed."""
        return (
            self._max_task_idle_ms != NEVER_IDLE
            and len(self.buffers) > 1
            and 0 < sum(1 for buffer in self.buffers.values() if buffer.records) < len(self.buffers)
        )

    def update_lags(self, lags: Mapping[TopicPartition, int]) -> None:
        """Say how many records of each partition are on the broker and not fetched yet, as far as known."""
        self._lags = {partition: lags[partition] for partition in self.buffers if partition in lags}

    def ready(self, now_ms: int) -> bool:
        """Return whether the task may process what is buffered (PartitionGroup.readyToProcess).

        An empty input is waited for while its lag is unknown or not 0, and then for `max_task_idle_ms`, counted from
        the first call that finds it so.
        """
        if self._max_task_idle_ms == NEVER_IDLE:
            return True
        self.enforcing = given_up = False
        for partition, buffer in self.buffers.items():
            if buffer.records:
                self._deadlines_ms.pop(partition, None)
            elif self._lags.get(partition) != 0:
                self._deadlines_ms.pop(partition, None)
                return False
            else:
                due_ms = self._deadlines_ms.setdefault(partition, now_ms + self._max_task_idle_ms)
                if now_ms < due_ms:
                    return False
                given_up = True
        buffered = self.records > 0
        self.enforcing = given_up and buffered
        return buffered

    def idle_until_ms(self, now_ms: int) -> int | None:
        """Return when the wait for empty inputs may end by itself, or None if only records or lags can end it."""
        due_ms = max(self._deadlines_ms.values(), default=now_ms)
        return due_ms if due_ms > now_ms and self.records else None

    # -- what comes next -------------------------------------------------------------------------------------------

    def put_back(self, chunk: SourceRecords) -> None:
        """Put records back in front that `take` gave and that were not processed."""
        partition = TopicPartition(chunk.topic, chunk.partition)
        buffer = self.buffers[partition]
        is_empty = not buffer.records
        buffer.put_back(chunk)
        if self.queue is not None and is_empty:
            self.queue.offer(buffer)

    def take(self, limit: int) -> SourceRecords | None:
        """Remove and return the next run of at most `limit` records, or None if nothing is buffered.

        Equal head timestamps go by partition name, so that the same input gives the same order.
        """
        if self.queue is not None:
            return self._take_by_arrival(self.queue, limit)
        if len(self.buffers) == 1:
            (buffer,) = self.buffers.values()
            return buffer.take(limit, None) if buffer.records else None
        heads = sorted(
            (timestamp, partition)
            for partition, buffer in self.buffers.items()
            if (timestamp := buffer.head_timestamp(limit)) is not None
        )
        if not heads:
            return None
        self.enforced += self.enforcing
        partition = heads[0][1]
        before_ms = None
        if len(heads) > 1:
            # The same rule holds inside the run, so that it does not matter how long a run may be.
            next_ms, next_partition = heads[1]
            before_ms = next_ms + 1 if partition < next_partition else next_ms
        return self.buffers[partition].take(limit, before_ms)

    def order_by_arrival(self, queue: ArrivalQueue) -> None:
        """Let equal head timestamps go by arrival in this queue; nothing may be buffered yet."""
        self.queue = queue

    def _take_by_arrival(self, queue: ArrivalQueue, limit: int) -> SourceRecords | None:
        if not queue or self.buffers.get(queue.peek().partition) is not queue.peek():
            return None
        self.enforced += self.enforcing
        buffer = queue.poll()
        before_ms = queue.peek().head_timestamp(limit) if queue else None
        records = buffer.take(limit, before_ms)
        if buffer.records:
            queue.offer(buffer)
        return records

    def take_together(self, limit: int) -> list[tuple[SourceRecords, Sequence[int]]]:
        """Remove and return what several calls of `take` would, by partition, with the place of each record among all.

        At most `limit` records, and none behind the end of a partition's run: whether to go on there, `ready` has to say.
        """
        buffers = [
            self.buffers[partition]
            for partition in sorted(self.buffers)
            if self.buffers[partition].head_timestamp(limit) is not None
        ]
        if len(buffers) < 2 or self.queue is not None:  # noqa: PLR2004 - nothing to put together
            records = self.take(limit)
            return [] if records is None else [(records, range(len(records)))]
        self.enforced += self.enforcing
        mine = _places([buffer.times(limit) for buffer in buffers], limit)
        return [
            (buffer.take(len(places), None), places)
            for buffer, places in zip(buffers, mine, strict=True)
            if places
        ]


def _places(columns: Sequence[Sequence[int]], limit: int) -> list[list[int]]:
    """Return which places the records of several columns get, the lowest head first, until one of them is used up.

    What is behind a later record of its column goes right after it, as if it were as late.

    >>> _places([[5, 3, 9], [4, 5, 7]], 10), _places([[1, 2], [1, 1]], 3)
    ([[1, 2], [0, 3, 4]], [[0], [1, 2]])
    """
    turns = [time for column in columns for time in accumulate(column, max)]
    owners = [number for number, column in enumerate(columns) for _ in column]
    # Sorting keeps the order of equal ones: first the column, then the place in it.
    order = sorted(range(len(turns)), key=turns.__getitem__)
    takers = list(map(owners.__getitem__, order))
    used_up = min(len(takers) - takers[::-1].index(number) for number in range(len(columns)))
    del takers[min(limit, used_up) :]
    return [
        list(compress(range(len(takers)), map(number.__eq__, takers)))
        for number in range(len(columns))
    ]


def _order_ms(chunk: SourceRecords) -> Sequence[int]:
    """Return the timestamps that decide when the records of a chunk have their turn."""
    return chunk.order_ms if isinstance(chunk, DecodedRecords) else chunk.timestamps
