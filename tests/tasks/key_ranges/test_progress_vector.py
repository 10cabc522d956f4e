"""Progress as offset metadata: round trip, size limit, foreign text."""

import base64
import zlib
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.tasks.key_ranges.progress_vector import (
    AHEAD_MAX,
    METADATA_CHARACTERS_MAX,
    Progress,
    ranges_that_fit,
)
from tidewheel.tasks.key_ranges.vector import Vector

HASHES = 2**32
TIMES_MS = st.integers(-1, 2**42)


@st.composite
def progresses(draw: st.DrawFn, most_ranges: int = 20, most_times: int = 8) -> Progress:
    firsts = draw(st.sets(st.integers(1, HASHES - 1), max_size=most_ranges - 1))
    base = draw(st.integers(0, 2**62))
    hashes = (0, *sorted(firsts))
    vector = Vector(hashes, tuple(base + draw(st.integers(0, 2**40)) for _ in hashes))
    lowest = vector.lowest
    return Progress(
        read_from=draw(st.none() | st.integers(0, lowest - 1)) if lowest else None,
        task_epoch=draw(st.integers(0, 2**31)),
        transactional_id=draw(st.text(max_size=60)),
        topic_id=draw(st.binary(min_size=16, max_size=16)),
        topology_hash=draw(st.binary(min_size=8, max_size=8)),
        vector=vector,
        stream_time_ms=draw(TIMES_MS),
        operator_times_ms=tuple(draw(st.lists(TIMES_MS, max_size=most_times))),
        key_hash=draw(st.sampled_from(["crc32", "murmur2", ""])),
        sequence=draw(st.integers(0, 2**40)),
        facts=draw(st.binary(max_size=200)),
    )


@given(progresses())
def test_progress_survives_encoding(progress: Progress) -> None:
    text = progress.encode()
    assert text.isascii()
    assert Progress.decode(text, committed_offset=progress.committed_offset) == progress


@given(progresses())
def test_the_committed_offset_is_the_lowest_or_before_it(progress: Progress) -> None:
    lowest = progress.vector.lowest
    read_from = progress.read_from
    assert progress.committed_offset == (lowest if read_from is None else read_from)
    assert progress.committed_offset <= lowest


@given(st.integers(0), st.integers(0, 2**50))
def test_progress_of_256_ranges_and_32_operators_fits(seed: int, base: int) -> None:
    random = Random(seed)
    behind = [random.randrange(2**21) for _ in range(256)]
    firsts = random.sample(range(1, HASHES), 255)
    times = [random.randrange(2**40, 2**41) for _ in range(32)]
    progress = Progress(
        task_epoch=2**31,
        transactional_id="a" * 200 + "-0f8fad5b-d9cb-469f-a165-70867728950e-1",
        topic_id=bytes(16),
        topology_hash=bytes(8),
        vector=Vector((0, *sorted(firsts)), tuple(base + offset for offset in behind)),
        stream_time_ms=times[0],
        operator_times_ms=tuple(times),
        sequence=2**40,
    )
    assert len(progress.encode()) <= METADATA_CHARACTERS_MAX == 3_300


def test_progress_too_large_for_a_broker_is_refused() -> None:
    progress = msgspec.structs.replace(simple(), operator_times_ms=(2**41,) * 500)
    with pytest.raises(ValueError, match="3300"):
        progress.encode()


def simple() -> Progress:
    return Progress(
        task_epoch=0,
        transactional_id="app-fixed-0",
        topic_id=b"topic id 16 byte",
        topology_hash=b"topology",
        vector=Vector.at(42),
        stream_time_ms=1_700_000_000_000,
        sequence=9,
    )


@given(progresses(), st.integers(0), st.integers(1, 255))
def test_damaged_text_is_ignored(progress: Progress, where: int, flip: int) -> None:
    body = bytearray(base64.b64decode(progress.encode()))
    body[where % len(body)] ^= flip
    text = base64.b64encode(bytes(body)).decode()
    assert Progress.decode(text, committed_offset=progress.committed_offset) is None


@given(progresses(), st.integers(0, 5_000))
def test_torn_text_is_ignored(progress: Progress, length: int) -> None:
    text = progress.encode()
    assert Progress.decode(text[: length % len(text)], committed_offset=0) is None


