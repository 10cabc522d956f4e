"""Offsets in a transaction that never ends: messages, and closing during the wait."""

import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from tests.fakes.cluster import RealCluster
from tests.fakes.proxy import OFFSET_FETCH, KafkaProxy
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.kafka.admin import admin as admin_module
from tidewheel.streams.kafka.admin.open_transactions import BrokerAddress, with_producers
from tidewheel.tasks.kafka.open_transactions import OpenTransaction

pytestmark = pytest.mark.broker


@pytest.fixture
def group(cluster: RealCluster) -> str:
    return cluster.name()


@pytest.fixture
def wanted(cluster: RealCluster) -> TopicPartition:
    return TopicPartition(cluster.topic(), 0)


@pytest.fixture
def producer(cluster: RealCluster, group: str, wanted: TopicPartition) -> Iterator[Producer]:
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


def test_the_error_of_offsets_in_an_open_transaction_names_the_transaction(
    cluster: RealCluster,
    producer: Producer,
    group: str,
    wanted: TopicPartition,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin_module, "_LISTING_S", 30.0)  # a busy machine needs more than usual
    admin = cluster.clients.admin(timeout_s=2.0)

    with pytest.raises(StreamsError, match=f"group {group}.*is open.*find-hanging"):
        admin.committed(group, [wanted], stable=True)

    producer.commit_transaction()
    assert admin.committed(group, [wanted], stable=True)[wanted].offset == 7
    admin.close()


def test_a_client_without_an_answer_receives_no_second_request(
    harmed: RealCluster,
    proxy: KafkaProxy,
    group: str,
    wanted: TopicPartition,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin_module, "_READER_S", 1.0)
    admin = harmed.clients.admin(timeout_s=20.0)
    assert admin.committed(group, [wanted], stable=True) == {}
    (kept,) = admin._readers._readers.values()
    proxy.mute(OFFSET_FETCH)

    assert admin.committed(group, [wanted], stable=True) == {}

    assert kept not in admin._readers._readers.values()
    with pytest.raises(RuntimeError, match="closed"):
        kept.poll(0)
    admin.close()


def test_a_client_may_be_closed_during_a_request(
    cluster: RealCluster, producer: Producer, group: str, wanted: TopicPartition
) -> None:
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


def test_F3_an_open_transaction_is_reported_with_its_producer(
    cluster: RealCluster, wanted: TopicPartition
) -> None:
    servers = cluster.clients.settings.bootstrap_servers
    name = cluster.name()
    made = Producer({"bootstrap.servers": servers, "transactional.id": name})
    made.init_transactions()
    made.begin_transaction()
    made.produce(wanted.topic, b"open", partition=wanted.partition)
    assert made.flush(30) == 0
    admin = cluster.clients.admin()

    found = admin.open_transactions([wanted])[wanted]

    assert (found.start, found.end, found.transactional_id, found.state) == (0, 1, name, "Ongoing")
    assert found.producer_id >= 0
    assert found.producer_epoch >= 0
    assert not found.unknown
    assert f"--bootstrap-server {servers} abort" in str(found)
    assert found.command.endswith(f"--topic {wanted.topic} --partition 0 --start-offset 0")
    made.abort_transaction()
    deadline_s = time.monotonic() + 30
    while admin.open_transactions([wanted]):
        assert time.monotonic() < deadline_s, "it was aborted"
    admin.close()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"security.protocol": "sasl_plaintext", "sasl.mechanism": "OAUTHBEARER"}, "OAUTHBEARER"),
        ({"security.protocol": "ssl", "ssl.keystore.location": "secret.p12"}, "TLS"),
    ],
)
def test_F3_the_text_names_the_reason_if_brokers_can_not_be_asked(
    cluster: RealCluster, config: dict[str, str], words: str
) -> None:
    host, _, port = cluster.clients.settings.bootstrap_servers.rpartition(":")
    each = TopicPartition("log", 0)
    node = BrokerAddress(host, int(port))
    found = with_producers(
        {each: OpenTransaction(partition=each, start=3, end=9)}, {each: node}, [node], config
    )
    assert words in found[each].unknown
    assert "secret" not in str(found[each])
    assert "offsets 3 to 9" in str(found[each])
