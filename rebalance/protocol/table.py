"""Immutable mapping with cheap changes, for folds over long logs."""

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

_K = TypeVar("_K")
_V = TypeVar("_V")

_REMOVED: Final[Any] = object()


class Table(Mapping[_K, _V]):
    """Immutable mapping whose changed copy shares its base with the original.

    A copy has its own dict of recent changes. Beyond the square root of the base's size they are
    merged into a new base, so a change of n items costs about the square root of n, not n.

    >>> table = Table({"a": 1}).with_item("b", 2)
    >>> dict(table), dict(table.without("a")), len(table)
    ({'a': 1, 'b': 2}, {'b': 2}, 2)
    """

    __slots__ = ("_base", "_changes", "_size", "_whole")

    def __init__(self, items: Mapping[_K, _V] = MappingProxyType({})) -> None:
        """Return a table of these items; the caller must not change them later."""
        self._base: Mapping[_K, _V] = items
        self._changes: Mapping[_K, _V] = {}
        self._size = len(items)
        self._whole: Mapping[_K, _V] | None = items

    def with_item(self, key: _K, value: _V) -> "Table[_K, _V]":
        return self._changed(key, value, self._size + (key not in self))

    def without(self, key: _K) -> "Table[_K, _V]":
        return self._changed(key, _REMOVED, self._size - 1) if key in self else self

    def _changed(self, key: _K, value: _V, size: int) -> "Table[_K, _V]":
        table: Table[_K, _V] = Table(self._base)
        table._changes = {**self._changes, key: value}
        table._size = size
        table._whole = None
        return table if len(table._changes) ** 2 <= len(table._base) else Table(table._merged())

    def _merged(self) -> Mapping[_K, _V]:
        """Return all items as one dict, made at its first use."""
        if self._whole is None:
            whole = {**self._base, **self._changes}
            self._whole = {key: value for key, value in whole.items() if value is not _REMOVED}
        return self._whole

    def __getitem__(self, key: _K) -> _V:
        value = self._changes.get(key, _REMOVED) if key in self._changes else self._base[key]
        if value is _REMOVED:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        if key in self._changes:
            return self._changes[cast("_K", key)] is not _REMOVED
        return key in self._base

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[_K]:
        return iter(self._merged())

    def __repr__(self) -> str:
        return f"Table({dict(self._merged())!r})"

    def keys(self) -> KeysView[_K]:
        return self._merged().keys()

    def values(self) -> ValuesView[_V]:
        return self._merged().values()

    def items(self) -> ItemsView[_K, _V]:
        return self._merged().items()


def table_of(items: Mapping[_K, _V]) -> Table[_K, _V]:
    return items if isinstance(items, Table) else Table(items)
