"""Value serde of a store: an unreadable stored row raises `StoredRowError`."""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Final

from tidewheel.state_stores.errors import SerdeError, StoredRowError, StreamsError
from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.user_code import raised

#: Errors of a serde; `SystemExit` too, so a library's exit can't end a worker without naming the
#: row.
FAILURES: Final = (Exception, SystemExit)


class StoredValues:
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
        try:
            return self.inner.deserialize(topic, data)
        except FAILURES as error:
            raise unreadable(self._store, error) from error

    def deserialize_batch(self, topic: str, data: Sequence[bytes], /) -> list[Any]:
        return self.inner.deserialize_batch(topic, data)


def unreadable(store: str, error: BaseException, key: bytes | None = None) -> StreamsError:
    """Return `StoredRowError` for a row that raised `error`; other `StreamsError`s stay."""
    if isinstance(error, StreamsError) and not isinstance(error, SerdeError):
        return error
    fact = error.fact if isinstance(error, SerdeError) else f"its serde {raised(error)}"
    return StoredRowError(store, fact, key_hash=None if key is None else key_hash(key))


def read_row(
    store: str, decode: Callable[[str, bytes], Any], topic: str, data: bytes, key: bytes
) -> Any:
    try:
        return decode(topic, data)
    except StoredRowError as error:
        raise error.of_key(key_hash(key)) from error.__cause__
    except FAILURES as error:
        raise unreadable(store, error, key) from error


def described_key(key: bytes | None) -> str:
    """Return a description of a key for messages.

    >>> described_key(None), described_key(b"ann")
    ('no key', 'key of 3 bytes, sha256:49915e0d7d4b')
    """
    return "no key" if key is None else f"key of {len(key)} bytes, {key_hash(key)}"


def key_hash(key: bytes) -> str:
    """Return a key's hash for messages, because keys may be personal.

    >>> key_hash(b"ann")
    'sha256:49915e0d7d4b'
    """
    return f"sha256:{sha256(key).hexdigest()[:12]}"
