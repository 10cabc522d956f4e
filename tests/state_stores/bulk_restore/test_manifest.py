"""Damaged manifests are rejected; a snapshot is used only if no later record is missing."""

import contextlib
import hashlib
import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.damage import bounded, examples
from tests.rebalance.leader.hostile import hostile
from tests.state_stores.bulk_restore.logs import SPECS, columns, logs
from tests.state_stores.bulk_restore.snapshots import (
    DAY_MS,
    NOW_MS,
    SPEC,
    facts,
    partition_runs,
    run,
    snapshot,
    snapshots,
)
from tidewheel.state_stores.bulk_restore.content import stored_rows
from tidewheel.state_stores.bulk_restore.manifest import (
    ChangelogFacts,
    Layout,
    SnapshotRefused,
    StoreSnapshot,
    decode_manifest,
    encode_manifest,
    may_extend,
    read_too_slowly,
    validate,
)
from tidewheel.state_stores.bulk_restore.shape import StoreShape
from tidewheel.state_stores.layout.restore import TOMBSTONE_MARGIN_MS, StoreTime, fold
from tidewheel.state_stores.spec import StoreKind, StoreSpec

doors = pytest.mark.fault("DOORS")


@given(snapshots())
def test_a_manifest_survives_encoding(made: StoreSnapshot) -> None:
    assert decode_manifest(encode_manifest(made)) == made


def test_a_manifest_of_even_key_ranges_equals_that_of_one_range() -> None:
    assert b"expired_by_ms" not in encode_manifest(snapshot())


@doors
@examples(300)
@given(st.data())
def test_a_damaged_manifest_is_never_trusted(data: Any) -> None:
    made = data.draw(snapshots())
    whole = encode_manifest(made)
    place = data.draw(st.integers(0, len(whole) - 1))
    with bounded(), pytest.raises(SnapshotRefused):
        decode_manifest(whole[:place])
    damaged = bytearray(whole)
    damaged[place] ^= data.draw(st.integers(1, 255))
    try:
        with bounded():
            found = decode_manifest(bytes(damaged))
    except SnapshotRefused:
        return
    assert found == made


@doors
@given(st.binary(max_size=200) | st.text().map(str.encode) | st.just(b"[" * 100_000))
def test_random_bytes_are_refused_as_manifest(data: bytes) -> None:
    with bounded(), pytest.raises(SnapshotRefused):
        decode_manifest(data)


@doors
@given(hostile((msgspec.json.encode(snapshot()),)))
def test_a_forged_manifest_is_refused_or_consistent(content: bytes) -> None:
    """Its checksum is right: the content was forged, not damaged."""
    with bounded(), contextlib.suppress(SnapshotRefused):
        made = decode_manifest(sealed(content))
        assert decode_manifest(encode_manifest(made)) == made
        validate(made, SPEC, facts())


_OTHER_FILE = "app/store/runs/0/50-100-bbbbbbbbbbbbbbbb.sst"


def tampered(**changes: Any) -> bytes:
    body = json.loads(msgspec.json.encode(snapshot()))
    return sealed(json.dumps({**body, **changes}).encode())


