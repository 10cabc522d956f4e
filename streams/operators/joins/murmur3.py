"""MurmurHash3 (x64, 128 bits), by which foreign-key joins detect stale responses.

Equal to Kafka Streams' `Murmur3.hash128` (seed 104729, both halves big-endian). A crafted collision
would let one stale response through.

Many values are hashed together: one long integer holds the same 64-bit word of each value in a lane
of 128 bits. Overflow stays in its lane or is masked. A step costs a few nanoseconds per value
instead of one interpreter operation.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tidewheel.state_stores.buffers.rows import column_bytes

_SEED: Final = 104729
_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F
_HALVES: Final = struct.Struct(">QQ")
_BLOCK_BYTES: Final = 16
_LANE_BYTES: Final = 16

#: Below this count, hashing one by one is as fast.
_FEW: Final = 4
#: Integers of 256 lanes fit the L1 cache.
_LANES: Final = 256
_VALUES_BYTES: Final = 1 << 20

#: Size of the cache of hashes, and overhead per entry.
_KNOWN_BYTES: Final = 8 << 20
_KNOWN_OVERHEAD_BYTES: Final = 250


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
    # Written out without function calls, which would double the time.
    for k1, k2 in zip(blocks, blocks, strict=True):
        k1 = k1 * _C1 & _MASK  # noqa: PLW2901 - the words are only needed mixed
        k2 = k2 * _C2 & _MASK  # noqa: PLW2901 - as above
        h1 ^= (((k1 << 31) | (k1 >> 33)) & _MASK) * _C2 & _MASK
        h1 = ((((h1 << 27) | (h1 >> 37)) & _MASK) + h2) * 5 + 0x52DCE729 & _MASK
        h2 ^= (((k2 << 33) | (k2 >> 31)) & _MASK) * _C1 & _MASK
        h2 = ((((h2 << 31) | (h2 >> 33)) & _MASK) + h1) * 5 + 0x38495AB5 & _MASK
    if whole < len(words):
        # Padding is zeros, and a word of zeros mixes to zero.
        h1 ^= _mixed(words[whole], _C1, 31, _C2)
        h2 ^= _mixed(words[whole + 1], _C2, 33, _C1)
    h1 ^= length
    h2 ^= length
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    h1, h2 = _finished(h1), _finished(h2)
    h1 = (h1 + h2) & _MASK
    return _HALVES.pack(h1, (h2 + h1) & _MASK)


def hash128_each(column: Sequence[bytes], seed: int = _SEED) -> list[bytes]:
    """Return the hash of each value.

    >>> hash128_each([b"foobar", b""], seed=123)[0] == hash128(b"foobar", seed=123)
    True
    """
    places: dict[int, list[int]] = {}
    for place, data in enumerate(column):
        places.setdefault(len(data) // _BLOCK_BYTES, []).append(place)
    hashes = [b""] * len(column)
    for blocks, alike in places.items():
        lanes = max(1, min(_LANES, _VALUES_BYTES // (blocks + 1) // _BLOCK_BYTES))
        for start in range(0, len(alike), lanes):
            mine = alike[start : start + lanes]
            values = [column[place] for place in mine]
            made: Iterable[bytes] = (
                [hash128(data, seed) for data in values]
                if len(values) < _FEW
                else _in_lanes(values, blocks, seed)
            )
            for place, data in zip(mine, made, strict=True):
                hashes[place] = data
    return hashes


class HashMemory:
    """Cache of hashes: a row is hashed for its subscription and again for the response.

    Two generations limit its size. Threads may share it: a race only loses entries.
    """

    def __init__(self, size_bytes: int) -> None:
        self._half_bytes = size_bytes // 2
        self._young: dict[bytes, bytes] = {}
        self._old: dict[bytes, bytes] = {}
        self._size_bytes = 0

    def hashes(self, column: Sequence[bytes]) -> list[bytes]:
        young, old = self._young, self._old
        missing = [data for data in column if data not in young and data not in old]
        if len(missing) == len(column):
            made = hash128_each(column)
            self._remember(column, made)
            return made
        fresh = dict(zip(missing, hash128_each(missing), strict=True))
        self._remember(list(fresh), fresh.values())
        return [young.get(data) or old.get(data) or fresh[data] for data in column]

    def _remember(self, column: Sequence[bytes], hashes: Iterable[bytes]) -> None:
        size_bytes = column_bytes(column) + len(column) * _KNOWN_OVERHEAD_BYTES
        if size_bytes > self._half_bytes:
            return
        self._size_bytes += size_bytes
        if self._size_bytes > self._half_bytes:
            self._old, self._young, self._size_bytes = self._young, {}, size_bytes
        self._young.update(zip(column, hashes, strict=True))


_memory: Final = HashMemory(_KNOWN_BYTES)


def known_hashes(column: Sequence[bytes]) -> list[bytes]:
    """Return the hash of each value, cached.

    >>> known_hashes([b"foobar"]) == known_hashes([b"foobar", b"row"])[:1] == hash128_each([b"foobar"])
    True
    """
    return _memory.hashes(column)


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


def _words(values: Sequence[bytes], size_bytes: int) -> Iterator[int]:
    """Yield the n-th word of every padded value, one per lane."""
    padded = b"".join([data.ljust(size_bytes, b"\0") for data in values])
    lanes = bytearray(_LANE_BYTES * len(values))
    every, low = memoryview(padded).cast("Q"), memoryview(lanes).cast("Q")[::2]
    step = size_bytes // 8
    for place in range(step):
        low[:] = every[place::step]
        yield int.from_bytes(lanes, "little")


def _in_lanes(values: Sequence[bytes], blocks: int, seed: int) -> Iterator[bytes]:
    count = len(values)
    one = int.from_bytes((1).to_bytes(_LANE_BYTES, "little") * count, "little")
    mask = one * 0xFFFFFFFFFFFFFFFF
    h1 = h2 = one * seed
    add1, add2 = one * 0x52DCE729, one * 0x38495AB5
    words = _words(values, (blocks + 1) * _BLOCK_BYTES)
    for _ in range(blocks):
        k1 = next(words) * _C1 & mask
        h1 ^= ((k1 << 31 | k1 >> 33) & mask) * _C2 & mask
        h1 = ((h1 << 27 | h1 >> 37) & mask) + h2
        h1 = h1 * 5 + add1 & mask
        k2 = next(words) * _C2 & mask
        h2 ^= ((k2 << 33 | k2 >> 31) & mask) * _C1 & mask
        h2 = ((h2 << 31 | h2 >> 33) & mask) + h1
        h2 = h2 * 5 + add2 & mask
    k1 = next(words) * _C1 & mask
    h1 ^= ((k1 << 31 | k1 >> 33) & mask) * _C2 & mask
    k2 = next(words) * _C2 & mask
    h2 ^= ((k2 << 33 | k2 >> 31) & mask) * _C1 & mask
    lengths = int.from_bytes(
        b"".join([len(data).to_bytes(_LANE_BYTES, "little") for data in values]), "little"
    )
    h1, h2 = h1 ^ lengths, h2 ^ lengths
    h1 = h1 + h2 & mask
    h2 = h2 + h1 & mask
    h1, h2 = _lanes_finished(h1, mask), _lanes_finished(h2, mask)
    h1 = h1 + h2 & mask
    h2 = h2 + h1 & mask
    data = (h1 << 64 | h2).to_bytes(_LANE_BYTES * count, "big")
    return (data[at : at + _LANE_BYTES] for at in range(len(data) - _LANE_BYTES, -1, -_LANE_BYTES))


def _lanes_finished(half: int, mask: int) -> int:
    half ^= half >> 33 & mask
    half = half * 0xFF51AFD7ED558CCD & mask
    half ^= half >> 33 & mask
    half = half * 0xC4CEB9FE1A85EC53 & mask
    return half ^ (half >> 33 & mask)
