"""What was handed to the key ranges of one task and is not sealed yet: from where on each of them would begin again.

A range does its rows in the order in which they were handed to it, so how many of them are done tells which. Pure; the
loop's thread asks.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tidewheel.rebalance.model import TopicPartition

#: Offset and times of one row, and what a run costs beside its rows.
_ROW_BYTES = 3 * 8
_RUN_BYTES = 1_000


class _Run(msgspec.Struct):
    """One run, and how many pieces of work that hold it are not done."""

    size_bytes: int
    holders: int


class RunMemory:
    """Counts the bytes of the runs that some range still holds.

    Attributes:
        bytes: Of all of them.
    """

    def __init__(self, ranges: int) -> None:
        self.bytes = 0
        self._waiting: list[deque[_Run]] = [deque() for _ in range(ranges)]
        self._done = [0] * ranges

    def give(self, rows: int, indexes: Iterable[int]) -> None:
        """Note a run of so many rows: each range named got a piece of work of it, or several if named so often."""
        holders = list(indexes)
        if not holders:
            return
        run = _Run(rows * _ROW_BYTES + _RUN_BYTES, len(holders))
        self.bytes += run.size_bytes
        for index in holders:
            self._waiting[index].append(run)

    def let_go(self, index: int, items_done: int) -> None:
        """Note that a range has done so many pieces of work so far.

        >>> memory = RunMemory(2)
        >>> memory.give(10, [0, 1])
        >>> memory.let_go(0, 1)
        >>> memory.bytes
        1240
        >>> memory.let_go(1, 1)
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
    """Records of one partition that the loop handed out together.

    Attributes:
        partition: Where they come from.
        offsets: Their offsets, ascending.
        partition_times_ms: Per row the partition's largest timestamp up to and with it.
        positions_ms: Per row the time of the task's position clock, up to and with it.
        time_before_ms: The partition's largest timestamp before them.
        position_before_ms: The position clock's time before them.
        number: Counts the chunks of the task.
        others: How far the task's other partitions were handed out before them, and their largest timestamps there.
    """

    partition: TopicPartition
    offsets: Sequence[int]
    partition_times_ms: Sequence[int]
    positions_ms: Sequence[int]
    time_before_ms: int
    position_before_ms: int
    number: int
    others: Mapping[TopicPartition, tuple[int, int]]


class Open(msgspec.Struct):
    """Where a range would begin again: a row of a chunk, before which all rows of the range are sealed.

    That is one moment of the task, with a position in each of its partitions: what is read from there on is merged as
    it was before.
    """

    chunk: Chunk
    row: int

    @property
    def order(self) -> tuple[int, int]:
        """Return what is less for an earlier moment."""
        return self.chunk.number, self.row

    def offset_of(self, partition: TopicPartition) -> int:
        """Return the position in a partition."""
        if partition == self.chunk.partition:
            return self.chunk.offsets[self.row]
        return self.chunk.others[partition][0]

    def time_ms_of(self, partition: TopicPartition) -> int:
        """Return a partition's largest timestamp before it."""
        if partition != self.chunk.partition:
            return self.chunk.others[partition][1]
        if self.row == 0:
            return self.chunk.time_before_ms
        return self.chunk.partition_times_ms[self.row - 1]

    @property
    def position_ms(self) -> int:
        """Return the position clock's time before it."""
        if self.row == 0:
            return self.chunk.position_before_ms
        return self.chunk.positions_ms[self.row - 1]


class _Entry(msgspec.Struct, frozen=True):
    """Rows of a chunk that one range got: those from `begin` to before `end` of all it ever got.

    Before the first of them it knows of the rows before `passed`, whosever they are: they have made its time.
    """

    begin: int
    end: int
    chunk: Chunk
    rows: Sequence[int]
    passed: int


class Ledger:
    """What one range was given and has not sealed.

    Args:
        by_time: Whether users' objects may be called as time passes: also where it comes to rows of other ranges.

    Attributes:
        given: How many rows it was given so far. One of them stands for all rows of a chunk that has none of its own.
        passes: How many of them were such.
        sealed: How many of the rows are sealed.
    """

    def __init__(self, *, by_time: bool = False) -> None:
        self.given = 0
        self.passes = 0
        self.sealed = 0
        self._by_time = by_time
        self._entries: deque[_Entry] = deque()

    def give(self, chunk: Chunk, rows: Sequence[int], passed: int = 0) -> None:
        """Note rows of a chunk that were handed to the range, which knows of those before `passed`."""
        end = self.given + len(rows)
        self._entries.append(_Entry(self.given, end, chunk, rows, passed))
        self.given = end

    def give_time(self, chunk: Chunk, passed: int = 0) -> None:
        """Note that the range was told of a chunk that has no row of its own; of those before `passed` it knew."""
        last = len(chunk.offsets) - 1
        if passed <= last:
            self._entries.append(_Entry(self.given, self.given + 1, chunk, (last,), passed))
        self.given += 1
        self.passes += 1

    def waiting(self, rows_done: int, passes_done: int) -> int:
        """Return how many rows of its own wait or are in hand, when so many are done and so many of these were others'."""
        return max(self.given - rows_done - (self.passes - passes_done), 0)

    def seal(self, rows_done: int) -> None:
        """Note that the first `rows_done` rows are sealed."""
        self.sealed = rows_done
        while self._entries and self._entries[0].end <= rows_done:
            self._entries.popleft()

    def open_row(self) -> Open | None:
        """Return where the range would begin again; None if all is sealed."""
        if not self._entries:
            return None
        first = self._entries[0]
        done = max(self.sealed - first.begin, 0)
        if not self._by_time:
            return Open(first.chunk, first.rows[done])
        # Not at its next row: what is due at rows of others in between was not called yet.
        return Open(first.chunk, first.rows[done - 1] + 1 if done else first.passed)


def first_open(ledgers: Iterable[Ledger]) -> Open | None:
    """Return where the slowest range would begin again; None if all is sealed."""
    opened = (each.open_row() for each in ledgers)
    return min(filter(None, opened), key=lambda each: each.order, default=None)


def offsets_of(ledgers: Iterable[Ledger], partition: TopicPartition, end: int) -> list[int]:
    """Return from where in a partition on each range would begin again: `end` where all is sealed."""
    opened = (each.open_row() for each in ledgers)
    return [end if each is None else each.offset_of(partition) for each in opened]
