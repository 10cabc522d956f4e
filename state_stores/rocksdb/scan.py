"""A leased iterator: rows of a range in key order, read in pieces, released by `close` from any thread.

Facts of rocksdict 0.3.29 it rests on: an iterator keeps its database open and locked until it is released, so scans
are registered; `set_iterate_lower_bound` sets the *upper* bound, so lower ends are ours to keep; an iterator's upper end lives in its
`ReadOptions`, which must live as long; `items()` ends silently at a damaged block, so `RdictIter.status` is asked (which `items()` doesn't
have); all calls hold the GIL.
"""

from collections.abc import Iterator
from typing import Final

from rocksdict import Rdict, RdictIter, ReadOptions

#: Rows read at once: few at first, as most scans are short.
_FIRST_ROWS: Final = 16
_MOST_ROWS: Final = 1024


class Scan:
    """The native iterator of one scan. The caller sees to it that `read` and `close` exclude each other.

    Args:
        family: What to read; it is only used here, not kept.
        lower: First key, inclusive.
        upper: Last key, exclusive.
        reverse: Whether to go from the end to the start.
    """

    __slots__ = ("__weakref__", "_bounds", "_iterator", "_lower", "_reverse", "_rows")

    def __init__(
        self, family: Rdict, lower: bytes | None, upper: bytes | None, *, reverse: bool
    ) -> None:
        bounds = ReadOptions()
        if upper is not None:
            bounds.set_iterate_upper_bound(upper)
        # The native iterator points into the options for its upper end, and does not keep them.
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
        """Return the next rows, none at the end. Raises rocksdict's exception if a block could not be read."""
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
                found = key()
                if found < lower:
                    self._iterator = None
                    break
                rows.append((found, value()))
                step()
        finally:
            # A raised exception keeps this frame alive, which must not keep the database open.
            del iterator, step, valid, key, value
        self._rows = min(self._rows * 4, _MOST_ROWS)
        return rows

    @property
    def is_open(self) -> bool:
        """Whether it has neither come to its end nor been closed."""
        return self._iterator is not None

    def close(self) -> None:
        """Let go of the native iterator."""
        self._iterator = None


def empty() -> Iterator[tuple[bytes, bytes]]:
    """Return a scan of nothing."""
    return iter(())
