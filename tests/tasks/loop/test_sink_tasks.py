"""Sink tasks on a fake cluster: crashes, failures, refused rows, other owners, back-pressure."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.loop.bench import Bench, Source
from tests.tasks.loop.group_bench import PATIENCE_S, GroupBench
from tidewheel import FencedError, RecordFailedError, Serdes, StreamsBuilder, StreamsError, Topology
from tidewheel.rebalance.protocol.orders import ReleaseTask, TaskReleased
from tidewheel.sinks import (
    RefusedRow,
    RowsRefused,
    Sink,
    SinkBatch,
    SinkTaskInfo,
    TopicPartition,
)
from tidewheel.tasks.errors import SinkBehindError, SinkFailedError
from tidewheel.tasks.loop.stream_worker import StreamWorker

STRING = Serdes.string()
TOPICS = {"in": 2, "out": 1, "dead": 1}


class Outside:
    """A database: rows and positions of committed flushes.

    `strike` is called before and after each commit, with its number; it may raise.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows: list[tuple[str, str]] = []
        self.positions: dict[TopicPartition, int] = {}
        self.flushes = 0
        self.opened = 0
        self.writes = 0
        #: Number of rows at each flush, also of failed ones.
        self.sizes: list[int] = []
        self.open_now = 0
        self.strike: Callable[[str, int], object] = lambda _when, _number: None


class OutsideSink(Sink):
    flush_every_ms = 1
    batch_rows = 3

    def __init__(self, outside: Outside, *, refuses: str = "", stores: bool = True) -> None:
        self.outside = outside
        self._refuses = refuses
        self._stores = stores

    def open(self, task: SinkTaskInfo) -> Mapping[TopicPartition, int] | None:
        self._rows: list[tuple[SinkBatch, int]] = []
        self.outside.opened += 1
        self.outside.open_now += 1
        self.outside.strike("open", self.outside.opened)
        return dict(self.outside.positions) if self._stores else None

    def write(self, batch: SinkBatch) -> None:
        self.outside.writes += 1
        self.outside.strike("write", self.outside.writes)
        self._rows += [(batch, row) for row in range(len(batch))]

    def flush(self, positions: Mapping[TopicPartition, int]) -> None:
        outside = self.outside
        with outside.lock:
            outside.flushes += 1
            outside.sizes.append(len(self._rows))
            outside.strike("before", outside.flushes)
            bad = [
                RefusedRow(batch, row, ValueError("refused"))
                for batch, row in self._rows
                if batch.values[row] == self._refuses
            ]
            if bad:
                raise RowsRefused(bad)
            outside.rows += [(batch.keys[row], batch.values[row]) for batch, row in self._rows]
            if self._stores:
                outside.positions |= positions
            self._rows = []
            outside.strike("after", outside.flushes)

    def close(self) -> None:
        self.outside.open_now -= 1


