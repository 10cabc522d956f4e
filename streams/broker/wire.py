"""Two Kafka requests to the development broker: Metadata and CreateTopics.

They use a plain socket, because only `tidewheel.streams.kafka` imports the Kafka client. They need
a listener without TLS and authentication. All Kafka 4 brokers support these old versions.
"""

import logging
import selectors
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass

from tidewheel.streams.broker.broker_errors import BrokerError

_METADATA = (3, 2)
_CREATE_TOPICS = (19, 2)
_CLIENT_ID = "tidewheel-broker"
_CORRELATION_ID = 1
_ANSWER_BYTES_MAX = 8 << 20
_CORRELATION_ID_BYTES = 4
_TOPIC_ALREADY_EXISTS = 36
#: Seconds between reports of a wait.
_REPORT_SECONDS = 15.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    cluster_id: str | None
    broker_count: int


def split_address(address: str) -> tuple[str, int]:
    host, separator, port = address.strip().rpartition(":")
    if not separator or not host or not port.isdigit():
        raise BrokerError(f"{address!r} is no address; give host:port, such as 127.0.0.1:9092")
    return host.strip("[]"), int(port)


def describe_cluster(address: str, *, timeout_ms: int = 2_000) -> ClusterDescription | None:
    """Return the cluster at `address`; None without an answer.

    Kafka answers only when it is ready; its port opens earlier.
    """
    no_topics = struct.pack(">i", 0)
    try:
        answer = _ResponseReader(_ask(address, _METADATA, no_topics, timeout_ms))
        broker_count = answer.int32()
        for _ in range(broker_count):
            answer.int32()
            answer.string()
            answer.int32()
            answer.string()
        return ClusterDescription(cluster_id=answer.string(), broker_count=broker_count)
    except (OSError, struct.error, UnicodeDecodeError):
        return None


def create_topics(
    address: str, topics: Mapping[str, int], *, timeout_ms: int = 600_000
) -> tuple[str, ...]:
    """Create topics (name and partitions) with one replica; existing ones stay unchanged.

    Returns the names of new topics.

    Raises:
        BrokerError: A topic could not be created, or the broker did not answer.
    """
    if not topics:
        return ()
    body = struct.pack(">i", len(topics))
    for name, partitions in topics.items():
        nothing_assigned_or_configured = struct.pack(">ii", 0, 0)
        body += _string(name) + struct.pack(">ih", partitions, 1) + nothing_assigned_or_configured
    body += struct.pack(">i?", timeout_ms, False)
    created: list[str] = []
    failed: list[str] = []
    try:
        answer = _ResponseReader(_ask(address, _CREATE_TOPICS, body, timeout_ms + 1_000))
        answer.int32()
        for _ in range(answer.int32()):
            topic, code, message = answer.string() or "", answer.int16(), answer.string()
            if code == 0:
                created.append(topic)
            elif code != _TOPIC_ALREADY_EXISTS:
                failed.append(f"{topic} ({topics.get(topic)} partitions): {message or code}")
    except (OSError, struct.error, UnicodeDecodeError) as error:
        raise BrokerError(
            f"could not create topics {', '.join(topics)}: no answer from {address} ({error}); "
            "check that the broker runs and that its listener is a plain one"
        ) from error
    if failed:
        raise BrokerError(f"could not create topics at {address}: {'; '.join(failed)}")
    return tuple(created)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _await_answer(connection: socket.socket, address: str, timeout_s: float) -> None:
    began_s = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while not selector.select(min(_REPORT_SECONDS, timeout_s)):
            waited_s = time.monotonic() - began_s
            if waited_s >= timeout_s:
                raise TimeoutError(f"no answer within {timeout_s:.0f} s")
            _logger.warning("waiting for %.0f s until Kafka at %s answers", waited_s, address)


def _ask(address: str, api: tuple[int, int], body: bytes, timeout_ms: int) -> bytes:
    request = struct.pack(">hhi", *api, _CORRELATION_ID) + _string(_CLIENT_ID) + body
    with socket.create_connection(split_address(address), timeout=timeout_ms / 1000) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        _await_answer(connection, address, timeout_ms / 1000)
        with connection.makefile("rb") as answers:
            (size_bytes,) = struct.unpack(">i", answers.read(4))
            if not _CORRELATION_ID_BYTES <= size_bytes <= _ANSWER_BYTES_MAX:
                raise OSError(f"an answer of {size_bytes} bytes is none of Kafka's")
            answer = answers.read(size_bytes)
    if len(answer) != size_bytes:
        raise OSError("the connection was closed in the middle of an answer")
    if struct.unpack_from(">i", answer) != (_CORRELATION_ID,):
        raise OSError("an answer to another request")
    return answer[_CORRELATION_ID_BYTES:]


class _ResponseReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def _read(self, layout: str) -> int:
        (value,) = struct.unpack_from(layout, self._data, self._position)
        self._position += struct.calcsize(layout)
        return int(value)

    def int16(self) -> int:
        return self._read(">h")

    def int32(self) -> int:
        return self._read(">i")

    def string(self) -> str | None:
        size_bytes = self.int16()
        if size_bytes < 0:
            return None
        text = self._data[self._position : self._position + size_bytes].decode()
        self._position += size_bytes
        return text
