"""Which partition a windowed key goes to: that of the key inside, as Kafka Streams' WindowedStreamPartitioner.

All windows of a key stay together, and where the key's own records are.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from typing import Any, Final, cast

import msgspec

from streams.serdes.windowed import WindowedSerde

_MASK: Final = 0xFFFFFFFF
_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C

#: For so many keys the partition is remembered.
_KNOWN_MAX: Final = 65_536


def murmur2(key: bytes) -> int:
    """Return the unsigned 32-bit hash by which Kafka's clients choose the partition of a key (Utils.murmur2).

    >>> murmur2(b"foobar") - (1 << 32), murmur2(b"abc")
    (-790332482, 479470107)
    """
    words, rest = divmod(len(key), 4)
    mixed = _SEED ^ len(key)
    for word in struct.unpack_from(f"<{words}I", key):
        scrambled = word * _M & _MASK
        mixed = mixed * _M & _MASK ^ (scrambled ^ scrambled >> 24) * _M & _MASK
    if rest:
        mixed = (mixed ^ int.from_bytes(key[-rest:], "little")) * _M & _MASK
    mixed = (mixed ^ mixed >> 13) * _M & _MASK
    return mixed ^ mixed >> 15


@lru_cache(maxsize=_KNOWN_MAX)
def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition that Kafka's own partitioner gives a key.

    >>> [partition_of(str(number).encode(), 4) for number in range(6)]
    [0, 3, 0, 3, 1, 2]
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class WindowedPartitioner(msgspec.Struct, frozen=True):
    """A sink's partitioner for keys of a windowed serde."""

    serde: WindowedSerde[Any]

    def __call__(self, topic: str, key: Any, value: Any, partitions: int) -> int | None:  # noqa: ARG002 - a partitioner's signature
        """Return the partition of the key inside; None (the default) for a record without a key."""
        if key is None:
            return None
        data = self.serde.inner.serialize(topic, key.key)
        return None if data is None else partition_of(data, partitions)

    def for_all(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[Any],  # noqa: ARG002 - the signature of those that choose for batches
        partitions: int,
    ) -> list[int] | None:
        """Return the partitions of many keys as they are written; None where some record has no key."""
        return None if None in keys else self.by_bytes(cast("Sequence[bytes]", keys), partitions)

    def by_bytes(self, keys: Sequence[bytes], partitions: int) -> list[int]:
        """Return the partitions of many keys, given as the serde writes them: the key inside stands before its window.

        >>> from streams import Serdes
        >>> from streams.serdes.windowed import SessionWindowedSerde
        >>> WindowedPartitioner(SessionWindowedSerde(Serdes.string())).by_bytes([b"1" + bytes(16), b"4" + bytes(16)], 4)
        [3, 1]
        """
        inner = list(map(itemgetter(slice(-self.serde.tail_bytes)), keys))
        known = _known(partitions)
        try:
            return list(map(known.__getitem__, inner))
        except KeyError:
            found = list(map(partition_of, inner, repeat(partitions)))
        if len(known) >= _KNOWN_MAX:
            known.clear()
        known.update(zip(inner, found, strict=True))
        return found


@lru_cache(maxsize=8)
def _known(_partitions: int) -> dict[bytes, int]:
    """Return what is remembered of topics with so many partitions: keys and their partitions, for look-ups by batch."""
    return {}
