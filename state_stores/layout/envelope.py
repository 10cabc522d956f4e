"""The bytes a value is stored as: a format byte, the record's timestamp, an optional expiry, then the serde's bytes.

The format byte is there from the first day, so that a later version can add to it without a migration (bit 0x10 says
that an expiry follows the timestamp, bit 0x20 that headers do, as `tidewheel.state_stores.layout.headers` writes them; a value without
headers is stored alike whether its store keeps them or not). The changelog holds the serde's bytes alone; timestamp and headers travel in the
Kafka record, so Kafka's own tools read it.
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


def seal(value: bytes, timestamp: int) -> bytes:
    """Return the stored bytes of a value.

    >>> unseal(seal(b"v", 5))
    (b'v', 5)
    """
    return _HEAD.pack(_VERSION, timestamp) + value


def seal_batch(values: Sequence[bytes | None], timestamps: Sequence[int]) -> list[bytes | None]:
    """Return the stored bytes of many values; None (a delete) stays None."""
    pack = _HEAD.pack
    distinct = set(timestamps)
    if len(distinct) * 2 < len(timestamps):
        # Many records a millisecond: each head is made once.
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


def unseal(stored: bytes) -> tuple[bytes, int]:
    """Return (value bytes, timestamp); raises `StoreCorruptedError` for bytes of no known format."""
    start = _HEAD_BYTES
    if len(stored) >= start and stored[0] == _VERSION | _HAS_EXPIRY:
        start += _EXPIRY_BYTES
    elif not stored or stored[0] != _VERSION:
        start = _behind_headers(stored)
    if len(stored) < start:
        raise _unknown(stored)
    _, timestamp = _HEAD.unpack_from(stored)
    return stored[start:], timestamp


def unseal_batch(stored: Sequence[bytes]) -> tuple[Sequence[bytes], Sequence[int]]:
    """Return the value bytes and the timestamps of many stored values, at least one; raises as `unseal` does.

    >>> unseal_batch([seal(b"v", 5), seal(b"w", 6)])
    ((b'v', b'w'), (5, 6))
    """
    size = len(stored[0])
    if size >= _HEAD_BYTES and {size}.issuperset(map(len, stored)):
        versions, timestamps, values = zip(
            *_row(size - _HEAD_BYTES).iter_unpack(b"".join(stored)), strict=True
        )
        if versions.count(_VERSION) == len(versions):
            return values, timestamps
    return _columns(map(unseal, stored))


@lru_cache
def _row(value_bytes: int) -> struct.Struct:
    """Return the format of a stored value without expiry and headers."""
    return struct.Struct(f"{_HEAD.format}{value_bytes}s")


def _columns(pairs: Iterable[tuple[bytes, int]]) -> tuple[Sequence[bytes], Sequence[int]]:
    values, timestamps = zip(*pairs, strict=True)
    return values, timestamps


def seal_with_headers(
    values: Sequence[bytes | None], timestamps: Sequence[int]
) -> list[bytes | None]:
    """Return the stored bytes of many values that begin with their headers (`tidewheel.state_stores.layout.headers`).

    >>> (stored,) = seal_with_headers([b"".join((NO_HEADERS, b"v"))], [5])
    >>> stored == seal(b"v", 5), unseal_with_headers(stored)[1]
    (True, 5)
    """
    pack, with_headers = _HEAD.pack, _VERSION | _HAS_HEADERS
    sealed: list[bytes | None] = []
    for value, timestamp in zip(values, timestamps, strict=True):
        if value is None:
            sealed.append(None)
        elif value.startswith(NO_HEADERS):
            sealed.append(pack(_VERSION, timestamp) + value[1:])
        else:
            sealed.append(pack(with_headers, timestamp) + value)
    return sealed


def unseal_with_headers(stored: bytes) -> tuple[bytes, int]:
    """Return (value bytes behind their headers, timestamp); raises `StoreCorruptedError` as `unseal` does."""
    if _has_headers(stored):
        _, timestamp = _HEAD.unpack_from(stored)
        return stored[_HEAD_BYTES:], timestamp
    value, timestamp = unseal(stored)
    return NO_HEADERS + value, timestamp


def unseal_batch_with_headers(stored: Sequence[bytes]) -> tuple[Sequence[bytes], Sequence[int]]:
    """Return the value bytes behind their headers and the timestamps of many stored values, at least one."""
    return _columns(map(unseal_with_headers, stored))


def _behind_headers(stored: bytes) -> int:
    """Return where the value begins; beyond the end of what is of another version, which may have put anything there."""
    if _has_headers(stored):
        return _HEAD_BYTES + headers_size(stored[_HEAD_BYTES:])
    return len(stored) + 1


def _has_headers(stored: bytes) -> bool:
    if len(stored) <= _HEAD_BYTES or stored[0] != _VERSION | _HAS_HEADERS:
        return False
    return not stored.startswith(NO_HEADERS, _HEAD_BYTES)  # those are sealed as without


def _unknown(stored: bytes) -> StoreCorruptedError:
    return StoreCorruptedError(
        f"a stored value of {len(stored)} bytes has no format this version knows; "
        "delete the task's directory to restore it from the changelog"
    )
