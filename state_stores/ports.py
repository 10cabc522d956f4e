"""Interfaces of serdes and of a task's database: RocksDB on disk, or in memory."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol


class SerdePort(Protocol):
    """Serde as the engine uses it. Callers handle None (null key, tombstone) themselves.

    `canonical` means that `serialize(deserialize(data)) == data` for all valid data. A record's key
    bytes then need no second serialisation.
    """

    @property
    def canonical(self) -> bool: ...

    def surely_serializes(self, value: Any, /) -> bool:
        """Return True only if `serialize(value)` cannot fail, after a cheap type and range check.

        Stores serialise other values immediately, so an invalid value fails with its own record.
        Returning False is always correct.
        """
        ...

    def serialize(self, topic: str, value: Any, /) -> bytes | None: ...

    def deserialize(self, topic: str, data: bytes, /) -> Any: ...

    def serialize_batch(self, topic: str, values: Sequence[Any], /) -> list[bytes | None]: ...

    def deserialize_batch(self, topic: str, data: Sequence[bytes], /) -> list[Any]: ...


class Database(Protocol):
    """All stores of one task: a column family each, and their positions in the changelogs.

    Any thread reads; only the owner's thread writes. After `close` every call raises
    `InvalidStateStoreError`.
    """

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def iterate(
        self, family: str, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) with lower <= key < upper; None is unbounded.

        The iterator shows the state at the call. It raises `StoreCorruptedError` at a damaged
        block.
        """
        ...

    def write(
        self,
        changes: Mapping[str, Sequence[tuple[bytes, bytes | None]]],
        positions: Mapping[str, bytes],
        *,
        delete_ranges: Mapping[str, tuple[bytes, bytes]] | None = None,
    ) -> None:
        """Apply puts and deletes (None), then store positions; these never cover unwritten rows.

        `delete_ranges` maps a family to (first key, end exclusive); these deletes come first.
        """
        ...

    def clear(self, family: str) -> None: ...

    def position(self, name: str) -> bytes | None: ...

    def approximate_num_entries(self, family: str) -> int: ...

    def close(self) -> None:
        """Close the database; idempotent. A close without errors makes all writes durable."""
        ...
