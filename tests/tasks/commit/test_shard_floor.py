"""The floor of sharded partitions, and starts with another number of shards."""

import pytest

from tests.tasks.loop.bench import APP, Bench
from tests.tasks.task.test_shards import KEYS, counts
from tidewheel import Serdes, StreamsBuilder, Topology
from tidewheel.rebalance.model import Shard, TaskId, TopicPartition
from tidewheel.tasks.errors import StartRefusedError
from tidewheel.tasks.key_ranges.keyed_analysis import with_shards

IN = TopicPartition("in", 0)
TEXT = Serdes.string()


def rekeyed() -> Topology:
    builder = StreamsBuilder()
    by_value = builder.stream("in", key_serde=TEXT, value_serde=TEXT).group_by(
        lambda value: value, key_serde=TEXT, value_serde=TEXT
    )
    by_value.count(store="store").to_stream().to("out", key_serde=TEXT, value_serde=Serdes.int64())
    return builder.build()


def copied() -> Topology:
    builder = StreamsBuilder()
    builder.stream("in", key_serde=TEXT, value_serde=TEXT).to(
        "out", key_serde=TEXT, value_serde=TEXT
    )
    return builder.build()


def bench_of(topology: Topology, shards: int) -> Bench:
    bench = Bench(topology, {"in": 1, "out": 1}, repartition_purge_interval_ms=1_000)
    bench.plan = with_shards(bench.plan, shards)
    bench.idle_polls = 1_500  # 15 s: the floor is read every 5 s
    return bench


def tasks(bench: Bench, *numbers: int) -> frozenset[TaskId]:
    return frozenset(task for task in bench.plan.tasks if task.shard.number in numbers)


def floor(bench: Bench, partition: TopicPartition) -> int | None:
    found = bench.broker.groups[APP].get(partition)
    return None if found is None else found.offset


def test_the_floor_waits_for_all_shards_and_is_the_least_of_their_offsets() -> None:
    bench = bench_of(counts(), 2)
    for key in KEYS:
        bench.send("in", key, "x")
    assert bench.live(assigned=tasks(bench, 0))
    assert floor(bench, IN) is None
    assert bench.live(assigned=tasks(bench, 1), transactional_id="app-fixed-1")
    for key in KEYS:
        bench.send("in", key, "x")
    assert bench.live(assigned=tasks(bench, 0))
    assert floor(bench, IN) == len(KEYS)
    assert bench.live(assigned=tasks(bench, 0, 1))
    assert floor(bench, IN) == 2 * len(KEYS)


def test_a_repartition_topic_is_purged_below_the_floor_only() -> None:
    bench = bench_of(rekeyed(), 2)
    (repartition,) = [topic.name for topic in bench.plan.repartition_topics]
    at = TopicPartition(repartition, 0)
    for key in KEYS:
        bench.send("in", "k", key)
    writers = {task for task in bench.plan.tasks if task.subtopology == 0}
    readers = {task for task in bench.plan.tasks if task.subtopology == 1}
    first = {task for task in readers if task.shard.number == 0}
    assert len(first) < len(readers)
    assert bench.live(assigned=frozenset({*writers, *first}))
    log = bench.broker.topics[repartition].logs[0]
    assert log.start == 0, "the second shard has read nothing"
    assert bench.live(assigned=frozenset(bench.plan.tasks))
    assert floor(bench, at) == log.start >= len(KEYS)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (4, 2)])
def test_another_number_of_shards_is_refused(before: int, after: int) -> None:
    bench = bench_of(counts(), before)
    bench.send("in", "a", "x")
    assert bench.live(assigned=frozenset(bench.plan.tasks))
    groups = {name: dict(offsets) for name, offsets in bench.broker.groups.items()}
    plan = bench.plan
    bench.plan = Bench(counts(), {"in": 1, "out": 1}).plan
    bench.plan = with_shards(bench.plan, after)
    with pytest.raises(StartRefusedError, match=f"partition_shards={before}$"):
        bench.live(assigned=frozenset(bench.plan.tasks))
    assert {name: dict(of) for name, of in bench.broker.groups.items() if of} == {
        name: of for name, of in groups.items() if of
    }
    bench.plan = plan
    assert bench.live(assigned=frozenset(bench.plan.tasks))


@pytest.mark.parametrize("after", [1, 2])
def test_another_number_of_shards_is_refused_before_all_have_committed(after: int) -> None:
    """Without a changelog nothing else shows that records were processed."""
    bench = bench_of(copied(), 4)
    bench.send("in", "a", "x")
    assert bench.live(assigned=tasks(bench, 0))
    assert floor(bench, IN) is None
    begun = bench.plan
    bench.plan = with_shards(Bench(copied(), {"in": 1, "out": 1}).plan, after)
    with pytest.raises(StartRefusedError, match=r"partition_shards=4$"):
        bench.live(assigned=frozenset(bench.plan.tasks))
    bench.plan = begun
    assert bench.live(assigned=frozenset(bench.plan.tasks))


def test_a_shard_whose_offset_was_lost_is_refused() -> None:
    bench = bench_of(counts(), 2)
    bench.send("in", "a", "x")
    assert bench.live(assigned=frozenset(bench.plan.tasks))
    del bench.broker.groups[f"{APP}~{Shard(1, 2)}"][IN]
    with pytest.raises(StartRefusedError, match="expired"):
        bench.live(assigned=frozenset(bench.plan.tasks))
