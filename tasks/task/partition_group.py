"""Buffered input of a task: orders the records of its partitions by timestamp.

The partition with the lowest head timestamp is next, as in Kafka Streams (PartitionGroup). Records
leave in runs (consecutive records of one partition); a run becomes a batch. Where extracted
timestamps order several inputs, each record is decoded early, once.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, compress, takewhile
from operator import attrgetter
from typing import Final

from tidewheel.rebalance.model import WHOLE, Shard, ShardInput, TopicPartition
from tidewheel.tasks.processing.engine.java_queue import JavaQueue
from tidewheel.tasks.processing.engine.record_batch import SourceRecords, memory_bytes
from tidewheel.tasks.processing.engine.source import DecodedRecords

#: Decodes records early, into pieces (`SourceNode.decode_ahead`).
DecodeAhead = Callable[[SourceRecords], list[SourceRecords]]

#: Value of `max_task_idle_ms` with which tasks never wait for empty inputs.
NEVER_IDLE: Final = -1

_AHEAD_RECORDS_MAX = 1_000

#: Records of a run from which on runs are cheaper than joint batches.
_LONG_RUN: Final = 25


class PartitionBuffer:
    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        #: Orders equal head timestamps, with the partition.
        self.rank = 0
        #: Set if extracted timestamps order the inputs.
        self.decode_ahead: DecodeAhead | None = None
        self._chunks: deque[tuple[SourceRecords, int]] = deque()
        #: Index of the next record in the first chunk.
        self._start = 0
        self.records = 0
        self.bytes = 0
        #: Offset from which on records wait for `open`; None while all may leave.
        self.stop: int | None = None
        self._is_read_to_stop = False
        self._waiting: list[SourceRecords] = []
        self.waiting_records = 0
        self.waiting_bytes = 0

    @property
    def place(self) -> tuple[int, TopicPartition]:
        return self.rank, self.partition

    @property
    def is_ended(self) -> bool:
        """Return True if all records that may leave before `open` have arrived."""
        return self.stop is not None and (self._is_read_to_stop or self.waiting_records > 0)

    def close(self, stop: int | None, position: int) -> None:
        """Let records from `stop` on wait; None: from the next one on.

        `position` is the reader's.
        """
        chunks = self._pop_all()
        if stop is None:
            stop = chunks[0].offsets[0] if chunks else position
        self.stop = stop
        self._is_read_to_stop = position >= stop
        for chunk in chunks:
            self.add(chunk)

    def open(self) -> None:
        chunks = self._pop_all()
        self.stop = None
        for chunk in chunks:
            self.add(chunk)

    def _pop_all(self) -> list[SourceRecords]:
        chunks = [chunk for chunk, _ in self._chunks]
        if self._start:
            chunks[0] = chunks[0].slice(self._start, len(chunks[0]))
        chunks += self._waiting
        self._chunks.clear()
        self._waiting.clear()
        self._start = self.records = self.bytes = self.waiting_records = self.waiting_bytes = 0
        return chunks

    def add(self, chunk: SourceRecords) -> None:
        if self.stop is not None and chunk.end_offset > self.stop:
            self._add_waiting(chunk.since(self.stop))
            chunk = chunk.before(self.stop)
        if len(chunk):
            size = memory_bytes(chunk)
            self._chunks.append((chunk, size))
            self.records += len(chunk)
            self.bytes += size

    def _add_waiting(self, chunk: SourceRecords) -> None:
        if len(chunk):
            self._waiting.append(chunk)
            self.waiting_records += len(chunk)
            self.waiting_bytes += memory_bytes(chunk)

    def put_back(self, chunk: SourceRecords) -> None:
        size = 0
        if self._start:
            # A chunk's bytes count until its last record is taken, so these are still counted.
            first, first_size = self._chunks.popleft()
            self._chunks.appendleft((first.slice(self._start, len(first)), first_size))
            self._start = 0
        else:
            size = memory_bytes(chunk)
        self._chunks.appendleft((chunk, size))
        self.records += len(chunk)
        self.bytes += size

    def head_timestamp(self, limit: int = 1) -> int | None:
        """Return the next record's timestamp; if extracted, decode up to `limit` records for it."""
        if not self._chunks:
            return None
        if self.decode_ahead is not None:
            self._decode_head(self.decode_ahead, limit)
        return order_ms_of(self._chunks[0][0])[self._start]

    def _decode_head(self, decode: DecodeAhead, limit: int) -> None:
        chunk, size = self._chunks[0]
        if isinstance(chunk, DecodedRecords):
            return
        self._chunks.popleft()
        begin, self._start = self._start, 0
        stop = min(begin + min(limit, _AHEAD_RECORDS_MAX), len(chunk))
        pieces = [(piece, memory_bytes(piece)) for piece in decode(chunk.slice(begin, stop))]
        if stop < len(chunk):
            # Includes records before `begin`: their memory is freed with this remainder.
            remaining_size = size - sum(piece_size for _, piece_size in pieces)
            self._chunks.appendleft((chunk.slice(stop, len(chunk)), remaining_size))
        else:
            self.bytes -= size - sum(piece_size for _, piece_size in pieces)
        self._chunks.extendleft(reversed(pieces))

    def times(self, limit: int) -> Sequence[int]:
        """Return the ordering timestamps of the first chunk's next records, up to `limit`."""
        return order_ms_of(self._chunks[0][0])[self._start : self._start + limit]

    def pop(self, limit: int, before_ms: int | None) -> SourceRecords:
        """Remove the first chunk's next record and later ones before `before_ms`, up to `limit`."""
        chunk, size = self._chunks[0]
        stop = min(self._start + limit, len(chunk))
        if before_ms is not None:
            ahead = takewhile(
                lambda timestamp: timestamp < before_ms, order_ms_of(chunk)[self._start : stop]
            )
            stop = self._start + max(1, sum(1 for _ in ahead))
        records = chunk.slice(self._start, stop)
        self.records -= len(records)
        if stop == len(chunk):
            self._chunks.popleft()
            self._start = 0
            self.bytes -= size
        else:
            self._start = stop
        return records


