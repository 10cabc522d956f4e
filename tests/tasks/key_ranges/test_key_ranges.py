"""Key ranges: each hash is in exactly one range."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.rebalance.model import HASH_END
from tidewheel.tasks.key_ranges.key_ranges import (
    KEY_HASH,
    RANGES_MAX,
    KeyRanges,
    key_hash,
    key_hashes,
)

HASHES = st.integers(0, HASH_END - 1)
CUTS = st.sets(st.integers(1, HASH_END - 1), max_size=RANGES_MAX - 1).map(
    lambda cuts: KeyRanges((0, *sorted(cuts)))
)


@given(CUTS, st.lists(HASHES))
def test_K2_every_hash_belongs_to_the_range_that_spans_it(
    ranges: KeyRanges, hashes: list[int]
) -> None:
    indexes = ranges.indexes_of(hashes)
    assert indexes == [ranges.index_of(each) for each in hashes]
    for index, each in zip(indexes, hashes, strict=True):
        assert ranges.first_hashes[index] <= each < ranges.end_of(index)


@given(st.integers(1, RANGES_MAX))
def test_even_ranges_differ_by_one_hash_at_most(count: int) -> None:
    ranges = KeyRanges.even(count)
    widths = {ranges.end_of(index) - first for index, first in enumerate(ranges.first_hashes)}
    assert len(ranges) == count
    assert max(widths) - min(widths) <= 1
    assert ranges.end_of(count - 1) == HASH_END


@given(st.lists(st.tuples(st.none() | st.binary(max_size=20), st.integers(0, 2**63 - 1))))
def test_K7_a_key_has_one_hash_at_any_place(records: list[tuple[bytes | None, int]]) -> None:
    hashes = key_hashes([key for key, _ in records], [offset for _, offset in records])
    assert hashes == [key_hash(key, offset) for key, offset in records]
    for (key, offset), hashed in zip(records, hashes, strict=True):
        assert hashed == zlib.crc32(offset.to_bytes(8, "big") if key is None else key)


def test_the_name_of_the_hash_never_changes() -> None:
    assert KEY_HASH == "crc32"
    assert key_hashes([b"alice", b"", None], [1, 2, 3]) == [663665735, 0, 4230713043]


def test_records_without_a_key_and_usual_keys_spread_evenly() -> None:
    offsets = range(10_000)
    for keys in ([None] * 10_000, [b"key-%d" % each for each in offsets]):
        indexes = KeyRanges.even(64).indexes_of(key_hashes(keys, offsets))
        assert max(map(indexes.count, range(64))) <= 10_000 / 64 * 1.25


@pytest.mark.parametrize(
    "first_hashes", [(), (-1,), (0, 0), (0, 5, 4), (0, HASH_END), tuple(range(RANGES_MAX + 1))]
)
def test_ranges_that_do_not_tile_the_hashes_are_refused(first_hashes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="key ranges"):
        KeyRanges(first_hashes)


def test_keys_and_offsets_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="shorter"):
        key_hashes([b"a", b"b"], [1])
