"""What of a partition is done beyond its committed offset, and so must not be done again. Pure.

Ranges run ahead of each other, and the offset that is committed is that of the slowest. After a restart the partition is
read from there, so it brings records that faster ranges have done: those of their keys, below their offsets. The **old
map**, which the commit carried, tells which. It stays until the last of its ranges has come past the highest of its offsets
(from there on nobody can have done anything), whatever the number of ranges is by then: a record is told by its own hash.
"""

from collections.abc import Sequence

import msgspec

from tidewheel.tasks.key_ranges.key_ranges import KeyRanges
from tidewheel.tasks.key_ranges.progress_vector import RangeProgress


class OldMap(msgspec.Struct, frozen=True):
    """How far each key range of one partition had come, by ascending first hash; the first one starts at hash 0.

    >>> old = OldMap((RangeProgress(0, 10), RangeProgress(1 << 31, 13)))
    >>> old.highest
    13
    >>> old.to_do([5, 1 << 31, 7, 1 << 31], [10, 11, 12, 13])
    [0, 2, 3]
    """

    ranges: tuple[RangeProgress, ...]

    @property
    def highest(self) -> int:
        """Return the offset from which on nothing has been done."""
        return max(entry.offset for entry in self.ranges)

    @property
    def cut(self) -> KeyRanges:
        """Return the ranges themselves; raises ValueError for first hashes that do not tile the hashes."""
        return KeyRanges(tuple(entry.first_hash for entry in self.ranges))

    def done_below(self, first_hash: int, end_hash: int) -> int:
        """Return the offset up to which all hashes from the first to before the end had come.

        >>> old = OldMap((RangeProgress(0, 10), RangeProgress(1 << 31, 13)))
        >>> old.done_below(1 << 31, 1 << 32), old.done_below(7, 1 << 32)
        (13, 10)
        """
        first, last = self.cut.index_of(first_hash), self.cut.index_of(end_hash - 1)
        return min(entry.offset for entry in self.ranges[first : last + 1])

    def to_do(self, hashes: Sequence[int], offsets: Sequence[int]) -> list[int]:
        """Return which of some records are not done, as indices in order; hash and offset are given of each."""
        if not offsets or min(offsets) >= self.highest:
            return list(range(len(offsets)))
        done_below = [entry.offset for entry in self.ranges]
        indices = self.cut.indexes_of(hashes)
        rows = enumerate(zip(indices, offsets, strict=True))
        return [row for row, (index, offset) in rows if offset >= done_below[index]]

    def after(self, position: int) -> "OldMap":
        """Return what is done once everything below offset `position` is: one range as soon as that is all there is.

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