ArrivalQueue = JavaQueue[PartitionBuffer]


def arrival_queue() -> ArrivalQueue:
    return JavaQueue(lambda buffer: buffer.head_timestamp() or 0)


class PartitionGroup:
    """Input buffers of one task.

    Attributes:
        enforcing: True if the wait for an empty input timed out in the last `ready`.
        enforced: Number of runs taken while enforcing.
        queue: Non-empty partitions; orders equal head timestamps by arrival, as Kafka Streams does.
            Only for the test driver, where arrivals are deterministic. None orders them by rank and
            name.
    """

    def __init__(
        self,
        partitions: Iterable[TopicPartition],
        *,
        max_task_idle_ms: int = NEVER_IDLE,
        shard: Shard = WHOLE,
    ) -> None:
        self._shard = shard
        self.buffers: dict[TopicPartition, PartitionBuffer] = {}
        self.enforcing = False
        self.enforced = 0
        self.queue: ArrivalQueue | None = None
        self._max_task_idle_ms = max_task_idle_ms
        self._lags: Mapping[TopicPartition, int] = {}
        #: Wall-clock time at which the wait for each empty input with lag 0 ends.
        self._deadlines_ms: dict[TopicPartition, int] = {}
        for partition in sorted(partitions):
            self.add_partition(partition)

    @property
    def records(self) -> int:
        return sum(buffer.records for buffer in self.buffers.values())

    def add(self, chunk: SourceRecords) -> None:
        partition = ShardInput.of(TopicPartition(chunk.topic, chunk.partition), self._shard)
        buffer = self.buffers[partition]
        is_empty = not buffer.records
        buffer.add(chunk)
        if self.queue is not None and is_empty:
            self.queue.offer(buffer)

    def add_partition(self, partition: TopicPartition) -> None:
        self.buffers[partition] = PartitionBuffer(partition)

    # -- idling ----------------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Return True if only some inputs have records: then `ready` needs the others' lags."""
        return (
            self._max_task_idle_ms != NEVER_IDLE
            and len(self.buffers) > 1
            and sum(1 for buffer in self.buffers.values() if buffer.records) > 0
            and not all(buffer.records or buffer.is_ended for buffer in self.buffers.values())
        )

    def update_lags(self, lags: Mapping[TopicPartition, int]) -> None:
        self._lags = {partition: lags[partition] for partition in self.buffers if partition in lags}

    def ready(self, now_ms: int) -> bool:
        """Return True if the task may process (PartitionGroup.readyToProcess, KIP-353, KIP-695).

        The task waits for an empty input until its lag is 0, then for `max_task_idle_ms`.
        """
        if self._max_task_idle_ms == NEVER_IDLE:
            return True
        self.enforcing = has_timed_out = False
        for partition, buffer in self.buffers.items():
            if buffer.records or buffer.is_ended:
                self._deadlines_ms.pop(partition, None)
            elif self._lags.get(partition) != 0:
                self._deadlines_ms.pop(partition, None)
                return False
            else:
                due_ms = self._deadlines_ms.setdefault(partition, now_ms + self._max_task_idle_ms)
                if now_ms < due_ms:
                    return False
                has_timed_out = True
        buffered = self.records > 0
        self.enforcing = has_timed_out and buffered
        return buffered

    def idle_until_ms(self, now_ms: int) -> int | None:
        """Return the end of the wait for empty inputs, None if only records or lags can end it."""
        due_ms = max(self._deadlines_ms.values(), default=now_ms)
        return due_ms if due_ms > now_ms and self.records else None

    # -- next records ----------------------------------------------------------------------------------------------

    def put_back(self, chunk: SourceRecords) -> None:
        partition = ShardInput.of(TopicPartition(chunk.topic, chunk.partition), self._shard)
        buffer = self.buffers[partition]
        is_empty = not buffer.records
        buffer.put_back(chunk)
        if self.queue is not None and is_empty:
            self.queue.offer(buffer)

    def pop(self, limit: int) -> SourceRecords | None:
        """Remove and return the next run of at most `limit` records."""
        if self.queue is not None:
            return self._pop_by_arrival(self.queue, limit)
        if len(self.buffers) == 1:
            (buffer,) = self.buffers.values()
            return buffer.pop(limit, None) if buffer.records else None
        following = self._next(limit)
        if following is None:
            return None
        self.enforced += self.enforcing
        buffer, before_ms = following
        return buffer.pop(limit, before_ms)

    def is_interleaved(self, limit: int) -> bool:
        """Return True if another input's records end the next run after a few records."""
        following = None if self.queue is not None else self._next(limit)
        if following is None:
            return False
        buffer, before_ms = following
        return before_ms is not None and max(buffer.times(min(limit, _LONG_RUN))) >= before_ms

    def _next(self, limit: int) -> tuple[PartitionBuffer, int | None] | None:
        """Return the next run's buffer, and the time (ms) before which the run ends."""
        heads = sorted(
            (timestamp, buffer.place)
            for buffer in self.buffers.values()
            if (timestamp := buffer.head_timestamp(limit)) is not None
        )
        if not heads:
            return None
        place = heads[0][1]
        before_ms = None
        if len(heads) > 1:
            # Stops at the next partition's head: the order must not depend on `limit`.
            next_ms, next_place = heads[1]
            before_ms = next_ms + 1 if place < next_place else next_ms
        return self.buffers[place[1]], before_ms

    def rank_topics(self, ranks: Mapping[str, int]) -> None:
        """Let topics of lower ranks go first where head timestamps are equal."""
        for partition, buffer in self.buffers.items():
            buffer.rank = ranks[partition.topic]

    def order_by_arrival(self, queue: ArrivalQueue) -> None:
        self.queue = queue

    def _pop_by_arrival(self, queue: ArrivalQueue, limit: int) -> SourceRecords | None:
        if not queue or self.buffers.get(queue.peek().partition) is not queue.peek():
            return None
        self.enforced += self.enforcing
        buffer = queue.poll()
        before_ms = queue.peek().head_timestamp(limit) if queue else None
        records = buffer.pop(limit, before_ms)
        if buffer.records:
            queue.offer(buffer)
        return records

    def pop_joint(self, limit: int) -> list[tuple[SourceRecords, Sequence[int]]]:
        """Remove the records of several `pop` calls; return them and their order by partition.

        Stops where a partition's first chunk ends: there, `ready` may have to wait.
        """
        buffers = [
            buffer
            for buffer in sorted(self.buffers.values(), key=attrgetter("place"))
            if buffer.head_timestamp(limit) is not None
        ]
        if len(buffers) < 2 or self.queue is not None:  # noqa: PLR2004 - one input
            records = self.pop(limit)
            return [] if records is None else [(records, range(len(records)))]
        self.enforced += self.enforcing
        places_by_buffer = _places([buffer.times(limit) for buffer in buffers], limit)
        return [
            (buffer.pop(len(places), None), places)
            for buffer, places in zip(buffers, places_by_buffer, strict=True)
            if places
        ]


def _places(columns: Sequence[Sequence[int]], limit: int) -> list[list[int]]:
    """Return records' places in the merge of timestamp columns, until one is exhausted.

    The column with the lowest head is next. A record earlier than its predecessor follows it.

    >>> _places([[5, 3, 9], [4, 5, 7]], 10), _places([[1, 2], [1, 1]], 3)
    ([[1, 2], [0, 3, 4]], [[0], [1, 2]])
    """
    turns = [time for column in columns for time in accumulate(column, max)]
    owners = [number for number, column in enumerate(columns) for _ in column]
    # The sort is stable: equal times keep the order of columns, then of records.
    order = sorted(range(len(turns)), key=turns.__getitem__)
    takers = list(map(owners.__getitem__, order))
    exhausted = min(len(takers) - takers[::-1].index(number) for number in range(len(columns)))
    del takers[min(limit, exhausted) :]
    return [
        list(compress(range(len(takers)), map(number.__eq__, takers)))
        for number in range(len(columns))
    ]


def order_ms_of(chunk: SourceRecords) -> Sequence[int]:
    return chunk.timestamps if chunk.order_ms is None else chunk.order_ms