def sealed(content: bytes) -> bytes:
    digest = hashlib.sha256(content).hexdigest().encode()
    return b'{"tidewheel_snapshot":1,"sha256":"%b","snapshot":%b}' % (digest, content)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(b"{}", "no manifest at all", id="another JSON"),
        pytest.param(
            encode_manifest(snapshot()).replace(
                b'"tidewheel_snapshot":1', b'"tidewheel_snapshot":2'
            ),
            "has format 2, this version of Tidewheel reads 1",
            id="of a later version",
        ),
        pytest.param(
            encode_manifest(snapshot()).replace(b'"generation":1', b'"generation":2'),
            "checksum",
            id="changed",
        ),
        pytest.param(tampered(added=1), "does not describe", id="unknown field"),
        pytest.param(tampered(store="../x"), "does not describe", id="invalid store name"),
        pytest.param(tampered(kind="heap"), "does not describe", id="unknown kind"),
        pytest.param(tampered(format_version=2), "format", id="two versions"),
        pytest.param(tampered(topic_id=""), "topic id", id="no topic id"),
        pytest.param(tampered(partition_count=0), "partition", id="no partitions"),
    ],
)
def test_the_error_of_a_manifest_is_reported(data: bytes, reason: str) -> None:
    with pytest.raises(SnapshotRefused, match=reason):
        decode_manifest(data)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"from_offset": 101}, id="end before start"),
        pytest.param({"to_offset": 99}, id="a run beyond its end"),
        pytest.param({"to_offset": 1 << 63}, id="invalid offset"),
        pytest.param({"caught_up_at_ms": -1}, id="no time"),
        pytest.param({"time": StoreTime(-2)}, id="invalid stream time"),
        pytest.param({"time": StoreTime(0, 1 << 32)}, id="no sequence number"),
        pytest.param({"time": StoreTime(7), "expired_by_ms": 8}, id="expired by a later time"),
        pytest.param({"expired_by_ms": -2}, id="invalid expiry time"),
        pytest.param({"partition": 2, "runs": ()}, id="a missing partition"),
        pytest.param({"runs": (run(partition=1),)}, id="a run of another partition"),
        pytest.param(
            {"runs": (run(file="app/other/runs/0/0-1-aaaaaaaaaaaaaaaa.sst"),)}, id="foreign"
        ),
        pytest.param(
            {"runs": (run(file="app/store/runs/0/../../x.sst"),)}, id="a path outside the location"
        ),
        pytest.param({"runs": (run(rows=0),)}, id="no row"),
        pytest.param({"runs": (run(deletes=1),)}, id="deletes without rows"),
        pytest.param({"runs": (run(first_key=b"b", last_key=b"a"),)}, id="unsorted keys"),
        pytest.param({"runs": (run(sha256="x"),)}, id="no checksum"),
        pytest.param(
            {"runs": (run(from_offset=50), run(to_offset=50, file=_OTHER_FILE))}, id="unsorted runs"
        ),
        pytest.param(
            {"runs": (run(to_offset=60), run(from_offset=50, file=_OTHER_FILE))},
            id="overlapping runs",
        ),
        pytest.param({"runs": (run(to_offset=50), run(from_offset=50))}, id="a run twice"),
    ],
)
def test_inconsistent_numbers_are_not_written(changes: dict[str, Any]) -> None:
    encode_manifest(snapshot())
    with pytest.raises(SnapshotRefused):
        encode_manifest(snapshot(partitions=(partition_runs(**changes),)))


WINDOW = SPECS["window"]


@pytest.mark.parametrize(
    ("changes", "spec", "about", "reason"),
    [
        ({"store": "other"}, SPEC, {}, "not of store"),
        ({"topic": "other"}, SPEC, {}, "one of topic other"),
        ({}, SPEC, {"topic_id": b"another topic id"}, "recreated"),
        ({}, SPEC, {"partition_count": 3}, "had 2 partitions then and has 3 now"),
        ({}, replace(SPEC, kind=StoreKind.VERSIONED), {}, "is a versioned store now"),
        (
            {"kind": "window", "layout": Layout.of(WINDOW)},
            replace(WINDOW, retention_ms=WINDOW.retention_ms + 1),
            {},
            "keeps its rows longer",
        ),
        (
            {"layout": Layout.of(replace(SPEC, ttl_ms=10))},
            replace(SPEC, ttl_ms=11),
            {},
            "keeps its rows longer",
        ),
        ({"layout": Layout.of(replace(SPEC, ttl_ms=10))}, SPEC, {}, "keeps its rows longer"),
    ],
)
def test_a_foreign_snapshot_is_not_valid(
    changes: dict[str, Any], spec: StoreSpec, about: dict[str, Any], reason: str
) -> None:
    assert validate(snapshot(), SPEC, facts()) is None
    refused = validate(snapshot(**changes), spec, facts(**about))
    assert refused is not None
    assert reason in refused


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (SPEC, replace(SPEC, ttl_ms=10)),
        (replace(SPEC, ttl_ms=10), replace(SPEC, ttl_ms=9)),
        (WINDOW, replace(WINDOW, retain_duplicates=True)),
        (replace(WINDOW, kept_longer_ms=9), WINDOW),
    ],
)
def test_a_snapshot_with_more_rows_than_needed_is_valid(then: StoreSpec, now: StoreSpec) -> None:
    made = snapshot(kind=then.kind.value, layout=Layout.of(then))
    assert validate(made, now, facts()) is None


