"""The latest rows of a versioned store, under those methods of a `CommitBuffer` that table operators use."""

from collections.abc import Collection, Sequence
from typing import Any

from tidewheel.state_stores.stores.versioned_store import VersionedKeyValueStore


class VersionedRows:
    """Reads and writes of a versioned store by serialised key; there is no cache, and values are read at each call."""

    def __init__(self, store: VersionedKeyValueStore[Any, Any]) -> None:
        self._store = store
        self.spec = store.buffer.spec
        self.topic = store.buffer.topic

    def fetch(self, keys: Collection[bytes]) -> None:
        """Do nothing: versions are found one by one."""

    def are_decoded(self, keys: Collection[bytes]) -> bool:  # noqa: ARG002 - the buffer's signature
        """Return False: nothing stands decoded in memory."""
        return False

    def get(self, key: bytes) -> Any:
        """Return the latest value, or None."""
        found = self._store.get_bytes(key)
        return None if found is None else found[0]

    def get_many(self, keys: Sequence[bytes]) -> list[Any]:
        """Return the latest values of many keys, in their order."""
        return list(map(self.get, keys))

    def timestamp(self, key: bytes) -> int:
        """Return the timestamp of the latest value; -1 if there is none."""
        found = self._store.get_bytes(key)
        return -1 if found is None else found[1]

    def put(self, key: bytes, value: Any, timestamp: int) -> int | None:
        """Set the value from a timestamp on; return as `VersionedKeyValueStore.put` does."""
        return self._store.put_bytes(key, value, timestamp)
