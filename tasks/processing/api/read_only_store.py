"""Read-only view of a task's store for a processor (KIP-813)."""

from typing import Any, Final, NoReturn

from tidewheel.state_stores.errors import StreamsError

#: Names of the writing methods of all kinds of stores.
_WRITING: Final = frozenset(
    ("put", "put_all", "put_if_absent", "delete", "pop", "popitem", "setdefault", "update", "clear")
)


class ReadOnlyStore:
    """A wrapper of a store that rejects writes.

    >>> ReadOnlyStore({"a": 1}, "rates", "price").get("a")
    1
    >>> ReadOnlyStore({"a": 1}, "rates", "price")["a"] = 2
    Traceback (most recent call last):
        ...
    tidewheel.state_stores.errors.StreamsError: store rates is read-only for price: only the processor that reads its topic changes it; write a record to the topic instead
    """

    __slots__ = ("_name", "_node", "_store")

    def __init__(self, store: Any, name: str, node: str) -> None:
        self._store = store
        self._name = name
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return self._refuse if name in _WRITING else getattr(self._store, name)

    def _refuse(self, *_arguments: Any, **_named: Any) -> NoReturn:
        raise StreamsError(
            f"store {self._name} is read-only for {self._node}: only the processor that reads its topic changes it; write a "
            "record to the topic instead"
        )

    __setitem__ = __delitem__ = _refuse

    def __getitem__(self, key: Any) -> Any:
        return self._store[key]

    def __contains__(self, key: object) -> bool:
        return key in self._store

    def __iter__(self) -> Any:
        return iter(self._store)

    def __len__(self) -> int:
        return len(self._store)
