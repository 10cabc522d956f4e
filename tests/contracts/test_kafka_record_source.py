import time

from tests.fakes.cluster import (
    PATIENCE_S,
    Cluster,
    T,
    columns,
    read_some,
    read_until,
    rows,
    started,
    write,
)
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.errors import MissingSourceTopicError, StreamsError
from tidewheel.tasks.kafka.ports import OffsetOutOfRangeError, RecordSource
from tidewheel.tasks.processing.engine.record_batch import SourceRecords


def test_runs_have_consecutive_records_of_one_partition_in_order(cluster: Cluster) -> None:
    first, second = cluster.topic(partitions=2), cluster.topic()
    write(cluster, first, b"a", b"b", None, b"d", partitions=[0, 1, 0, 1])
    write(cluster, second, b"e", headers=[(("h", b"1"),)])
    parts = [TopicPartition(first, 0), TopicPartition(first, 1), TopicPartition(second, 0)]
    source = cluster.source()
    source.assign(dict.fromkeys(parts, 0))
    runs = read_until(source, cluster.admin().end_offsets(parts))
    got = {
        part: [row for run in runs if (run.topic, run.partition) == part for row in rows(run)]
        for part in parts
    }
    assert got == {
        parts[0]: [(0, 0, b"k0", b"a", T, ()), (0, 1, b"k2", None, T + 2, ())],
        parts[1]: [(1, 0, b"k1", b"b", T + 1, ()), (1, 1, b"k3", b"d", T + 3, ())],
        parts[2]: [(0, 0, b"k0", b"e", T, (("h", b"1"),))],
    }


def test_a_run_without_headers_has_none_for_the_column(cluster: Cluster) -> None:
    topic = cluster.topic()
    write(cluster, topic, b"a", b"b")
    part = TopicPartition(topic, 0)
    source = cluster.source()
    source.assign({part: 0})
    assert [run.headers for run in read_until(source, {part: 2})] == [None]


def test_reading_starts_at_the_given_offset(cluster: Cluster) -> None:
    topic = cluster.topic()
    write(cluster, topic, b"a", b"b", b"c")
    part = TopicPartition(topic, 0)
    source = cluster.source()
    source.assign({part: 2})
    assert source.positions() == {part: 2}
    assert read_some(source, 1) == [b"c"]
    assert source.positions() == {part: 3}


def test_poll_returns_at_most_the_requested_records(cluster: Cluster) -> None:
    topic = cluster.topic()
    write(cluster, topic, *[b"v"] * 10)
    part = TopicPartition(topic, 0)
    source = cluster.source()
    source.assign({part: 0})
    assert len(read_some(source, 4)) == 4
    assert source.positions() == {part: 4}


def test_positions_pass_markers_and_aborted_records_at_the_end(cluster: Cluster) -> None:
    """Readers pass a tail without visible records, so lag reaches zero (H29, H32)."""
    topic = cluster.topic()
    part = TopicPartition(topic, 0)
    producer = started(cluster)
    producer.begin()
    producer.produce(columns(topic, b"a", b"b"))
    producer.commit(cluster.name(), {})
    for _ in range(2):
        producer.begin()
        producer.produce_changelog(part, [b"k"], [b"lost"], [T])
        _flush(producer)
        _send_now(cluster, topic)
        producer.abort()
    source = cluster.source()
    source.assign({part: 0})
    end = _settled_end(cluster, part)
    runs = read_until(source, {part: end})
    values = [value for run in runs for value in run.raw_values]
    assert values[:2] == [b"a", b"b"]
    assert b"lost" not in values
    assert source.positions() == source.end_offsets() == {part: end}


def test_an_open_transaction_stops_readers_until_it_ends(cluster: Cluster) -> None:
    topic = cluster.topic()
    part = TopicPartition(topic, 0)
    producer = started(cluster)
    producer.begin()
    producer.produce(columns(topic, b"open"))
    _flushed(cluster, producer, part)
    write(cluster, topic, b"later")
    source = cluster.source()
    source.assign({part: 0})
    held = _end_known(source, part)
    ends = (source.stable_offsets(), source.end_offsets())
    producer.commit(cluster.name(), {})
    assert (held, read_some(source, 2)) == ([], [b"open", b"later"])
    assert ends == ({part: 0}, {part: 2}), "lag counts what can't be read yet"


