"""The two requests of our own, against a fake server."""

import socket
import struct

import pytest

from tests.streams.broker.fake_tools import answering_server
from tidewheel.streams.broker.broker_errors import BrokerError
from tidewheel.streams.broker.wire import (
    ClusterDescription,
    create_topics,
    describe_cluster,
    split_address,
)


def _text(text: str | None) -> bytes:
    if text is None:
        return struct.pack(">h", -1)
    return struct.pack(">h", len(text)) + text.encode()


def _answer(body: bytes, correlation_id: int = 1) -> bytes:
    return struct.pack(">ii", len(body) + 4, correlation_id) + body


def _metadata(cluster_id: str) -> bytes:
    node = struct.pack(">i", 1) + _text("127.0.0.1") + struct.pack(">i", 9092) + _text(None)
    return struct.pack(">i", 1) + node + _text(cluster_id) + struct.pack(">ii", 1, 0)


def _created(*topics: tuple[str, int, str | None]) -> bytes:
    body = struct.pack(">ii", 0, len(topics))
    for name, code, message in topics:
        body += _text(name) + struct.pack(">h", code) + _text(message)
    return body


def test_a_broker_returns_its_cluster_id() -> None:
    with answering_server(_answer(_metadata("abc"))) as address:
        assert describe_cluster(address) == ClusterDescription(cluster_id="abc", broker_count=1)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00\x00",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack(">i", -5),
        struct.pack(">i", 1 << 30),
        _answer(_metadata("abc"))[:-9],
        _answer(_metadata("abc"), correlation_id=2),
        _answer(b"\x00"),
        _answer(struct.pack(">ih", 0, 3) + b"\xff\xff\xff"),
    ],
    ids=["closed", "cut", "http", "negative", "huge", "half", "other", "short", "no-utf8"],
)
def test_a_server_that_does_not_answer_as_kafka_is_not_ready(answer: bytes) -> None:
    with answering_server(answer) as address:
        assert describe_cluster(address) is None


def test_an_address_without_a_server_is_not_ready() -> None:
    with answering_server() as address:
        pass
    assert describe_cluster(address) is None


def test_existing_topics_are_not_changed() -> None:
    with answering_server(_answer(_created(("new", 0, None), ("old", 36, "exists")))) as address:
        assert create_topics(address, {"new": 2, "old": 1}) == ("new",)


def test_a_topic_that_can_not_be_created_is_named_with_the_reason() -> None:
    answer = _answer(_created(("a b", 17, "illegal character"), ("c", 0, None)))
    with (
        answering_server(answer) as address,
        pytest.raises(BrokerError, match=r"a b \(3 partitions\): illegal character"),
    ):
        create_topics(address, {"a b": 3, "c": 1})


def test_the_error_of_a_missing_answer_names_the_topics_and_the_address() -> None:
    with (
        answering_server(b"") as address,
        pytest.raises(BrokerError, match=f"orders: no answer from {address}"),
    ):
        create_topics(address, {"orders": 1})


def test_no_topics_need_no_broker() -> None:
    assert create_topics("nowhere:1", {}) == ()


@pytest.mark.parametrize("address", ["", "host", ":9092", "host:", "host:port"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(BrokerError, match=r"give host:port"):
        split_address(address)


def test_addresses_are_split() -> None:
    assert split_address("localhost:9092") == ("localhost", 9092)
    assert split_address(" [::1]:9092 ") == ("::1", 9092)


def test_a_slow_answer_is_reported_until_it_is_too_late(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tidewheel.streams.broker.wire._REPORT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(BrokerError, match="orders: no answer from"):
            create_topics(address, {"orders": 1}, timeout_ms=500)
    assert any(address in record.getMessage() for record in caplog.records)
