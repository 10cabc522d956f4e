"""Partitions and topics after the first start: `auto_offset_reset` is for the first start (KIP-1327)."""

import re
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tests.tasks.loop.bench import APP, Bench
from tests.tasks.loop.group_bench import GroupBench, granted
from tidewheel import StreamsBuilder, StreamsError
from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.kafka.internal_topics import plan_application
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.restore.start_positions import appeared_in

TEXT: dict[str, Any] = {"key_serde": str, "value_serde": str}


def topology(source: Any = "in", **options: Any) -> Any:
    builder = StreamsBuilder()
    builder.stream(source, **options, **TEXT).to("out", **TEXT)
    return builder.build()


def add_partitions(bench: Bench | GroupBench, topic: str, count: int, spec: Any) -> None:
    broker = bench.broker
    if topic not in broker.topics:
        broker.create_topic(topic, count)
    else:
        broker.create_topic("more", count)
        fresh = broker.topics["more"].logs
        broker.topics[topic].logs.extend(fresh[len(broker.topics[topic].logs) :])
        broker.delete_topic("more")
    counts = {name: len(each.logs) for name, each in broker.topics.items()}
    bench.plan = plan_application(spec.spec(bench.config), APP, counts)


def values(bench: Bench | GroupBench) -> list[str]:
    return sorted((each.value or b"").decode() for each in bench.broker.records("out"))


OPTIONS = [
    ({}, {"auto_offset_reset": "latest"}),
    ({"offset_reset": "latest"}, {}),
    ({"offset_reset": timedelta(milliseconds=1)}, {}),
]


@pytest.mark.parametrize("restarts", [0, 2])
@pytest.mark.parametrize(("options", "settings"), OPTIONS, ids=["setting", "source", "duration"])
def test_A3_new_partitions_are_read_from_their_beginning(
    options: Any, settings: Any, restarts: int
) -> None:
    spec = topology(**options)
    bench = Bench(spec, {"in": 1, "out": 1}, **settings)
    bench.send("in", "k", "before the first start")
    assert bench.live()
    for _ in range(restarts):
        assert bench.live()
    add_partitions(bench, "in", 3, spec)
    for partition in range(3):
        bench.send("in", "k", f"new {partition}", partition=partition)
    assert bench.live()
    assert bench.live()
    assert values(bench) == ["new 0", "new 1", "new 2"]


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize(("options", "settings"), OPTIONS, ids=["setting", "source", "duration"])
def test_A3_new_topics_of_a_pattern_are_read_from_their_beginning(
    options: Any, settings: Any, first: int
) -> None:
    spec = topology(re.compile("in-.*"), **options)
    bench = Bench(spec, {"in-a": first, "out": 1}, **settings)
    bench.send("in-a", "k", "before the first start", partition=0)
    assert bench.live()
    add_partitions(bench, "in-b", 3, spec)
    for partition in range(3):
        bench.send("in-b", "k", f"new {partition}", partition=partition)
    # Its tasks begin one after the other.
    for task in bench.plan.tasks:
        assert bench.live(assigned=frozenset({task}))
    assert values(bench) == ["new 0", "new 1", "new 2"]


def test_A3_a_partition_with_a_crashed_first_start_is_not_new() -> None:
    for step in range(8):
        bench = Bench(topology(), {"in": 2, "out": 1}, auto_offset_reset="latest")
        for partition in (0, 1):
            bench.send("in", "k", "before the first start", partition=partition)
        (first, second) = bench.plan.tasks
        bench.live(assigned=frozenset({first}), crash_after=step)
        assert bench.live(assigned=frozenset({first}))
        assert bench.live(assigned=frozenset({second}))
        assert values(bench) == []


def test_A3_a_topic_added_to_the_topology_has_its_own_first_start() -> None:
    old = Bench(topology(), {"in": 1, "other": 1, "out": 1}, auto_offset_reset="latest")
    assert old.live()
    builder = StreamsBuilder()
    builder.stream(["in", "other"], **TEXT).to("out", **TEXT)
    new = Bench(builder.build(), {"in": 1, "other": 1, "out": 1}, auto_offset_reset="latest")
    new.broker, new.clients, new.disk = old.broker, old.clients, old.disk
    new.send("in", "k", "of the old topic")
    new.send("other", "k", "years of history")
    assert new.live()
    new.send("other", "k", "from now on")
    assert new.live()
    assert values(new) == ["from now on", "of the old topic"]


def test_A3_partitions_that_appear_while_running_are_new() -> None:
    spec = topology(re.compile("in-.*"))
    bench = Bench(spec, {"out": 1}, auto_offset_reset="latest")
    before = bench.plan
    add_partitions(bench, "in-a", 2, spec)
    for partition in (0, 1):
        bench.send("in-a", "k", f"new {partition}", partition=partition)
    worker = bench.make_worker()
    worker.appeared |= appeared_in(bench.plan, before)
    assert worker.appeared == {TopicPartition("in-a", 0), TopicPartition("in-a", 1)}
    bench.make_worker = lambda *_args, **_changes: worker  # type: ignore[method-assign]
    assert bench.live()
    assert values(bench) == ["new 0", "new 1"]


@pytest.mark.parametrize("again", [False, True])
def test_A3_a_group_reads_new_partitions_from_the_beginning(again: bool) -> None:
    spec = topology(re.compile("in.*"))
    with GroupBench(spec, {"in": 1, "out": 1}, auto_offset_reset="latest") as group:
        group.send("k", "before the first start", partition=0)
        host = group.host("a")
        host.run_task("0_0", 1)
        group.send("k", "one", partition=0)
        host.until(lambda: values(group) == ["one"])
        add_partitions(group, "in", 2, spec)
        add_partitions(group, "in-more", 2, spec)
        group.send("k", "two", partition=1)
        for partition in (0, 1):
            group.send("k", f"more {partition}", topic="in-more", partition=partition)
        if again:
            left = host.release("0_0", 1)
            host.close()
            host = group.host("b")
            host.member.give(granted("0_0", 2, left), granted("0_1", 1))
        else:
            worker: Any = host.worker
            make_task = msgspec.structs.replace(worker._hooks.make_task, plan=group.plan)
            worker._hooks = msgspec.structs.replace(worker._hooks, make_task=make_task)
            worker.use_plan(group.plan)
            host.until(lambda: worker.plan is group.plan and "0_0" in map(str, worker.tasks))
            host.member.give(granted("0_1", 1))
        host.until(lambda: values(group) == ["more 0", "more 1", "one", "two"])


def test_A3_new_partitions_of_a_source_without_reset_are_refused() -> None:
    """Kafka Streams' none."""
    spec = topology(offset_reset="none")
    bench = Bench(spec, {"in": 1, "out": 1})
    bench.broker.groups[APP][TopicPartition("in", 0)] = CommittedOffset(0, "")
    assert bench.live(accept_offsets=True)
    add_partitions(bench, "in", 2, spec)
    with pytest.raises(StreamsError, match=r'in-1.*offset_reset="none"'):
        bench.live()
