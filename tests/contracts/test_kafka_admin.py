import time

import pytest

from tests.fakes.cluster import PATIENCE_S, Cluster, started, write
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.errors import StreamsError
from tidewheel.tasks.kafka.ports import Admin, CommittedOffset, NewTopic


def test_created_topics_are_described_and_listed(cluster: Cluster) -> None:
    admin, name = cluster.admin(), cluster.name()
    admin.create_topics(
        [
            NewTopic(
                name=name, partitions=3, replication_factor=1, config={"cleanup.policy": "compact"}
            )
        ]
    )
    described = admin.describe_topics(
        [name, "no-such-topic"], config=["cleanup.policy", "max.message.bytes"]
    )
    assert list(described) == [name]
    topic = described[name]
    assert (topic.name, topic.partitions, len(topic.topic_id)) == (name, 3, 16)
    assert dict(topic.config) == {"cleanup.policy": "compact", "max.message.bytes": "1048588"}
    assert admin.list_topics()[name] == 3
    assert admin.describe_topics([]) == {}


def test_an_existing_topic_is_not_changed(cluster: Cluster) -> None:
    admin, name = cluster.admin(), cluster.name()
    admin.create_topics([NewTopic(name=name, partitions=1, replication_factor=1)])
    before = admin.describe_topics([name])[name].topic_id
    other = cluster.name()
    admin.create_topics(
        [
            NewTopic(name=name, partitions=5, replication_factor=1),
            NewTopic(name=other, partitions=1, replication_factor=1),
        ]
    )
    after = admin.describe_topics([name, other])
    assert (after[name].topic_id, after[name].partitions, other in after) == (before, 1, True)


def test_a_recreated_topic_has_another_id(cluster: Cluster) -> None:
    """The id detects positions of a deleted topic (H25)."""
    admin, name = cluster.admin(), cluster.topic()
    before = admin.describe_topics([name])[name].topic_id
    admin.delete_topics([name, "no-such-topic"])
    assert admin.describe_topics([name]) == {}
    admin.create_topics([NewTopic(name=name, partitions=1, replication_factor=1)])
    assert admin.describe_topics([name])[name].topic_id != before


