"""View of a task's database that includes the rows of a commit in flight.

They reach the disk only after the brokers have answered.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import repeat
from operator import itemgetter
from typing import Any, Final

from tidewheel.state_stores.buffers.commit_buffer import Drained
from tidewheel.state_stores.ports import Database

_ABSENT: Final[Any] = object()

_key = itemgetter(0)

#: Sorted keys, and puts and deletes (value None) by key.
OrderedRows = tuple[Sequence[bytes], Mapping[bytes, bytes | None]]


def on_top(
    top: OrderedRows,
    below: Iterator[tuple[bytes, bytes]],
    lower: bytes | None,
    upper: bytes | None,
    *,
    reverse: bool,
) -> Iterator[tuple[bytes, bytes]]:
    """Yield rows of both with lower <= key < upper in key order; `top` hides equal keys `below`.

    >>> rows = {b"a": b"new", b"c": None}
    >>> list(on_top(([b"a", b"c"], rows), iter([(b"b", b"1"), (b"c", b"2")]), None, None, reverse=False))
    [(b'a', b'new'), (b'b', b'1')]
    """
    ordered, rows = top
    start = 0 if lower is None else bisect_left(ordered, lower)
    stop = len(ordered) if upper is None else bisect_left(ordered, upper)
    if start >= stop:
        return below
    places = range(stop - 1, start - 1, -1) if reverse else range(start, stop)
    top_rows = ((key, rows[key]) for key in map(ordered.__getitem__, places))
    live = ((key, value) for key, value in top_rows if value is not None)
    unchanged = (row for row in below if row[0] not in rows)
    return merge(live, unchanged, key=_key, reverse=reverse)


class DatabaseView:
    def __init__(self, below: Database) -> None:
        self._below = below
        self._metadata: dict[str, bytes] = {}

    def position(self, name: str) -> bytes | None:
        stored = self._metadata.get(name)
        return self._below.position(name) if stored is None else stored

    def rows_on_top(self, family: str) -> OrderedRows | None:
        raise NotImplementedError

    def entries_added(self, family: str) -> int:  # noqa: ARG002 - unknown here
        return 0

    def write(
        self,
        changes: Mapping[str, Sequence[tuple[bytes, bytes | None]]],
        positions: Mapping[str, bytes],  # noqa: ARG002 - nothing is written
        *,
        delete_ranges: Mapping[str, tuple[bytes, bytes]] | None = None,  # noqa: ARG002 - nothing is written
    ) -> None:
        raise AssertionError(f"stores don't write {', '.join(changes)} themselves")

    def clear(self, family: str) -> None:
        raise AssertionError(f"stores don't clear {family} themselves")


class InFlightView(DatabaseView):
    def __init__(self, below: Database) -> None:
        super().__init__(below)
        self._changes: dict[str, Drained] = {}
        self._rows: dict[str, OrderedRows] = {}
        self._added: Mapping[str, int] = {}

    def show(self, changes: Mapping[str, Drained], added: Mapping[str, int]) -> None:
        """Show all rows of the commit in flight; `added` counts keys added since the last call."""
        before = self._added
        self.hide()
        self._changes = dict(changes)
        self._added = {name: before.get(name, 0) + added.get(name, 0) for name in changes}
        for changed in changes.values():
            self._metadata.update(changed.metadata)

    def hide(self) -> None:
        self._changes = {}
        self._rows = {}
        self._metadata = {}
        self._added = {}

    def rows_on_top(self, family: str) -> OrderedRows | None:
        changed = self._changes.get(family)
        return None if changed is None else self._rows_of(family, changed)

    def entries_added(self, family: str) -> int:
        return self._added.get(family, 0)

    def _rows_of(self, family: str, changed: Drained) -> OrderedRows:
        ordered = self._rows.get(family)
        if ordered is None:
            stored = changed.stored
            rows = dict(zip(stored.keys, stored.values, strict=True))
            ordered = self._rows[family] = (list(rows), rows)
        return ordered

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        changed = self._changes.get(family)
        if changed is None:
            return self._below.get_many(family, keys)
        rows = self._rows_of(family, changed)[1]
        staged: list[bytes | None] = list(map(rows.get, keys, repeat(_ABSENT)))
        missing = [key for key, value in zip(keys, staged, strict=True) if value is _ABSENT]
        if not missing:
            return staged
        values = self._below.get_many(family, missing)
        if changed.delete_range is not None:
            is_gone = _within(changed.delete_range)
            pairs = zip(missing, values, strict=True)
            values = [None if is_gone(key) else value for key, value in pairs]
        if len(missing) == len(keys):
            return values
        read = iter(values)
        return [next(read) if value is _ABSENT else value for value in staged]

    def iterate(
        self, family: str, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        rows = self._below.iterate(family, lower, upper, reverse=reverse)
        changed = self._changes.get(family)
        if changed is None:
            return rows
        if changed.delete_range is not None:
            is_gone = _within(changed.delete_range)
            rows = (row for row in rows if not is_gone(row[0]))
        return on_top(self._rows_of(family, changed), rows, lower, upper, reverse=reverse)

    def approximate_num_entries(self, family: str) -> int:
        return self._below.approximate_num_entries(family) + self._added.get(family, 0)

    def close(self) -> None:
        raise AssertionError("a view is not closed")


def _within(bounds: tuple[bytes, bytes]) -> Callable[[bytes], bool]:
    first, end = bounds
    return lambda key: first <= key < end
