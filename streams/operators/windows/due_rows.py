"""Which rows of a windowed store are due for their final result: an index by time, so that nobody scans whole segments.

It is in memory and holds the earliest rows only, so it is bounded, and is filled again by a scan when they are gone.
"""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Final

#: How many rows are indexed at most, if they are not all of one time.
INDEXED_ROWS: Final = 200_000

_ALL: Final = 1 << 63

#: A row: its time (a window's start, a session's end) and its key in the store's buffer.
Place = tuple[int, bytes]


class DueRows:
    """Rows by time, of which the earliest are taken.

    Args:
        scan: `scan(first)` -> the places of all rows in the store of that time or later.
        indexed_rows: How many rows are indexed at most.

    >>> stored = [(7, b"a"), (3, b"b"), (9, b"c")]
    >>> due = DueRows(lambda first: [place for place in stored if place[0] >= first])
    >>> due.take(0, 7)
    [b'b', b'a']
    >>> due.add(8, b"d")
    >>> due.take(8, 20)
    [b'd', b'c']
    """

    def __init__(
        self, scan: Callable[[int], Iterable[Place]], *, indexed_rows: int = INDEXED_ROWS
    ) -> None:
        self._scan = scan
        self._indexed_rows = indexed_rows
        self._by_time: dict[int, set[bytes]] = {}
        #: A heap of the times.
        self._times: list[int] = []
        self._count = 0
        #: All rows before this time are indexed, and no other.
        self._horizon = 0

    def add(self, time: int, row: bytes) -> None:
        """Note a row that is in the store now; it may have been there before."""
        if time >= self._horizon:
            return
        rows = self._by_time.get(time)
        if rows is None:
            rows = self._by_time[time] = set()
            heappush(self._times, time)
        self._count -= len(rows)
        rows.add(row)
        self._count += len(rows)
        if self._count > self._indexed_rows:
            self._drop_latest()

    def take(self, first: int, last: int) -> list[bytes]:
        """Return the rows of first <= time <= last, by time, and forget them and all before; some may be deleted."""
        found: list[bytes] = []
        while True:
            while self._times and self._times[0] <= last:
                time = heappop(self._times)
                rows = self._by_time.pop(time)
                self._count -= len(rows)
                if time >= first:
                    found += sorted(rows)
            if last < self._horizon:
                return found
            # Filling may stop short of the last one again, but goes on at least by one time.
            begin, self._horizon = max(first, self._horizon), _ALL
            for time, row in self._scan(begin):
                self.add(time, row)

    def _drop_latest(self) -> None:
        """Keep the earlier half of the rows, those of the first time at least."""
        self._times.sort()
        kept, count = 0, 0
        while kept == 0 or (
            kept < len(self._times)
            and count + len(self._by_time[self._times[kept]]) <= self._indexed_rows // 2
        ):
            count += len(self._by_time[self._times[kept]])
            kept += 1
        for time in self._times[kept:]:
            self._horizon = min(self._horizon, time)
            del self._by_time[time]
        del self._times[kept:]  # in order, which makes it a heap
        self._count = count
