"""Cached properties of topics."""

import time

import pytest

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeAdmin
from tidewheel.streams.worker.application.topic_limits import KafkaTopics
from tidewheel.tasks.errors import MissingOutputTopicError


class CountingAdmin(FakeAdmin):
    asked = 0

    def describe_topics(self, names, *, config=()):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201 - the port's
        self.asked += 1
        return super().describe_topics(names, config=config)


@pytest.fixture
def broker() -> FakeBroker:
    made = FakeBroker()
    made.create_topic("out", 3, {"max.message.bytes": "1000"})
    return made


def test_the_limit_of_a_topic_is_requested_once(broker: FakeBroker) -> None:
    admin = CountingAdmin(broker)
    topics = KafkaTopics(admin)
    assert [topics.partition_count("out"), topics.message_bytes_max("out")] == [3, 1000]
    assert [topics.partition_count("out"), topics.message_bytes_max("out")] == [3, 1000]
    assert admin.asked == 1


def test_the_limit_of_a_missing_topic_is_requested_at_intervals(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    admin = CountingAdmin(broker)
    topics = KafkaTopics(admin)
    for _ in range(5):
        with pytest.raises(
            MissingOutputTopicError, match="output topic late does not exist; create it"
        ):
            topics.partition_count("late")
    assert admin.asked == 1
    broker.create_topic("late", 2)
    now_s[0] += 2
    assert topics.partition_count("late") == 2
    assert admin.asked == 2


def test_a_limit_that_refused_a_record_is_requested_again(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    admin = CountingAdmin(broker)
    topics = KafkaTopics(admin)
    assert topics.message_bytes_max("out") == 1000
    broker.topics["out"].config["max.message.bytes"] = "2000"
    assert topics.message_bytes_max_now("out") == 2000
    broker.topics["out"].config["max.message.bytes"] = "3000"
    assert topics.message_bytes_max_now("out") == 2000
    now_s[0] += 1.5
    assert topics.message_bytes_max_now("out") == 3000
