"""Progress of a task in one partition, encoded as metadata of the committed offset. Pure.

The text is base64 of varints. Offsets are relative to the committed one, so lag does not affect the
size. The checksum includes that offset and rejects a text of another one, except in version 1.
"""

import base64
import binascii
import zlib
from collections.abc import Iterable
from typing import Self

import msgspec

from tidewheel.rebalance.model import EPOCH_MAX, HASH_END, SHARDS_MAX
from tidewheel.tasks.key_ranges.key_ranges import KEY_HASH, RANGES_MAX
from tidewheel.tasks.key_ranges.vector import Vector

_MAGIC = 0xE7
_VERSION = 2
_FIRST_VERSION = 1
#: Has bounds of the hashes; written for shards only, so other applications can go back a release.
_SHARD_VERSION = 3
_TOPIC_ID_BYTES = 16
TOPOLOGY_HASH_BYTES = 8
_CHECKSUM_BYTES = 4
_OFFSETS_END = 1 << 63
#: Largest shift of a varint, which has at most 64 bits.
_SHIFTS_MAX = 63

#: Start of Kafka Streams' metadata text: a version and a time.
_THEIR_VERSIONS = (1, 2)
_THEIR_BYTES = 9
_THEIR_CHARACTERS = 12

#: Longest text; the rest of Kafka's offset.metadata.max.bytes (4,096) is for later versions.
METADATA_CHARACTERS_MAX = 3_300

#: Maximum lead (offsets) of the fastest range over the slowest, after which distribution pauses.
#: The format has room for twice as much, because records are distributed in batches.
AHEAD_MAX = 1 << 27

#: Maximum bytes of encoded progress without transactional id, facts, operator times and ranges.
_FRAME_BYTES = (
    2
    + 6
    + 5
    + 1
    + 5
    + 2
    + _TOPIC_ID_BYTES
    + 8
    + 1
    + len(KEY_HASH)
    + 2
    + 7
    + 1
    + 2
    + _CHECKSUM_BYTES
)
#: Maximum bytes of one operator's time, and of one range.
_TIME_BYTES = 7
_RANGE_BYTES = 8
#: Ranges that take one byte more: at most 16 start 2**28 or more hashes after the one before.
_WIDE_RANGES = 16


