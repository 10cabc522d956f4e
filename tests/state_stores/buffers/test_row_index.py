"""The row index finds the existing rows, also after it has dropped segments."""

from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from tidewheel.state_stores.buffers import row_index
from tidewheel.state_stores.buffers.row_index import RowIndex
from tidewheel.state_stores.layout.segments import SegmentLayout

LAYOUT = SegmentLayout(interval_ms=10, retention_ms=100, tail=12)
KEYS = (b"a", b"aa", b"b")

ROWS = st.tuples(st.sampled_from(KEYS), st.integers(0, 49), st.integers(0, 5)).map(
    lambda row: LAYOUT.window_key(*row)
)
SPANS = st.tuples(st.sampled_from(KEYS), st.integers(0, 49), st.integers(0, 49))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(ROWS, max_size=12)),
        st.tuples(st.just("remove"), st.lists(ROWS, max_size=4)),
        st.tuples(
            st.just("change"), st.dictionaries(ROWS, st.sampled_from([None, 1]), max_size=12)
        ),
        st.tuples(st.just("expire"), st.integers(0, 4)),
        st.tuples(st.just("of"), SPANS),
        st.tuples(st.just("of_each"), st.lists(SPANS, min_size=1, max_size=6)),
    ),
    max_size=30,
)


@given(before=st.lists(ROWS, max_size=12), steps=STEPS, budget=st.sampled_from([0, 2_000, 10**6]))
def test_the_index_knows_the_existing_rows(
    before: list[bytes], steps: list[tuple[Any, ...]], budget: int
) -> None:
    there = set(before)
    asked = 0

    def find(segment: int, key: bytes, limit: int) -> list[bytes]:
        nonlocal asked
        asked += 1
        return _rows(there, key, segment * 10, segment * 10 + 9)[:limit]

    index = RowIndex(LAYOUT, budget, set(map(LAYOUT.segment_of, before)), find)
    for name, *arguments in steps:
        if name == "add":
            there.update(arguments[0])
            index.add(arguments[0])
        elif name == "remove":
            there.difference_update(arguments[0])
            for row in arguments[0]:
                index.remove(row)
        elif name == "change":
            changed: dict[bytes, int | None] = arguments[0]
            there = {row for row in there | changed.keys() if changed.get(row, 1) is not None}
            index.change(changed)
        elif name == "expire":
            there = {row for row in there if LAYOUT.segment_of(row) >= arguments[0]}
            index.expire(arguments[0])
        elif name == "of":
            assert index.of(*arguments[0]) == _rows(there, *arguments[0])
        else:
            found = index.of_each(*zip(*arguments[0], strict=True))
            assert found == [_rows(there, *span) for span in arguments[0]]
    event("looked up" if asked else "known")


def _rows(there: set[bytes], key: bytes, low: int, high: int) -> list[bytes]:
    return sorted(
        row for row in there if LAYOUT.key_of(row) == key and low <= LAYOUT.time_of(row) <= high
    )


def test_a_segment_that_was_not_on_disk_is_never_searched() -> None:
    index = RowIndex(LAYOUT, 10**6, [0], _never)
    rows = [LAYOUT.window_key(b"a", time) for time in (12, 15, 21)]
    index.add(rows)
    assert index.of(b"a", 10, 49) == rows
    assert index.of(b"a", 13, 20) == rows[1:2]
    assert index.of(b"b", 10, 49) == []


def _never(segment: int, key: bytes, limit: int) -> list[bytes]:
    raise AssertionError(f"looked up {key!r} in segment {segment}, up to {limit}")


def test_a_key_with_too_many_rows_is_scanned() -> None:
    many = row_index._ROWS_MAX + 1
    rows = [LAYOUT.window_key(b"a", 25, seq) for seq in range(many)]
    asked: list[int] = []

    def find(_segment: int, _key: bytes, limit: int) -> list[bytes]:
        asked.append(limit)
        return rows[:limit]

    grown, found = RowIndex(LAYOUT, 10**9, [], _never), RowIndex(LAYOUT, 10**9, [2], find)
    grown.add([*rows, LAYOUT.window_key(b"b", 25)])
    assert grown.of(b"a", 20, 29) is found.of(b"a", 20, 29) is found.of(b"a", 20, 29) is None
    assert asked == [many]
    assert grown.of_each([b"b", b"a"], [20, 20], [29, 29]) == [
        [LAYOUT.window_key(b"b", 25)],
        None,
    ]
    assert grown.of(b"b", 20, 29) == [LAYOUT.window_key(b"b", 25)]
