"""Key -> hash -> range: how the keys of one task are cut into ranges. Pure.

The hash of a record is 32 bits of its key as it lies on the topic, before any serde, so a range can be told without
decoding and stays the same for every serde. It is not the hash that chose the partition (murmur2), else the keys of one
partition would fill a part of the hashes only. A record without a key belongs to no key's order: it goes by its offset,
so such records spread evenly and each goes to the same range every time it is read.

Ranges tile all hashes: the first begins at 0, each ends where the next begins, the last one at 2**32. So a range is told
by its first hash alone, which is what commits, assignments and the status carry.
"""

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

#: Name of the hash, kept wherever ranges are kept: ranges of another hash must not be taken for ours.
KEY_HASH = "crc32"

#: One more than the largest hash.
HASH_END = 1 << 32

#: As many ranges has a task at most: the progress of all of them has to fit into the metadata of one committed offset.
RANGES_MAX = 256

_OFFSET_BYTES = 8


def key_hash(raw_key: bytes | None, offset: int) -> int:
    """Return the hash of one record, 0 to 2**32 - 1.

    Args:
        raw_key: The key's bytes as they lie on the topic, None for no key. An empty key is a key.
        offset: The record's offset, 0 or more; it counts only where there is no key.

    >>> key_hash(b"alice", 7) == key_hash(b"alice", 8)
    True
    >>> key_hash(None, 7) == key_hash(None, 8)
    False
    """
    return zlib.crc32(offset.to_bytes(_OFFSET_BYTES, "big") if raw_key is None else raw_key)


def key_hashes(raw_keys: Iterable[bytes | None], offsets: Iterable[int]) -> list[int]:
    """Return the hash of each record of a batch; both arguments have one entry per record, else ValueError.

    >>> key_hashes([b"alice", b"bob", b"alice"], [7, 8, 9])
    [663665735, 4123767104, 663665735]
    """
    crc32 = zlib.crc32
    return [
        crc32(offset.to_bytes(_OFFSET_BYTES, "big") if key is None else key)
        for key, offset in zip(raw_keys, offsets, strict=True)
    ]


class KeyRanges(msgspec.Struct, frozen=True):
    """All ranges of one task, by their first hashes.

    Attributes:
        first_hashes: The first hash of each range, ascending; 0 is the first of them. 1 to `RANGES_MAX` ranges.

    Raises ValueError for first hashes that do not tile the hashes.

    >>> ranges = KeyRanges.even(2)
    >>> ranges.first_hashes
    (0, 2147483648)
    >>> ranges.index_of(2147483647), ranges.index_of(2147483648)
    (0, 1)
    """

    first_hashes: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        """Refuse what does not tile the hashes."""
        hashes = self.first_hashes
        if not 1 <= len(hashes) <= RANGES_MAX:
            raise ValueError(f"a task has 1 to {RANGES_MAX} key ranges, not {len(hashes)}")
        ascending = all(lower < upper for lower, upper in pairwise(hashes))
        if hashes[0] != 0 or not ascending or hashes[-1] >= HASH_END:
            raise ValueError(
                f"first hashes of key ranges begin at 0 and ascend below 2**32: {hashes}"
            )

    @classmethod
    def even(cls, count: int) -> "KeyRanges":
        """Return `count` ranges (1 to `RANGES_MAX`) that differ by one hash in width at most."""
        return cls(tuple(index * HASH_END // count for index in range(count)))

    def __len__(self) -> int:
        return len(self.first_hashes)

    def end_of(self, index: int) -> int:
        """Return the first hash behind range `index`."""
        following = index + 1
        return self.first_hashes[following] if following < len(self.first_hashes) else HASH_END

    def index_of(self, hash_: int) -> int:
        """Return which range a hash (0 to 2**32 - 1) belongs to, counted from 0."""
        return bisect_right(self.first_hashes, hash_) - 1

    def indexes_of(self, hashes: Sequence[int]) -> list[int]:
        """Return which range each of the hashes belongs to."""
        firsts = self.first_hashes
        if len(firsts) == 1:
            return [0] * len(hashes)
        return [bisect_right(firsts, hash_) - 1 for hash_ in hashes]
