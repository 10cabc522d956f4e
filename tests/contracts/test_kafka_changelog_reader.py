import time

import pytest

from tests.fakes.cluster import PATIENCE_S, Cluster, T, columns, read_until, started, write
from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.kafka.ports import ChangelogReader, OffsetOutOfRangeError


@pytest.mark.fault("38")
def test_a_changelog_is_read_to_the_position_of_its_writer(cluster: Cluster) -> None:
    topic = cluster.topic()
    part = TopicPartition(topic, 0)
    producer = started(cluster)
    producer.begin()
    producer.produce_changelog(part, [b"a", b"b", b"a"], [b"1", b"2", None], [T, T + 1, T + 2])
    producer.produce(columns(topic, b"3", headers=[(("h", b"1"),)]))
    position = producer.commit(cluster.name(), {})[part]
    reader = cluster.reader()
    reader.assign({part: 0})
    runs = read_until(reader, {part: position + 1})
    read = [
        row
        for run in runs
        for row in zip(run.raw_keys, run.raw_values, run.timestamps, strict=True)
    ]
    assert read == [(b"a", b"1", T), (b"b", b"2", T + 1), (b"a", None, T + 2), (b"k0", b"3", T)]
    assert [run.headers for run in runs] == [None] * len(runs)


@pytest.mark.fault("38")
def test_an_empty_changelog_is_at_its_end_immediately(cluster: Cluster) -> None:
    """An empty changelog is restored without a record (H29)."""
    topic = cluster.topic()
    part = TopicPartition(topic, 0)
    reader = cluster.reader()
    reader.assign({part: 0})
    assert reader.positions() == cluster.admin().end_offsets([part]) == {part: 0}


@pytest.mark.fault("38")
def test_a_tail_of_aborted_records_is_skipped(cluster: Cluster) -> None:
    """Restoring ends although the last visible record is far before the end (H29)."""
    topic = cluster.topic()
    part = TopicPartition(topic, 0)
    write(cluster, topic, b"kept")
    producer = started(cluster)
    producer.begin()
    producer.produce_changelog(part, [b"k"] * 5, [b"lost"] * 5, [T] * 5)
    producer.abort()
    reader = cluster.reader()
    reader.assign({part: 0})
    end = cluster.admin().end_offsets([part])[part]
    runs = read_until(reader, {part: end})
    assert [value for run in runs for value in run.raw_values] == [b"kept"]


@pytest.mark.fault("38")
def test_a_position_below_the_log_is_an_error(cluster: Cluster) -> None:
    """State older than the log can't catch up (H27)."""
    topic = cluster.topic()
    part = TopicPartition(topic, 0)
    write(cluster, topic, b"a", b"b", b"c")
    cluster.admin().delete_records({part: 2})
    reader = cluster.reader()
    reader.assign({part: 1})
    with pytest.raises(OffsetOutOfRangeError) as failure:
        _poll_for_long(reader)
    assert (failure.value.partition, failure.value.offset) == (part, 1)


def test_changelogs_are_added_and_removed_one_by_one(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    write(cluster, topic, b"a", b"b", b"c", b"d", partitions=[0, 1, 0, 1])
    reader = cluster.reader()
    reader.assign({})
    reader.add({first: 0})
    read_until(reader, {first: 2})
    reader.add({second: 1})
    reader.pause([first])
    write(cluster, topic, b"e", b"f", partitions=[0, 1])
    runs = read_until(reader, {second: 3})
    assert [value for run in runs for value in run.raw_values] == [b"d", b"f"]
    reader.resume([first])
    reader.remove([second])
    runs = read_until(reader, {first: 3})
    assert [value for run in runs for value in run.raw_values] == [b"e"]
    assert reader.positions() == {first: 3}
    assert reader.end_offsets() == {first: 3}


def test_a_resumed_changelog_is_read_immediately(cluster: Cluster) -> None:
    """Without fetches, librdkafka's broker thread sleeps for up to a second (0.7 s here).

    The shortest of four counts: all but the first took that long, and the machine may be busy.
    """
    topic = cluster.topic()
    part = TopicPartition(topic, 0)
    write(cluster, topic, b"before")
    reader = cluster.reader()
    reader.assign({part: 0})
    read_until(reader, {part: 1})
    sink = cluster.sink()
    took_s: list[float] = []
    for number in range(1, 6):
        reader.pause([part])
        sink.produce(columns(topic, b"%d" % number))
        assert sink.flush() == []
        resting_s = time.monotonic() + 0.1  # the pending request ends
        while time.monotonic() < resting_s:
            assert reader.poll(10, 0.01) == []
        begin_s = time.monotonic()
        reader.resume([part])
        read_until(reader, {part: 1 + number})
        took_s.append(time.monotonic() - begin_s)
    assert min(took_s[1:]) < 0.4, took_s


def test_a_paused_changelog_removed_and_added_again_is_read(cluster: Cluster) -> None:
    topic = cluster.topic()
    part = TopicPartition(topic, 0)
    write(cluster, topic, b"a", b"b")
    reader = cluster.reader()
    reader.assign({part: 0})
    read_until(reader, {part: 2})
    reader.pause([part])
    reader.remove([part])
    reader.add({part: 1})
    runs = read_until(reader, {part: 2})
    assert [value for run in runs for value in run.raw_values] == [b"b"]


def _poll_for_long(reader: ChangelogReader) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        reader.poll(10, 0.1)