@given(
    st.text(max_size=60) | st.binary(max_size=60).map(lambda data: base64.b64encode(data).decode())
)
def test_foreign_text_is_ignored(text: str) -> None:
    assert Progress.decode(text, committed_offset=5) is None


def sealed(body: bytes, offset: int = 42) -> str:
    checksum = zlib.crc32(body, zlib.crc32(offset.to_bytes(8, "big")))
    return base64.b64encode(body + checksum.to_bytes(4, "big")).decode()


@given(st.binary(max_size=80))
def test_random_bytes_with_a_valid_checksum_are_ignored_or_complete(rest: bytes) -> None:
    decoded = Progress.decode(sealed(b"\xe7\x02" + rest, 100), committed_offset=100)
    assert decoded is None or decoded.committed_offset == 100


def test_other_versions_are_ignored() -> None:
    body = base64.b64decode(simple().encode())[:-4]
    assert Progress.decode(sealed(body), committed_offset=42) == simple()
    assert Progress.decode(sealed(body[:1] + b"\x03" + body[2:]), committed_offset=42) is None
    assert Progress.decode(sealed(b"\xe8" + body[1:]), committed_offset=42) is None


def test_version_1_is_read() -> None:
    body = base64.b64decode(simple().encode())[:-5]
    text = base64.b64encode(
        b"\xe7\x01" + body[2:] + zlib.crc32(b"\xe7\x01" + body[2:]).to_bytes(4, "big")
    )
    assert Progress.decode(text.decode(), committed_offset=42) == simple()


@given(progresses(), st.integers(0, 2**62))
def test_progress_with_another_committed_offset_is_ignored(progress: Progress, offset: int) -> None:
    found = Progress.decode(progress.encode(), committed_offset=offset)
    assert (found is not None) == (offset == progress.committed_offset)


@pytest.mark.parametrize("extra", [b"\x00", b"more"])
def test_progress_with_extra_bytes_is_ignored(extra: bytes) -> None:
    body = base64.b64decode(simple().encode())[:-4]
    assert Progress.decode(sealed(body + extra), committed_offset=42) is None


def test_progress_without_ranges_is_ignored() -> None:
    body = base64.b64decode(simple().encode())[:-4]
    one_range = b"crc32\x01\x00\x00"
    assert one_range in body
    assert (
        Progress.decode(sealed(body.replace(one_range, b"crc32\x00")), committed_offset=42) is None
    )


def test_a_vector_with_offsets_below_the_commit_names_the_records_to_read_again() -> None:
    further = msgspec.structs.replace(simple(), vector=Vector.at(47), read_from=42)
    body = base64.b64decode(simple().encode())[:-4]
    shifted = body.replace(b"crc32\x01\x00\x00", b"crc32\x01\x00\x05")
    assert Progress.decode(sealed(shifted), committed_offset=42) == further
    assert (further.committed_offset, further.highest_offset) == (42, 47)


def test_no_two_commits_have_the_same_metadata() -> None:
    assert simple().encode() != msgspec.structs.replace(simple(), sequence=10).encode()


@given(st.integers(0), st.booleans(), st.text(max_size=249), st.integers(0, 32))
def test_K1_the_maximum_number_of_ranges_fits(
    seed: int, even: bool, name: str, operators: int
) -> None:
    facts = Random(seed).randbytes(seed % 600)
    count = ranges_that_fit(name, operators, len(facts))
    if even:
        firsts = [index * HASHES // count for index in range(count)]
    else:
        firsts = [0, *sorted(Random(seed).sample(range(1, HASHES), count - 1))]
    progress = Progress(
        task_epoch=2**31,
        transactional_id=name,
        topic_id=bytes(16),
        topology_hash=bytes(8),
        vector=Vector(
            tuple(firsts), tuple(2**62 + (2 * AHEAD_MAX - 1 if first else 0) for first in firsts)
        ),
        stream_time_ms=2**42,
        operator_times_ms=(2**42,) * operators,
        sequence=2**40,
        facts=facts,
    )
    assert len(progress.encode()) <= METADATA_CHARACTERS_MAX


def test_K8_progress_of_several_owners_of_a_partition_can_be_merged() -> None:
    one = Vector((0, HASHES // 2), (9, 5))  # has the lower half only
    other = Vector((0, HASHES // 2, HASHES // 4 * 3), (5, 7, 6))
    assert one.together(other) == Vector((0, HASHES // 2, HASHES // 4 * 3), (9, 7, 6))
