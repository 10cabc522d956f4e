"""How two cuts of the same keys are told as one in a commit. Pure."""

from collections.abc import Sequence

from tasks.parallel.progress_vector import RangeProgress


def together(
    one: Sequence[RangeProgress], other: Sequence[RangeProgress]
) -> tuple[RangeProgress, ...]:
    """Return what is done by two cuts of the same keys: for each key what the further one of its two ranges has done.

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
