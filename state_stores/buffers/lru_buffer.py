"""Commit buffer of a store with an entry limit (Kafka Streams' MemoryLRUCache).

A put beyond `max_entries` deletes the least recently used key, in the changelog too. `get` and
`put` count as use; a restart replaces the order of use by that of timestamps.
"""

from collections.abc import Collection, Sequence
from typing import Any

from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer, RestoreExtras
from tidewheel.state_stores.layout.envelope import unwrap_value
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.spec import StoreSpec


class LruBuffer(CommitBuffer):
    def __init__(
        self, spec: StoreSpec, database: Database, *, topic: str, read_cache_bytes: int
    ) -> None:
        super().__init__(spec, database, topic=topic, read_cache_bytes=read_cache_bytes)
        assert spec.max_entries is not None, "made for stores with a maximum"
        self._most = spec.max_entries
        #: Keys with a value, least recently used first; None until read from the database.
        self._used: dict[bytes, None] | None = None

    def _by_use(self) -> dict[bytes, None]:
        if self._used is None:
            stored = [
                (unwrap_value(data)[1], key)
                for key, data in self._database.iterate(self._family, None, None)
            ]
            self._used = dict.fromkeys(key for _, key in sorted(stored))
        return self._used

    def get(self, key: bytes) -> Any:
        value = self.peek(key)
        if value is not None:
            used = self._by_use()
            used.pop(key, None)
            used[key] = None
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[Any]:
        self.fetch(keys)
        return list(map(self.get, keys))

    def are_decoded(self, keys: Collection[bytes]) -> bool:  # noqa: ARG002 - the signature of any buffer
        """Return False, so callers don't use `values` directly: that would not count as use."""
        return False

    def put(self, key: bytes, value: Any, timestamp: int) -> None:
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
        """Return False to demand single puts: each may delete a less recently used key."""
        return False

    def approximate_num_entries(self) -> int:
        return len(self._by_use())

    def restored(
        self, rows: Sequence[tuple[bytes, bytes | None]], *, slowest_ms: int | None = None
    ) -> RestoreExtras:
        self._used = None
        return super().restored(rows, slowest_ms=slowest_ms)

    def discard(self) -> None:
        super().discard()
        self._used = None
