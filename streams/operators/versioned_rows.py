"""Latest rows of a versioned store, with the `CommitBuffer` methods that table operators use."""

from collections.abc import Collection, Sequence
from typing import Any

from tidewheel.state_stores.stores.versioned_store import VersionedKeyValueStore


class VersionedRows:
    def __init__(self, store: VersionedKeyValueStore[Any, Any]) -> None:
        self._store = store
        self.spec = store.buffer.spec
        self.topic = store.buffer.topic

    def fetch(self, keys: Collection[bytes]) -> None: ...

    def are_decoded(self, keys: Collection[bytes]) -> bool:  # noqa: ARG002 - the buffer's signature
        return False

    def get(self, key: bytes) -> Any:
        version = self._store.get_bytes(key)
        return None if version is None else version[0]

    def get_many(self, keys: Sequence[bytes]) -> list[Any]:
        return list(map(self.get, keys))

    def timestamp(self, key: bytes) -> int:
        version = self._store.get_bytes(key)
        return -1 if version is None else version[1]

    def put(self, key: bytes, value: Any, timestamp: int) -> int | None:
        return self._store.put_bytes(key, value, timestamp)
