"""Refused requests name the right and the resource that the principal lacks."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.kafka.admin.admin import KafkaAdmin
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.tasks.kafka.ports import NewTopic

_TOPIC = KafkaError.TOPIC_AUTHORIZATION_FAILED
_GROUP = KafkaError.GROUP_AUTHORIZATION_FAILED
_PARTITION = TopicPartition("orders", 0)


class _RefusingClient:
    """Answers each request with one error, for each of its keys."""

    def __init__(self, code: int) -> None:
        self._code = code

    def _refuse(self, keys: Any) -> dict[Any, Future[Any]]:
        refused: Future[Any] = Future()
        refused.set_exception(KafkaException(KafkaError(self._code)))
        return {getattr(key, "topic", key): refused for key in keys}

    def describe_topics(self, topics: Any, **_: Any) -> Any:
        return self._refuse(topics.topic_names)

    def describe_configs(self, resources: Any, **_: Any) -> Any:
        refused = self._refuse(resources)
        return {resource: refused[resource] for resource in resources}

    incremental_alter_configs = describe_configs

    def list_offsets(self, request: Any, **_: Any) -> Any:
        return dict.fromkeys(request, next(iter(self._refuse("x").values())))

    def create_topics(self, topics: Any, **_: Any) -> Any:
        return self._refuse(topics)

    def delete_topics(self, names: Any, **_: Any) -> Any:
        return self._refuse(names)

    delete_records = describe_consumer_groups = delete_consumer_groups = delete_topics

    def describe_cluster(self, **_: Any) -> Any:
        answer: Future[Any] = Future()
        answer.set_result(SimpleNamespace(controller=SimpleNamespace(id=1)))
        return answer

    def list_topics(self, **_: Any) -> None: ...

    def poll(self, _: float) -> None: ...


@pytest.fixture
def make_admin() -> Iterator[Callable[[int], KafkaAdmin]]:
    made: list[KafkaAdmin] = []

    def make(code: int) -> KafkaAdmin:
        settings = ClientSettings(bootstrap_servers="127.0.0.1:1", application_id="shop")
        admin = KafkaAdmin(settings, timeout_s=1.0)
        admin._client = _RefusingClient(code)
        made.append(admin)
        return admin

    yield make
    for admin in made:
        admin.close()


@pytest.mark.parametrize(
    ("call", "code", "right"),
    [
        (lambda a: a.describe_topics(["orders"]), _TOPIC, "DESCRIBE on topic orders"),
        (lambda a: a._topic_settings(["orders"], []), _TOPIC, "DESCRIBE_CONFIGS on topic orders"),
        (lambda a: a.alter_topic("orders", {"a": "b"}), _TOPIC, "ALTER_CONFIGS on topic orders"),
        (
            lambda a: a.create_topics([NewTopic(name="orders", partitions=1, config={})]),
            _TOPIC,
            "CREATE on topic orders",
        ),
        (lambda a: a.delete_topics(["orders"]), _TOPIC, "DELETE on topic orders"),
        (lambda a: a.delete_records({_PARTITION: 5}), _TOPIC, "DELETE on topic orders"),
        (lambda a: a.end_offsets([_PARTITION]), _TOPIC, "DESCRIBE on topic orders"),
        (lambda a: a.group_members("shop"), _GROUP, "DESCRIBE on group shop"),
        (lambda a: a.fixed_workers("shop"), _GROUP, "DESCRIBE on group shop:fixed"),
        (lambda a: a.delete_group("shop"), _GROUP, "DELETE on group shop"),
        (
            lambda a: a.offsets_retention_ms(),
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            "DESCRIBE_CONFIGS on the cluster",
        ),
    ],
)
def test_a_refused_request_names_right_and_resource(
    make_admin: Callable[[int], KafkaAdmin], call: Callable[[Any], object], code: int, right: str
) -> None:
    with pytest.raises(StreamsError, match=f"grant this principal {right}"):
        call(make_admin(code))
