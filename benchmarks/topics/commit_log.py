"""Kafka's log of commits: offsets and times of a consumer group.

It covers commits by a consumer and inside committed transactions. It is read after the run, so it
costs the measured system nothing.
"""

import struct

from benchmarks.progress import CommitRecord
from benchmarks.topics.topic_reader import partition_count, read_to_end

OFFSETS_TOPIC = "__consumer_offsets"
_OFFSET_KEY_VERSIONS = (0, 1)
#: From these versions on, values have the leader's epoch before the metadata, and compact texts.
_EPOCH_FROM = 3
_COMPACT_FROM = 4


def java_string_hash(text: str) -> int:
    """Return Java's `String.hashCode`, by which Kafka places groups."""
    value = 0
    encoded = text.encode("utf-16-be")
    for (unit,) in struct.iter_unpack(">H", encoded):
        value = (31 * value + unit) & 0xFFFF_FFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def group_partition(group: str, partitions: int) -> int:
    value = java_string_hash(group)
    return 0 if value == -(1 << 31) else abs(value) % partitions


def decode_commit_key(key: bytes) -> tuple[str, str, int] | None:
    (version,) = struct.unpack_from(">h", key, 0)
    if version not in _OFFSET_KEY_VERSIONS:
        return None
    group, position = _string(key, 2)
    topic, position = _string(key, position)
    (partition,) = struct.unpack_from(">i", key, position)
    return group, topic, partition


def decode_commit_offset(value: bytes) -> int:
    """Return the offset of a commit: the first field in every version."""
    version, offset = struct.unpack_from(">hq", value, 0)
    if version < 0 or offset < 0:
        raise ValueError(f"not a commit: version {version}, offset {offset} in {OFFSETS_TOPIC}")
    return int(offset)


def decode_commit_metadata(value: bytes) -> str:
    """Return the metadata of a commit: the second field, or the third after an epoch.

    Python's client also writes C's final zero byte, which is removed here.
    """
    (version,) = struct.unpack_from(">h", value, 0)
    position = 10 + (4 if version >= _EPOCH_FROM else 0)
    if version < _COMPACT_FROM:
        return _string(value, position)[0].removesuffix("\0")
    length = shift = 0
    while True:
        byte = value[position]
        position += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    text = value[position : position + length - 1]  # the stored length is one more; 0 means null
    return text.decode().removesuffix("\0")


def read_commits(bootstrap_servers: str, group: str, topic: str) -> list[CommitRecord]:
    return read_group_commits(bootstrap_servers, group).get(topic, [])


def read_group_commits(bootstrap_servers: str, group: str) -> dict[str, list[CommitRecord]]:
    place = group_partition(group, partition_count(bootstrap_servers, OFFSETS_TOPIC))
    commits: dict[str, list[CommitRecord]] = {}
    for batch in read_to_end(bootstrap_servers, OFFSETS_TOPIC, [place]):
        for message in batch:
            key, value = message.key(), message.value()
            found = decode_commit_key(bytes(key)) if key else None
            if found is None or value is None or found[0] != group:
                continue
            commits.setdefault(found[1], []).append(
                CommitRecord(
                    at_ms=message.timestamp()[1],
                    partition=found[2],
                    offset=decode_commit_offset(bytes(value)),
                    metadata=decode_commit_metadata(bytes(value)),
                )
            )
    return commits


def _string(data: bytes, position: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", data, position)
    start = position + 2
    return data[start : start + length].decode(), start + length
