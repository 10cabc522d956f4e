"""One Kafka for a test run, started once, on first use."""

import socket
from typing import Self

import pytest

from checks import shared_broker
from checks.shared_broker import ask_for_broker, offered_broker
from tidewheel.streams.broker.server_config import PATIENT


class Brokers:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.started = 0
        self.running = 0
        self.bootstrap_servers = "here:9092"

    def __call__(self, *, heap_mb: int, properties: dict[str, int]) -> "Brokers":
        assert heap_mb > 0
        assert properties == PATIENT
        return self

    def __enter__(self) -> Self:
        self.started += 1
        if self.error is not None:
            raise self.error
        self.running += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.running -= 1


def test_all_callers_share_one_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers()
    monkeypatch.setattr(shared_broker, "KafkaBroker", brokers)
    with offered_broker() as path:
        assert brokers.started == 0
        assert [ask_for_broker(path) for _ in range(3)] == ["here:9092"] * 3
        assert (brokers.started, brokers.running) == (1, 1)
    assert brokers.running == 0
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(FileNotFoundError):
        client.connect(path)


def test_a_run_without_broker_tests_starts_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests without a broker need no Java."""
    brokers = Brokers()
    monkeypatch.setattr(shared_broker, "KafkaBroker", brokers)
    with offered_broker():
        pass
    assert brokers.started == 0


def test_a_broker_that_does_not_start_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(RuntimeError("no Java"))
    monkeypatch.setattr(shared_broker, "KafkaBroker", brokers)
    with offered_broker() as path:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="did not start: failed: no Java"):
                ask_for_broker(path)
    assert brokers.started == 1
