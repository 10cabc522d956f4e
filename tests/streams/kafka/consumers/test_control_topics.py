"""Offsets of new topics, such as those of a new group."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.kafka.admin.admin import KafkaAdmin
from tidewheel.streams.kafka.client.settings import ClientSettings

INBOX = TopicPartition("app-group-inbox", 0)


class _Client:
    def __init__(self, code: int, times: int) -> None:
        self._errors = [code] * times
        self.asked = 0

    def list_offsets(self, wanted: dict[KafkaPartition, Any], **_: Any) -> dict[Any, Any]:
        self.asked += 1
        answer: Future[Any] = Future()
        if self._errors:
            code = self._errors.pop()
            if code == KafkaError.NO_ERROR:
                answer.set_result(SimpleNamespace(offset=OFFSET_INVALID))
            else:
                answer.set_exception(KafkaException(KafkaError(code)))
        else:
            answer.set_result(SimpleNamespace(offset=7))
        return dict.fromkeys(wanted, answer)

    def list_topics(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(topics={})

    def poll(self, _: float) -> None:
        pass


def _admin(client: _Client, timeout_s: float) -> KafkaAdmin:
    admin = KafkaAdmin(
        ClientSettings(bootstrap_servers="127.0.0.1:1", application_id="app"), timeout_s=timeout_s
    )
    admin._client = client
    return admin


def test_offsets_are_requested_again_from_a_new_leader() -> None:
    client = _Client(KafkaError.NOT_LEADER_FOR_PARTITION, times=3)
    assert _admin(client, 30.0).offsets_of_age({INBOX: 1_000}) == {INBOX: 7}
    assert client.asked == 4


def test_a_missing_offset_without_an_error_is_requested_again() -> None:
    for ask in (KafkaAdmin.beginning_offsets, KafkaAdmin.end_offsets, KafkaAdmin.stable_offsets):
        client = _Client(KafkaError.NO_ERROR, times=2)
        assert ask(_admin(client, 30.0), [INBOX]) == {INBOX: 7}
        assert client.asked == 3


def test_offset_requests_are_not_repeated_forever() -> None:
    for code, most in ((KafkaError.NOT_LEADER_FOR_PARTITION, 50), (KafkaError.INVALID_REQUEST, 1)):
        client = _Client(code, times=1_000)
        with pytest.raises(StreamsError):
            _admin(client, 1.0).offsets_of_age({INBOX: 1_000})
        assert client.asked <= most
