"""Faults once found in the worker, from poll to commit, restart and close."""

import logging
import os
import threading
import time
from contextlib import closing
from itertools import pairwise
from typing import Any

import pytest

from tests.fakes.broker import CommitFate
from tests.tasks.loop.bench import Bench, Crash, DiskDatabase
from tests.tasks.loop.test_stream_worker import counting, counts_of, outputs_of
from tidewheel import (
    FencedError,
    KafkaStreams,
    Materialized,
    Processor,
    PunctuationType,
    Record,
    Serdes,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    Topology,
)
from tidewheel.rebalance.model import TaskId
from tidewheel.state_stores import user_code
from tidewheel.state_stores.errors import StateStoreError, StoreCorruptedError
from tidewheel.state_stores.stores.key_value_store import ValueAndTimestamp
from tidewheel.streams.cli.worker_main import SupervisorLink
from tidewheel.streams.processes.supervisor.worker_messages import StartWorker, StopWorker, encode
from tidewheel.streams.worker.incarnation import WorkerLife
from tidewheel.testing import TopologyTestDriver

STRING, INT = Serdes.string(), Serdes.int64()
TEXT: dict[str, Any] = {"key_serde": STRING, "value_serde": STRING}


# -- callbacks that raise --
def app_that_fails(monkeypatch: Any) -> KafkaStreams:
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).to("out", **TEXT)
    app = KafkaStreams(
        builder.build(), StreamsConfig(application_id="x", bootstrap_servers="localhost:1")
    )

    def run(_life: WorkerLife) -> None:
        raise ValueError("what ended the worker")

    monkeypatch.setattr(WorkerLife, "run", run)
    return app


