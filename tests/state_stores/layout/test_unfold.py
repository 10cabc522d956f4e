"""Rows, unfolded into changelog records and folded again, are the same rows."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state_stores.bulk_restore.logs import SPECS, columns, logs
from tidewheel.state_stores.errors import StoreCorruptedError
from tidewheel.state_stores.layout.restore import StoreTime, fold
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.state_stores.layout.unfold import ChangelogColumns, unfold
from tidewheel.state_stores.spec import StoreKind, StoreSpec

with_headers = {
    f"{name} with headers": replace(SPECS[name], keeps_headers=True)
    for name in ("timestamped", "timestamped window", "session")
}
every_kind = {
    **SPECS,
    **with_headers,
    "suppress buffer": replace(SPECS["suppress buffer"], changelog_headers=(("v", b"\x03"),)),
}
record_headers = st.lists(
    st.tuples(st.sampled_from(["", "trace", "é"]), st.none() | st.binary(max_size=70)), max_size=2
).map(tuple)


def restored(
    spec: StoreSpec, unfolded: Sequence[ChangelogColumns], cuts: Sequence[int]
) -> dict[bytes, bytes | None]:
    keys = list(chain.from_iterable(part.keys for part in unfolded))
    values = list(chain.from_iterable(part.values for part in unfolded))
    timestamps = list(chain.from_iterable(part.timestamps for part in unfolded))
    headers = list(chain.from_iterable(part.row_headers or () for part in unfolded))
    rows: dict[bytes, bytes | None] = {}
    for start, stop in pairwise([0, *sorted(cut % (len(keys) + 1) for cut in cuts), len(keys)]):
        part = slice(start, stop)
        rows.update(fold(spec, keys[part], values[part], timestamps[part], headers[part] or None))
    assert len(rows) == len(keys)
    return rows


@pytest.mark.parametrize("spec", every_kind.values(), ids=every_kind)
@given(data=st.data())
def test_unfolded_rows_fold_to_themselves(spec: StoreSpec, data: Any) -> None:
    records = data.draw(logs(spec))
    headers: Any = None
    if spec.keeps_headers:
        count = len(records)
        headers = data.draw(st.lists(record_headers, min_size=count, max_size=count))
    keys, values, timestamps = columns(records)
    folded = fold(spec, keys, values, timestamps, headers)
    rows = sorted((key, stored) for key, stored in folded if stored is not None)
    time = StoreTime.of(spec, keys, timestamps)
    unfolded = list(unfold(spec, rows, observed_ms=time.observed_ms))
    assert restored(spec, unfolded, data.draw(st.lists(st.integers(0, 50)))) == dict(rows)
    assert all(part.headers == spec.changelog_headers for part in unfolded)
    assert all((part.row_headers is not None) == spec.keeps_headers for part in unfolded)


def test_batches_have_a_thousand_records() -> None:
    spec = SPECS["key-value"]
    keys = [b"%05d" % number for number in range(2_500)]
    rows = fold(spec, keys, keys, range(2_500))
    parts = list(unfold(spec, [(key, data) for key, data in rows if data], observed_ms=-1))
    assert [len(part.keys) for part in parts] == [1_000, 1_000, 500]
    assert [key for part in parts for key in part.keys] == keys
    assert list(unfold(spec, [], observed_ms=-1)) == []


def test_rows_that_expired_by_ttl_are_left_out() -> None:
    spec = replace(SPECS["ttl"], ttl_ms=10)
    rows = fold(spec, [b"a", b"b", b"c"], [b"1", b"2", b"3"], [100, 101, 102])
    stored = [(key, data) for key, data in rows if data is not None]
    (columns,) = unfold(spec, stored, observed_ms=111)
    assert columns[:3] == ([b"c"], [b"3"], [102])
    assert list(unfold(spec, stored, observed_ms=112)) == []


def test_expired_rows_of_a_living_segment_are_kept() -> None:
    spec = SPECS["window"]
    layout = SegmentLayout.of(spec)
    keys = [layout.window_key(b"k", start)[8:] for start in (60_001, 160_500)]
    assert layout.live_from_ms(160_500) > 60_001
    rows = fold(spec, keys, [b"1", b"2"], [5, 6])
    stored = [(key, data) for key, data in rows if data is not None]
    (columns,) = unfold(spec, stored, observed_ms=160_500)
    assert columns.keys == keys


@given(
    versions=st.sets(
        st.tuples(st.binary(max_size=10) | st.just(b"a") | st.just(b"a\xff"), st.integers(1, 9))
    )
)
def test_compaction_keeps_the_newest_version(versions: set[tuple[bytes, int]]) -> None:
    spec = SPECS["versioned"]
    keys, timestamps = [key for key, _ in versions], [time for _, time in versions]
    rows = fold(spec, keys, [b"%d" % time for time in timestamps], timestamps)
    stored = [(key, data) for key, data in sorted(rows, reverse=True) if data is not None]
    compacted: dict[bytes, int] = {}
    for part in unfold(spec, stored, observed_ms=9):
        compacted.update(zip(part.keys, part.timestamps, strict=True))
    assert compacted == dict(sorted(versions))


def test_an_unknown_format_is_an_error() -> None:
    with pytest.raises(StoreCorruptedError):
        list(unfold(SPECS["key-value"], [(b"k", b"\x77" * 9)], observed_ms=-1))


def test_every_kind_is_drawn() -> None:
    assert {spec.kind for spec in every_kind.values()} == set(StoreKind) - {StoreKind.CUSTOM}