@pytest.mark.parametrize(
    ("changes", "about", "reason"),
    [
        ({"complete_from_zero": False, "from_offset": 7}, {}, "begin at offset 7"),
        ({}, {"log_end": 99}, "beyond the end"),
        ({}, {"log_start": 101}, "before the start"),
        ({}, {"now_ms": NOW_MS + DAY_MS - TOMBSTONE_MARGIN_MS}, "tombstones behind it may be gone"),
        ({"caught_up_at_ms": NOW_MS + 2 * TOMBSTONE_MARGIN_MS}, {}, "in the future"),
    ],
)
def test_runs_are_not_extended_if_later_records_may_be_missing(
    changes: dict[str, Any], about: dict[str, Any], reason: str
) -> None:
    assert may_extend(partition_runs(), facts()) is None
    refused = may_extend(partition_runs(**changes), facts(**about))
    assert refused is not None
    assert reason in refused


@given(
    st.builds(
        ChangelogFacts,
        topic=st.just("t"),
        topic_id=st.just(b"i" * 16),
        partition_count=st.just(1),
        partition=st.just(0),
        log_start=st.integers(0, 30),
        log_end=st.integers(0, 60),
        stable_end=st.integers(0, 60),
        tombstone_retention_ms=st.integers(0, 2 * DAY_MS),
        now_ms=st.integers(NOW_MS - DAY_MS, NOW_MS + 3 * DAY_MS),
    ),
    st.integers(0, 60),
    st.booleans(),
)
def test_runs_are_extended_only_if_no_later_record_is_missing(
    about: ChangelogFacts, to_offset: int, complete: bool
) -> None:
    runs = partition_runs(from_offset=0, to_offset=to_offset, runs=(), complete_from_zero=complete)
    if may_extend(runs, about) is not None:
        return
    assert complete
    assert to_offset <= about.log_end
    if to_offset < about.log_end:
        assert about.log_start <= to_offset
        age_ms = about.now_ms - runs.caught_up_at_ms
        assert age_ms >= -TOMBSTONE_MARGIN_MS
        assert age_ms <= max(about.tombstone_retention_ms - TOMBSTONE_MARGIN_MS, 0)


def test_reading_may_take_as_long_as_tombstones_are_kept() -> None:
    most = DAY_MS - TOMBSTONE_MARGIN_MS
    assert read_too_slowly(NOW_MS, NOW_MS + most, DAY_MS) is None
    refused = read_too_slowly(NOW_MS, NOW_MS + most + 1, DAY_MS)
    assert refused is not None
    assert "delete.retention.ms" in refused
    assert read_too_slowly(NOW_MS, NOW_MS - 1, DAY_MS) is not None


def _alive(spec: StoreSpec, stored: list[tuple[bytes, bytes]], observed_ms: int) -> list[bytes]:
    return [row.place for row in stored_rows(spec, stored, observed_ms)]


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@settings(max_examples=20)
@given(data=st.data())
def test_a_shape_builds_the_rows_of_its_store(spec: StoreSpec, data: Any) -> None:
    shape = msgspec.json.decode(msgspec.json.encode(StoreShape.of(spec)), type=StoreShape)
    records = columns(data.draw(logs(spec)))
    rows = fold(spec, *records)
    assert fold(shape.spec(), *records) == rows
    stored = sorted((key, value) for key, value in rows if value is not None)
    observed_ms = StoreTime.of(spec, records[0], records[2]).observed_ms
    assert _alive(shape.spec(), stored, observed_ms) == _alive(spec, stored, observed_ms)
    assert Layout.of(shape.spec()) == Layout.of(spec)
    with pytest.raises(TypeError, match="has no serdes"):
        shape.spec().key_serde.serialize("topic", "x")
