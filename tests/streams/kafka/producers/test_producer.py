"""Producing by column, on a real cluster."""

import time

import pytest
from confluent_kafka import Producer

from tests.fakes.cluster import ANY_PARTITION, RealCluster, T, columns, values_of, visible
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.kafka.client.client_log import ClientLog
from tidewheel.streams.kafka.producers.producer import ProducerClient, RefusedError

pytestmark = pytest.mark.broker

#: All tests share the broker, and some keep it busy.
_PATIENCE_S = 60


def test_positional_and_keyword_arguments_of_produce_agree(cluster: RealCluster) -> None:
    by_position, by_keyword = cluster.topic(), cluster.topic()
    headers = (("h", b"1"), ("n", None))
    sink = cluster.sink()
    sink.produce(columns(by_position, b"v", None, keys=[b"k", b"t"], headers=[headers, ()]))
    assert sink.flush() == []
    plain = Producer({"bootstrap.servers": cluster.clients.settings.bootstrap_servers})
    plain.produce(
        topic=by_keyword, value=b"v", key=b"k", timestamp=T, headers=list(headers), partition=0
    )
    plain.produce(topic=by_keyword, value=None, key=b"t", timestamp=T + 1, partition=0)
    assert plain.flush(_PATIENCE_S) == 0
    assert visible(cluster, by_position) == visible(cluster, by_keyword)
    assert visible(cluster, by_position)[0] == (0, 0, b"k", b"v", T, headers)


def test_a_timestamp_of_zero_does_not_become_the_wall_clock(cluster: RealCluster) -> None:
    topic = cluster.topic()
    sink = cluster.sink()
    sink.produce(columns(topic, b"a", b"b", timestamps=[0, T]))
    assert sink.flush() == []
    assert [record.timestamp for record in visible(cluster, topic)] == [1, T]


def test_a_full_queue_delays_records_without_loss_or_repetition(cluster: RealCluster) -> None:
    topic = cluster.topic()
    client = _client(cluster, {"queue.buffering.max.messages": 100, "linger.ms": 1})
    values = [b"%d" % index for index in range(5_000)]
    records = columns(topic, *values)
    client.send(records, 0, len(records))
    assert client.flush(time.monotonic() + _PATIENCE_S)
    assert values_of(cluster, topic) == values


def test_a_record_larger_than_the_whole_queue_is_refused_immediately(cluster: RealCluster) -> None:
    topic = cluster.topic()
    client = _client(cluster, {"queue.buffering.max.kbytes": 1})
    records = columns(topic, b"ok", b"x" * 5_000, partitions=ANY_PARTITION)
    assert client.flush(time.monotonic() + _PATIENCE_S)
    with pytest.raises(RefusedError, match="larger than the client's queue") as refused:
        client.send(records, 1, 2)
    assert refused.value.index == 1


def test_a_part_of_columns_is_sent_like_separate_columns(cluster: RealCluster) -> None:
    topic = cluster.topic(partitions=3)
    client = _client(cluster, {})
    records = columns(
        topic, b"a", b"b", b"c", b"d",
        partitions=[0, 1, 2, 0], headers=[(), (("b", b""),), (("c", b""),), ()],
    )  # fmt: skip
    client.send(records, 1, 3)
    assert client.flush(time.monotonic() + _PATIENCE_S)
    assert [tuple(record) for record in visible(cluster, topic)] == [
        (1, 0, b"k1", b"b", T + 1, (("b", b""),)),
        (2, 0, b"k2", b"c", T + 2, (("c", b""),)),
    ]


def test_a_changelog_of_many_batches_reports_the_offset_of_its_last_record(
    cluster: RealCluster,
) -> None:
    part = TopicPartition(cluster.topic(), 0)
    producer = cluster.producer(cluster.name(), call_timeout_s=_PATIENCE_S)
    producer.init()
    producer.begin()
    for _ in range(3):
        producer.produce_changelog(part, [b"k"] * 10_000, [b"v" * 100] * 10_000, [T] * 10_000)
    assert producer.commit(cluster.name(), {}) == {part: 30_000}


def _client(cluster: RealCluster, changes: dict[str, object]) -> ProducerClient:
    config = cluster.clients.settings.sink() | changes
    return ProducerClient(config, ClientLog("test"), stall_timeout_s=_PATIENCE_S)
