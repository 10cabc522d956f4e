"""MurmurHash3: vectors of Kafka Streams, and laws of a 128-bit hash."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.streams.operators.joins.murmur3 import HashMemory, hash128, hash128_each

#: From Kafka Streams' Murmur3Test, seed 123: two signed 64-bit halves.
VECTORS = {
    b"21": (5857341059704281894, -5288187638297930763),
    b"foobar": (-351361463397418609, 8959716011862540668),
    b"a-little-bit-long-string": (8836256500583638442, -198172363548498523),
    b"a-little-bit-longer-string": (1838346159335108511, 8794688210320490705),
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": (
        -4024021876037397259,
        -1482317706335141238,
    ),
    b"abc": (1489494923063836066, -5440978547625122829),
}

#: Kafka Streams 4.3.1: bytes (i * 37 + 11) % 256 with its own seed, by length.
OWN_SEED = {
    0: "9d2764a018e329428c3cf3b035938518",
    1: "acf4cc867fbb6de44457c00e27b49b3e",
    7: "2606fab1b288cf747f57b58d42d73d40",
    8: "7c625bc1ee2929d56029a42486d66b95",
    9: "faae5a34eea452a88343c5cf3100f72a",
    15: "785327df9c5b009b1105e89be63d997f",
    16: "d3b91f9d3a2554c0a556f38caafe89b1",
    17: "0e9fe7c0add95267d8375b4b70581a60",
    31: "9178370064743e1176b6bb193fa77448",
    32: "6e4ce6bd41085a45441cf09d69a0acf9",
    33: "40ab83516a43d6fb03cdc08cb0fa050f",
    100: "8740f68af8d1b5cea08b670b69bc0ab5",
}


@pytest.mark.parametrize(("data", "halves"), VECTORS.items())
def test_kafka_streams_own_vectors(data: bytes, halves: tuple[int, int]) -> None:
    assert struct.unpack(">qq", hash128(data, seed=123)) == halves


@pytest.mark.parametrize(("length", "expected"), OWN_SEED.items())
def test_every_length_of_the_last_block(length: int, expected: str) -> None:
    assert hash128(bytes((i * 37 + 11) % 256 for i in range(length))).hex() == expected


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_different_bytes_have_different_hashes(first: bytes, second: bytes) -> None:
    assert len(hash128(first)) == 16
    assert (hash128(first) == hash128(second)) is (first == second)
    assert hash128(first) != hash128(first + b"\0")


def test_many_at_once_are_those_of_kafka_streams() -> None:
    column = [bytes((i * 37 + 11) % 256 for i in range(length)) for length in OWN_SEED] * 5
    assert [data.hex() for data in hash128_each(column)] == [*OWN_SEED.values()] * 5


@given(st.lists(st.binary(max_size=70), max_size=300), st.integers(0, 2**63))
def test_many_at_once_are_the_same_as_one_by_one(column: list[bytes], seed: int) -> None:
    assert hash128_each(column, seed) == [hash128(data, seed) for data in column]


def test_large_values_are_hashed_a_few_at_a_time() -> None:
    column = [bytes([number]) * 300_000 for number in range(9)]
    assert hash128_each(column) == [hash128(data) for data in column]


@given(st.lists(st.lists(st.binary(max_size=3) | st.just(bytes(600)), max_size=6), max_size=8))
def test_what_is_remembered_is_what_would_be_hashed(columns: list[list[bytes]]) -> None:
    memory = HashMemory(2_400)
    for column in columns:
        assert memory.hashes(column) == [hash128(data) for data in column]
