"""Key ranges: map a record's key to a hash, and the hash to a range. Pure.

The 32-bit hash covers the key's bytes on the topic, so it needs no decoding and no serde. It
differs from the partitioner's murmur2: otherwise one partition's keys would fill only part of the
hashes.

Ranges cover all hashes without gaps, so commits, assignments and the status store first hashes
only.
"""

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from tidewheel.rebalance.model import HASH_END, Shard

#: Name of the hash, stored with ranges: those of another hash must not be used.
KEY_HASH = "crc32"

#: Maximum ranges per task: their progress must fit into the metadata of one offset.
RANGES_MAX = 256

_OFFSET_BYTES = 8


def key_hash(raw_key: bytes | None, offset: int) -> int:
    """Return the hash of a record's key; if it is None (not empty), of its offset.

    >>> key_hash(b"alice", 7) == key_hash(b"alice", 8)
    True
    >>> key_hash(None, 7) == key_hash(None, 8)
    False
    """
    return zlib.crc32(offset.to_bytes(_OFFSET_BYTES, "big") if raw_key is None else raw_key)


def key_hashes(raw_keys: Iterable[bytes | None], offsets: Iterable[int]) -> list[int]:
    """Return the hash of each record; raise ValueError for arguments of unequal length.

    >>> key_hashes([b"alice", b"bob", b"alice"], [7, 8, 9])
    [663665735, 4123767104, 663665735]
    """
    crc32 = zlib.crc32
    return [
        crc32(offset.to_bytes(_OFFSET_BYTES, "big") if key is None else key)
        for key, offset in zip(raw_keys, offsets, strict=True)
    ]


def shard_of(raw_key: bytes, count: int) -> Shard:
    """Return the shard of a key, of `count` shards of its partition.

    >>> shard_of(b"alice", 4), shard_of(b"bob", 4)
    (Shard(number=0, of=4), Shard(number=3, of=4))
    """
    return Shard(key_hash(raw_key, 0) // (HASH_END // count), count)


class KeyRanges(msgspec.Struct, frozen=True):
    """Key ranges of one task, without gaps up to `end_hash`.

    ValueError unless 1 to `RANGES_MAX` first hashes ascend below it.

    >>> ranges = KeyRanges.even(2)
    >>> ranges.first_hashes
    (0, 2147483648)
    >>> ranges.index_of(2147483647), ranges.index_of(2147483648)
    (0, 1)
    """

    first_hashes: tuple[int, ...] = (0,)
    end_hash: int = HASH_END

    def __post_init__(self) -> None:
        hashes = self.first_hashes
        if not 1 <= len(hashes) <= RANGES_MAX:
            raise ValueError(f"a task has 1 to {RANGES_MAX} key ranges, not {len(hashes)}")
        bounds = (*hashes, self.end_hash)
        ascending = all(lower < upper for lower, upper in pairwise(bounds))
        if hashes[0] < 0 or not ascending or self.end_hash > HASH_END:
            raise ValueError(f"hashes of key ranges ascend from 0 to 2**32 at most: {bounds}")

    @classmethod
    def even(cls, count: int) -> "KeyRanges":
        """Return `count` ranges whose widths differ by at most one hash."""
        return cls(tuple(index * HASH_END // count for index in range(count)))

    def __len__(self) -> int:
        return len(self.first_hashes)

    def end_of(self, index: int) -> int:
        following = index + 1
        return self.first_hashes[following] if following < len(self.first_hashes) else self.end_hash

    def index_of(self, hash_: int) -> int:
        return bisect_right(self.first_hashes, hash_) - 1

    def indexes_of(self, hashes: Sequence[int]) -> list[int]:
        firsts = self.first_hashes
        if len(firsts) == 1:
            return [0] * len(hashes)
        return [bisect_right(firsts, hash_) - 1 for hash_ in hashes]


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
    hashes = sorted({hash_ for ranges in before for hash_ in ranges.first_hashes})
    return KeyRanges(tuple(hashes), wanted.end_hash)
