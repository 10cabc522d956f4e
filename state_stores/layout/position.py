"""Position of a store in its changelog, as stored bytes.

The topic's id detects a recreated topic; the time of writing detects a position older than the
tombstone retention.
"""

import struct
import zlib
from dataclasses import dataclass
from typing import Self

_FORMAT = struct.Struct(">BqQ16s")
_CHECKSUM = struct.Struct(">I")
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Next offset to read, topic id (16 bytes) and time of writing (ms since the epoch)."""

    offset: int
    topic_id: bytes
    written_at_ms: int

    def encode(self) -> bytes:
        body = _FORMAT.pack(_VERSION, self.offset, self.written_at_ms, self.topic_id)
        return body + _CHECKSUM.pack(zlib.crc32(body))

    @classmethod
    def decode(cls, data: bytes | None) -> Self | None:
        """Return the position, or None for absent, torn, damaged or unknown bytes.

        >>> Position.decode(Position(offset=7, topic_id=bytes(16), written_at_ms=0).encode()).offset
        7
        >>> Position.decode(b"garbage") is None
        True
        """
        if data is None or len(data) != _FORMAT.size + _CHECKSUM.size:
            return None
        body = data[: _FORMAT.size]
        if _CHECKSUM.unpack(data[_FORMAT.size :])[0] != zlib.crc32(body) or body[0] != _VERSION:
            return None
        _, offset, written_at_ms, topic_id = _FORMAT.unpack(body)
        return cls(offset=offset, topic_id=topic_id, written_at_ms=written_at_ms)


def store_time_name(store: str) -> str:
    """Return the name under which the database stores a store's stream time, as a position.

    >>> store_time_name("clicks")
    'stream-time:clicks'
    """
    return f"stream-time:{store}"
