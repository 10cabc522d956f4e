import time

import pytest

from tests.fakes.cluster import (
    ANY_PARTITION,
    Cluster,
    RealCluster,
    T,
    columns,
    started,
    values_of,
    visible,
    write,
)
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.errors import FencedError, StreamsError
from tidewheel.tasks.kafka.ports import (
    CommittedOffset,
    TransactionAbortedError,
    TransactionalProducer,
)
from tidewheel.tasks.processing.engine.output import OutputColumns


def test_records_become_visible_with_the_commit_and_not_before(cluster: Cluster) -> None:
    topic = cluster.topic()
    producer = started(cluster)
    producer.begin()
    producer.produce(columns(topic, b"a", b"b"))
    before = values_of(cluster, topic)
    producer.commit(cluster.name(), {})
    assert (before, values_of(cluster, topic, 2)) == ([], [b"a", b"b"])


def test_an_aborted_transaction_is_never_visible_and_the_next_one_is(cluster: Cluster) -> None:
    topic = cluster.topic()
    producer = started(cluster)
    producer.begin()
    producer.produce(columns(topic, b"lost"))
    producer.abort()
    producer.abort()  # no transaction is open
    producer.begin()
    producer.produce(columns(topic, b"kept"))
    producer.commit(cluster.name(), {})
    assert values_of(cluster, topic, 1) == [b"kept"]


def test_every_part_of_a_record_arrives(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=3)
    producer = started(cluster)
    headers = [(), (("h", b"1"), ("h", None), ("e", b"")), ()]
    producer.begin()
    producer.produce(
        columns(
            topic, b"v", None, b"",
            partitions=[2, 0, 2], keys=[None, b"k", b""], timestamps=[T + 5, T, -1], headers=headers,
        )
    )  # fmt: skip
    producer.commit(cluster.name(), {})
    assert [record[:1] + record[2:] for record in visible(cluster, topic, 3)] == [
        (0, b"k", None, T, headers[1]),
        (2, None, b"v", T + 5, ()),
        (2, b"", b"", -1, ()),
    ]


def test_keyed_records_have_the_partitions_of_the_java_client(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=30)
    keys = [b"21", b"foobar", b"a-little-bit-long-string", b"a-little-bit-longer-string"]
    hashes = [-973932308, -790332482, -985981536, -1486304829]
    producer = started(cluster)
    producer.begin()
    producer.produce(columns(topic, *keys, keys=keys, partitions=ANY_PARTITION))
    producer.commit(cluster.name(), {})
    expected = {key: (number & 0x7FFFFFFF) % 30 for key, number in zip(keys, hashes, strict=True)}
    assert {record.key: record.partition for record in visible(cluster, topic, 4)} == expected


def test_commit_returns_the_position_of_each_changelog(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=2)
    producer = started(cluster)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    producer.begin()
    producer.produce_changelog(zero, [b"a", b"b"], [b"1", None], [T, T])
    producer.produce_changelog(one, [b"c"], [b"2"], [T])
    producer.produce_changelog(zero, [b"d"], [b"3"], [T])
    producer.produce_changelog(one, [], [], [])
    first = producer.commit(cluster.name(), {})
    producer.begin()
    producer.produce_changelog(zero, [b"a"], [b"4"], [T])
    second = producer.commit(cluster.name(), {})
    assert (first, second) == ({zero: 3, one: 1}, {zero: 5})