def test_added_partitions_are_read_with_the_others(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    write(cluster, topic, b"a", b"b", partitions=[0, 1])
    source = cluster.source()
    source.assign({zero: 0})
    first = read_some(source, 1)
    source.add({zero: 0, one: 0})
    write(cluster, topic, b"c", partitions=0)
    assert (first, sorted(value or b"" for value in read_some(source, 2))) == ([b"a"], [b"b", b"c"])


def test_assign_replaces_the_earlier_partitions(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    write(cluster, topic, *[b"old"] * 50, b"new", partitions=[0] * 50 + [1])
    source = cluster.source()
    source.assign({zero: 0})
    read_some(source, 10)
    source.assign({one: 0})
    assert read_some(source, 1) == [b"new"]
    assert source.positions() == {one: 1}
    source.assign({})
    assert (source.poll(10, 0.05), source.positions()) == ([], {})


def test_a_paused_partition_waits_and_resumes_where_it_was(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    write(cluster, topic, *[b"%d" % index for index in range(20)], partitions=0)
    source = cluster.source()
    source.assign({zero: 0, one: 0})
    before = read_some(source, 5)
    source.pause([zero])
    write(cluster, topic, b"other", partitions=1)
    meanwhile = read_some(source, 1)
    assert source.positions()[zero] == 5
    source.resume([zero])
    after = read_some(source, 15)
    assert meanwhile == [b"other"]
    assert before + after == [b"%d" % index for index in range(20)]


def test_a_position_that_is_not_in_the_log_is_an_error_with_its_place(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=3)
    low, high, fine = (TopicPartition(topic, number) for number in range(3))
    write(cluster, topic, *[b"v"] * 4, partitions=[0, 0, 0, 2])
    cluster.admin().delete_records({low: 2})
    source = cluster.source()
    source.assign({low: 0, high: 100, fine: 0})
    errors, values = _errors_and_values(source, errors=2, values=1)
    failed = [error for error in errors if isinstance(error, OffsetOutOfRangeError)]
    assert sorted((error.partition, error.offset) for error in failed) == [(low, 0), (high, 100)]
    assert all(str(error.partition) in str(error) for error in failed)
    assert values == [b"v"]


def test_a_topic_that_was_deleted_is_an_error_that_names_it(cluster: Cluster) -> None:
    topic = cluster.topic()
    write(cluster, topic, b"a")
    part = TopicPartition(topic, 0)
    source = cluster.source()
    source.assign({part: 0})
    read_some(source, 1)
    cluster.admin().delete_topics([topic])
    errors, _ = _errors_and_values(source, errors=1, values=0)
    assert isinstance(errors[0], MissingSourceTopicError)
    assert topic in str(errors[0])


def test_ends_are_known_without_requests_after_records_were_read(cluster: Cluster) -> None:
    topic = cluster.topic()
    write(cluster, topic, *[b"v"] * 10)
    part = TopicPartition(topic, 0)
    source = cluster.source()
    source.assign({part: 0})
    read_some(source, 4)
    assert source.end_offsets() == {part: 10}


def test_closing_twice_is_allowed(cluster: Cluster) -> None:
    topic = cluster.topic()
    source = cluster.source()
    source.assign({TopicPartition(topic, 0): 0})
    source.close()
    source.close()


def _errors_and_values(
    source: RecordSource, *, errors: int, values: int
) -> tuple[list[StreamsError], list[bytes | None]]:
    found: list[StreamsError] = []
    read: list[bytes | None] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while len(found) < errors or len(read) < values:
        assert time.monotonic() < deadline_s, f"only {found} and {read} came"
        try:
            for run in source.poll(100, 0.1):
                read += run.raw_values
        except StreamsError as error:
            found.append(error)
    return found, read


def _send_now(cluster: Cluster, topic: str) -> None:
    write(cluster, topic, b"other")


def _flush(producer: object) -> None:
    client = getattr(producer, "_producer", None)
    if client is not None:
        assert client.flush(time.monotonic() + PATIENCE_S)


def _flushed(cluster: Cluster, producer: object, part: TopicPartition) -> None:
    """Wait until the record of an open transaction is in the log."""
    _flush(producer)
    admin = cluster.admin()
    assert admin.stable_offsets([part]) == {part: 0}
    assert admin.end_offsets([part])[part] > 0


def _end_known(source: RecordSource, part: TopicPartition) -> list[SourceRecords]:
    deadline_s = time.monotonic() + PATIENCE_S
    came = source.poll(10, 0.1)
    while source.stable_offsets().get(part) != 0 or not source.end_offsets().get(part):
        assert time.monotonic() < deadline_s, "no end was told"
        came += source.poll(10, 0.1)
    return came


def _settled_end(cluster: Cluster, part: TopicPartition) -> int:
    """Return the end after all markers: six records and three markers."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (end := cluster.admin().stable_offsets([part])[part]) < 9:
        assert time.monotonic() < deadline_s, f"{part} ends at {end}"
        time.sleep(0.02)
    return end


def test_N2_a_partition_is_removed_and_added_again(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=2)
    kept, moved = TopicPartition(topic, 0), TopicPartition(topic, 1)
    write(cluster, topic, b"a", b"b", b"c", b"d", partitions=[0, 1, 0, 1])
    source = cluster.source()
    source.prepare([topic])
    source.assign({})
    source.add({kept: 0, moved: 0})
    read_until(source, {kept: 2, moved: 2})
    source.remove([moved])
    source.remove([moved])
    assert source.positions() == {kept: 2}
    write(cluster, topic, b"e", b"f", partitions=[0, 1])
    assert read_some(source, 1) == [b"e"]
    source.add({moved: 1})
    assert sorted(str(value) for value in read_some(source, 2)) == ["b'd'", "b'f'"]
    assert source.positions() == {kept: 3, moved: 3}


def test_fetched_records_of_a_removed_partition_are_not_returned(cluster: Cluster) -> None:
    topic = cluster.topic()
    part = TopicPartition(topic, 0)
    write(cluster, topic, *[b"%d" % number for number in range(50)])
    source = cluster.source()
    source.assign({part: 0})
    assert read_some(source, 1) == [b"0"]
    source.remove([part])
    source.add({part: 40})
    assert read_some(source, 10) == [b"%d" % number for number in range(40, 50)]


def test_missing_topics_may_be_prepared(cluster: Cluster) -> None:
    source = cluster.source()
    source.prepare([cluster.name()])
    source.assign({})
    assert source.poll(1, 0.0) == []
