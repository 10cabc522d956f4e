"""Record batches that no client writes, sent to a broker: raw header names, any timestamps."""

import socket
import struct
from collections.abc import Sequence

from tidewheel.rebalance.model import TopicPartition

_PRODUCE, _VERSION = 0, 7
_POLYNOMIAL = 0x82F63B78

#: Key, value, and headers by name.
RawRecord = tuple[bytes, bytes, Sequence[tuple[bytes, bytes]]]


def produce_raw(
    bootstrap_servers: str,
    partition: TopicPartition,
    records: Sequence[RawRecord],
    *,
    timestamp_ms: int = 1_000,
) -> None:
    """Write one batch; raise AssertionError if the broker refuses it."""
    data = _batch(records, timestamp_ms)
    topic = _string(partition.topic.encode())
    body = struct.pack(">hhi", -1, -1, 10_000) + struct.pack(">i", 1) + topic
    body += struct.pack(">iii", 1, partition.partition, len(data)) + data
    request = struct.pack(">hhi", _PRODUCE, _VERSION, 1) + _string(b"raw") + body
    host, _, port = bootstrap_servers.partition(",")[0].rpartition(":")
    with socket.create_connection((host, int(port)), 30) as broker:
        broker.sendall(struct.pack(">i", len(request)) + request)
        answer = broker.makefile("rb")
        (size,) = struct.unpack(">i", answer.read(4))
        # Correlation id, number of topics, the topic, number of partitions, its number.
        (error,) = struct.unpack_from(">h", answer.read(size), 4 + 4 + len(topic) + 4 + 4)
        answer.close()
    assert error == 0, f"error {error} of Produce"


def _batch(records: Sequence[RawRecord], timestamp_ms: int) -> bytes:
    count = len(records)
    body = b"".join(_record(number, *record) for number, record in enumerate(records))
    times = (timestamp_ms, timestamp_ms)
    checked = struct.pack(">hiqqqhii", 0, count - 1, *times, -1, -1, -1, count) + body
    head = struct.pack(">qiibI", 0, 4 + 1 + 4 + len(checked), 0, 2, _crc32c(checked))
    return head + checked


def _record(number: int, key: bytes, value: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    data = b"\0" + _varint(0) + _varint(number) + _sized(key) + _sized(value)
    data += _varint(len(headers)) + b"".join(
        map(_sized, (part for each in headers for part in each))
    )
    return _sized(data)


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(number: int) -> bytes:
    number <<= 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _string(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
