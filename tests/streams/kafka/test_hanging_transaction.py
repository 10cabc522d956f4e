"""Offsets whose transaction never ends: what is said instead of a bare time-out."""

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from rebalance.model import TopicPartition
from streams.errors import StreamsError
from tests.fakes.cluster import RealCluster

pytestmark = pytest.mark.broker


def test_offsets_in_an_open_transaction_are_no_bare_time_out(cluster: RealCluster) -> None:
    """Kafka 4 can lose a transaction's end when a partition is without a leader; only a tool of Kafka's ends it then."""
    topic, group = cluster.topic(), cluster.name()
    servers = {"bootstrap.servers": cluster.clients.settings.bootstrap_servers}
    consumer = Consumer(servers | {"group.id": group})
    producer = Producer(servers | {"transactional.id": cluster.name()})
    producer.init_transactions()
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        [KafkaPartition(topic, 0, 7)], consumer.consumer_group_metadata()
    )
    admin = cluster.clients.admin(timeout_s=2.0)
    wanted = [TopicPartition(topic, 0)]

    with pytest.raises(StreamsError, match=f"group {group}.*is open.*find-hanging"):
        admin.committed(group, wanted, stable=True)

    producer.commit_transaction()
    assert admin.committed(group, wanted, stable=True)[wanted[0]].offset == 7
    consumer.close()
    admin.close()
