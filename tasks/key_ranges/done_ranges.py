"""Old maps: records that are finished beyond a partition's committed offset. Pure.

A restart reads from the committed offset, which is the slowest range's. The **old map** of the
commit identifies records that faster ranges finished, by hash and offset. It expires after the last
range has passed its highest offset.
"""

from collections.abc import Sequence

import msgspec

from tidewheel.tasks.key_ranges.key_ranges import KeyRanges
from tidewheel.tasks.key_ranges.progress_vector import RangeProgress


class OldMap(msgspec.Struct, frozen=True):
    """Progress of a partition's key ranges in the commit that a task starts from.

    >>> old = OldMap((RangeProgress(0, 10), RangeProgress(1 << 31, 13)))
    >>> old.highest
    13
    >>> old.to_do([5, 1 << 31, 7, 1 << 31], [10, 11, 12, 13])
    [0, 2, 3]
    """

    ranges: tuple[RangeProgress, ...]

    @property
    def highest(self) -> int:
        return max(entry.offset for entry in self.ranges)

    @property
    def key_ranges(self) -> KeyRanges:
        """Return the former ranges; raise ValueError for gaps or overlaps."""
        return KeyRanges(tuple(entry.first_hash for entry in self.ranges))

    def done_below(self, first_hash: int, end_hash: int) -> int:
        """Return the offset below which all records with hashes of an interval are finished.

        >>> old = OldMap((RangeProgress(0, 10), RangeProgress(1 << 31, 13)))
        >>> old.done_below(1 << 31, 1 << 32), old.done_below(7, 1 << 32)
        (13, 10)
        """
        first, last = self.key_ranges.index_of(first_hash), self.key_ranges.index_of(end_hash - 1)
        return min(entry.offset for entry in self.ranges[first : last + 1])

    def to_do(self, hashes: Sequence[int], offsets: Sequence[int]) -> list[int]:
        if not offsets or min(offsets) >= self.highest:
            return list(range(len(offsets)))
        done_below = [entry.offset for entry in self.ranges]
        indices = self.key_ranges.indexes_of(hashes)
        rows = enumerate(zip(indices, offsets, strict=True))
        return [row for row, (index, offset) in rows if offset >= done_below[index]]

    def after(self, position: int) -> "OldMap":
        """Return the map after all records below `position` are finished.

        >>> old = OldMap((RangeProgress(0, 10), RangeProgress(1 << 31, 13)))
        >>> old.after(12).ranges
        (RangeProgress(first_hash=0, offset=12), RangeProgress(first_hash=2147483648, offset=13))
        >>> old.after(13).ranges
        (RangeProgress(first_hash=0, offset=13),)
        """
        if position >= self.highest:
            return OldMap((RangeProgress(0, position),))
        return OldMap(
            tuple(
                RangeProgress(entry.first_hash, max(entry.offset, position))
                for entry in self.ranges
            )
        )
