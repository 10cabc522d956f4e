"""What stores need from outside, and the one interface every database of a task offers.

A *database* holds the bytes of all stores of one task: RocksDB on disk, or the in-memory twin. It knows
families (one per store), bytes and positions; no serde, no Kafka client, no task.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol


class SerdePort(Protocol):
    """A serde as the engine uses it: single and batch forms of both directions.

    None (a null key, a tombstone) is never passed in. `canonical` says that
    `serialize(deserialize(data)) == data` for all data that deserialise, so that raw key bytes may be reused.
    """

    @property
    def canonical(self) -> bool:
        """Whether raw bytes may stand for the value they decode to."""
        ...

    def surely_serializes(self, value: Any, /) -> bool:
        """Return True only if `serialize(value)` cannot fail, told at the price of a type and range check.

        Such a value may be kept as it is until the commit; any other is serialised at once, so that a value that can't
        be serialised fails with the record that made it. False is always a correct answer.
        """
        ...

    def serialize(self, topic: str, value: Any, /) -> bytes | None:
        """Return the bytes of one value."""
        ...

    def deserialize(self, topic: str, data: bytes, /) -> Any:
        """Return the value of some bytes; raises on bytes that are not such a value."""
        ...

    def serialize_batch(self, topic: str, values: Sequence[Any], /) -> list[bytes | None]:
        """Return the bytes of many values; raises if any fails (the caller then goes one by one)."""
        ...

    def deserialize_batch(self, topic: str, data: Sequence[bytes], /) -> list[Any]:
        """Return many values; raises if any fails (the caller then goes one by one)."""
        ...


class Database(Protocol):
    """All stores of one task: families of sorted bytes, and positions.

    Reads may come from any thread; writes from the owner's thread only. After `close` everything raises
    `InvalidStateStoreError`.
    """

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys`, in their order; None where absent."""
        ...

    def iterate(
        self, family: str, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) with lower <= key < upper in key order (or backwards); None is unbounded.

        The view is that of the moment of the call. Raises `StoreCorruptedError` if the scan ended because of a
        damaged block rather than at the end of the range.
        """
        ...

    def write(
        self,
        changes: Mapping[str, Sequence[tuple[bytes, bytes | None]]],
        positions: Mapping[str, bytes],
        *,
        delete_ranges: Mapping[str, tuple[bytes, bytes]] | None = None,
    ) -> None:
        """Apply puts and deletes (value None) of all families, then the positions, so that positions never lead.

        `delete_ranges` names per family the keys (first one, end) that are deleted before anything else is written.
        """
        ...

    def clear(self, family: str) -> None:
        """Delete everything in one family (before it is restored from the beginning)."""
        ...

    def position(self, name: str) -> bytes | None:
        """Return a stored position (opaque here, see `tidewheel.state_stores.layout.position`), or None if never written."""
        ...

    def approximate_num_entries(self, family: str) -> int:
        """Return about how many keys a family holds."""
        ...

    def close(self) -> None:
        """Release everything; idempotent. A clean close makes all written data durable."""
        ...