def test_offsets_are_the_beginning_and_end_of_a_log(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    admin = cluster.admin()
    write(cluster, topic, *[b"v"] * 5)
    admin.delete_records({zero: 3})
    admin.delete_records({})
    producer = started(cluster)
    producer.begin()
    producer.produce_changelog(zero, [b"k"], [b"open"], [5])
    deadline_s = time.monotonic() + PATIENCE_S
    while admin.end_offsets([zero])[zero] < 6:
        assert time.monotonic() < deadline_s, "the record never came"
    assert admin.beginning_offsets([zero, one]) == {zero: 3, one: 0}
    assert admin.end_offsets([zero, one]) == {zero: 6, one: 0}
    assert admin.stable_offsets([zero, one]) == {zero: 5, one: 0}
    found = admin.open_transactions([zero, one])
    assert {each: (one.start, one.end) for each, one in found.items()} == {zero: (5, 6)}
    producer.abort()
    assert (admin.beginning_offsets([]), admin.end_offsets([])) == ({}, {})


def test_offsets_of_an_age_are_the_first_records_of_that_age(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=2, config={"retention.ms": "-1"})
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    admin = cluster.admin()
    hour, now_ms = 3_600_000, time.time_ns() // 1_000_000
    for hours in (9, 5, 3):
        write(cluster, topic, b"v", timestamps=[now_ms - hours * hour])
    assert admin.offsets_of_age({zero: 24 * hour, one: hour}) == {zero: 0, one: 0}
    assert admin.offsets_of_age({zero: 6 * hour}) == {zero: 1}
    assert admin.offsets_of_age({zero: 4 * hour}) == {zero: 2}
    assert admin.offsets_of_age({zero: 2 * hour}) == {zero: 3}
    assert admin.offsets_of_age({}) == {}


def test_offsets_of_a_missing_topic_are_an_error_that_names_it(cluster: Cluster) -> None:
    with pytest.raises(StreamsError, match="no-such-topic"):
        cluster.admin().end_offsets([TopicPartition("no-such-topic", 0)])


def test_records_past_the_end_cannot_be_deleted(cluster: Cluster) -> None:
    topic = cluster.topic()
    with pytest.raises(StreamsError, match=topic):
        cluster.admin().delete_records({TopicPartition(topic, 0): 10})


def test_committed_offsets_are_returned_for_the_group_or_some_partitions(cluster: Cluster) -> None:
    topic, group = cluster.topic(partitions=3), cluster.name()
    zero, one, two = (TopicPartition(topic, number) for number in range(3))
    admin = cluster.admin()
    _commit(cluster, group, {zero: CommittedOffset(4, "m"), one: CommittedOffset(5, "")})
    assert admin.committed(group, [one, two], stable=True) == {one: CommittedOffset(5, "")}
    assert admin.committed(group, [zero, one], stable=True) == admin.committed(
        group, None, stable=True
    )
    assert admin.committed(group, [], stable=True) == {}
    assert admin.committed(cluster.name(), None, stable=True) == {}
    assert admin.committed(cluster.name(), [zero], stable=False) == {}


def test_offsets_may_decrease(cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.name()
    part = TopicPartition(topic, 0)
    for offset in (15, 3):
        _commit(cluster, group, {part: CommittedOffset(offset, "")})
    assert cluster.admin().committed(group, [part], stable=True) == {part: CommittedOffset(3, "")}


def test_offsets_can_be_overwritten_and_deleted_with_their_group(cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.name()
    part = TopicPartition(topic, 0)
    admin = cluster.admin()
    admin.alter_committed(group, {part: 7})
    admin.alter_committed(group, {})
    altered = admin.committed(group, [part], stable=True)
    admin.alter_committed(group, {part: CommittedOffset(7, "note")})
    assert admin.committed(group, [part], stable=True) == {part: CommittedOffset(7, "note")}
    admin.delete_group(group)
    admin.delete_group(group)
    assert (altered, admin.committed(group, [part], stable=True)) == (
        {part: CommittedOffset(7, "")},
        {},
    )


def test_groups_are_listed_by_their_prefix(cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.name()
    names = (f"{group}~0of2", f"{group}~1of2")
    admin = cluster.admin()
    assert admin.groups(f"{group}~") == ()
    for name in (group, *names):
        admin.alter_committed(name, {TopicPartition(topic, 0): 7})
    assert admin.groups(f"{group}~") == names
    admin.delete_group(names[0])
    assert admin.groups(f"{group}~") == names[1:]


def test_a_group_without_consumers_has_no_members(cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.name()
    _commit(cluster, group, {TopicPartition(topic, 0): CommittedOffset(1, "")})
    assert (
        cluster.admin().group_members(group),
        cluster.admin().group_members("no-such-group"),
    ) == ((), ())


def test_fencing_no_ids_or_unknown_ids_is_allowed(cluster: Cluster) -> None:
    cluster.admin().fence([])
    unknown = cluster.name()
    cluster.admin().fence([unknown, unknown])


def _commit(cluster: Cluster, group: str, offsets: dict[TopicPartition, CommittedOffset]) -> None:
    producer = started(cluster)
    producer.begin()
    producer.commit(group, offsets)
    admin: Admin = cluster.admin()
    assert admin.committed(group, list(offsets), stable=True).keys() == offsets.keys()


def test_brokers_report_their_offset_retention(cluster: Cluster) -> None:
    """Kafka's default of seven days (H17)."""
    assert cluster.admin().offsets_retention_ms() == 7 * 24 * 60 * 60 * 1000


def test_a_group_is_reached_though_its_commits_are_undecided(cluster: Cluster) -> None:
    group, partition = cluster.name(), TopicPartition(cluster.topic(), 0)
    producer = started(cluster)
    producer.begin()
    producer.send_offsets(group, {partition: CommittedOffset(1, "")})
    began_s = time.monotonic()
    for each in (group, cluster.name()):
        cluster.admin().reach_group(each)
    assert time.monotonic() - began_s < 10
    producer.abort()
