"""Folding a changelog equals a replay; a doubtful position is never used."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel import Serdes
from tidewheel.state_stores.layout.envelope import wrap_value
from tidewheel.state_stores.layout.position import Position
from tidewheel.state_stores.layout.restore import (
    TOMBSTONE_MARGIN_MS,
    StartFrom,
    fold,
    position_name,
    restore_start,
)
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.state_stores.layout.versions import version_key
from tidewheel.state_stores.spec import StoreKind, StoreSpec

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
TOPIC = b"the changelog id"
SPEC = StoreSpec(
    name="store", kind=StoreKind.KEY_VALUE, key_serde=Serdes.bytes(), value_serde=Serdes.bytes()
)
RECORDS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=2), st.none() | st.binary(max_size=4), st.integers(-1, 1_000)
    )
)


def replay(records: list[tuple[bytes | None, bytes | None, int]]) -> dict[bytes, bytes]:
    content: dict[bytes, bytes] = {}
    for key, value, timestamp in records:
        if key is None:
            continue
        if value is None:
            content.pop(key, None)
        else:
            content[key] = wrap_value(value, timestamp)
    return content


def folded(
    spec: StoreSpec, records: list[tuple[Any, Any, Any]]
) -> list[tuple[bytes, bytes | None]]:
    keys, values, timestamps = ([row[i] for row in records] for i in range(3))
    return fold(spec, keys, values, timestamps)


@given(
    RECORDS,
    st.sampled_from([StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE]),
    st.lists(st.integers(0, 100), max_size=4),
)
def test_the_last_per_key_equals_replay(
    records: list[Any], kind: StoreKind, cuts: list[int]
) -> None:
    bounds = [0, *sorted(cut % (len(records) + 1) for cut in cuts), len(records)]
    content: dict[bytes, bytes] = {}
    for start, stop in pairwise(bounds):
        rows = folded(replace(SPEC, kind=kind), records[start:stop])
        assert len({key for key, _ in rows}) == len(rows)
        for key, value in rows:
            if value is None:
                content.pop(key, None)
            else:
                content[key] = value
    assert content == replay(records)


def test_rows_that_expired_by_ttl_are_deleted() -> None:
    spec = replace(SPEC, ttl_ms=10)
    records = [(b"a", b"1", 100), (b"b", b"2", 91), (b"c", b"3", 90), (b"d", None, 100)]
    expected = [
        (b"a", wrap_value(b"1", 100)),
        (b"b", wrap_value(b"2", 91)),
        (b"c", None),
        (b"d", None),
    ]
    assert folded(spec, records) == expected


def test_rows_of_segments_that_have_expired_are_left_out() -> None:
    spec = replace(SPEC, kind=StoreKind.WINDOW, retention_ms=60_000)
    layout = SegmentLayout.of(spec)
    rows = [layout.window_key(b"k", start) for start in (0, 59_999, 60_000, 119_999)]
    records = [(row[8:], b"v", 5) for row in rows]
    assert folded(spec, [*records, (b"short", b"v", 5)]) == [
        (row, wrap_value(b"v", 5)) for row in rows[2:]
    ]
    assert folded(spec, records[:2]) == [(row, wrap_value(b"v", 5)) for row in rows[:2]]


def test_every_version_is_a_row() -> None:
    spec = replace(SPEC, kind=StoreKind.VERSIONED, history_retention_ms=10)
    records = [(b"k", b"1", 5), (b"k", None, 7), (b"k", b"2", 5), (b"k", None, 7), (None, b"x", 1)]
    assert dict(folded(spec, records)) == {
        version_key(b"k", 5): wrap_value(b"\x012", 5),
        version_key(b"k", 7): wrap_value(b"\x00", 7),
    }


def start_from(position: Position | None, **facts: Any) -> StartFrom:
    facts = {
        "topic_id": TOPIC,
        "log_start": 10,
        "log_end": 100,
        "tombstone_retention_ms": DAY_MS,
        "now_ms": NOW_MS,
        **facts,
    }
    return restore_start(position, **facts)[0]


FRESH = Position(offset=50, topic_id=TOPIC, written_at_ms=NOW_MS - 1_000)


def test_a_fresh_position_is_followed() -> None:
    assert start_from(FRESH) is StartFrom.POSITION
    assert start_from(replace(FRESH, offset=10)) is StartFrom.POSITION


@pytest.mark.parametrize(
    ("position", "facts"),
    [
        pytest.param(None, {}, id="no position"),
        pytest.param(FRESH, {"topic_id": b"some other topic"}, id="recreated topic"),
        pytest.param(FRESH, {"topic_id": b""}, id="topic of unknown id"),
        pytest.param(replace(FRESH, offset=101), {}, id="beyond the end"),
        pytest.param(replace(FRESH, offset=9), {}, id="before the start"),
        pytest.param(FRESH, {"log_start": 100}, id="log emptied by retention"),
        pytest.param(replace(FRESH, written_at_ms=NOW_MS - DAY_MS), {}, id="older than tombstones"),
        pytest.param(
            replace(FRESH, written_at_ms=NOW_MS - DAY_MS + TOMBSTONE_MARGIN_MS - 1),
            {},
            id="inside the margin",
        ),
        pytest.param(FRESH, {"tombstone_retention_ms": 1_000}, id="retention below the margin"),
        pytest.param(
            replace(FRESH, written_at_ms=NOW_MS + TOMBSTONE_MARGIN_MS + 1),
            {},
            id="written in the future",
        ),
    ],
)
def test_a_doubtful_position_is_not_followed(
    position: Position | None, facts: dict[str, Any]
) -> None:
    assert start_from(position, **facts) is StartFrom.BEGINNING


def test_the_age_of_a_position_at_the_end_does_not_matter() -> None:
    old = Position(offset=100, topic_id=TOPIC, written_at_ms=0)
    assert start_from(old) is StartFrom.POSITION
    assert start_from(replace(old, topic_id=bytes(16))) is StartFrom.BEGINNING


@given(
    st.none()
    | st.builds(
        Position,
        offset=st.integers(0, 40),
        topic_id=st.sampled_from([TOPIC, bytes(16)]),
        written_at_ms=st.integers(NOW_MS - 2 * DAY_MS, NOW_MS + DAY_MS),
    ),
    st.integers(0, 20),
    st.integers(0, 20),
    st.integers(0, 2 * DAY_MS),
)
def test_positions_are_used_only_if_every_later_record_exists(
    position: Position | None, log_start: int, length: int, retention_ms: int
) -> None:
    log_end = log_start + length
    answer, reason = restore_start(
        position,
        topic_id=TOPIC,
        log_start=log_start,
        log_end=log_end,
        tombstone_retention_ms=retention_ms,
        now_ms=NOW_MS,
    )
    assert reason
    if answer is StartFrom.POSITION:
        assert position is not None
        assert position.topic_id == TOPIC
        assert log_start <= position.offset <= log_end
        if position.offset < log_end:
            assert abs(NOW_MS - position.written_at_ms) <= max(retention_ms, TOMBSTONE_MARGIN_MS)


def test_positions_of_two_changelogs_have_two_names() -> None:
    names = {position_name(topic, number) for topic in ("a", "a-1", "b") for number in (0, 1, 11)}
    assert len(names) == 9
