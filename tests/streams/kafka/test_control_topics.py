"""The reader of a group's topics, where these were made a moment ago."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from rebalance.model import TopicPartition
from streams.kafka import group_log
from streams.kafka.group_log import ControlTopicsReader
from streams.kafka.settings import ClientSettings

INBOX = TopicPartition("app-group-inbox", 0)


class _Client:
    """Answers as a client whose broker does not know yet that it leads; the real one ends with the test."""

    def __init__(self, code: int, times: int) -> None:
        self._errors = [code] * times
        self.looked: list[str | None] = []

    def list_topics(self, topic: str | None = None, *, timeout: float) -> None:
        assert timeout > 0
        self.looked.append(topic)

    def offsets_for_times(self, asked: list[Any], *, timeout: float) -> list[Any]:
        assert timeout > 0
        assert len(asked) == 1
        if self._errors:
            raise KafkaException(KafkaError(self._errors.pop()))
        return [SimpleNamespace(error=None, offset=7)]


@pytest.fixture
def reader() -> Any:
    """A reader of a cluster that is nowhere."""
    made = ControlTopicsReader(
        ClientSettings(bootstrap_servers="127.0.0.1:1", application_id="app")
    )
    real = made._consumer
    yield made
    real.close()


def test_a_leader_that_does_not_know_it_yet_is_asked_again(reader: Any) -> None:
    """With fresh metadata each time, so that another leader is found, too."""
    reader._consumer = client = _Client(KafkaError.NOT_LEADER_FOR_PARTITION, times=3)
    assert reader.offset_since(INBOX, 1_000) == 7
    assert client.looked == [None, *[INBOX.topic] * 3]


def test_it_is_not_asked_for_ever(reader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks has other things to do; other errors are told at once."""
    monkeypatch.setattr(group_log, "_LEADER_WAIT_S", 0.2)
    for code, most in ((KafkaError.NOT_LEADER_FOR_PARTITION, 50), (KafkaError._TRANSPORT, 1)):
        reader._consumer = client = _Client(code, times=1_000)
        with pytest.raises(KafkaException):
            reader.offset_since(INBOX, 1_000)
        assert len(client.looked) <= most
