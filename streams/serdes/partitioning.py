"""Partitioners of keys: windowed keys follow their inner key, as in Kafka Streams' WindowedStreamPartitioner."""

import struct
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from typing import Any, Final, cast

import msgspec

from tidewheel.streams.serdes.windowed import WindowedSerde
from tidewheel.tasks.processing.engine.output import ANY_PARTITION

_MASK: Final = 0xFFFFFFFF
_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C

_CACHED_KEYS_MAX: Final = 65_536


def murmur2(key: bytes) -> int:
    """Return Kafka's unsigned 32-bit murmur2 hash of a key (Utils.murmur2).

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


@lru_cache(maxsize=_CACHED_KEYS_MAX)
def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key in Kafka's default partitioner.

    >>> [partition_of(str(number).encode(), 4) for number in range(6)]
    [0, 3, 0, 3, 1, 2]
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class WindowedPartitioner(msgspec.Struct, frozen=True):
    serde: WindowedSerde[Any]

    def __call__(self, topic: str, key: Any, value: Any, partitions: int) -> int | None:  # noqa: ARG002 - a partitioner's signature
        """Return the inner key's partition; without a key None, for the default partitioner."""
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
        return None if None in keys else self.by_bytes(cast("Sequence[bytes]", keys), partitions)

    def by_bytes(self, keys: Sequence[bytes], partitions: int) -> list[int]:
        """Return the partitions of many serialised keys; the inner key precedes its window.

        >>> from tidewheel import Serdes
        >>> from tidewheel.streams.serdes.windowed import SessionWindowedSerde
        >>> WindowedPartitioner(SessionWindowedSerde(Serdes.string())).by_bytes([b"1" + bytes(16), b"4" + bytes(16)], 4)
        [3, 1]
        """
        inner = list(map(itemgetter(slice(-self.serde.tail_bytes)), keys))
        cache = _cached_partitions(partitions)
        try:
            return list(map(cache.__getitem__, inner))
        except KeyError:
            computed = list(map(partition_of, inner, repeat(partitions)))
        if len(cache) >= _CACHED_KEYS_MAX:
            cache.clear()
        cache.update(zip(inner, computed, strict=True))
        return computed


@lru_cache(maxsize=8)
def _cached_partitions(_partitions: int) -> dict[bytes, int]:
    return {}


def crc32_partition(key: bytes, partitions: int) -> int:
    """Return a key's partition in librdkafka's default partitioner (`consistent_random`).

    >>> [crc32_partition(str(number).encode(), 4) for number in range(6)]
    [1, 3, 1, 3, 0, 2]
    """
    return zlib.crc32(key) % partitions


def fnv1a_partition(key: bytes, partitions: int) -> int:
    """Return a key's partition in librdkafka's `fnv1a` partitioners, Sarama's default.

    >>> [fnv1a_partition(str(number).encode(), 4) for number in range(6)]
    [3, 0, 1, 2, 3, 0]
    """
    mixed = 0x811C9DC5
    for byte in key:
        mixed = (mixed ^ byte) * 0x01000193 & _MASK
    signed = mixed - (1 << 32) if mixed >> 31 else mixed
    return abs(signed) % partitions


#: Partitioners by their names in `input_partitioners`.
KEY_PARTITIONERS: Final[dict[str, Callable[[bytes, int], int]]] = {
    "murmur2": partition_of,
    "crc32": crc32_partition,
    "fnv1a": fnv1a_partition,
}


class KeyPartitioner(msgspec.Struct, frozen=True):
    """Sink partitioner that places keys as the producer of an input topic does.

    Records without a key may go to any partition.
    """

    name: str

    def __call__(self, topic: str, key: Any, value: Any, partitions: int) -> int | None:
        raise NotImplementedError

    def for_all(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[Any],  # noqa: ARG002 - the signature of those that choose for batches
        partitions: int,
    ) -> list[int]:
        """Return the partitions of many serialised keys.

        >>> KeyPartitioner("crc32").for_all([b"0", b"1", None], [0, 0, 0], 4)
        [1, 3, -1]
        """
        place = KEY_PARTITIONERS[self.name]
        return [place(key, partitions) if key else ANY_PARTITION for key in keys]
