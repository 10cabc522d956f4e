"""Old maps: records that must not repeat after a restart."""

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.rebalance.model import HASH_END
from tidewheel.tasks.key_ranges.done_ranges import OldMap
from tidewheel.tasks.key_ranges.key_ranges import KeyRanges
from tidewheel.tasks.key_ranges.progress_vector import RangeProgress


@st.composite
def old_maps(draw: st.DrawFn) -> OldMap:
    firsts = (0, *sorted(draw(st.sets(st.integers(1, HASH_END - 1), max_size=5))))
    offsets = st.integers(100, 120)
    return OldMap(tuple(RangeProgress(first, draw(offsets)) for first in firsts))


RECORDS = st.lists(st.tuples(st.integers(0, HASH_END - 1), st.integers(95, 125)), max_size=30)


@given(old_maps(), RECORDS)
def test_K6_a_record_is_done_again_exactly_if_its_range_had_not_done_it(
    old: OldMap, records: list[tuple[int, int]]
) -> None:
    to_do = old.to_do([hash_ for hash_, _ in records], [offset for _, offset in records])
    expected: list[int] = []
    for row, (hash_, offset) in enumerate(records):
        (mine,) = [entry for entry in old.ranges if entry.first_hash <= hash_][-1:]
        if offset >= mine.offset:
            expected.append(row)
    assert to_do == expected


@given(old_maps(), st.integers(95, 125), RECORDS)
def test_K6_commits_in_between_keep_the_records_to_process(
    old: OldMap, position: int, records: list[tuple[int, int]]
) -> None:
    after = old.after(position)
    hashes, offsets = [hash_ for hash_, _ in records], [offset for _, offset in records]
    left = [row for row in old.to_do(hashes, offsets) if offsets[row] >= position]
    assert after.to_do(hashes, offsets) == left
    assert after.highest == max(old.highest, position)


@given(old_maps())
def test_K6_the_old_map_ends_at_its_highest_offset(old: OldMap) -> None:
    after = old.after(old.highest)
    assert after.key_ranges == KeyRanges()
    assert old.after(old.highest - 1).key_ranges == old.key_ranges
