"""Decoding of Kafka's commit log."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.topics.commit_log import (
    decode_commit_key,
    decode_commit_metadata,
    decode_commit_offset,
    group_partition,
    java_string_hash,
)


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99_162_322),
        ("polygenelubricants", -(1 << 31)),
        ("😀", 1_772_899),
    ],
)
def test_strings_hash_as_in_java(value: str, expected: int) -> None:
    """The values come from Java's String.hashCode."""
    assert java_string_hash(value) == expected


def test_the_smallest_hash_has_a_partition_too() -> None:
    """Kafka uses partition 0: Java has no positive number for its smallest one."""
    assert group_partition("polygenelubricants", 50) == 0


@given(st.text(), st.integers(1, 100))
def test_every_group_has_a_partition(group: str, partitions: int) -> None:
    assert 0 <= group_partition(group, partitions) < partitions


@pytest.mark.parametrize("version", [0, 1])
def test_a_commits_key_is_read(version: int) -> None:
    key = struct.pack(">h", version) + text("gruppe-ä") + text("topic") + struct.pack(">i", 3)
    assert decode_commit_key(key) == ("gruppe-ä", "topic", 3)


@pytest.mark.parametrize("version", [2, 3, 5])
def test_other_records_of_the_log_are_ignored(version: int) -> None:
    assert decode_commit_key(struct.pack(">h", version) + text("group")) is None


@pytest.mark.parametrize("version", [0, 1, 3, 4])
def test_a_commits_offset_is_read_in_every_version(version: int) -> None:
    assert decode_commit_offset(struct.pack(">hq", version, 123_456_789_012) + b"rest") == (
        123_456_789_012
    )


@pytest.mark.parametrize("metadata", ["", "abc", "x" * 3_000, "from a client in C\0"])
@pytest.mark.parametrize("version", [0, 1, 3, 4])
def test_a_commits_metadata_is_read_in_every_version(version: int, metadata: str) -> None:
    head = struct.pack(">hq", version, 7) + (struct.pack(">i", 5) if version >= 3 else b"")
    length = len(metadata) + 1
    compact = bytes((length,)) if length < 128 else bytes((length & 0x7F | 0x80, length >> 7))
    told = compact + metadata.encode() if version >= 4 else text(metadata)
    assert decode_commit_metadata(head + told + struct.pack(">q", 123)) == metadata.strip("\0")


def test_values_in_another_form_are_refused() -> None:
    with pytest.raises(ValueError, match="not a commit"):
        decode_commit_offset(struct.pack(">hq", 1, -1))
