"""What the key ranges of one task keep together of the runs that were handed to them. Pure; the loop's thread asks.

Each range has records of its own, and their size is its own. The columns of offsets and times of a run are shared: they
stay in memory until the last range that was handed something of the run is past it.
"""

from collections import deque
from collections.abc import Iterable

import msgspec

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
