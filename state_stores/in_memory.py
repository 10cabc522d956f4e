"""In-memory database: for in-memory stores, the test driver, and comparison in RocksDB's tests.

`close` loses data and positions, so each start restores from the changelog.
"""

import threading
import weakref
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tidewheel.state_stores.errors import InvalidStateStoreError, StateStoreError

#: Up to this many changed keys, `_sort` updates its list key by key; beyond, sorting all is faster.
_FEW_KEYS: Final = 64

_ABSENT: Final[Any] = object()


class InMemoryDatabase:
    def __init__(self, families: Sequence[str]) -> None:
        self._families = {name: _Family() for name in families}
        self._positions: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._closed = False

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._lock:
            return list(map(self._family(family).data.get, keys))

    def iterate(
        self, family: str, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        with self._lock:
            view = self._family(family).view(lower, upper, reverse=reverse)
        return self._rows(view)

    def _rows(self, view: "_Snapshot") -> Iterator[tuple[bytes, bytes]]:
        for key in view.keys:
            if self._closed:
                raise self._is_closed()
            yield key, view.value(key)

    def write(
        self,
        changes: Mapping[str, Sequence[tuple[bytes, bytes | None]]],
        positions: Mapping[str, bytes],
        *,
        delete_ranges: Mapping[str, tuple[bytes, bytes]] | None = None,
    ) -> None:
        with self._lock:
            for name, (first, end) in (delete_ranges or {}).items():
                expired = self._family(name).view(first, end, reverse=False).keys
                self._family(name).apply([(key, None) for key in expired])
            targets = [(self._family(name), rows) for name, rows in changes.items()]
            for family, rows in targets:
                family.apply(rows)
            self._check_open()
            self._positions.update(positions)

    def clear(self, family: str) -> None:
        with self._lock:
            target = self._family(family)
            target.apply([(key, None) for key in target.data])

    def position(self, name: str) -> bytes | None:
        with self._lock:
            self._check_open()
            return self._positions.get(name)

    def approximate_num_entries(self, family: str) -> int:
        with self._lock:
            return len(self._family(family).data)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._families.clear()
            self._positions.clear()

    def _family(self, name: str) -> "_Family":
        self._check_open()
        family = self._families.get(name)
        if family is None:
            raise StateStoreError(
                f"the in-memory database was opened without store {name!r} "
                f"(it has {', '.join(sorted(self._families)) or 'none'}); connect the store to the processor that uses it"
            )
        return family

    def _check_open(self) -> None:
        if self._closed:
            raise self._is_closed()

    @staticmethod
    def _is_closed() -> InvalidStateStoreError:
        return InvalidStateStoreError(
            "the in-memory database was closed, its task has stopped or moved to another process; "
            "ask for the store again"
        )


class _Family:
    """Rows of one store; `view` sorts keys changed since the last iterator."""

    __slots__ = ("_changed", "_sorted", "_views", "data")

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}
        self._sorted: list[bytes] = []
        self._changed: set[bytes] = set()
        self._views: weakref.WeakSet[_Snapshot] = weakref.WeakSet()

    def apply(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        data, changed, views = self.data, self._changed, list(self._views)
        for key, value in rows:
            before = data.get(key)
            # Views copy the old value first, because a concurrent iterator reads `data` before its
            # view's copies.
            for view in views:
                view.store_old_value(key, before)
            if value is None:
                if data.pop(key, None) is not None:
                    changed.add(key)
            else:
                if before is None:
                    changed.add(key)
                data[key] = value

    def view(self, lower: bytes | None, upper: bytes | None, *, reverse: bool) -> "_Snapshot":
        self._sort()
        ordered = self._sorted
        start = 0 if lower is None else bisect_left(ordered, lower)
        stop = len(ordered) if upper is None else bisect_left(ordered, upper)
        keys = ordered[start:stop]
        if reverse:
            keys.reverse()
        view = _Snapshot(self.data, keys)
        self._views.add(view)
        return view

    def _sort(self) -> None:
        changed, data, ordered = self._changed, self.data, self._sorted
        if len(changed) > _FEW_KEYS:
            self._sorted = sorted(data)
        else:
            for key in changed:
                index = bisect_left(ordered, key)
                is_present = index < len(ordered) and ordered[index] == key
                if key in data and not is_present:
                    insort(ordered, key)
                elif key not in data and is_present:
                    del ordered[index]
        changed.clear()


class _Snapshot:
    __slots__ = ("__weakref__", "_data", "_old_values", "keys")

    def __init__(self, data: Mapping[bytes, bytes], keys: list[bytes]) -> None:
        self.keys = keys
        self._data = data
        self._old_values: dict[bytes, bytes | None] = {}

    def store_old_value(self, key: bytes, value: bytes | None) -> None:
        self._old_values.setdefault(key, value)

    def value(self, key: bytes) -> bytes:
        value: bytes = self._data.get(key, _ABSENT)
        old_value: bytes | None = self._old_values.get(key, _ABSENT)
        return value if old_value is _ABSENT or old_value is None else old_value
