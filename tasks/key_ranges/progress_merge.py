"""Progress of old and new key ranges: merged for commits, compared at a start. Pure."""

from collections.abc import Sequence

from tidewheel.tasks.key_ranges.key_ranges import KeyRanges
from tidewheel.tasks.key_ranges.progress_vector import RangeProgress


def starting_ranges(
    wanted: KeyRanges, before: Sequence[KeyRanges], fitting: int, *, as_before: bool
) -> KeyRanges:
    """Return the key ranges with which a task starts.

    Args:
        before: Ranges in the last commit of each input where their progress differs.
        fitting: Maximum ranges whose progress fits into a commit, which merges old and new ones.
        as_before: True to keep the old boundaries until progress is equal, because the same timed
            callbacks must have run for all keys of one range.

    >>> halves, thirds = KeyRanges((0, 1 << 31)), KeyRanges((0, 7, 9))
    >>> starting_ranges(thirds, [], 10, as_before=True) == starting_ranges(thirds, [halves], 10, as_before=False) == thirds
    True
    >>> starting_ranges(thirds, [halves], 10, as_before=True) == starting_ranges(thirds, [halves], 3, as_before=False) == halves
    True
    """
    for ranges in before:
        if len({*wanted.first_hashes, *ranges.first_hashes}) > fitting:
            return ranges
    if not before or not as_before:
        return wanted
    return KeyRanges(tuple(sorted({hash_ for ranges in before for hash_ in ranges.first_hashes})))


def level(vector: tuple[RangeProgress, ...]) -> tuple[RangeProgress, ...]:
    """Merge the ranges if their progress is equal.

    >>> level((RangeProgress(0, 7), RangeProgress(1 << 31, 7)))
    (RangeProgress(first_hash=0, offset=7),)
    """
    offset = vector[0].offset
    return (
        (RangeProgress(0, offset),) if all(entry.offset == offset for entry in vector) else vector
    )


def together(
    one: Sequence[RangeProgress], other: Sequence[RangeProgress]
) -> tuple[RangeProgress, ...]:
    """Return per key the larger progress of two divisions into ranges.

    >>> together((RangeProgress(0, 7),), (RangeProgress(0, 5), RangeProgress(1 << 31, 9)))
    (RangeProgress(first_hash=0, offset=7), RangeProgress(first_hash=2147483648, offset=9))
    """
    bounds = sorted({entry.first_hash for entry in (*one, *other)})
    offsets = [
        max(_offset_at(one, first_hash), _offset_at(other, first_hash)) for first_hash in bounds
    ]
    return tuple(map(RangeProgress, bounds, offsets))


def _offset_at(vector: Sequence[RangeProgress], hash_: int) -> int:
    return next(entry.offset for entry in reversed(vector) if entry.first_hash <= hash_)
