"""How versioned stores lay out their rows: `key ~timestamp(8)`, one per version, the newest of a key first. Pure.

A deletion is a version too. `valid_to` of a version is the timestamp of the next newer one: it is read, never stored.
The changelog has the key alone; the version's timestamp is the record's, as in Kafka Streams.
"""

import struct
from collections.abc import Sequence
from typing import Any, Final

from tidewheel.state_stores.ports import SerdePort

_TIME: Final = struct.Struct(">Q")
_LAST: Final = (1 << 64) - 1

#: How many bytes stand behind the key.
TAIL: Final = _TIME.size

_DELETED: Final = b"\x00"
_PRESENT: Final = b"\x01"


class Tombstone:
    """The value of a version that is a deletion."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<deleted>"


TOMBSTONE: Final = Tombstone()


def version_key(key: bytes, timestamp: int) -> bytes:
    """Return the disk key of a version.

    >>> time_of(version_key(b"a", 7)), version_key(b"a", 8) < version_key(b"a", 7)
    (7, True)
    """
    return key + _TIME.pack(_LAST - timestamp)


def key_of_version(disk_key: bytes) -> bytes:
    """Return the store's key in the disk key of a version.

    >>> key_of_version(version_key(b"a", 7))
    b'a'
    """
    return disk_key[:-TAIL]


def time_of(disk_key: bytes) -> int:
    """Return the timestamp of a version."""
    inverted: int = _TIME.unpack_from(disk_key, len(disk_key) - TAIL)[0]
    return _LAST - inverted


def key_bounds(key: bytes, newest: int, oldest: int = 0) -> tuple[bytes, bytes]:
    """Return the range (first, end) of the disk keys of oldest <= timestamp <= newest; those of the right length count."""
    return version_key(key, newest), version_key(key, oldest) + b"\x00"


def payload(value: bytes | None) -> bytes:
    """Return what a version is stored as, without the envelope; None is a deletion."""
    return _DELETED if value is None else _PRESENT + value


def value_of(stored: bytes) -> bytes | None:
    """Return the value of what `payload` made."""
    return None if stored == _DELETED else stored[1:]


class VersionSerde:
    """A store's value serde, with deletions as values."""

    def __init__(self, inner: SerdePort) -> None:
        self._inner = inner

    canonical = False

    def surely_serializes(self, value: Any, /) -> bool:
        """Return True only if `serialize(value)` cannot fail."""
        return self._inner.surely_serializes(value)

    def serialize(self, topic: str, value: Any, /) -> bytes:
        """Return the bytes of a version."""
        return payload(None if value is TOMBSTONE else self._inner.serialize(topic, value))

    def deserialize(self, topic: str, data: bytes, /) -> Any:
        """Return the value of a version, or `TOMBSTONE`."""
        value = value_of(data)
        return TOMBSTONE if value is None else self._inner.deserialize(topic, value)

    def serialize_batch(self, topic: str, values: Sequence[Any], /) -> list[bytes | None]:
        """Return the bytes of many versions."""
        return [self.serialize(topic, value) for value in values]

    def deserialize_batch(self, topic: str, data: Sequence[bytes], /) -> list[Any]:
        """Return the values of many versions."""
        return [self.deserialize(topic, item) for item in data]
