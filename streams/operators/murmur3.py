"""MurmurHash3, the 128-bit variant for 64-bit machines: the hash by which foreign-key joins tell a row's versions apart.

Kafka Streams' `Murmur3.hash128` (seed 104729, both halves big-endian), so its programs and ours understand each
other's records. No protection against people who look for collisions: two values with one hash would let one stale
answer of the other table through.
"""

import struct
from typing import Final

_SEED: Final = 104729
_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F
_HALVES: Final = struct.Struct(">QQ")
_BLOCK_BYTES: Final = 16


def hash128(data: bytes, seed: int = _SEED) -> bytes:
    """Return the 16 bytes of the hash.

    >>> hash128(b"foobar", seed=123).hex()
    'fb1fb69c526f798f7c574e3dff72417c'
    """
    length = len(data)
    padded = data + bytes(-length % _BLOCK_BYTES)
    words = struct.unpack(f"<{len(padded) // 8}Q", padded)
    whole = length // _BLOCK_BYTES * 2
    h1 = h2 = seed
    blocks = iter(words[:whole])
    # Written out: a call for each word would take as long as the rest.
    for k1, k2 in zip(blocks, blocks, strict=True):
        k1 = k1 * _C1 & _MASK  # noqa: PLW2901 - the words are only needed mixed
        k2 = k2 * _C2 & _MASK  # noqa: PLW2901 - as above
        h1 ^= (((k1 << 31) | (k1 >> 33)) & _MASK) * _C2 & _MASK
        h1 = ((((h1 << 27) | (h1 >> 37)) & _MASK) + h2) * 5 + 0x52DCE729 & _MASK
        h2 ^= (((k2 << 33) | (k2 >> 31)) & _MASK) * _C1 & _MASK
        h2 = ((((h2 << 31) | (h2 >> 33)) & _MASK) + h1) * 5 + 0x38495AB5 & _MASK
    if whole < len(words):
        # Bytes past the end count as zeros, and a word of zeros mixes to zero.
        h1 ^= _mixed(words[whole], _C1, 31, _C2)
        h2 ^= _mixed(words[whole + 1], _C2, 33, _C1)
    h1 ^= length
    h2 ^= length
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    h1, h2 = _finished(h1), _finished(h2)
    h1 = (h1 + h2) & _MASK
    return _HALVES.pack(h1, (h2 + h1) & _MASK)


def _mixed(word: int, first: int, rotation: int, second: int) -> int:
    word = word * first & _MASK
    word = ((word << rotation) | (word >> (64 - rotation))) & _MASK
    return word * second & _MASK


def _finished(half: int) -> int:
    half ^= half >> 33
    half = half * 0xFF51AFD7ED558CCD & _MASK
    half ^= half >> 33
    half = half * 0xC4CEB9FE1A85EC53 & _MASK
    return half ^ (half >> 33)