def ranges_that_fit(transactional_id: str, operator_times: int, facts_bytes: int = 0) -> int:
    """Return the number of key ranges whose progress fits a commit's metadata text.

    >>> ranges_that_fit("shop-fixed-0", 32)
    256
    >>> ranges_that_fit("shop" * 60, 32)
    241
    """
    free_bytes = METADATA_CHARACTERS_MAX // 4 * 3 - _FRAME_BYTES - _WIDE_RANGES
    free_bytes -= len(transactional_id.encode()) + operator_times * _TIME_BYTES + facts_bytes
    return max(1, min(free_bytes // _RANGE_BYTES, RANGES_MAX))


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Committed progress of one input partition.

    Attributes:
        task_epoch: Ownership count of the task; 0 under fixed assignment.
        transactional_id: Id of the committing producer; a successor fences it.
        topic_id: 16 bytes; detects a recreated topic of the same name.
        topology_hash: First 8 bytes; operator times are valid only for equal hashes.
        stream_time_ms: Largest timestamp below the lowest offset, -1 for none.
        operator_times_ms: Stream time per windowed operator, in topology order.
        sequence: Commit count of the producer; identifies a transaction of unknown outcome.
        read_from: Offset to read from if below all ranges' offsets, else None. All inputs restart
            from one moment, so their merge order repeats.
        shards: Number of shards that share the partition.
        facts: Facts that change only with topology or topics (`tidewheel.tasks.commit_facts`).
    """

    task_epoch: int
    transactional_id: str
    topic_id: bytes
    topology_hash: bytes
    vector: Vector
    stream_time_ms: int = -1
    operator_times_ms: tuple[int, ...] = ()
    key_hash: str = KEY_HASH
    sequence: int = 0
    read_from: int | None = None
    facts: bytes = b""
    shards: int = 1

    @property
    def committed_offset(self) -> int:
        if self.read_from is not None:
            return self.read_from
        return self.vector.lowest

    @property
    def highest_offset(self) -> int:
        return self.vector.highest

    @property
    def is_absurd(self) -> bool:
        hashes = list(self.vector.first_hashes)
        return (
            self.task_epoch > EPOCH_MAX
            or len(hashes) > RANGES_MAX
            or hashes != sorted(set(hashes))
            or not hashes[-1] < self.vector.end_hash <= HASH_END
            or not 1 <= self.shards <= SHARDS_MAX
            or self.highest_offset >= _OFFSETS_END
            or max(self.sequence, self.stream_time_ms, *self.operator_times_ms) >= _OFFSETS_END
        )

    def encode(self) -> str:
        """Return the metadata text; raise ValueError if it is too long for a broker.

        >>> progress = Progress(task_epoch=0, transactional_id="app-fixed-0", topic_id=bytes(16),
        ...     topology_hash=bytes(8), vector=Vector.at(42))
        >>> Progress.decode(progress.encode(), committed_offset=42) == progress
        True
        """
        base = self.committed_offset
        version = _VERSION if self.shards == 1 else _SHARD_VERSION
        body = bytearray((_MAGIC, version))
        _append_number(body, self.sequence)
        _append_number(body, self.task_epoch)
        _append_text(body, self.transactional_id)
        body += self.topic_id
        body += self.topology_hash
        _append_text(body, self.key_hash)
        if version == _SHARD_VERSION:
            _append_number(body, self.shards)
            _append_number(body, self.vector.end_hash)
        _append_number(body, len(self.vector.first_hashes))
        previous = 0
        for part in self.vector.parts:
            _append_number(body, part.first_hash - previous)
            _append_number(body, part.offset - base)
            previous = part.first_hash
        _append_number(body, self.stream_time_ms + 1)
        _append_number(body, len(self.operator_times_ms))
        for time_ms in self.operator_times_ms:
            _append_number(body, time_ms + 1)
        _append_number(body, len(self.facts))
        body += self.facts
        body += _checksum(body, base).to_bytes(_CHECKSUM_BYTES, "big")
        text = base64.b64encode(body).decode("ascii")
        if len(text) > METADATA_CHARACTERS_MAX:
            raise ValueError(
                f"progress metadata has {len(text)} characters, the limit is {METADATA_CHARACTERS_MAX}"
            )
        return text

    @classmethod
    def decode(cls, text: str, *, committed_offset: int) -> Self | None:
        """Return the decoded text; None if foreign, damaged, or of another version or offset."""
        content = _checked(text, committed_offset)
        if content is None:
            return None
        version = content[1]
        reader = _MetadataReader(content, 2)
        try:
            progress = cls._read(reader, committed_offset, version=version)
        except (IndexError, UnicodeDecodeError):
            return None
        hashes = progress.vector.first_hashes
        if not hashes or not reader.at_end or progress.is_absurd:
            return None
        if not progress.vector.is_whole and progress.shards == 1:
            return None
        further = progress.committed_offset != committed_offset
        return msgspec.structs.replace(progress, read_from=committed_offset if further else None)

    @classmethod
    def _read(cls, reader: "_MetadataReader", committed_offset: int, *, version: int) -> Self:
        sequence = reader.number()
        task_epoch = reader.number()
        transactional_id = reader.text()
        topic_id = reader.read(_TOPIC_ID_BYTES)
        topology_hash = reader.read(TOPOLOGY_HASH_BYTES)
        key_hash = reader.text()
        shards, end_hash = 1, HASH_END
        if version == _SHARD_VERSION:
            shards, end_hash = reader.number(), reader.number()
        hashes: list[int] = []
        offsets: list[int] = []
        for _ in range(reader.number()):
            hashes.append(reader.number() + (hashes[-1] if hashes else 0))
            offsets.append(committed_offset + reader.number())
        stream_time_ms = reader.number() - 1
        operator_times_ms = tuple(reader.number() - 1 for _ in range(reader.number()))
        return cls(
            task_epoch=task_epoch,
            transactional_id=transactional_id,
            topic_id=topic_id,
            topology_hash=topology_hash,
            vector=Vector(tuple(hashes), tuple(offsets), end_hash),
            stream_time_ms=stream_time_ms,
            operator_times_ms=operator_times_ms,
            key_hash=key_hash,
            sequence=sequence,
            shards=shards,
            facts=reader.read(reader.number()) if version > _FIRST_VERSION else b"",
        )


def partition_time_of_kafka_streams(text: str) -> int | None:
    """Return the stream time (ms, -1 for none) of Kafka Streams' metadata, else None.

    Its text (TopicPartitionMetadata) starts with version (1 byte) and time (8 bytes).

    >>> partition_time_of_kafka_streams("AgAAAAAAAAPo")
    1000
    """
    try:
        head = base64.b64decode(text[:_THEIR_CHARACTERS], validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(head) != _THEIR_BYTES or head[0] not in _THEIR_VERSIONS:
        return None
    return max(int.from_bytes(head[1:], "big", signed=True), -1)


def is_foreign(text: str, committed_offset: int, prefix: str) -> bool:
    """Return True if an application with other ids committed the offset.

    Kafka Streams' text is not foreign: the first commit after a migration replaces it.

    >>> is_foreign("", 3, "shop-"), is_foreign("AgAAAAAAAAPo", 3, "shop-")
    (True, False)
    """
    progress = Progress.decode(text, committed_offset=committed_offset)
    if progress is None:
        return partition_time_of_kafka_streams(text) is None
    return not progress.transactional_id.startswith(prefix)


def _checked(text: str, committed_offset: int) -> bytes | None:
    try:
        body = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(body) < 2 + _CHECKSUM_BYTES or body[0] != _MAGIC or committed_offset < 0:
        return None
    content, written = body[:-_CHECKSUM_BYTES], int.from_bytes(body[-_CHECKSUM_BYTES:], "big")
    expected = {
        _FIRST_VERSION: zlib.crc32(content),
        _VERSION: _checksum(content, committed_offset),
        _SHARD_VERSION: _checksum(content, committed_offset),
    }.get(body[1])
    return content if written == expected else None


def slowest_position_ms(
    committed: Iterable[Progress | None], topology_hash: bytes, *, may_part: bool
) -> int | None:
    """Return the stream time of the slowest range's committed position.

    A restore must not expire rows by later times of faster ranges. None if no range is ahead; -1 if
    the time is unknown: no commit, or another topology. `may_part`: never None, because ranges now
    at one offset may differ when the restore reads the changelog.
    """
    progress_of_inputs = [progress for progress in committed if progress is not None]
    level = all(
        progress.highest_offset == progress.committed_offset for progress in progress_of_inputs
    )
    if level and not may_part:
        return None
    if any(progress.topology_hash != topology_hash for progress in progress_of_inputs):
        return -1
    # With key ranges, all operators commit one time: that of the slowest range's position. Stores
    # commit -1.
    return max(
        (time for progress in progress_of_inputs for time in progress.operator_times_ms), default=-1
    )


def _checksum(body: bytes | bytearray, committed_offset: int) -> int:
    return zlib.crc32(body, zlib.crc32(committed_offset.to_bytes(8, "big")))


def _append_number(body: bytearray, number: int) -> None:
    """Append an unsigned varint (LEB128)."""
    assert number >= 0, "only differences to a minimum are written"
    while number > 0x7F:  # noqa: PLR2004 - seven bits a byte
        body.append(number & 0x7F | 0x80)
        number >>= 7
    body.append(number)


def _append_text(body: bytearray, text: str) -> None:
    data = text.encode()
    _append_number(body, len(data))
    body += data


class _MetadataReader:
    """Reader of varints, texts and bytes; IndexError past the end."""

    def __init__(self, body: bytes, position: int) -> None:
        self._body = body
        self._position = position

    @property
    def at_end(self) -> bool:
        return self._position == len(self._body)

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self._body[self._position]
            self._position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004 - the highest bit marks a continuation
                return value
            shift += 7
            if shift > _SHIFTS_MAX:
                raise IndexError(shift)

    def read(self, count: int) -> bytes:
        end = self._position + count
        if end > len(self._body):
            raise IndexError(count)
        data = self._body[self._position : end]
        self._position = end
        return data

    def text(self) -> str:
        return self.read(self.number()).decode()
