"""Transactional producer with lost or late replies and a hanging cluster (PROTOCOL.md H8)."""

import time
from typing import Any

import pytest

from tests.fakes.cluster import PATIENCE_S, RealCluster, columns, started, values_of
from tests.fakes.proxy import (
    ADD_OFFSETS_TO_TXN,
    API_VERSIONS,
    END_TXN,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    KafkaProxy,
)
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.errors import FencedError, StreamsError
from tidewheel.streams.kafka.client.client_log import TransactionLog
from tidewheel.tasks.kafka.ports import (
    CommitOutcomeUnknownError,
    CommittedOffset,
    TransactionalProducer,
)

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("request_kind", [END_TXN, ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT])
def test_a_lost_reply_makes_the_outcome_unknown_although_the_client_reports_success(
    cluster: RealCluster, harmed: RealCluster, proxy: KafkaProxy, request_kind: int
) -> None:
    """The first request may still hit a later transaction.

    Committed offsets and visible records agree in either case. The client repeats the request and
    reports success; on a busy machine it gives up first.
    """
    topic, group, transactional_id = cluster.topic(), cluster.name(), cluster.name()
    producer = started(harmed, transactional_id)
    _commit(producer, topic, group, b"fine")
    proxy.drop_reply(request_kind)
    with pytest.raises(CommitOutcomeUnknownError, match="read back"):
        _commit(producer, topic, group, b"in doubt", offset=2)
    with pytest.raises(CommitOutcomeUnknownError):
        producer.begin()
    started(cluster, transactional_id)  # Ends an open transaction, like every successor.
    partition = TopicPartition(topic, 0)
    committed = cluster.admin().committed(group, [partition], stable=True)[partition].offset
    assert committed == 2 if request_kind == END_TXN else committed in (1, 2)
    assert values_of(cluster, topic, committed) == [b"fine", b"in doubt"][:committed]


def test_a_lost_reply_to_an_abort_ends_the_producer_too(
    cluster: RealCluster, harmed: RealCluster, proxy: KafkaProxy
) -> None:
    topic = cluster.topic()
    producer = started(harmed)
    producer.begin()
    producer.produce(columns(topic, b"lost"))
    _wait_for_records(producer)
    proxy.drop_reply(END_TXN)
    with pytest.raises(CommitOutcomeUnknownError):
        producer.abort()
    assert values_of(cluster, topic) == []


def test_a_connection_lost_between_transactions_is_no_doubt(
    cluster: RealCluster, harmed: RealCluster, proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group = cluster.topic(), cluster.name()
    producer: Any = started(harmed)
    _commit(producer, topic, group, b"before")
    said: list[str] = []
    take = TransactionLog.log

    def listen(log: TransactionLog, level: int, template: str, *parts: Any) -> None:
        said.append(str(parts[-1]))
        take(log, level, template, *parts)

    monkeypatch.setattr(TransactionLog, "log", listen)
    connected = proxy.seen[API_VERSIONS]
    proxy.cut()
    deadline_s = time.monotonic() + PATIENCE_S
    # To coordinator and broker; a client thread notices it late.
    while proxy.seen[API_VERSIONS] < connected + 2 or not _is_back(said):
        assert time.monotonic() < deadline_s, "the client did not connect again"
        producer._producer.serve(0.02)
    _commit(producer, topic, group, b"after")
    assert values_of(cluster, topic, 2) == [b"before", b"after"]


def test_a_commit_that_arrives_after_the_fence_is_refused(
    cluster: RealCluster, harmed: RealCluster, proxy: KafkaProxy
) -> None:
    topic, shared, group = cluster.topic(), cluster.name(), cluster.name()
    producer = started(harmed, shared)
    proxy.before_request(END_TXN, lambda: cluster.admin().fence([shared]))
    with pytest.raises(FencedError):
        _commit(producer, topic, group, b"late")
    assert values_of(cluster, topic) == []
    assert cluster.admin().committed(group, [TopicPartition(topic, 0)], stable=True) == {}


@pytest.mark.parametrize("with_offsets", [False, True])
def test_a_hanging_cluster_is_an_error_within_the_time_limit_and_close_does_not_wait(
    cluster: RealCluster, harmed: RealCluster, proxy: KafkaProxy, *, with_offsets: bool
) -> None:
    topic, group = cluster.topic(), cluster.name()
    offsets = {TopicPartition(topic, 0): CommittedOffset(1, "")}
    waits: list[float] = []
    producer = harmed.clients.transactional_producer(cluster.name(), 30_000, call_timeout_s=10.0)
    producer._producer._on_wait = lambda: waits.append(time.monotonic())
    producer.init()
    _commit(producer, topic, group, b"fine")
    producer._timeout_s = 1.0
    producer.begin()
    producer.produce(columns(topic, b"lost"))
    proxy.freeze()
    before_s = time.monotonic()
    with pytest.raises(CommitOutcomeUnknownError):
        producer.commit(group, offsets if with_offsets else {})
    took_s = time.monotonic() - before_s
    producer.close()
    closed_s = time.monotonic() - before_s - took_s
    proxy.thaw()
    assert 1.0 <= took_s < 9.0  # Far below the client's own limits, also on a slow machine.
    assert closed_s < 8.0
    assert len(waits) >= 2, "a watchdog must see that we wait and do not hang"


def test_offsets_are_sent_concurrently_with_the_records(
    cluster: RealCluster, harmed: RealCluster, proxy: KafkaProxy
) -> None:
    topic, group = cluster.topic(), cluster.name()
    producer = started(harmed)
    _commit(producer, topic, group, b"first")
    before = proxy.seen[ADD_OFFSETS_TO_TXN]
    was_sent: list[bool] = []

    def hold_up() -> None:
        until_s = time.monotonic() + PATIENCE_S
        while proxy.seen[ADD_OFFSETS_TO_TXN] == before and time.monotonic() < until_s:
            time.sleep(0.002)
        was_sent.append(proxy.seen[ADD_OFFSETS_TO_TXN] > before)

    proxy.before_request(PRODUCE, hold_up)
    _commit(producer, topic, group, b"second")
    assert was_sent == [True]
    assert values_of(cluster, topic, 2) == [b"first", b"second"]


def test_an_unreachable_cluster_is_an_error_with_its_address_and_the_next_step() -> None:
    nowhere = RealCluster("127.0.0.1:9", run_id="nowhere")
    producer = nowhere.clients.transactional_producer("id", 30_000, call_timeout_s=0.3)
    admin = nowhere.clients.admin(timeout_s=0.3)
    with pytest.raises(StreamsError, match=r"127\.0\.0\.1:9.*check that the brokers run"):
        producer.init()
    with pytest.raises(StreamsError, match=r"127\.0\.0\.1:9.*check that the brokers run"):
        admin.list_topics()
    with pytest.raises(StreamsError, match=r"fence producer other.*127\.0\.0\.1:9"):
        admin.fence(["other"])
    nowhere.close()
    producer.close()


def _commit(
    producer: TransactionalProducer, topic: str, group: str, value: bytes, *, offset: int = 1
) -> None:
    producer.begin()
    producer.produce(columns(topic, value))
    producer.commit(group, {TopicPartition(topic, 0): CommittedOffset(offset, "")})


def _is_back(said: list[str]) -> bool:
    coordinator = [line for line in said if "Transaction coordinator is now" in line]
    lost = sum("Disconnected" in line for line in said)
    return lost >= 2 and bool(coordinator) and coordinator[-1].endswith("up")


def _wait_for_records(producer: TransactionalProducer) -> None:
    real: Any = producer
    assert real._producer.flush(time.monotonic() + 10)
