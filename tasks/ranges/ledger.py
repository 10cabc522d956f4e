"""What was handed to the key ranges of one task and is not sealed yet: from where on each of them would begin again.

A range does its rows in the order in which they were handed to it, so how many of them are done tells which. Pure; the
loop's thread asks.
"""

from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from rebalance.model import TopicPartition


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
    """

    partition: TopicPartition
    offsets: Sequence[int]
    partition_times_ms: Sequence[int]
    positions_ms: Sequence[int]
    time_before_ms: int
    position_before_ms: int
    number: int


class Open(msgspec.Struct):
    """The first row of a range that is not sealed yet, in one chunk."""

    chunk: Chunk
    row: int

    @property
    def offset(self) -> int:
        """Return its offset."""
        return self.chunk.offsets[self.row]

    @property
    def partition_time_ms(self) -> int:
        """Return the partition's largest timestamp before it."""
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
    """Rows of a chunk that one range got: those from `begin` to before `end` of all it ever got."""

    begin: int
    end: int
    chunk: Chunk
    rows: Sequence[int]


class Ledger:
    """What one range was given and has not sealed.

    Attributes:
        given: How many rows it was given so far.
        sealed: How many of them are sealed.
    """

    def __init__(self) -> None:
        self.given = 0
        self.sealed = 0
        self._entries: dict[TopicPartition, deque[_Entry]] = {}

    def give(self, chunk: Chunk, rows: Sequence[int]) -> None:
        """Note rows of a chunk that were handed to the range."""
        end = self.given + len(rows)
        entry = _Entry(self.given, end, chunk, rows)
        self._entries.setdefault(chunk.partition, deque()).append(entry)
        self.given = end

    def seal(self, rows_done: int) -> None:
        """Note that the first `rows_done` rows are sealed."""
        self.sealed = rows_done
        for entries in self._entries.values():
            while entries and entries[0].end <= rows_done:
                entries.popleft()

    def open_row(self, partition: TopicPartition) -> Open | None:
        """Return the first row of a partition that is not sealed; None if there is none."""
        entries = self._entries.get(partition)
        if not entries:
            return None
        first = entries[0]
        return Open(first.chunk, first.rows[max(self.sealed - first.begin, 0)])

    def open_rows(self) -> Iterator[Open]:
        """Yield the first row that is not sealed of each partition that has some."""
        for partition in self._entries:
            found = self.open_row(partition)
            if found is not None:
                yield found
