"""Metadata of committed offsets: valid progress and facts, or none."""

import base64
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz.damage import bounded, damaged, hostile
from tests.tasks.key_ranges.test_progress_vector import progresses
from tidewheel.tasks.commit_facts import (
    CommitFacts,
    NamedOperator,
    decode_details,
    decode_operators,
    encode_details,
    encode_operators,
)
from tidewheel.tasks.key_ranges.progress_vector import (
    Progress,
    is_foreign,
    partition_time_of_kafka_streams,
)

pytestmark = pytest.mark.fault("DOORS")

_OPERATORS = {
    "count": NamedOperator(fingerprint=1, details=2),
    "join": NamedOperator(fingerprint=3),
}
_FACTS = CommitFacts(
    first_partitions=4,
    inputs=7,
    operators=encode_operators(_OPERATORS),
    details=encode_details(_OPERATORS),
).encode()
_IN_64_BITS = range(-1, 2**63)


def _sealed(content: bytes, offset: int) -> str:
    """Return metadata whose checksum is right: the content was forged, not damaged."""
    checksum = zlib.crc32(content, zlib.crc32(offset.to_bytes(8, "big")))
    return base64.b64encode(content + checksum.to_bytes(4, "big")).decode()


@given(progresses().flatmap(lambda made: st.tuples(st.just(made), _forged(made))))
def test_forged_progress_is_none_or_in_range(forged: tuple[Progress, bytes]) -> None:
    progress, content = forged
    offset = progress.committed_offset
    with bounded():
        read = Progress.decode(_sealed(content, offset), committed_offset=offset)
    if read is None:
        return
    times = (read.sequence, read.stream_time_ms, *read.operator_times_ms, read.highest_offset)
    assert all(number in _IN_64_BITS for number in times)
    assert read.committed_offset == offset
    CommitFacts.decode(read.facts)


@pytest.mark.parametrize(
    "changes",
    [{"sequence": 2**63}, {"stream_time_ms": 2**63}, {"operator_times_ms": (1, 2**63)}],
    ids=["sequence", "stream time", "operator time"],
)
@given(progress=progresses())
def test_progress_beyond_64_bits_is_none(progress: Progress, changes: dict[str, Any]) -> None:
    forged = msgspec.structs.replace(progress, **changes)
    assert Progress.decode(forged.encode(), committed_offset=forged.committed_offset) is None


def _forged(progress: Progress) -> st.SearchStrategy[bytes]:
    content = base64.b64decode(progress.encode())[:-4]
    return damaged(content[2:]).map(lambda rest: content[:2] + rest)


@given(hostile([_FACTS]))
@example(_FACTS[:1].replace(b"\x95", b"\x96") + _FACTS[1:] + b"\x91" * 2_400 + b"\x00")
def test_facts_are_read_or_unknown(data: bytes) -> None:
    with bounded():
        facts = CommitFacts.decode(data)
        operators, details = decode_operators(facts.operators), decode_details(facts)
    assert details.keys() <= operators.keys()


@given(st.text(max_size=40) | hostile([b"AgAAAAAAAAPo"]).map(lambda data: data.decode("latin-1")))
def test_foreign_metadata_is_told_from_kafka_streams(text: str) -> None:
    with bounded():
        time_ms = partition_time_of_kafka_streams(text)
        assert is_foreign(text, 3, "shop-") is (time_ms is None)
    assert time_ms is None or time_ms in _IN_64_BITS
