"""Record batches: selecting, taking, slicing and merging treat every column alike."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.tasks.processing.api.record import RecordContext, RecordMetadata
from tidewheel.tasks.processing.engine.record_batch import (
    JointBatch,
    RecordBatch,
    SourceRecords,
    has_none,
    merge_in_order,
    split_joint,
)


class Odd:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def source_of(count: int, *, headers: bool = True) -> SourceRecords:
    return SourceRecords(
        "in",
        3,
        list(range(100, 100 + count)),
        [b"k%d" % row for row in range(count)],
        [b"v%d" % row for row in range(count)],
        list(range(1_000, 1_000 + count)),
        [(("row", b"%d" % row),) for row in range(count)] if headers else None,
    )


def batch_of(rows: list[int], *, full: bool = True, order: list[Any] | None = None) -> RecordBatch:
    return RecordBatch(
        [f"k{row}" for row in rows],
        [row * 10 for row in rows],
        [1_000 + row for row in rows],
        [(("row", b"%d" % row),) for row in rows] if full else None,
        rows,
        source_of(50, headers=full),
        old_values=[row * 10 - 1 for row in rows] if full else None,
        latest=[row % 3 > 0 for row in rows] if full else None,
        order=order,
        key_bytes=[b"k%d" % row for row in rows] if full else None,
        key_serde="serde" if full else None,
    )


Row = tuple[Any, ...]


def rows_of(batch: RecordBatch) -> list[Row]:
    columns = [batch.keys, batch.values, batch.timestamps, list(batch.rows)]
    columns += [
        column
        for column in (
            batch.headers,
            batch.old_values,
            batch.latest,
            batch.key_bytes,
            batch.order,
        )
        if column is not None
    ]
    assert {len(column) for column in columns} == {len(batch)}
    return list(zip(*columns, strict=True))


ROWS = st.lists(st.integers(0, 49), max_size=12)


@given(rows=ROWS, full=st.booleans(), numbered=st.booleans(), data=st.data())
def test_selecting_and_taking_apply_to_all_columns(
    rows: list[int], *, full: bool, numbered: bool, data: Any
) -> None:
    batch = batch_of(rows, full=full, order=list(range(len(rows))) if numbered else None)
    before = rows_of(batch)
    flags = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    selected = batch.select(flags)
    assert rows_of(selected) == [row for row, flag in zip(before, flags, strict=True) if flag]
    indices = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6)) if rows else []
    assert rows_of(batch.take(indices)) == [before[index] for index in indices]
    assert rows_of(batch) == before
    for derived in (selected, batch.take(indices)):
        assert derived.source is batch.source
        assert derived.key_serde == batch.key_serde
    for index in range(len(batch)):
        assert rows_of(batch.single(index)) == [before[index]]


@given(ROWS)
def test_new_values_keep_the_keys_bytes_and_new_keys_lose_them(rows: list[int]) -> None:
    batch = batch_of(rows)
    mapped = batch.with_values(["new"] * len(rows))
    assert (mapped.keys, mapped.key_bytes, mapped.headers) == (
        batch.keys,
        batch.key_bytes,
        batch.headers,
    )
    assert mapped.old_values is None
    rekeyed = batch.with_keys(["key"] * len(rows))
    assert (rekeyed.values, rekeyed.key_bytes, rekeyed.old_values) == (batch.values, None, None)
    assert (rekeyed.key_serde, rekeyed.source) == (None, batch.source)


@given(st.lists(st.integers(0, 3), max_size=20), st.booleans(), st.data())
def test_merging_restores_the_order_the_records_had(
    parts: list[int], tuples: bool, data: Any
) -> None:
    order: list[Any] = (
        [(index, 0) for index in range(len(parts))] if tuples else list(range(len(parts)))
    )
    whole = batch_of(list(range(len(parts))), order=order)
    dealt = [whole.select([part == number for part in parts]) for number in range(4)]
    given_batches = data.draw(st.permutations([batch for batch in dealt if len(batch)]))
    if not given_batches:
        return
    merged = merge_in_order(given_batches)
    assert rows_of(merged) == rows_of(whole)
    assert merged.key_serde == "serde"


def test_merging_fills_columns_missing_in_some_batches() -> None:
    full = batch_of([0, 2], order=[0, 2])
    bare = batch_of([1], full=False, order=[1])
    merged = merge_in_order([full, bare])
    assert merged.keys == ["k0", "k1", "k2"]
    assert merged.headers == [(("row", b"0"),), (), (("row", b"2"),)]
    assert merged.old_values == [-1, None, 19]
    assert merged.latest == [False, True, True]
    assert (merged.key_bytes, merged.key_serde) == (None, None)


@given(st.integers(0, 20), st.integers(0, 20), st.booleans())
def test_slices_of_raw_records_are_their_rows(start: int, length: int, headers: bool) -> None:
    records = source_of(20, headers=headers)
    part = records.slice(start, start + length)
    expected = list(range(20))[start : start + length]
    assert list(part.offsets) == [100 + row for row in expected]
    assert (part.raw_keys, part.raw_values) == (
        [b"k%d" % r for r in expected],
        [b"v%d" % r for r in expected],
    )
    assert part.headers == ([(("row", b"%d" % r),) for r in expected] if headers else None)
    for index, row in enumerate(expected):
        assert part.metadata(index) == records.metadata(row) == RecordMetadata("in", 3, 100 + row)


def test_the_context_has_the_input_record_behind_each_record() -> None:
    batch = batch_of([7, 7, 9])
    assert batch.context_of(1) == RecordContext("in", 3, 107, 1_007, (("row", b"7"),))
    flushed = RecordBatch(["k"], [1], [5], None, (0,), None)
    assert flushed.context_of(0) == RecordContext(None, None, None, 5, ())
    assert flushed.metadata_of(0) is None


def test_none_is_detected_by_identity() -> None:
    assert not has_none([Odd(), 0, "", False])
    assert has_none([Odd(), None])


RANKS = {"rows": 0, "others": 1, "stream": 1}


@given(
    records=st.lists(
        st.tuples(st.sampled_from(sorted(RANKS)), st.sampled_from([b"a", b"b", b"c", None])),
        min_size=1,
        max_size=40,
    )
)
def test_joint_batches_are_split_where_a_key_returns_to_a_source_of_no_higher_rank(
    records: list[tuple[str, bytes | None]],
) -> None:
    batches: list[JointBatch] = []
    for name in RANKS:
        places = [place for place, (source, _) in enumerate(records) if source == name]
        if places:
            keys = [records[place][1] for place in places]
            source = SourceRecords(name, 0, places, keys, keys, places, None)
            batches.append(
                (name, RecordBatch(keys, keys, places, None, range(len(keys)), source), places)
            )
    done = 0
    sources: dict[bytes | None, str] = {}
    for number, part in enumerate(split_joint(batches, RANKS)):
        placed = sorted(
            (place, name, key)
            for name, batch, places in part
            for place, key in zip(places, batch.keys, strict=True)
        )
        assert [(name, key) for _, name, key in placed] == records[done : done + len(placed)]
        assert [place for place, _, _ in placed] == list(range(done, done + len(placed)))
        _, first, key = placed[0]
        before = sources.get(key, first)
        assert number == 0 or (before != first and RANKS[first] <= RANKS[before])
        sources = {}
        for _, name, key in placed:
            before = sources.setdefault(key, name)
            assert before == name or RANKS[before] < RANKS[name]
            sources[key] = name
        done += len(placed)
    assert done == len(records)
