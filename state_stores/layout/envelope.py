"""Stored value: a format byte, the record's timestamp, an optional expiry, the serde's bytes.

Bits of the format byte: 0x10 for an expiry, 0x20 for headers after the timestamp. The changelog has
the serde's bytes only; timestamp and headers are in the Kafka record.
"""

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import add
from typing import cast

from tidewheel.state_stores.errors import StoreCorruptedError
from tidewheel.state_stores.layout.headers import NO_HEADERS, headers_size

_VERSION = 0x01
_HAS_EXPIRY = 0x10
_HAS_HEADERS = 0x20
_HEAD = struct.Struct(">Bq")
_HEAD_BYTES = _HEAD.size
_EXPIRY_BYTES = 8


def wrap_value(value: bytes, timestamp: int) -> bytes:
    """Return the stored bytes of a value.

    >>> unwrap_value(wrap_value(b"v", 5))
    (b'v', 5)
    """
    return _HEAD.pack(_VERSION, timestamp) + value


def wrap_batch(values: Sequence[bytes | None], timestamps: Sequence[int]) -> list[bytes | None]:
    pack = _HEAD.pack
    distinct = set(timestamps)
    if len(distinct) * 2 < len(timestamps):
        heads = {timestamp: pack(_VERSION, timestamp) for timestamp in distinct}
        if not values.count(None):
            return list(
                map(add, map(heads.__getitem__, timestamps), cast("Sequence[bytes]", values))
            )
        return [
            None if value is None else heads[timestamp] + value
            for value, timestamp in zip(values, timestamps, strict=True)
        ]
    return [
        None if value is None else pack(_VERSION, timestamp) + value
        for value, timestamp in zip(values, timestamps, strict=True)
    ]


def unwrap_value(stored: bytes) -> tuple[bytes, int]:
    """Return (value bytes, timestamp); raise `StoreCorruptedError` for an unknown format."""
    start = _HEAD_BYTES
    if len(stored) >= start and stored[0] == _VERSION | _HAS_EXPIRY:
        start += _EXPIRY_BYTES
    elif not stored or stored[0] != _VERSION:
        start = _behind_headers(stored)
    if len(stored) < start:
        raise _unknown(stored)
    _, timestamp = _HEAD.unpack_from(stored)
    return stored[start:], timestamp


def unwrap_batch(stored: Sequence[bytes]) -> tuple[Sequence[bytes], Sequence[int]]:
    """Return the value bytes and the timestamps of stored values; `stored` must not be empty.

    >>> unwrap_batch([wrap_value(b"v", 5), wrap_value(b"w", 6)])
    ((b'v', b'w'), (5, 6))
    """
    size = len(stored[0])
    if size >= _HEAD_BYTES and {size}.issuperset(map(len, stored)):
        versions, timestamps, values = zip(
            *_row(size - _HEAD_BYTES).iter_unpack(b"".join(stored)), strict=True
        )
        if versions.count(_VERSION) == len(versions):
            return values, timestamps
    return _columns(map(unwrap_value, stored))


@lru_cache
def _row(value_bytes: int) -> struct.Struct:
    return struct.Struct(f"{_HEAD.format}{value_bytes}s")


def _columns(pairs: Iterable[tuple[bytes, int]]) -> tuple[Sequence[bytes], Sequence[int]]:
    values, timestamps = zip(*pairs, strict=True)
    return values, timestamps


def wrap_with_headers(
    values: Sequence[bytes | None], timestamps: Sequence[int]
) -> list[bytes | None]:
    """Return stored bytes of values that begin with encoded headers.

    >>> (stored,) = wrap_with_headers([b"".join((NO_HEADERS, b"v"))], [5])
    >>> stored == wrap_value(b"v", 5), unwrap_with_headers(stored)[1]
    (True, 5)
    """
    pack, with_headers = _HEAD.pack, _VERSION | _HAS_HEADERS
    wrapped: list[bytes | None] = []
    for value, timestamp in zip(values, timestamps, strict=True):
        if value is None:
            wrapped.append(None)
        elif value.startswith(NO_HEADERS):
            wrapped.append(pack(_VERSION, timestamp) + value[1:])
        else:
            wrapped.append(pack(with_headers, timestamp) + value)
    return wrapped


def unwrap_with_headers(stored: bytes) -> tuple[bytes, int]:
    if _has_headers(stored):
        _, timestamp = _HEAD.unpack_from(stored)
        return stored[_HEAD_BYTES:], timestamp
    value, timestamp = unwrap_value(stored)
    return NO_HEADERS + value, timestamp


def unwrap_batch_with_headers(stored: Sequence[bytes]) -> tuple[Sequence[bytes], Sequence[int]]:
    return _columns(map(unwrap_with_headers, stored))


def _behind_headers(stored: bytes) -> int:
    if _has_headers(stored):
        return _HEAD_BYTES + headers_size(stored[_HEAD_BYTES:])
    return len(stored) + 1


def _has_headers(stored: bytes) -> bool:
    if len(stored) <= _HEAD_BYTES or stored[0] != _VERSION | _HAS_HEADERS:
        return False
    # Values without headers have no flag, so `NO_HEADERS` behind a flag means damage.
    return not stored.startswith(NO_HEADERS, _HEAD_BYTES)


def _unknown(stored: bytes) -> StoreCorruptedError:
    return StoreCorruptedError(
        f"a stored value of {len(stored)} bytes has no format this version knows; "
        "delete the task's directory to restore it from the changelog"
    )
