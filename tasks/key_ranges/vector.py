"""Vector: the next offset of each key hash in one partition. Pure.

A commit stores the vector of a task's key ranges. A restart reads from the lowest offset, which is
the slowest range's; the vector tells which records faster ranges had finished. A shard's vector
covers its own hashes, and counts all other records as finished.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, Self

import msgspec

from tidewheel.rebalance.model import HASH_END
from tidewheel.tasks.key_ranges.key_ranges import KeyRanges

#: Next offset of hashes that a vector does not cover.
_NEVER = 1 << 63


class VectorPart(NamedTuple):
    """Hashes, first <= hash < end, with one next offset."""

    first_hash: int
    end_hash: int
    offset: int


class Vector(msgspec.Struct, frozen=True):
    """Next offsets: `offsets[i]` is that of the hashes from `first_hashes[i]` to the next entry.

    >>> vector = Vector((0, 1 << 31), (10, 13))
    >>> vector.lowest, vector.highest
    (10, 13)
    >>> vector.to_do([5, 1 << 31, 7, 1 << 31], [10, 11, 12, 13])
    [0, 2, 3]
    """

    first_hashes: tuple[int, ...]
    offsets: tuple[int, ...]
    end_hash: int = HASH_END

    @classmethod
    def at(cls, offset: int, first_hash: int = 0, end_hash: int = HASH_END) -> Self:
        """Return the vector with one offset for all hashes of an interval."""
        return cls((first_hash,), (offset,), end_hash)

    @property
    def lowest(self) -> int:
        return min(self.offsets)

    @property
    def highest(self) -> int:
        return max(self.offsets)

    @property
    def is_whole(self) -> bool:
        return self.first_hashes[0] == 0 and self.end_hash == HASH_END

    @property
    def key_ranges(self) -> KeyRanges:
        """Return the ranges with their own offsets; raise ValueError for gaps or overlaps."""
        return KeyRanges(self.first_hashes, self.end_hash)

    @property
    def parts(self) -> tuple[VectorPart, ...]:
        ends = (*self.first_hashes[1:], self.end_hash)
        return tuple(map(VectorPart, self.first_hashes, ends, self.offsets))

    def lowest_between(self, first_hash: int, end_hash: int) -> int:
        """Return the offset below which all records with hashes of an interval are finished.

        >>> vector = Vector((0, 1 << 31), (10, 13))
        >>> vector.lowest_between(1 << 31, 1 << 32), vector.lowest_between(7, 1 << 32)
        (13, 10)
        """
        return min(
            part.offset
            for part in self.parts
            if part.first_hash < end_hash and part.end_hash > first_hash
        )

    def to_do(self, hashes: Sequence[int], offsets: Sequence[int]) -> Sequence[int]:
        """Return the rows of the records that are not finished, in order."""
        if not offsets or min(offsets) >= self.highest:
            if self.is_whole:
                return range(len(offsets))
            first, end = self.first_hashes[0], self.end_hash
            return [row for row, hash_ in enumerate(hashes) if first <= hash_ < end]
        firsts, done_below = self._steps()
        rows = enumerate(zip(hashes, offsets, strict=True))
        return [
            row
            for row, (hash_, offset) in rows
            if offset >= done_below[bisect_right(firsts, hash_)]
        ]

    def _steps(self) -> tuple[list[int], list[int]]:
        """Return boundaries, and the next offset before the first, between them and at the end."""
        return [*self.first_hashes, self.end_hash], [_NEVER, *self.offsets, _NEVER]

    def after(self, position: int) -> "Vector":
        """Return the vector after all records below `position` are finished.

        >>> Vector((0, 1 << 31), (10, 13)).after(12)
        Vector(first_hashes=(0, 2147483648), offsets=(12, 13), end_hash=4294967296)
        >>> Vector((0, 1 << 31), (10, 13)).after(13)
        Vector(first_hashes=(0,), offsets=(13,), end_hash=4294967296)
        """
        if position >= self.highest:
            return Vector.at(position, self.first_hashes[0], self.end_hash)
        raised = tuple(max(offset, position) for offset in self.offsets)
        return Vector(self.first_hashes, raised, self.end_hash)

    def level(self) -> "Vector":
        """Return one entry for all hashes if their offsets are equal, else the vector itself."""
        if self.lowest < self.highest:
            return self
        return Vector.at(self.lowest, self.first_hashes[0], self.end_hash)

    def together(self, other: "Vector") -> "Vector":
        """Return the larger offset of each hash; both cover the same hashes.

        >>> Vector.at(7).together(Vector((0, 1 << 31), (5, 9))).offsets
        (7, 9)
        """
        firsts = tuple(sorted({*self.first_hashes, *other.first_hashes}))
        ends = (*firsts[1:], self.end_hash)
        offsets = [
            max(self.lowest_between(first, end), other.lowest_between(first, end))
            for first, end in zip(firsts, ends, strict=True)
        ]
        return Vector(firsts, tuple(offsets), self.end_hash)

    def restrict(self, first_hash: int, end_hash: int) -> "Vector":
        """Return the part for the hashes of an interval.

        >>> Vector((0, 1 << 31), (10, 13)).restrict(1 << 30, 1 << 31)
        Vector(first_hashes=(1073741824,), offsets=(10,), end_hash=2147483648)
        """
        parts = [
            part for part in self.parts if part.first_hash < end_hash and part.end_hash > first_hash
        ]
        firsts = tuple(max(part.first_hash, first_hash) for part in parts)
        return Vector(firsts, tuple(part.offset for part in parts), end_hash)

    @classmethod
    def join(cls, vectors: Iterable["Vector"]) -> "Vector":
        """Return one vector for all hashes of several; ValueError for gaps or overlaps.

        >>> halves = Vector.at(7, 0, 1 << 31), Vector.at(9, 1 << 31)
        >>> Vector.join(halves)
        Vector(first_hashes=(0, 2147483648), offsets=(7, 9), end_hash=4294967296)
        """
        ordered = sorted(vectors, key=lambda vector: vector.first_hashes)
        for lower, upper in pairwise(ordered):
            if lower.end_hash != upper.first_hashes[0]:
                raise ValueError(
                    f"hashes up to {lower.end_hash:08x} are not followed by those from {upper.first_hashes[0]:08x}"
                )
        return Vector(
            tuple(hash_ for vector in ordered for hash_ in vector.first_hashes),
            tuple(offset for vector in ordered for offset in vector.offsets),
            ordered[-1].end_hash,
        )
