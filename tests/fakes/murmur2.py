"""Kafka's partitioner for keyed records, for the fake broker."""

_MIXER = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    length = len(key)
    value = (_SEED ^ length) & _MASK
    whole = length - length % 4
    for index in range(0, whole, 4):
        word = int.from_bytes(key[index : index + 4], "little")
        word = (word * _MIXER) & _MASK
        word ^= word >> 24
        word = (word * _MIXER) & _MASK
        value = (value * _MIXER) & _MASK
        value ^= word
    rest = key[whole:]
    if rest:
        value ^= int.from_bytes(rest, "little")
        value = (value * _MIXER) & _MASK
    value ^= value >> 13
    value = (value * _MIXER) & _MASK
    return value ^ (value >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partitions
