"""Serde of the values of a store: a stored row that it can't read is a `StoredRowError`, not the fault of a record."""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Final

from tidewheel.state_stores.errors import SerdeError, StoredRowError, StreamsError
from tidewheel.state_stores.ports import SerdePort

#: What a serde may raise. `SystemExit` too: the exit of a library must not end a worker without a word of the row.
FAILURES: Final = (Exception, SystemExit)


class StoredValues:
    """A store's value serde; everything but reading is the serde's own."""

    def __init__(self, inner: SerdePort, store: str) -> None:
        self.inner = inner
        self._store = store
        self.canonical: bool = inner.canonical
        self.surely_serializes: Callable[[Any], bool] = inner.surely_serializes
        self.serialize: Callable[[str, Any], bytes | None] = inner.serialize
        self.serialize_batch: Callable[[str, Sequence[Any]], list[bytes | None]] = (
            inner.serialize_batch
        )

    def __repr__(self) -> str:
        return repr(self.inner)

    def deserialize(self, topic: str, data: bytes, /) -> Any:
        """Return the value of a row; raises `StoredRowError` if the serde can't read it."""
        try:
            return self.inner.deserialize(topic, data)
        except FAILURES as error:
            raise unreadable(self._store, error) from error

    def deserialize_batch(self, topic: str, data: Sequence[bytes], /) -> list[Any]:
        """Return the values of many rows."""
        return self.inner.deserialize_batch(topic, data)


def unreadable(store: str, error: BaseException, key: bytes | None = None) -> StreamsError:
    """Return the error to raise for a stored row that a serde can't read; errors that are no serde's stay as they are."""
    if isinstance(error, StreamsError) and not isinstance(error, SerdeError):
        return error
    fact = (
        error.fact if isinstance(error, SerdeError) else f"its serde raised {type(error).__name__}"
    )
    return StoredRowError(store, fact, key_hash=None if key is None else key_hash(key))


def read_row(
    store: str, decode: Callable[[str, bytes], Any], topic: str, data: bytes, key: bytes
) -> Any:
    """Return what a serde reads of a row: its value, or its key; raises `StoredRowError` if it can't.

    Args:
        store: The store.
        decode: The serde's `deserialize`.
        topic: Topic name the serde is told.
        data: Bytes to read.
        key: The key of the row.
    """
    try:
        return decode(topic, data)
    except StoredRowError as error:
        raise error.of_key(key_hash(key)) from error.__cause__
    except FAILURES as error:
        raise unreadable(store, error, key) from error


def described_key(key: bytes | None) -> str:
    """Return the facts of a key that messages may show.

    >>> described_key(None), described_key(b"ann")
    ('no key', 'key of 3 bytes, sha256:49915e0d7d4b')
    """
    return "no key" if key is None else f"key of {len(key)} bytes, {key_hash(key)}"


def key_hash(key: bytes) -> str:
    """Return what messages call a key: a hash, because keys may be personal.

    >>> key_hash(b"ann")
    'sha256:49915e0d7d4b'
    """
    return f"sha256:{sha256(key).hexdigest()[:12]}"
