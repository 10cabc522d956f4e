"""Index of windowed rows by time: finds due final results without a scan of whole segments.

It contains only the earliest rows; a scan refills it.
"""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Final

#: Maximum number of indexed rows; more only if all have one time.
INDEXED_ROWS: Final = 200_000

_ALL: Final = 1 << 63

#: Time (a window's start, a session's end) and store key.
Place = tuple[int, bytes]


class DueRows:
    """Store keys of rows by time; the earliest can be removed.

    Args:
        scan: `scan(first)` -> time and key of all stored rows of that time or later. `pop` calls it
            when it needs rows that the index lacks.
        indexed_rows: Most rows in memory; beyond, the latest are dropped, and scanned later.

    >>> stored = [(7, b"a"), (3, b"b"), (9, b"c")]
    >>> due = DueRows(lambda first: [place for place in stored if place[0] >= first])
    >>> due.pop(0, 7)
    [b'b', b'a']
    >>> due.add(8, b"d")
    >>> due.pop(8, 20)
    [b'd', b'c']
    """

    def __init__(
        self, scan: Callable[[int], Iterable[Place]], *, indexed_rows: int = INDEXED_ROWS
    ) -> None:
        self._scan = scan
        self._indexed_rows = indexed_rows
        self._by_time: dict[int, set[bytes]] = {}
        #: Heap of the indexed times.
        self._times: list[int] = []
        self._count = 0
        #: All stored rows before this time are indexed, and no later ones.
        self._horizon = 0

    def add(self, time: int, row: bytes) -> None:
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

    def pop(self, first: int, last: int) -> list[bytes]:
        """Return and remove the rows with first <= time <= last; the store may lack some by now."""
        popped: list[bytes] = []
        while True:
            while self._times and self._times[0] <= last:
                time = heappop(self._times)
                rows = self._by_time.pop(time)
                self._count -= len(rows)
                if time >= first:
                    popped += sorted(rows)
            if last < self._horizon:
                return popped
            # Each refill covers at least one more time, so the loop ends.
            begin, self._horizon = max(first, self._horizon), _ALL
            for time, row in self._scan(begin):
                self.add(time, row)

    def _drop_latest(self) -> None:
        """Keep about half of the rows, the earlier ones; at least all rows of one time."""
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
        del self._times[kept:]
        self._count = count
