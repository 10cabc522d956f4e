"""Merged changes leave the same database and changelog as the single changes in order."""

from hypothesis import given
from hypothesis import strategies as st

from tests.state_stores.stores.store_bench import StoreBench, spec_of
from tidewheel.state_stores.buffers.commit_buffer import Drained
from tidewheel.state_stores.buffers.merged_changes import merge_changes
from tidewheel.state_stores.buffers.rows import SortedRows
from tidewheel.state_stores.spec import StoreKind

keys = st.sampled_from([b"a", b"b", b"c", b"d"])
Rows = dict[bytes, bytes | None]


@st.composite
def drains(draw: st.DrawFn) -> Drained:
    changes = sorted(draw(st.dictionaries(keys, st.none() | st.binary(max_size=2))).items())
    bounds = draw(st.none() | st.tuples(st.just(b""), keys))  # expired rows are the oldest
    own = draw(st.booleans())
    columns = [key for key, _ in changes], [value for _, value in changes]
    return Drained(
        *columns,
        [draw(st.integers(0, 9)) for _ in changes],
        disk_rows=SortedRows(*columns) if own or bounds else None,
        delete_range=bounds,
    )


def written(disk: Rows, drained: Drained) -> None:
    if drained.delete_range is not None:
        first, end = drained.delete_range
        for key in [key for key in disk if first <= key < end]:
            del disk[key]
    for key, value in drained.stored:
        if value is None:
            disk.pop(key, None)
        else:
            disk[key] = value


@given(st.lists(drains(), min_size=1, max_size=4), st.dictionaries(keys, st.just(b"\x00old")))
def test_merged_changes_leave_the_same_rows_as_single_changes(
    changes: list[Drained], before: dict[bytes, bytes]
) -> None:
    apart: Rows = dict(before)
    for change in changes:
        written(apart, change)
    together: Rows = dict(before)
    whole = merge_changes(changes)
    written(together, whole)
    assert together == apart
    log: dict[bytes, tuple[bytes | None, int]] = {}
    for change in changes:
        log.update(
            zip(change.keys, zip(change.values, change.timestamps, strict=True), strict=True)
        )
    assert (
        dict(zip(whole.keys, zip(whole.values, whole.timestamps, strict=True), strict=True)) == log
    )
    assert whole.keys == sorted(log)


def test_every_version_goes_to_the_changelog() -> None:
    bench = StoreBench(spec_of(StoreKind.VERSIONED, history_retention_ms=100), rocksdb=False)
    parts: list[Drained] = []
    for at in (1, 2, 3):
        bench.store.put("a", at * 10, at)
        parts.append(bench.store.buffer.drain())
        bench.store.buffer.applied()
    whole = merge_changes(parts)
    assert whole.keys == [part.keys[0] for part in parts]
    assert whole.values == [part.values[0] for part in parts]
    assert whole.timestamps == [1, 2, 3]
    assert list(whole.stored) == sorted(row for part in parts for row in part.stored)
