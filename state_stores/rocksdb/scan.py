"""Scan: a native iterator over a key range, read in pieces and closable from any thread.

The caller serialises `read` and `close`.

Facts of rocksdict 0.3.29:

- An iterator keeps its database open and locked, so `TaskDatabase` tracks scans to close them.
- `set_iterate_lower_bound` sets the *upper* bound, so this class checks lower bounds.
- An iterator's upper bound lives in its `ReadOptions`, which must live as long.
- `items()` ends silently at a damaged block, so this class checks `RdictIter.status`.
"""

from collections.abc import Iterator
from typing import Final

from rocksdict import Rdict, RdictIter, ReadOptions

#: Rows of the first `read`, few because most scans are short; later ones grow to `_MOST_ROWS`.
_FIRST_ROWS: Final = 16
_MOST_ROWS: Final = 1024


class Scan:
    __slots__ = ("__weakref__", "_bounds", "_iterator", "_lower", "_reverse", "_rows")

    def __init__(
        self, family: Rdict, lower: bytes | None, upper: bytes | None, *, reverse: bool
    ) -> None:
        bounds = ReadOptions()
        if upper is not None:
            bounds.set_iterate_upper_bound(upper)
        self._bounds = bounds
        self._iterator: RdictIter | None = family.iter(bounds)
        self._reverse = reverse
        self._lower = lower or b""
        self._rows = _FIRST_ROWS
        if reverse:
            self._iterator.seek_to_last()
        else:
            self._iterator.seek(self._lower)

    def read(self) -> list[tuple[bytes, bytes]]:
        iterator = self._iterator
        if iterator is None:
            return []
        step = iterator.prev if self._reverse else iterator.next
        valid, key, value = iterator.valid, iterator.key, iterator.value
        rows: list[tuple[bytes, bytes]] = []
        lower = self._lower
        try:
            for _ in range(self._rows):
                if not valid():
                    iterator.status()
                    self._iterator = None
                    break
                row_key = key()
                if row_key < lower:
                    self._iterator = None
                    break
                rows.append((row_key, value()))
                step()
        finally:
            # A traceback keeps this frame alive; its iterator would keep the database open.
            del iterator, step, valid, key, value
        self._rows = min(self._rows * 4, _MOST_ROWS)
        return rows

    @property
    def is_open(self) -> bool:
        return self._iterator is not None

    def close(self) -> None:
        self._iterator = None


def empty() -> Iterator[tuple[bytes, bytes]]:
    return iter(())
