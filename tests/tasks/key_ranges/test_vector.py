"""Vectors: records that must not repeat after a restart, and the hashes of shards."""

from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.rebalance.model import HASH_END
from tidewheel.tasks.key_ranges.key_ranges import KeyRanges
from tidewheel.tasks.key_ranges.vector import Vector


@st.composite
def vectors(draw: st.DrawFn) -> Vector:
    firsts = (0, *sorted(draw(st.sets(st.integers(1, HASH_END - 1), max_size=5))))
    offsets = st.integers(100, 120)
    return Vector(firsts, tuple(draw(offsets) for _ in firsts))


RECORDS = st.lists(st.tuples(st.integers(0, HASH_END - 1), st.integers(95, 125)), max_size=30)


@given(vectors(), RECORDS)
def test_K6_a_record_is_done_again_exactly_if_its_range_had_not_done_it(
    old: Vector, records: list[tuple[int, int]]
) -> None:
    to_do = old.to_do([hash_ for hash_, _ in records], [offset for _, offset in records])
    expected: list[int] = []
    for row, (hash_, offset) in enumerate(records):
        (mine,) = [part for part in old.parts if part.first_hash <= hash_ < part.end_hash]
        if offset >= mine.offset:
            expected.append(row)
    assert list(to_do) == expected


@given(vectors(), st.integers(95, 125), RECORDS)
def test_K6_commits_in_between_keep_the_records_to_process(
    old: Vector, position: int, records: list[tuple[int, int]]
) -> None:
    after = old.after(position)
    hashes, offsets = [hash_ for hash_, _ in records], [offset for _, offset in records]
    left = [row for row in old.to_do(hashes, offsets) if offsets[row] >= position]
    assert list(after.to_do(hashes, offsets)) == left
    assert after.highest == max(old.highest, position)


@given(vectors())
def test_K6_the_old_map_ends_at_its_highest_offset(old: Vector) -> None:
    after = old.after(old.highest)
    assert after.key_ranges == KeyRanges()
    assert old.after(old.highest - 1).key_ranges == old.key_ranges


BOUNDS = st.lists(st.integers(1, HASH_END - 1), unique=True, max_size=4).map(
    lambda cuts: list(pairwise([0, *sorted(cuts), HASH_END]))
)


@given(vectors(), BOUNDS)
def test_the_parts_of_a_vector_join_to_the_whole(
    vector: Vector, bounds: list[tuple[int, int]]
) -> None:
    joined = Vector.join([vector.restrict(first, end) for first, end in bounds])
    for part in joined.parts:
        assert vector.lowest_between(part.first_hash, part.end_hash) == part.offset
    for part in vector.parts:
        assert joined.lowest_between(part.first_hash, part.end_hash) == part.offset


@given(vectors(), BOUNDS, RECORDS)
def test_parts_of_a_vector_share_its_records(
    vector: Vector, bounds: list[tuple[int, int]], records: list[tuple[int, int]]
) -> None:
    hashes, offsets = [hash_ for hash_, _ in records], [offset for _, offset in records]
    of_parts = [vector.restrict(first, end).to_do(hashes, offsets) for first, end in bounds]
    assert sorted(chain(*of_parts)) == list(vector.to_do(hashes, offsets))


@given(BOUNDS.filter(lambda bounds: len(bounds) > 2), st.data())
def test_vectors_with_a_gap_do_not_join(bounds: list[tuple[int, int]], data: st.DataObject) -> None:
    left_out = data.draw(st.integers(1, len(bounds) - 2))
    parts = [Vector.at(7, first, end) for first, end in bounds]
    del parts[left_out]
    with pytest.raises(ValueError, match="hashes"):
        Vector.join(parts)
