"""Starts with committed offsets of another origin: moved, lost, or another program's."""

from typing import Any

import pytest

from tests.tasks.loop.bench import APP, Bench
from tests.tasks.loop.test_stream_worker import counting, counts_of, outputs_of
from tidewheel import Materialized, Serdes, StreamsBuilder, StreamsConfig, StreamsError
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector

IN = TopicPartition("in", 0)
TEXT: dict[str, Any] = {"key_serde": str, "value_serde": str}
#: What Kafka Streams commits beside an offset: version 2, time 1,000.
KAFKA_STREAMS = "AgAAAAAAAAPo"


def bench_of(stateful: bool, guarantee: str = "exactly_once", **settings: Any) -> Bench:
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).to("out", **TEXT)
    topology = counting(caching=False) if stateful else builder.build()
    bench = Bench(topology, {"in": 1, "out": 1}, guarantee=guarantee, **settings)
    for number in range(6):
        bench.send("in", f"k{number}", "x")
    assert bench.live()
    for number in range(6, 12):
        bench.send("in", f"k{number}", "x")
    return bench


def keys(bench: Bench) -> list[str | None]:
    return sorted((key or "") for key, _ in bench.outputs("out"))  # type: ignore[return-value]


def put(bench: Bench, offset: int, metadata: str = "") -> None:
    bench.broker.groups[APP][IN] = CommittedOffset(offset, metadata)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("offset", [0, 3, 6, 9, 12])
@pytest.mark.parametrize("stateful", [False, True])
def test_F8_an_offset_set_by_another_client_is_refused(
    stateful: bool, offset: int, guarantee: str, threads: int
) -> None:
    bench = bench_of(stateful, guarantee, threads=threads)
    put(bench, offset)
    for _ in range(2):
        with pytest.raises(
            StreamsError, match=rf"offset {offset} of in-0 was not committed by.*--accept-offsets"
        ):
            bench.live()
    assert keys(bench) == sorted(f"k{number}" for number in range(6))
    assert bench.live(accept_offsets=True)
    assert bench.live()
    assert bench.committed[IN] == 12
    assert len(bench.outputs("out")) == 6 + 12 - offset


def test_F8_a_moved_offset_with_the_old_metadata_is_refused() -> None:
    bench = bench_of(stateful=False)
    kept = bench.broker.groups[APP][IN].metadata
    put(bench, 9, kept)
    with pytest.raises(StreamsError, match="offset 9 of in-0 was not committed by"):
        bench.live()
    put(bench, 6, kept)
    assert bench.live()
    assert len(keys(bench)) == 12


def test_F8_an_offset_of_another_application_is_refused() -> None:
    bench = bench_of(stateful=False)
    progress = Progress(
        task_epoch=0,
        transactional_id="payments-fixed-0",
        topic_id=bench.broker.topics["in"].topic_id,
        topology_hash=bytes(8),
        vector=Vector.at(9),
    )
    put(bench, 9, progress.encode())
    with pytest.raises(StreamsError, match="offset 9 of in-0 was not committed by"):
        bench.live()


def test_F8_a_crash_leaves_offsets_that_are_followed() -> None:
    for step in range(0, 40, 3):
        bench = bench_of(stateful=True)
        bench.live(crash_after=step)
        assert bench.live()
        assert len(bench.outputs("out")) == 12


@pytest.mark.parametrize("stateful", [False, True])
def test_F8_kafka_streams_offsets_are_followed_where_this_application_never_ran(
    stateful: bool,
) -> None:
    bench = Bench(counting(caching=False), {"in": 2, "out": 1})
    for _ in range(3):
        bench.send("in", "a", "x", partition=0)
    put(bench, 2, KAFKA_STREAMS)  # it commits no offset of partitions without records
    if stateful:
        bench.broker.send("app-counts-changelog", bytes(8), b"a", partition=0)
    assert bench.live()
    assert len(bench.outputs("out")) == 1
    put(bench, 1, KAFKA_STREAMS)
    with pytest.raises(StreamsError, match="Kafka Streams committed it"):
        bench.live()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("disk", ["kept", "empty"])
def test_A2_state_without_an_offset_is_refused(guarantee: str, disk: str, threads: int) -> None:
    bench = bench_of(True, guarantee, threads=threads)
    before = outputs_of(bench)
    del bench.broker.groups[APP]
    if disk == "empty":
        bench.disk.versions.clear()
    for _ in range(2):
        with pytest.raises(StreamsError, match=r"nothing is committed for in-0.*--accept-offsets"):
            bench.live()
    assert outputs_of(bench) == before
    assert bench.live(accept_offsets=True)
    assert bench.live()
    assert counts_of(bench)["k0"] == 2