@pytest.mark.filterwarnings("ignore")
def test_a_raising_exception_handler_still_ends_the_application(
    monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_that_fails(monkeypatch)

    def handler(_error: BaseException) -> None:
        raise RuntimeError("the handler's own bug")

    app.set_uncaught_exception_handler(handler)
    app.start()
    ended = app.wait(timeout_s=20)
    assert ended, f"hangs for ever: state {app.state}"
    assert "RuntimeError: the handler's own bug, in handler() (tests/" in caplog.text
    assert user_code._PACKAGE not in caplog.text


@pytest.mark.filterwarnings("ignore")
def test_the_start_enables_loggers_that_the_program_disabled(monkeypatch: Any) -> None:
    """`dictConfig` disables all loggers that exist, unless told otherwise."""
    logger = logging.getLogger("tidewheel.tasks")
    monkeypatch.setattr(logger, "disabled", True)
    app = app_that_fails(monkeypatch)
    app.start()
    assert app.wait(timeout_s=20)
    assert not logger.disabled


@pytest.mark.filterwarnings("ignore")
def test_a_raising_state_listener_still_ends_the_application(
    monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_that_fails(monkeypatch)

    def listener(new: Any, _old: Any) -> None:
        if new == "PENDING_ERROR":
            raise RuntimeError("the listener's own bug")

    app.set_state_listener(listener)
    app.start()
    ended = app.wait(timeout_s=20)
    assert ended, f"hangs for ever: state {app.state}"
    assert "RuntimeError: the listener's own bug, in listener() (tests/" in caplog.text


@pytest.mark.filterwarnings("ignore")
def test_close_in_the_exception_handler_keeps_the_error(monkeypatch: Any) -> None:
    app = app_that_fails(monkeypatch)

    def handler(_error: BaseException) -> None:
        app.close()

    app.set_uncaught_exception_handler(handler)
    done: list[Any] = []

    def run() -> None:
        try:
            app.run()
            done.append("returned as if all were well")
        except BaseException as error:  # noqa: BLE001 - checked below
            done.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert done, f"still running in state {app.state}"
    assert isinstance(done[0], BaseException), done


# -- scale out under a live predecessor --
def test_scaling_from_one_worker_to_two_counts_no_record_twice() -> None:
    bench = Bench(counting(), {"in": 2, "out": 1}, commit_interval_ms=5_000)
    for n in range(20):
        bench.send("in", f"k{n % 4}", "v", partition=n % 2)
    state = {"started": False}

    def second(worker: Any, source: Any) -> None:
        if state["started"] or worker is not first or worker.metrics.processed < 20:
            return
        state["started"] = True
        # `tidewheel run --workers 2` is started elsewhere: its slot 1 comes up a moment before its slot 0 fences us.
        bench.make_worker(frozenset({TaskId(0, 1)}), "app-fixed-1", siblings=1).run()

    bench.at_poll.append(second)
    first = bench.make_worker(None, "app-fixed-0")
    with pytest.raises(FencedError):
        first.run()
    assert state["started"]
    bench.make_worker(frozenset({TaskId(0, 0)}), "app-fixed-0", siblings=1).run()
    seen = outputs_of(bench)
    assert all(values == list(range(1, 6)) for values in seen.values()), seen


@pytest.mark.parametrize(("times", "ends"), [(2, False), (9, True)])
def test_a_sibling_fences_twice_where_a_transaction_is_open(times: int, ends: bool) -> None:
    bench = Bench(counting(), {"in": 1, "out": 1}, commit_interval_ms=1)
    left = list(range(times))

    def fence(_worker: Any, _source: Any) -> None:
        if left and sum(map(len, outputs_of(bench).values())) >= times - len(left):
            left.pop()
            bench.clients.admin().fence(["app-fixed-0"])
            bench.send("in", "k", "v")

    bench.send("in", "k", "v")
    bench.at_poll.append(fence)
    worker = bench.make_worker(None, "app-fixed-0", siblings=1)
    if ends:
        with pytest.raises(FencedError):
            worker.run()
        return
    worker.run()
    assert not left
    assert outputs_of(bench) == {"k": [1, 2, 3]}


# -- same metadata text twice --
def test_an_uncommitted_transaction_is_not_confused_with_an_older_one() -> None:
    class Tick(Processor[Any, Any, Any, Any]):
        def init(self, context: Any) -> None:
            super().init(context)
            self.store = context.get_state_store("ticks")
            context.schedule(50, PunctuationType.WALL_CLOCK_TIME, self.tick)

        def tick(self, _now: int) -> None:
            count = (self.store.get("n") or 0) + 1
            self.store.put("n", count)

            self.context.forward(Record("n", str(count), 1))

        def process(self, record: Any) -> None:
            pass

    topology = (
        Topology()
        .add_source("s", "in", **TEXT)
        .add_processor("p", Tick, "s")
        .add_state_store(Stores.key_value("ticks", key_serde=STRING, value_serde=INT), "p")
        .add_sink("out", "out", "p", **TEXT)
    )
    bench = Bench(topology, {"in": 1, "out": 1}, commit_interval_ms=60)
    assert not bench.live(
        crash_at="committed"
    )  # the claim of the first life is committed, sequence 1
    bench.broker.commit_fates.append(
        CommitFate.UNKNOWN_OPEN
    )  # the first commit of the second life does NOT commit
    bench.idle_polls = 40
    assert bench.live()
    outputs = [int(v or b"0") for _, v in bench.outputs("out")]
    assert bench.worker is not None
    assert bench.worker.metrics.rolled_back == 1
    assert outputs == list(range(1, len(outputs) + 1)), f"ticks are missing: {outputs[:5]}"


# -- damage that also shows when closing --
def test_damage_that_also_breaks_close_is_still_healed(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(counting(), {"in": 1, "out": 1})
    for _ in range(5):
        bench.send("in", "a", "v")
    assert bench.live()
    bench.send("in", "a", "v")
    damaged = {"yes": True}
    write, close, wipe = DiskDatabase.write, DiskDatabase.close, bench.disk.wipe

    def bad_write(self: Any, changes: Any, positions: Any, **more: Any) -> None:
        if damaged["yes"] and changes:
            raise StoreCorruptedError(
                "Corruption: block checksum mismatch"
            )  # RocksDB's background error
        write(self, changes, positions, **more)

    def bad_close(self: Any) -> None:
        close(self)
        if damaged["yes"]:
            raise StateStoreError("could not flush and close the database: Corruption: ...")

    def healing_wipe(task: Any) -> None:
        damaged["yes"] = False
        wipe(task)

    monkeypatch.setattr(DiskDatabase, "write", bad_write)
    monkeypatch.setattr(DiskDatabase, "close", bad_close)
    monkeypatch.setattr(bench.disk, "wipe", healing_wipe)
    assert bench.live()
    assert counts_of(bench) == {"a": 6}


# -- paused with a timer --
def test_a_paused_worker_with_a_due_timer_waits() -> None:
    class Timer(Processor[Any, Any, Any, Any]):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule(50, PunctuationType.WALL_CLOCK_TIME, lambda now: None)

        def process(self, record: Any) -> None:
            pass

    topology = Topology().add_source("s", "in", **TEXT).add_processor("p", Timer, "s")
    bench = Bench(topology, {"in": 1}, commit_interval_ms=10_000)
    idle: list[float] = []

    def pause(worker: Any, _source: Any) -> None:
        worker.paused = frozenset({0})
        idle.append(worker._loop.idle_s())

    bench.at_poll.append(pause)
    bench.live()
    assert min(idle) > 0, f"polls without waiting, {idle.count(0.0)} of {len(idle)} polls"


# -- memory of at_least_once sinks --
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_unflushed_sinks_count_as_uncommitted(guarantee: str) -> None:
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).to("out", **TEXT)
    bench = Bench(
        builder.build(),
        {"in": 1, "out": 1},
        guarantee=guarantee,
        commit_interval_ms=30_000,
        statestore_uncommitted_max_bytes=100_000,
    )
    for _ in range(500):
        bench.send("in", "a", "x" * 10_000)
    bench.slice_records = 10
    commits: list[int] = []
    bench.at_poll.append(
        lambda worker, _s: (
            commits.append(worker.metrics.commits) if worker.metrics.processed == 500 else None
        )
    )
    assert bench.live()
    assert commits[0] > 10, (
        f"{commits[0]} commits while 5 MB of sinks were sent under a limit of 0.1 MB"
    )


# -- quiet stores --
def test_a_quiet_store_is_not_restored_from_scratch_after_a_crash() -> None:
    bench = Bench(counting(), {"in": 2, "out": 1})
    for n in range(50):
        bench.send("in", f"q{n}", "v", partition=0)
    later = {"sent": 0}

    def two_days(worker: Any, _s: Any) -> None:
        if worker.metrics.processed >= 50 + later["sent"] and later["sent"] < 48:
            later["sent"] += 1
            bench.clock.advance(3_600_000)
            bench.send("in", f"busy{later['sent']}", "v", partition=1)
        elif later["sent"] == 48 and worker.metrics.processed == 98:
            bench.fuse.at = "flush-never"

    bench.at_poll.append(two_days)
    bench.idle_polls = 10
    # a kill: no clean stop

    def kill(worker: Any, _s: Any) -> None:
        if (
            later["sent"] == 48
            and worker.metrics.processed == 98
            and worker.lags()
            and not any(worker.lags().values())
        ):
            raise Crash("kill -9")

    bench.at_poll.append(kill)
    assert not bench.live()
    bench.at_poll.clear()
    assert bench.live()
    starts = {e.partition: (e.start, e.end) for e in bench.events if e.kind == "start"}
    assert starts.get(0, (1, 1))[0] > 0, (
        f"partition 0, whose position is the end, is read from offset 0: {starts}"
    )


# -- values that only fail at the commit --
def test_a_timestamp_that_is_no_int_fails_with_its_record() -> None:
    builder = StreamsBuilder()
    builder.table("t", store=Materialized("rows", caching=False), **TEXT)

    class Put(Processor[Any, Any, Any, Any]):
        def process(self, record: Any) -> None:

            at: Any = time.monotonic() * 1000 if record.value == "bad" else 5
            self.context.get_state_store("rows").put(
                record.key, ValueAndTimestamp(record.value, at)
            )

    builder.stream("in", **TEXT).process(Put, stores=["rows"])
    bench = Bench(builder.build(), {"in": 1, "t": 1}, processing_exception_handler="continue")
    for value in ("good", "bad", "good"):
        bench.send("in", value, value)
    assert bench.live()  # struct.error from inside the commit, with the transaction open


def test_a_sink_timestamp_that_is_no_int_is_refused_before_the_client() -> None:

    class Stamp(Processor[Any, Any, Any, Any]):
        def process(self, record: Any) -> None:
            self.context.forward(record.replace(timestamp=time.monotonic() * 1000))

    topology = (
        Topology()
        .add_source("s", "in", **TEXT)
        .add_processor("p", Stamp, "s")
        .add_sink("o", "out", "p", **TEXT)
    )
    bench = Bench(
        topology,
        {"in": 1, "out": 1},
        processing_exception_handler="continue",
        production_exception_handler="continue",
    )
    staged: list[Any] = []
    bench.send("in", "a", "v")
    original = bench.broker.append_columns

    def track_timestamps(columns: Any, index: int, transaction: Any) -> Any:
        staged.append(columns.timestamps[index])
        return original(columns, index, transaction)

    bench.broker.append_columns = track_timestamps  # type: ignore[method-assign]
    bench.live()
    assert all(type(each) is int for each in staged), staged


# a put during a flush into a cached table that was flushed already
def test_rows_a_flush_writes_to_another_cached_table_are_forwarded_in_the_same_commit() -> None:
    builder = StreamsBuilder()
    builder.table("t", store=Materialized("rows"), **TEXT).to_stream().to("out", **TEXT)

    class Put(Processor[Any, Any, Any, Any]):
        def process(self, record: Any) -> None:

            self.context.get_state_store("rows").put(
                record.key, ValueAndTimestamp(str(record.value), record.timestamp)
            )

    builder.stream("in", **TEXT).group_by_key().count(store="counts").to_stream().process(
        Put, stores=["rows"]
    )
    bench = Bench(builder.build(), {"in": 1, "t": 1, "out": 1}, cache_bytes=1_000_000)
    bench.send("in", "a", "v")

    def die(worker: Any, _s: Any) -> None:

        if bench.rows("rows"):
            raise Crash("kill -9 after the commit that made the row durable")

    bench.at_poll.append(die)
    assert not bench.live()
    bench.at_poll.clear()
    assert bench.rows("rows")
    assert bench.live()
    assert bench.outputs("out") == [("a", b"1")], bench.outputs("out")


# predicate results without a truth value
def test_a_predicate_result_without_truth_value_goes_to_the_handler() -> None:
    class NA:
        def __bool__(self) -> bool:
            raise TypeError("boolean value of NA is ambiguous")

    builder = StreamsBuilder()
    builder.stream("in", **TEXT).filter(lambda value: NA() if value == "bad" else True).to(
        "out", **TEXT
    )
    config = StreamsConfig(
        application_id="x", bootstrap_servers="x:1", processing_exception_handler="continue"
    )
    with TopologyTestDriver(builder.build(), config) as driver:
        driver.create_input_topic("in", **TEXT).pipe_key_values(
            [("a", "ok"), ("a", "bad"), ("a", "ok")]
        )
        assert len(driver.create_output_topic("out", **TEXT).read_records()) == 2


def test_a_stop_sent_with_the_start_is_received() -> None:
    orders, to_worker = os.pipe()
    _, reports = os.pipe()
    os.write(to_worker, encode(StartWorker(target="x:y")) + encode(StopWorker(timeout_ms=1)))
    with closing(SupervisorLink(orders, reports)) as link:
        assert link.first_order() is not None
        assert any(isinstance(order, StopWorker) for order in link.orders(0.2)), (
            "the stop order is lost"
        )


def test_slices_are_bounded_by_time_when_user_code_becomes_slow() -> None:
    bench: Any = None
    count = {"n": 0}

    class Work(Processor[Any, Any, Any, Any]):
        def process(self, record: Any) -> None:
            count["n"] += 1
            if count["n"] > 20_000:
                bench.clock.advance(100)  # the service it asks has become slow

    topology = Topology().add_source("s", "in", **TEXT).add_processor("p", Work, "s")
    bench = Bench(topology, {"in": 1})
    for _ in range(22_000):
        bench.send("in", "a", "v")
    polls: list[float] = []
    bench.at_poll.append(lambda worker, _s: polls.append(bench.clock.monotonic_s()))
    assert bench.live()
    longest = max(b - a for a, b in pairwise(polls))
    assert longest < 2, f"{longest:.0f} s without a look at stop, commit or input"


def test_a_forward_with_a_negative_timestamp_fails_at_the_call() -> None:
    class Stamp(Processor[Any, Any, Any, Any]):
        def process(self, record: Any) -> None:
            self.context.forward(
                Record(record.key, record.value, -1 if record.value == "bad" else record.timestamp)
            )

    builder = StreamsBuilder()
    builder.stream("in", **TEXT).process(Stamp).repartition(name="again", **TEXT).to("out", **TEXT)
    config = StreamsConfig(
        application_id="x",
        bootstrap_servers="x:1",
        processing_exception_handler="continue",
        deserialization_exception_handler="continue",
        production_exception_handler="continue",
    )
    with TopologyTestDriver(builder.build(), config) as driver:
        driver.create_input_topic("in", **TEXT).pipe_key_values(
            [("a", "ok"), ("a", "bad"), ("a", "ok")]
        )
        assert len(driver.create_output_topic("out", **TEXT).read_records()) == 2
