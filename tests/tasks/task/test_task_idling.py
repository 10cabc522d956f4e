"""Task idling: a task waits for empty inputs, in a worker and in the test driver."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tasks.loop.bench import Bench, Source
from tidewheel import Serdes, StreamsConfig, Topology
from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.loop.stream_worker import StreamWorker
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.task.partition_group import PartitionGroup
from tidewheel.testing import TopologyTestDriver

STRING = Serdes.string()
A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def merging() -> Topology:
    return (
        Topology()
        .add_source("read-a", "a", key_serde=STRING, value_serde=STRING)
        .add_source("read-b", "b", key_serde=STRING, value_serde=STRING)
        .add_sink("write", "out", ["read-a", "read-b"], key_serde=STRING, value_serde=STRING)
    )


def values(bench: Bench) -> list[str]:
    return [(value or b"").decode() for _, value in bench.outputs("out")]


def bench_of(**settings: Any) -> Bench:
    """Return a worker that fetches two records at a time."""
    bench = Bench(merging(), {"a": 1, "b": 1, "out": 1}, max_poll_records=2, **settings)
    bench.idle_polls = 60
    return bench


@pytest.mark.parametrize(("idle_ms", "ordered"), [(-1, False), (0, True), (100, True)])
def test_the_task_waits_for_records_on_the_brokers(idle_ms: int, *, ordered: bool) -> None:
    bench = bench_of(max_task_idle_ms=idle_ms)
    for time in (1, 3, 5, 7, 9):
        bench.send("a", "k", str(time), timestamp=time)
    for time in (2, 4, 6):
        bench.send("b", "k", str(time), timestamp=time)
    assert bench.live()
    assert sorted(values(bench)) == ["1", "2", "3", "4", "5", "6", "7", "9"]
    assert (values(bench) == sorted(values(bench))) is ordered


def test_the_wait_for_an_empty_input_ends_at_its_timeout() -> None:
    bench = bench_of(max_task_idle_ms=100, commit_interval_ms=1)
    bench.send("a", "k", "late", timestamp=20)
    begin_ms = bench.clock.now_ms()
    seen: dict[int, list[str]] = {}

    def watch(_worker: object, source: Source) -> None:
        now_ms = bench.clock.now_ms() - begin_ms
        seen[now_ms] = values(bench)
        if now_ms >= 50 and source.end_offsets()[B] == 0:
            bench.send("b", "k", "early", timestamp=10)

    bench.at_poll.append(watch)
    assert bench.live()
    assert values(bench) == ["early", "late"]
    # "early" ends the wait for b after 50 ms; b is then empty again, and the wait restarts.
    assert 50 < min(now_ms for now_ms, found in seen.items() if found == ["early"]) < 100
    assert 150 < min(now_ms for now_ms, found in seen.items() if len(found) > 1) < 200


def test_a_waiting_task_does_not_busy_poll() -> None:
    bench = bench_of(max_task_idle_ms=100)
    bench.commit_turns = 0  # the loop polls a commit in progress every few milliseconds
    bench.send("a", "k", "v", timestamp=20)
    timeouts: list[float] = []

    def watch(worker: StreamWorker, source: Source) -> None:
        if not bench.outputs("out") and source.positions()[A] == 1:
            timeouts.append(worker._loop.idle_s())

    bench.at_poll.append(watch)
    assert bench.live()
    assert len(timeouts) > 3
    assert all(0 < timeout <= 0.05 for timeout in timeouts[:-1])
    assert bench.worker is not None
    (task,) = bench.worker.tasks.values()
    assert task.figures.metrics()["enforced-processing-total"] == 1


def test_more_records_than_a_poll_may_wait() -> None:
    bench = bench_of(max_task_idle_ms=0)
    for time in range(50):
        bench.send("a", "k", f"{time:02}", timestamp=time)
    bench.send("b", "k", "24b", timestamp=24)
    assert bench.live()
    assert values(bench) == sorted(values(bench))
    assert len(values(bench)) == 51


def test_the_driver_waits_on_its_own_clock() -> None:
    """As in Kafka Streams, an empty input delays the other until the timeout."""
    config = StreamsConfig(
        application_id="idle", bootstrap_servers="unused:9092", max_task_idle_ms=1_000
    )
    with TopologyTestDriver(merging(), config) as driver:
        first = driver.create_input_topic("a", key_serde=STRING, value_serde=STRING)
        second = driver.create_input_topic("b", key_serde=STRING, value_serde=STRING)
        out = driver.create_output_topic("out", key_serde=STRING, value_serde=STRING)
        first.pipe_input("A", "alpha")
        driver.advance_wall_clock_time(1)
        assert out.read_key_values() == []
        second.pipe_input("B", "beta")
        assert out.read_key_values() == [("A", "alpha")]
        driver.advance_wall_clock_time(1_000)
        assert out.read_key_values() == [("B", "beta")]


# -- the rule ----------------------------------------------------------------------------------------------------------


def run_of(partition: TopicPartition) -> SourceRecords:
    return SourceRecords(partition.topic, 0, [0], [None], [None], [5], None)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from([A, B]), st.just(0)),
        st.tuples(st.just("lag"), st.sampled_from([A, B]), st.integers(-1, 2)),
        st.tuples(st.just("take"), st.just(A), st.just(0)),
        st.tuples(st.just("time"), st.just(A), st.integers(0, 30)),
    ),
    max_size=30,
)


@given(steps=STEPS, idle_ms=st.integers(0, 40))
def test_the_wait_equals_that_of_kafka_streams(
    steps: list[tuple[str, TopicPartition, int]], idle_ms: int
) -> None:
    group = PartitionGroup([A, B], max_task_idle_ms=idle_ms)
    lags = {A: -1, B: -1}
    since: dict[TopicPartition, int] = {}
    now = 0
    for action, partition, number in steps:
        match action:
            case "add":
                group.add(run_of(partition))
            case "lag":
                lags[partition] = number
                group.update_lags({changed: lag for changed, lag in lags.items() if lag >= 0})
            case "take":
                group.pop(1)
            case _:
                now += number
        ready = True
        for waited in (A, B):
            if group.buffers[waited].records or lags[waited] != 0:
                since.pop(waited, None)
                ready = ready and bool(group.buffers[waited].records)
            elif ready:
                ready = now >= since.setdefault(waited, now) + idle_ms
            if not ready:
                break
        buffered = group.records > 0
        assert group.ready(now) is (ready and buffered)
        until = group.idle_until_ms(now)
        assert until is None or (until > now and buffered)
        if ready and buffered:
            assert group.enforcing is any(not group.buffers[empty].records for empty in (A, B))
