"""Hashes of foreign-key joins equal those of Kafka Streams."""

import pytest

from tidewheel.streams.operators.joins.foreign_key_join import hash_row

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


@pytest.mark.parametrize(("length", "expected"), OWN_SEED.items())
def test_hashes_equal_those_of_kafka_streams(length: int, expected: str) -> None:
    row_hash = hash_row(bytes((i * 37 + 11) % 256 for i in range(length)))
    assert row_hash is not None
    assert row_hash.hex() == expected
