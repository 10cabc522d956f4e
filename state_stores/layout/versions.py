"""Disk keys of versioned stores: `key ~timestamp(8)`, newest version of a key first. Pure.

The changelog has the bare key, with the version's timestamp in the record.
"""

import struct
from collections.abc import Sequence
from typing import Any, Final

from tidewheel.state_stores.ports import SerdePort

_TIME: Final = struct.Struct(">Q")
_LAST: Final = (1 << 64) - 1

TAIL: Final = _TIME.size

_DELETED: Final = b"\x00"
_PRESENT: Final = b"\x01"


class Tombstone:
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
    inverted: int = _TIME.unpack_from(disk_key, len(disk_key) - TAIL)[0]
    return _LAST - inverted


def key_bounds(key: bytes, newest: int, oldest: int = 0) -> tuple[bytes, bytes]:
    """Return bounds (first, end) of a key's versions; longer keys may be in between."""
    return version_key(key, newest), version_key(key, oldest) + b"\x00"


def payload(value: bytes | None) -> bytes:
    return _DELETED if value is None else _PRESENT + value


def value_of(stored: bytes) -> bytes | None:
    return None if stored == _DELETED else stored[1:]


class VersionSerde:
    def __init__(self, inner: SerdePort) -> None:
        self._inner = inner

    canonical = False

    def surely_serializes(self, value: Any, /) -> bool:
        return self._inner.surely_serializes(value)

    def serialize(self, topic: str, value: Any, /) -> bytes:
        return payload(None if value is TOMBSTONE else self._inner.serialize(topic, value))

    def deserialize(self, topic: str, data: bytes, /) -> Any:
        value = value_of(data)
        return TOMBSTONE if value is None else self._inner.deserialize(topic, value)

    def serialize_batch(self, topic: str, values: Sequence[Any], /) -> list[bytes | None]:
        return [self.serialize(topic, value) for value in values]

    def deserialize_batch(self, topic: str, data: Sequence[bytes], /) -> list[Any]:
        return [self.deserialize(topic, item) for item in data]
