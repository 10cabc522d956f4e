from tests.fakes.cluster import ANY_PARTITION, Cluster, T, columns, values_of, visible


def test_records_are_visible_after_the_flush(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=2)
    sink = cluster.sink()
    sink.produce(
        columns(topic, b"a", None, partitions=[1, 0], headers=[(("h", b"1"), ("h", None)), ()])
    )
    assert sink.flush() == []
    assert [record[:1] + record[2:] for record in visible(cluster, topic)] == [
        (0, b"k1", None, T + 1, ()),
        (1, b"k0", b"a", T, (("h", b"1"), ("h", None))),
    ]


def test_a_waiting_close_sends_the_remaining_records(cluster: Cluster) -> None:
    topic = cluster.topic()
    sink = cluster.sink()
    sink.produce(columns(topic, b"last"))
    sink.close(60.0)
    sink.close(60.0)
    assert values_of(cluster, topic) == [b"last"]


def test_records_of_many_columns_keep_their_order(cluster: Cluster) -> None:
    topic = cluster.topic()
    sink = cluster.sink()
    for number in range(5):
        sink.produce(columns(topic, *[b"%d-%d" % (number, index) for index in range(100)]))
    assert sink.flush() == []
    assert values_of(cluster, topic) == [
        b"%d-%d" % (number, index) for number in range(5) for index in range(100)
    ]


def test_refused_records_are_returned_once_and_the_others_arrive(cluster: Cluster) -> None:
    topic = cluster.topic(config={"max.message.bytes": "2000"})
    good = [b"g%d" % index for index in range(30)]
    mixed = columns(topic, *good[:10], b"x" * 3_000, *good[10:], b"x" * 3_000)
    twice = columns(topic, b"y" * 3_000, b"y" * 3_000, keys=[b"k", b"k"], timestamps=[T, T])
    sink = cluster.sink()
    sink.produce(mixed)
    sink.produce(twice)
    failed = sink.flush()
    assert sorted((each.columns is mixed, each.index, each.retriable) for each in failed) == [
        (False, 0, False),
        (False, 1, False),
        (True, 10, False),
        (True, 31, False),
    ]
    assert all("MSG_SIZE_TOO_LARGE" in str(each.error) for each in failed)
    assert sorted(value or b"" for value in values_of(cluster, topic)) == sorted(good)
    assert sink.flush() == []


def test_one_record_without_a_key_fails_alone(cluster: Cluster) -> None:
    topic = cluster.topic(config={"cleanup.policy": "compact"})
    keys: list[bytes | None] = [b"k%d" % (index % 3) for index in range(100)]
    keys[40] = None
    first = columns(topic, *[b"%d" % index for index in range(100)], keys=keys)
    later = columns(topic, *[b"%d" % index for index in range(100, 120)], keys=keys[:20])
    sink = cluster.sink()
    sink.produce(first)
    sink.produce(later)
    assert [(each.columns is first, each.index) for each in sink.flush()] == [(True, 40)]
    written = visible(cluster, topic)
    assert {record.value for record in written} == {b"%d" % n for n in range(120) if n != 40}
    last = {record.key: record.value for record in written}
    assert last == {b"k0": b"118", b"k1": b"119", b"k2": b"117"}


def test_a_record_for_a_missing_partition_fails_alone(cluster: Cluster) -> None:
    topic = cluster.topic()
    sink = cluster.sink()
    sink.produce(columns(topic, b"warm"))
    assert sink.flush() == []
    wrong = columns(topic, b"a", b"b", b"c", partitions=[0, 7, 0])
    sink.produce(wrong)
    assert [(each.columns is wrong, each.index, each.retriable) for each in sink.flush()] == [
        (True, 1, False)
    ]
    assert values_of(cluster, topic) == [b"warm", b"a", b"c"]


def test_records_without_a_key_are_accepted(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=3)
    sink = cluster.sink()
    sink.produce(columns(topic, b"a", b"b", keys=[None, None], partitions=ANY_PARTITION))
    assert sink.flush() == []
    assert sorted(value or b"" for value in values_of(cluster, topic)) == [b"a", b"b"]


def test_closing_twice_is_allowed(cluster: Cluster) -> None:
    sink = cluster.sink()
    sink.close()
    sink.close()
