"""A commit buffer of a store that keeps only the keys used last (Kafka Streams' MemoryLRUCache).

A key is used by `get` and `put`. A put beyond `max_entries` deletes the key used least recently, in the changelog too.
All keys stand in memory in the order of their use; after a restart that is the order of their timestamps.
"""

from collections.abc import Collection, Sequence
from typing import Any

from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer, Restored
from tidewheel.state_stores.layout.envelope import unseal
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.spec import StoreSpec


class LruBuffer(CommitBuffer):
    """Buffered access to a family that holds at most `spec.max_entries` keys."""

    def __init__(self, spec: StoreSpec, database: Database, *, topic: str, keep_bytes: int) -> None:
        super().__init__(spec, database, topic=topic, keep_bytes=keep_bytes)
        assert spec.max_entries is not None, "made for stores with a maximum"
        self._most = spec.max_entries
        #: The keys that have a value, the one used least recently first; None while that has not been read.
        self._used: dict[bytes, None] | None = None

    def _by_use(self) -> dict[bytes, None]:
        if self._used is None:
            stored = [
                (unseal(data)[1], key)
                for key, data in self._database.iterate(self._family, None, None)
            ]
            self._used = dict.fromkeys(key for _, key in sorted(stored))
        return self._used

    def get(self, key: bytes) -> Any:
        """Return the value, or None; the key counts as used (not so with `peek` and `iterate`)."""
        value = self.peek(key)
        if value is not None:
            used = self._by_use()
            used.pop(key, None)
            used[key] = None
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[Any]:
        """Return the values of many keys, in their order; all count as used."""
        self.fetch(keys)
        return list(map(self.get, keys))

    def are_decoded(self, keys: Collection[bytes]) -> bool:  # noqa: ARG002 - whatever they are
        """Return False: a value that is read or written directly would not count as used."""
        return False

    def put(self, key: bytes, value: Any, timestamp: int) -> None:
        """Set a value, or delete it with None; then delete the keys that are too many."""
        super().put(key, value, timestamp)
        used = self._by_use()
        used.pop(key, None)
        if value is None:
            return
        used[key] = None
        while len(used) > self._most:
            eldest = next(iter(used))
            del used[eldest]
            super().put(eldest, None, timestamp)

    def put_all(
        self,
        keys: Sequence[bytes],  # noqa: ARG002 - the signature of any buffer
        values: Sequence[Any],  # noqa: ARG002 - as above
        timestamps: Sequence[int],  # noqa: ARG002 - as above
    ) -> bool:
        """Return False: one may delete another that was used less recently."""
        return False

    def approximate_num_entries(self) -> int:
        """Return how many keys there are, exactly."""
        return len(self._by_use())

    def restored(
        self, rows: Sequence[tuple[bytes, bytes | None]], *, slowest_ms: int | None = None
    ) -> Restored:
        """Note that these rows were restored from the changelog."""
        self._used = None
        return super().restored(rows, slowest_ms=slowest_ms)

    def discard(self) -> None:
        """Forget everything, also uncommitted changes: the next read sees the database."""
        super().discard()
        self._used = None