def test_A2_state_of_one_task_keeps_all_tasks_from_starting() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXT).group_by(lambda _key, value: value, **TEXT)
    stream.count(store="counts").to_stream().to("out", key_serde=str, value_serde=Serdes.int64())
    bench = Bench(builder.build(), {"in": 1, "out": 1})
    bench.send("in", "k", "x")
    assert bench.live()
    del bench.broker.groups[APP]
    (repartition,) = (topic.name for topic in bench.plan.repartition_topics)
    before = len(bench.broker.records(repartition))
    for task in bench.plan.tasks:
        with pytest.raises(StreamsError, match=r"nothing is committed.*changelog"):
            bench.live(assigned=frozenset({task}))
    assert len(bench.broker.records(repartition)) == before


def test_A2_one_lost_offset_of_a_task_is_refused() -> None:
    builder = StreamsBuilder()
    both = builder.stream("in", **TEXT).merge(builder.stream("more", **TEXT))
    both.group_by_key(**TEXT).count(store="counts")
    bench = Bench(builder.build(), {"in": 1, "more": 1})
    bench.send("in", "a", "x")
    bench.send("more", "a", "x")
    assert bench.live()
    del bench.broker.groups[APP][TopicPartition("more", 0)]
    with pytest.raises(
        StreamsError, match="nothing is committed for more-0, but in-0, which the same task reads"
    ):
        bench.live()


def test_A2_a_lost_offset_of_one_task_is_refused() -> None:
    bench = Bench(counting(caching=False), {"in": 2, "out": 1})
    for partition in (0, 1):
        bench.send("in", "ab"[partition], "x", partition=partition)
    assert bench.live()
    del bench.broker.groups[APP][TopicPartition("in", 1)]
    with pytest.raises(
        StreamsError, match=r"nothing is committed for in-1, but task 0_1 has state"
    ):
        bench.live()


def test_A2_a_store_without_changelog_is_state_too() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in", **TEXT).group_by_key(**TEXT)
    grouped.count(store=Materialized("counts", logging=False))
    bench = Bench(builder.build(), {"in": 1})
    bench.send("in", "a", "x")
    assert bench.live()
    del bench.broker.groups[APP]
    with pytest.raises(StreamsError, match="store counts, which has no changelog, has rows on"):
        bench.live()
    bench.disk.versions.clear()
    assert bench.live()


def test_A2_a_table_restored_from_its_input_is_state_too() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", store=Materialized("rows"), **TEXT)
    table.to_stream().to("out", **TEXT)
    bench = Bench(
        builder.build(StreamsConfig(application_id=APP, bootstrap_servers="unused:9092")),
        {"in": 1, "out": 1},
    )
    assert not bench.plan.changelog_topics
    bench.send("in", "a", "x")
    assert bench.live()
    del bench.broker.groups[APP]
    with pytest.raises(StreamsError, match=r"store rows on this disk is at offset 1 of in-0"):
        bench.live()


def test_A2_a_first_start_that_crashed_is_no_lost_offset() -> None:
    for step in range(30):
        bench = Bench(counting(caching=False), {"in": 1, "out": 1})
        for number in range(4):
            bench.send("in", f"k{number}", "x")
        bench.live(crash_after=step)
        assert bench.live()
        assert counts_of(bench) == {f"k{number}": 1 for number in range(4)}


def test_A2_a_new_input_of_a_task_with_state_is_not_lost() -> None:
    def bench_reading(*topics: str) -> Bench:
        builder = StreamsBuilder()
        first, *others = (builder.stream(topic, **TEXT) for topic in topics)
        for other in others:
            first = first.merge(other)
        counts = first.group_by_key(**TEXT).count(store="counts")
        counts.to_stream().to("out", key_serde=str, value_serde=Serdes.int64())
        return Bench(builder.build(), {"in": 1, "more": 1, "out": 1})

    old = bench_reading("in")
    for topic in ("in", "more"):
        old.send(topic, "a", "x")
    assert old.live()
    new = bench_reading("in", "more")
    new.broker, new.disk, new.clients = old.broker, old.disk, old.clients
    assert new.live()
    assert outputs_of(new) == {"a": [1, 2]}
    assert TaskId(0, 0) in new.plan.tasks
