"""Ledger: rows that a task's key ranges received and have not sealed. Pure.

A range processes its rows in the order received, so a count of finished rows is enough.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tidewheel.rebalance.model import TopicPartition

#: Bytes of one record's offset and two times.
_ROW_BYTES = 3 * 8
#: Further bytes of a run (records distributed together).
_RUN_BYTES = 1_000


class _DistributedRun(msgspec.Struct):
    size_bytes: int
    holders: int


class RunMemory:
    """Memory of offsets and times of distributed records that some key range has not finished."""

    def __init__(self, ranges: int) -> None:
        self.bytes = 0
        self._waiting: list[deque[_DistributedRun]] = [deque() for _ in range(ranges)]
        self._done = [0] * ranges

    def add(self, rows: int, indexes: Iterable[int]) -> None:
        """Count a run of `rows` records; `indexes` has the range of each of its work items."""
        holders = list(indexes)
        if not holders:
            return
        run = _DistributedRun(rows * _ROW_BYTES + _RUN_BYTES, len(holders))
        self.bytes += run.size_bytes
        for index in holders:
            self._waiting[index].append(run)

    def release(self, index: int, items_done: int) -> None:
        """Release runs; `items_done` is the total of work items that range `index` finished.

        >>> memory = RunMemory(2)
        >>> memory.add(10, [0, 1])
        >>> memory.release(0, 1)
        >>> memory.bytes
        1240
        >>> memory.release(1, 1)
        >>> memory.bytes
        0
        """
        waiting = self._waiting[index]
        for _ in range(items_done - self._done[index]):
            run = waiting.popleft()
            run.holders -= 1
            if not run.holders:
                self.bytes -= run.size_bytes
        self._done[index] = items_done


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """Records of one partition that the loop distributed together.

    Attributes:
        partition_times_ms: Per row, the partition's largest timestamp up to and including it.
        positions_ms: Per row, the task's stream time after it (`PositionClock`).
        others: Next offset and largest timestamp of the task's other partitions before the chunk.
    """

    partition: TopicPartition
    offsets: Sequence[int]
    partition_times_ms: Sequence[int]
    positions_ms: Sequence[int]
    time_before_ms: int
    position_before_ms: int
    number: int
    others: Mapping[TopicPartition, tuple[int, int]]


class RestartPoint(msgspec.Struct):
    """Restart point of a range, which has sealed (handed over for a commit) all rows before `row`.

    It has an offset in each partition, so a restart merges the inputs in the same order.
    """

    chunk: Chunk
    row: int

    @property
    def order(self) -> tuple[int, int]:
        return self.chunk.number, self.row

    def offset_of(self, partition: TopicPartition) -> int:
        if partition == self.chunk.partition:
            return self.chunk.offsets[self.row]
        return self.chunk.others[partition][0]

    def time_ms_of(self, partition: TopicPartition) -> int:
        if partition != self.chunk.partition:
            return self.chunk.others[partition][1]
        if self.row == 0:
            return self.chunk.time_before_ms
        return self.chunk.partition_times_ms[self.row - 1]

    @property
    def position_ms(self) -> int:
        if self.row == 0:
            return self.chunk.position_before_ms
        return self.chunk.positions_ms[self.row - 1]


class _Entry(msgspec.Struct, frozen=True):
    """Rows of a chunk that one range received, numbered `begin` to `end`.

    The range's timed callbacks already ran for all rows before `passed`.
    """

    begin: int
    end: int
    chunk: Chunk
    rows: Sequence[int]
    passed: int


class Ledger:
    """Rows that one range received and has not sealed (handed over for a commit).

    Attributes:
        received: Number of received rows; a chunk without rows for the range counts as one.
        passes: Number of such chunks.
    """

    def __init__(self, *, by_time: bool = False) -> None:
        self.received = 0
        self.passes = 0
        self.sealed = 0
        self._by_time = by_time
        self._entries: deque[_Entry] = deque()

    def add(self, chunk: Chunk, rows: Sequence[int], passed: int = 0) -> None:
        end = self.received + len(rows)
        self._entries.append(_Entry(self.received, end, chunk, rows, passed))
        self.received = end

    def add_time(self, chunk: Chunk, passed: int = 0) -> None:
        """Count a chunk without rows for the range; its callbacks ran up to row `passed`."""
        last = len(chunk.offsets) - 1
        if passed <= last:
            self._entries.append(_Entry(self.received, self.received + 1, chunk, (last,), passed))
        self.received += 1
        self.passes += 1

    def waiting(self, rows_done: int, passes_done: int) -> int:
        return max(self.received - rows_done - (self.passes - passes_done), 0)

    def seal(self, rows_done: int) -> None:
        self.sealed = rows_done
        while self._entries and self._entries[0].end <= rows_done:
            self._entries.popleft()

    def restart_point(self) -> RestartPoint | None:
        if not self._entries:
            return None
        first = self._entries[0]
        done = max(self.sealed - first.begin, 0)
        if not self._by_time:
            return RestartPoint(first.chunk, first.rows[done])
        # The time of other ranges' rows in between may still make callbacks due.
        return RestartPoint(first.chunk, first.rows[done - 1] + 1 if done else first.passed)


def first_restart_point(ledgers: Iterable[Ledger]) -> RestartPoint | None:
    points = (ledger.restart_point() for ledger in ledgers)
    return min(filter(None, points), key=lambda point: point.order, default=None)


def offsets_of(ledgers: Iterable[Ledger], partition: TopicPartition, end: int) -> list[int]:
    """Return the restart offset of each range; `end` where everything is sealed."""
    points = (ledger.restart_point() for ledger in ledgers)
    return [end if point is None else point.offset_of(partition) for point in points]
