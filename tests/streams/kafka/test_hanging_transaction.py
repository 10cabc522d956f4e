"""Offsets whose transaction never ends: what is said instead of a bare time-out, and closing while they are waited for."""

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from rebalance.model import TopicPartition
from streams.errors import StreamsError
from streams.kafka import admin as admin_module
from tests.fakes.cluster import RealCluster
from tests.fakes.proxy import OFFSET_FETCH, KafkaProxy

pytestmark = pytest.mark.broker


@pytest.fixture
def group(cluster: RealCluster) -> str:
    """A group's name."""
    return cluster.name()


@pytest.fixture
def wanted(cluster: RealCluster) -> TopicPartition:
    """A partition."""
    return TopicPartition(cluster.topic(), 0)


@pytest.fixture
def producer(cluster: RealCluster, group: str, wanted: TopicPartition) -> Iterator[Producer]:
    """A producer whose open transaction has an offset of the group."""
    servers = {"bootstrap.servers": cluster.clients.settings.bootstrap_servers}
    consumer = Consumer(servers | {"group.id": group})
    made = Producer(servers | {"transactional.id": cluster.name()})
    made.init_transactions()
    made.begin_transaction()
    made.send_offsets_to_transaction(
        [KafkaPartition(*wanted, 7)], consumer.consumer_group_metadata()
    )
    yield made
    consumer.close()


def test_offsets_in_an_open_transaction_are_no_bare_time_out(
    cluster: RealCluster, producer: Producer, group: str, wanted: TopicPartition
) -> None:
    """Kafka 4 can lose a transaction's end when a partition is without a leader; only a tool of Kafka's ends it then."""
    admin = cluster.clients.admin(timeout_s=2.0)

    with pytest.raises(StreamsError, match=f"group {group}.*is open.*find-hanging"):
        admin.committed(group, [wanted], stable=True)

    producer.commit_transaction()
    assert admin.committed(group, [wanted], stable=True)[wanted].offset == 7
    admin.close()


def test_a_client_that_gets_no_answer_is_not_asked_again(
    harmed: RealCluster,
    proxy: KafkaProxy,
    group: str,
    wanted: TopicPartition,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection that nobody serves any more costs one question's time, not all of it and not the next ones'."""
    monkeypatch.setattr(admin_module, "_READER_S", 1.0)
    admin = harmed.clients.admin(timeout_s=20.0)
    assert admin.committed(group, [wanted], stable=True) == {}
    (kept,) = admin._readers._kept.values()
    proxy.mute(OFFSET_FETCH)

    assert admin.committed(group, [wanted], stable=True) == {}

    assert kept not in admin._readers._kept.values()
    with pytest.raises(RuntimeError, match="closed"):
        kept.poll(0)
    admin.close()


def test_a_client_may_be_closed_while_it_is_asked(
    cluster: RealCluster, producer: Producer, group: str, wanted: TopicPartition
) -> None:
    """Who asks gets an error that says so; the client underneath is let go by whoever is last."""
    admin = cluster.clients.admin(timeout_s=2.0)
    errors: list[StreamsError] = []

    def ask() -> None:
        try:
            admin.committed(group, [wanted], stable=True)
        except StreamsError as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    while not admin._readers._lent:
        assert asking.is_alive()
    (reader,) = admin._readers._lent

    admin.close()

    asking.join(30)
    assert errors
    with pytest.raises(RuntimeError, match="closed"):
        reader.poll(0)
    with pytest.raises(StreamsError, match="closed"):
        admin.committed(group, [wanted], stable=True)
    producer.abort_transaction()
