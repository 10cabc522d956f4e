"""How far a store has come in its changelog, as the bytes kept beside its data.

A position names the topic by its id, so that a recreated topic of the same name is noticed, and says when it was
written, so that a position older than the topic's tombstone retention is not followed (deleted keys would live
again). Unreadable bytes count as no position at all: the store is restored, never trusted.
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
    """The next offset to read, the topic's id (16 bytes) and when this was written (ms since the epoch)."""

    offset: int
    topic_id: bytes
    written_at_ms: int

    def encode(self) -> bytes:
        """Return the bytes to store."""
        body = _FORMAT.pack(_VERSION, self.offset, self.written_at_ms, self.topic_id)
        return body + _CHECKSUM.pack(zlib.crc32(body))

    @classmethod
    def decode(cls, data: bytes | None) -> Self | None:
        """Return the position, or None for bytes that are absent, torn, damaged or of another version.

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