def topology(sink: Sink, *, shared: bool = False) -> Topology:
    """Return a topology with a sink; if `shared`, another output is beside it."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=STRING, value_serde=STRING)
    stream.filter(lambda value: value != "drop").to_sink(sink, name="outside")
    if shared:
        stream.to("out")
    return builder.build()


def send(bench: Bench, *values: str) -> None:
    for number, value in enumerate(values):
        bench.send("in", f"k{number}", value, partition=number % 2)


def expected(*values: str) -> Counter[tuple[str, str]]:
    return Counter((f"k{number}", value) for number, value in enumerate(values) if value != "drop")


def letters(bench: Bench) -> list[str | None]:
    return [key for key, _ in bench.outputs("dead")]


CONTINUE: dict[str, Any] = {
    "production_exception_handler": "continue",
    "dead_letter_queue_topic": "dead",
}


@given(
    crashes=st.lists(st.integers(0, 25), max_size=4),
    failures=st.sets(
        st.tuples(st.sampled_from(["before", "after", "write"]), st.integers(1, 8)), max_size=4
    ),
    shared=st.booleans(),
    guarantee=st.sampled_from(["exactly_once", "at_least_once"]),
)
@settings(max_examples=15)
def test_every_row_is_written_once_whatever_fails(
    crashes: list[int], failures: set[tuple[str, int]], shared: bool, guarantee: str
) -> None:
    outside = Outside()

    def strike(when: str, number: int) -> None:
        if (when, number) in failures:
            raise ConnectionError("the outcome is unknown to the caller")

    outside.strike = strike
    bench = Bench(topology(OutsideSink(outside), shared=shared), TOPICS, guarantee=guarantee)
    values = [f"v{number}" for number in range(10)] + ["drop"]
    send(bench, *values)
    for crash_after in crashes:
        bench.live(crash_after=crash_after)
    assert bench.live()
    assert Counter(outside.rows) == expected(*values)
    topic = "app-outside-sink-repartition" if shared else "in"
    ends = {at: offset for at, offset in bench.committed.items() if at.topic == topic}
    assert ends == outside.positions, "Kafka's offsets follow the flushes to the end"
    assert outside.open_now == 0


def test_offsets_are_committed_after_the_flush_and_others_do_not_wait() -> None:
    outside, allowed = Outside(), threading.Event()
    outside.strike = lambda when, _: when == "before" and allowed.wait(60)
    bench = Bench(topology(OutsideSink(outside), shared=True), TOPICS)
    send(bench, "a", "b")
    seen: list[int] = []

    def look(_worker: StreamWorker, _source: Source) -> None:
        internal = [at for at in bench.committed if at.topic.endswith("-repartition")]
        if not allowed.is_set() and len(bench.outputs("out")) == 2 and outside.flushes:
            seen.append(sum(bench.committed[at] for at in internal))
            if len(seen) > 20:
                allowed.set()

    bench.at_poll.append(look)
    assert bench.live()
    assert set(seen) == {0}
    assert Counter(outside.rows) == expected("a", "b")


def test_batches_behind_one_that_fails_are_written_later() -> None:
    outside, has_queue = Outside(), threading.Event()

    def strike(when: str, number: int) -> None:
        if when == "open":
            has_queue.wait(60)
        if when == "write" and number == 1:
            raise ConnectionError("away")

    outside.strike = strike
    sink = OutsideSink(outside)
    sink.batch_rows = 100
    bench = Bench(topology(sink), {"in": 1})
    bench.slice_records = 1
    for number in range(5):
        bench.send("in", f"k{number}", f"v{number}")

    def look(worker: StreamWorker, _source: Source) -> None:
        if worker.metrics.processed == 5:
            has_queue.set()

    bench.at_poll.append(look)
    assert bench.live()
    assert outside.writes > 5
    assert outside.rows == [(f"k{number}", f"v{number}") for number in range(5)]


def test_rows_do_not_pile_up_behind_a_flush_that_fails() -> None:
    outside = Outside()

    def strike(when: str, number: int) -> None:
        if when == "before" and number <= 5:
            raise ConnectionError("disk full")

    outside.strike = strike
    bench = Bench(topology(OutsideSink(outside)), {"in": 1})
    bench.slice_records = 1
    for number in range(40):
        bench.send("in", f"k{number}", f"v{number}")
    assert bench.live()
    assert max(outside.sizes[:6]) <= 2 * OutsideSink.batch_rows
    assert outside.rows == [(f"k{number}", f"v{number}") for number in range(40)]


def test_input_waits_while_the_sink_is_full() -> None:
    outside, allowed = Outside(), threading.Event()
    outside.strike = lambda when, _: when == "before" and allowed.wait(60)
    bench = Bench(topology(OutsideSink(outside)), {"in": 2})
    bench.slice_records = 1
    send(bench, *(f"v{number}" for number in range(30)))
    processed: list[int] = []

    def look(worker: StreamWorker, source: Source) -> None:
        processed.append(worker.metrics.processed)
        if len(processed) > 200:
            allowed.set()

    bench.at_poll.append(look)
    assert bench.live()
    assert max(processed[:200]) < 30, "some records wait in their buffers"
    assert len(outside.rows) == 30


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_letter_of_a_refused_row_is_durable_before_the_flush_that_passes_it(
    guarantee: str,
) -> None:
    outside = Outside()
    bench = Bench(
        topology(OutsideSink(outside, refuses="bad")), TOPICS, guarantee=guarantee, **CONTINUE
    )
    letters_at_flush: list[int] = []

    def strike(when: str, _: int) -> None:
        if when == "after":
            letters_at_flush.append(len(letters(bench)))

    outside.strike = strike
    values = ["v0", "bad", "v2", "v3", "v4", "bad", "v6"]
    send(bench, *values)
    assert bench.live()
    good = {key: count for key, count in expected(*values).items() if key[1] != "bad"}
    assert Counter(outside.rows) == good
    assert letters(bench) == ["k1", "k5"]
    assert letters_at_flush[-1] == 2
    assert sum(bench.committed.values()) == len(values)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_commit_follows_a_letter_though_nothing_else_changes(guarantee: str) -> None:
    outside = Outside()
    sink = OutsideSink(outside, refuses="bad")
    bench = Bench(topology(sink), TOPICS, guarantee=guarantee, **CONTINUE)
    send(bench, "bad")
    assert bench.live()
    assert letters(bench) == ["k0"]
    assert outside.positions == {TopicPartition("in", 0): 1}


@given(crashes=st.lists(st.integers(0, 30), max_size=4))
@settings(max_examples=10)
def test_refused_rows_are_never_lost_by_crashes(crashes: list[int]) -> None:
    outside = Outside()
    bench = Bench(topology(OutsideSink(outside, refuses="bad")), TOPICS, **CONTINUE)
    values = ["v0", "bad", "v2", "bad", "v4"]
    send(bench, *values)
    for crash_after in crashes:
        bench.live(crash_after=crash_after)
    assert bench.live()
    assert Counter(outside.rows) == {("k0", "v0"): 1, ("k2", "v2"): 1, ("k4", "v4"): 1}
    assert set(letters(bench)) == {"k1", "k3"}


def test_refused_row_ends_the_worker_by_default() -> None:
    outside = Outside()
    bench = Bench(topology(OutsideSink(outside, refuses="bad")), TOPICS)
    send(bench, "v0", "bad")
    with pytest.raises(RecordFailedError, match="refused") as failed:
        bench.live()
    assert (failed.value.topic, failed.value.partition, failed.value.offset) == ("in", 1, 0)
    assert ("k1", "bad") not in outside.rows


def test_worker_ends_after_the_retries_of_its_sink() -> None:
    outside = Outside()

    def strike(_when: str, _number: int) -> None:
        raise ConnectionError("away")

    outside.strike = strike
    sink = OutsideSink(outside)
    sink.retries = 2
    bench = Bench(topology(sink), {"in": 1})
    send(bench, "v0")
    with pytest.raises(SinkFailedError, match="away"):
        bench.live()
    assert outside.opened == 3
    outside.strike = lambda _when, _number: None
    assert bench.live()
    assert outside.rows == [("k0", "v0")]


@pytest.mark.parametrize("error", [FencedError("another owner"), StreamsError("no such table")])
def test_error_of_ours_is_final(error: StreamsError) -> None:
    outside = Outside()

    def strike(_when: str, _number: int) -> None:
        raise error

    outside.strike = strike
    bench = Bench(topology(OutsideSink(outside)), TOPICS)
    send(bench, "v0")
    with pytest.raises(type(error), match=str(error)):
        bench.live()
    assert outside.rows == []


def test_outside_that_is_behind_is_an_error() -> None:
    outside = Outside()
    bench = Bench(topology(OutsideSink(outside)), TOPICS)
    send(bench, "v0", "v1", "v2", "v3")
    assert bench.live()
    outside.positions[TopicPartition("in", 0)] = 1  # restored from an older copy
    with pytest.raises(SinkBehindError, match=r"position 1 of in-0.*offset 2.*tidewheel reset"):
        bench.live()


def test_rows_come_again_if_the_outside_stores_no_positions() -> None:
    outside = Outside()
    bench = Bench(topology(OutsideSink(outside, stores=False)), TOPICS)
    send(bench, "v0", "v1")
    bench.live(crash_at="committed")
    assert bench.live()
    assert set(outside.rows) == set(expected("v0", "v1"))
    assert sum(bench.committed.values()) == 2


def test_supplier_makes_a_sink_for_each_task() -> None:
    outside, made = Outside(), []
    builder = StreamsBuilder()

    def make() -> OutsideSink:
        made.append(OutsideSink(outside))
        return made[-1]

    builder.stream("in", key_serde=STRING, value_serde=STRING).to_sink(make, name="outside")
    bench = Bench(builder.build(), TOPICS)
    send(bench, "v0", "v1")
    assert bench.live()
    assert Counter(outside.rows) == expected("v0", "v1")
    assert len(made) >= 2


def held_flush(outside: Outside) -> tuple[threading.Event, threading.Event]:
    """Hold the first flush; return the events of its begin and of its permission to go on."""
    begun, may_end = threading.Event(), threading.Event()

    def strike(when: str, number: int) -> None:
        if (when, number) == ("before", 1):
            begun.set()
            assert may_end.wait(PATIENCE_S)

    outside.strike = strike
    return begun, may_end


def released_group(outside: Outside, **settings: Any) -> GroupBench:
    builder = StreamsBuilder()
    builder.stream("in", key_serde=STRING, value_serde=STRING).to_sink(
        OutsideSink(outside, stores=False), name="rows"
    )
    return GroupBench(builder.build(), {"in": 2}, **settings)


def test_release_waits_for_a_flush_and_other_tasks_go_on() -> None:
    outside = Outside()
    begun, may_end = held_flush(outside)
    with released_group(outside) as group:
        host = group.host("a")
        for number in range(2):
            host.run_task(f"0_{number}", 1)
        group.send("a", partition=0)
        assert begun.wait(PATIENCE_S)
        host.member.give(ReleaseTask(task="0_0", task_epoch=1))
        turns = host.member.turns
        host.until(lambda: host.member.turns > turns + 50, "turns during the flush")
        assert not host.member.all_of(TaskReleased)
        may_end.set()
        assert host.said(TaskReleased, task="0_0").input == {"in-0": 1}
        assert len(outside.rows) == 1


def test_release_does_not_wait_longer_than_the_drain_timeout() -> None:
    outside = Outside()
    begun, may_end = held_flush(outside)
    with released_group(outside, drain_timeout_ms=500) as group:
        host = group.host("a")
        host.run_task("0_0", 1)
        group.send("a", partition=0)
        assert begun.wait(PATIENCE_S)
        assert host.release("0_0", 1).input == {"in-0": 0}
        may_end.set()


def test_release_does_not_wait_for_a_sink_that_fails() -> None:
    outside = Outside()

    def strike(when: str, _number: int) -> None:
        if when == "before":
            raise ConnectionError("away")

    outside.strike = strike
    with released_group(outside, drain_timeout_ms=1_000_000) as group:
        host = group.host("a")
        host.run_task("0_0", 1)
        group.send("a", partition=0)
        host.until(lambda: outside.flushes > 1, "a flush fails")
        assert host.release("0_0", 1).input == {"in-0": 0}
