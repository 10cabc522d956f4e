"""Rest of a worker: it takes no external input, and finishes what it has taken."""

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from tests.tasks.loop.group_bench import GroupBench, Host
from tidewheel import Processor, PunctuationType, Serdes, StreamsBuilder, Topology
from tidewheel.rebalance.model import TopicPartition
from tidewheel.rebalance.protocol.orders import SetRest, Welcome, WorkerStatus
from tidewheel.rebalance.protocol.rest import Rest

TEXT = Serdes.string()
BETWEEN = "app-by-value-repartition"


def rekeyed() -> Topology:
    """Count by value, behind a repartition topic."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=TEXT, value_serde=TEXT)
    grouped = stream.map(lambda key, value: (value, key)).repartition(
        name="by-value", key_serde=TEXT, value_serde=TEXT
    )
    grouped.group_by_key(key_serde=TEXT, value_serde=TEXT).count(store="counts").to_stream().to(
        "out", key_serde=TEXT, value_serde=Serdes.int64()
    )
    return builder.build()


def bench(**settings: Any) -> GroupBench:
    return GroupBench(rekeyed(), {"in": 1, "out": 1}, **settings)


def order(host: Host, epoch: int, until: dict[str, int] | None = None) -> None:
    host.member.give(SetRest(rest=Rest(epoch=epoch, until=until or {})))


def until_at_rest(host: Host, epoch: int, *tasks: str) -> None:
    for task in tasks:
        host.until(partial(_is_at_rest, host, epoch, task), f"{task} is at rest")


def _is_at_rest(host: Host, epoch: int, task: str) -> bool:
    return bool(host.status(task).rest == epoch)


def until_drained(group: GroupBench, host: Host, epoch: int) -> None:
    """Wait until both tasks are at rest; the second may be so before it has records of the first."""
    until_at_rest(host, epoch, "0_0")
    host.until(lambda: group.committed(topic=BETWEEN) == group.end(topic=BETWEEN), "drained")
    until_at_rest(host, epoch, "1_0")


def fill(group: GroupBench, count: int) -> None:
    for number in range(count):
        group.send(f"k{number}", "ab"[number % 2])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_worker_at_rest_has_committed_what_it_has_taken(
    guarantee: str, cache_bytes: int, threads: int
) -> None:
    with bench(guarantee=guarantee, cache_bytes=cache_bytes) as group:
        host = group.host("a", threads=threads)
        host.run_task("0_0", 1)
        host.run_task("1_0", 1)
        fill(group, 500)
        host.until(group.committed, "some input is committed")
        order(host, 7)
        fill(group, 100)
        until_drained(group, host, 7)
        cut = group.committed()
        outputs = group.outputs()
        assert {key: counts[-1] for key, counts in outputs.items()} == _counts(cut)
        _work_on(host)
        assert (group.committed(), group.outputs()) == (cut, outputs)
        host.member.give(SetRest())
        host.until(lambda: group.committed() == 600, "the rest is read")
        order(host, 8)
        until_drained(group, host, 8)
        assert {key: counts[-1] for key, counts in group.outputs().items()} == _counts(600)
        if not cache_bytes:
            assert {key: len(counts) for key, counts in group.outputs().items()} == _counts(600)


def _counts(records: int) -> dict[str, int]:
    counts = {"a": (records + 1) // 2, "b": records // 2}
    return {key: count for key, count in counts.items() if count}


def _work_on(host: Host) -> None:
    turns = host.member.turns
    host.until(lambda: host.member.turns > turns + 50, "its loop continues")


def test_a_task_that_starts_at_rest_takes_no_input_but_internal_one() -> None:
    with bench() as group:
        fill(group, 4)
        group.send("k", "c", topic=BETWEEN)
        host = group.host("a")
        host.member.give(Welcome(transactional_id="app-a-0", rest=Rest(epoch=3)))
        host.run_task("0_0", 1)
        host.run_task("1_0", 1)
        until_at_rest(host, 3, "0_0", "1_0")
        assert (group.committed(), group.committed(topic=BETWEEN)) == (0, 1)
        assert host.worker.metrics.processed == 1


def test_a_resting_worker_reads_up_to_given_offsets() -> None:
    with bench() as group:
        host = group.host("a")
        order(host, 1)
        host.run_task("0_0", 1)
        fill(group, 9)
        until_at_rest(host, 1, "0_0")
        order(host, 2, {"in-0": 6})
        until_at_rest(host, 2, "0_0")
        assert group.committed() == 6
        assert group.end(topic=BETWEEN) >= 6
        order(host, 3, {"in-0": 11})
        host.until(lambda: group.committed() == 9, "all there is")
        assert not any(
            row.rest == 3 for report in host.member.all_of(WorkerStatus) for row in report.tasks
        )
        fill(group, 5)
        until_at_rest(host, 3, "0_0")
        assert group.committed() == 11


def test_a_rest_outlasts_a_restart_of_the_tasks() -> None:
    with bench() as group:
        host = group.host("a")
        host.run_task("0_0", 1)
        order(host, 5)
        until_at_rest(host, 5, "0_0")
        sources = len(host.sources)
        host.worker.use_plan(_with_one_partition_more(group))
        host.until(lambda: len(host.sources) > sources, "the tasks restart")
        fill(group, 3)
        host.member.forget()
        until_at_rest(host, 5, "0_0")
        assert group.committed() == 0


def _with_one_partition_more(group: GroupBench) -> Any:
    """Return a plan in which task 0_0 has another input."""
    group.broker.create_topic("more", 1)
    plan = group.plan
    first = plan.subtopologies[0]
    (name,) = first.source_topics
    changed = replace(
        first,
        source_topics={name: ("in", "more")},
        topic_partitions={**first.topic_partitions, "more": 1},
    )
    return replace(plan, subtopologies={**plan.subtopologies, 0: changed})


def test_the_wall_clock_stops_at_rest() -> None:
    ticks: list[int] = []

    class Ticker(Processor[str, str, str, str]):
        def init(self, context: Any) -> None:
            context.schedule(1, PunctuationType.WALL_CLOCK_TIME, ticks.append)

        def process(self, record: Any) -> None: ...

    builder = StreamsBuilder()
    builder.stream("in", key_serde=TEXT, value_serde=TEXT).process(Ticker).to(
        "out", key_serde=TEXT, value_serde=TEXT
    )
    with GroupBench(builder.build(), {"in": 1, "out": 1}) as group:
        host = group.host("a")
        host.run_task("0_0", 1)
        host.until(lambda: len(ticks) > 2, "the clock ticks")
        order(host, 1)
        until_at_rest(host, 1, "0_0")
        count = len(ticks)
        _work_on(host)
        assert len(ticks) == count
        host.member.give(SetRest())
        host.until(lambda: len(ticks) > count, "the clock ticks again")


def test_inputs_of_a_task() -> None:
    group = bench()
    first, second = group.plan.subtopologies.values()
    assert first.external_topics == {"in"}
    assert not second.external_topics
    assert second.inputs(0) == {TopicPartition(BETWEEN, 0)}