def test_offsets_and_their_metadata_are_committed_with_the_records(cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.name()
    committed = {TopicPartition(topic, 0): CommittedOffset(7, "m" * 3_300)}
    producer = started(cluster)
    producer.begin()
    producer.commit(group, committed)
    assert cluster.admin().committed(group, list(committed), stable=True) == committed


def test_offsets_of_an_aborted_transaction_are_not_committed(cluster: Cluster) -> None:
    topic, group = cluster.topic(config={"max.message.bytes": "1000"}), cluster.name()
    producer = started(cluster)
    producer.begin()
    producer.produce(columns(topic, b"x" * 2_000))
    with pytest.raises(TransactionAbortedError) as failure:
        producer.commit(group, {TopicPartition(topic, 0): CommittedOffset(7, "")})
    assert failure.value.record_refused
    assert cluster.admin().committed(group, [TopicPartition(topic, 0)], stable=True) == {}


@pytest.mark.parametrize("last", [1, 2])
def test_offsets_sent_ahead_are_committed_unless_later_ones_are(
    cluster: Cluster, last: int
) -> None:
    group, partition = cluster.name(), TopicPartition(cluster.topic(), 0)
    producer = started(cluster)
    producer.begin()
    producer.send_offsets(group, {partition: CommittedOffset(1, "metadata 1")})
    assert cluster.admin().committed(group, [partition], stable=False) == {}
    offset = CommittedOffset(last, f"metadata {last}")
    producer.commit(group, {partition: offset})
    assert cluster.admin().committed(group, [partition], stable=True) == {partition: offset}


def test_offsets_sent_ahead_are_discarded_by_an_abort(cluster: Cluster) -> None:
    group, partition = cluster.name(), TopicPartition(cluster.topic(), 0)
    offsets = {partition: CommittedOffset(1, "metadata 1")}
    producer = started(cluster)
    producer.begin()
    producer.send_offsets(group, offsets)
    producer.abort()
    admin = cluster.admin()
    assert admin.committed(group, [partition], stable=True) == {}
    producer.begin()
    producer.commit(group, offsets)
    assert admin.committed(group, [partition], stable=True) == offsets


def test_a_newer_producer_of_the_id_fences_the_older_one(cluster: Cluster) -> None:
    topic, shared = cluster.topic(), cluster.name()
    zombie = started(cluster, shared)
    zombie.begin()
    zombie.produce(columns(topic, b"before"))
    newer = started(cluster, shared)
    with pytest.raises(FencedError):
        _try_to_commit(zombie, topic)
    with pytest.raises(FencedError):
        zombie.begin()
    newer.begin()
    newer.produce(columns(topic, b"newer"))
    newer.commit(cluster.name(), {})
    assert values_of(cluster, topic, 1) == [b"newer"]


def test_fencing_by_the_admin_aborts_open_transactions(cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.name()
    ids = [cluster.name() for _ in range(3)]
    producers = [started(cluster, each) for each in ids]
    for producer in producers:
        producer.begin()
        producer.produce(columns(topic, b"lost"))
    cluster.admin().fence(ids)
    for producer in producers:
        with pytest.raises(FencedError):
            _try_to_commit(producer, topic)
    assert values_of(cluster, topic) == []
    assert cluster.admin().committed(group, None, stable=True) == {}


def test_refused_records_are_found_among_good_ones(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=2, config={"max.message.bytes": "2000"})
    good = columns(topic, *[b"g%d" % index for index in range(20)])
    mixed = columns(
        topic, b"ok", b"x" * 3_000, b"ok", b"y" * 3_000, b"ok", partitions=[0, 0, 1, 1, 0]
    )
    producer = started(cluster)
    refused = producer.find_refused([good, mixed])
    assert [(each.columns is mixed, each.index, each.retriable) for each in refused] == [
        (True, 1, False),
        (True, 3, False),
    ]
    assert all("MSG_SIZE_TOO_LARGE" in str(each.error) for each in refused)
    _commit_until_it_succeeds(producer, columns(topic, b"rest", b"rest", partitions=[0, 1]))
    assert values_of(cluster, topic, 2) == [b"rest", b"rest"]


def test_one_record_without_a_key_fails_alone(cluster: Cluster) -> None:
    topic = cluster.topic(config={"cleanup.policy": "compact"})
    mixed = columns(topic, b"1", b"2", b"3", b"4", keys=[b"a", b"b", None, b"c"])
    producer = started(cluster)
    assert [each.index for each in producer.find_refused([mixed])] == [2]


@pytest.mark.broker
def test_records_too_old_for_a_topic_are_found(real_cluster: RealCluster) -> None:
    topic = real_cluster.topic(2, {"message.timestamp.before.max.ms": "86400000"})
    now_ms = time.time_ns() // 1_000_000
    times = [T if index == 7 else now_ms for index in range(300)]
    one = columns(topic, *[b"v"] * 300, timestamps=times)
    every = columns(topic, *[b"v"] * 40, partitions=1)  # of 2023
    producer = started(real_cluster)
    found = [(each.columns is one, each.index) for each in producer.find_refused([one, every])]
    assert found == [(True, 7), *((False, index) for index in range(40))]


@pytest.mark.broker
def test_a_topic_that_accepts_only_small_batches_is_written(real_cluster: RealCluster) -> None:
    topic = real_cluster.topic(config={"max.message.bytes": "2000"})
    records = columns(topic, *[b"v" * 100] * 200)
    producer = started(real_cluster)
    producer.begin()
    with pytest.raises(TransactionAbortedError):
        _produce_and_commit(producer, records)
    assert producer.find_refused([records]) == []
    _commit_until_it_succeeds(producer, records)
    assert len(values_of(real_cluster, topic, 200)) == 200


def test_a_record_for_a_missing_partition_is_refused(cluster: Cluster) -> None:
    topic = cluster.topic()
    wrong = columns(topic, b"a", b"b", partitions=[0, 9])
    producer = started(cluster)
    write(cluster, topic, b"warm")
    producer.begin()
    with pytest.raises(TransactionAbortedError) as failure:
        _produce_and_commit(producer, wrong)
    assert failure.value.record_refused
    assert [(each.index, each.retriable) for each in producer.find_refused([wrong])] == [(1, False)]


def test_an_empty_transaction_commits(cluster: Cluster) -> None:
    topic = cluster.topic()
    producer = started(cluster)
    producer.begin()
    producer.produce(columns(topic))
    assert producer.commit(cluster.name(), {}) == {}


def test_closing_twice_with_an_open_transaction_is_allowed(cluster: Cluster) -> None:
    topic, shared = cluster.topic(), cluster.name()
    producer = started(cluster, shared)
    producer.begin()
    producer.produce(columns(topic, b"lost"))
    producer.close()
    producer.close()
    started(cluster, shared)
    assert values_of(cluster, topic) == []


def _try_to_commit(producer: TransactionalProducer, topic: str) -> None:
    _produce_and_commit(producer, columns(topic, b"zombie"))


def _produce_and_commit(producer: TransactionalProducer, records: OutputColumns) -> None:
    """Commit records; the client may detect a bad one in `produce` or in `commit`."""
    producer.produce(records)
    producer.commit("some-group", {})


def _commit_until_it_succeeds(producer: TransactionalProducer, records: OutputColumns) -> None:
    """Retry as the worker does, after an abort that was no rejection."""
    for _ in range(3):
        producer.begin()
        try:
            _produce_and_commit(producer, records)
        except TransactionAbortedError as error:
            if error.record_refused:
                raise
        else:
            return
    raise StreamsError("three attempts were aborted")
