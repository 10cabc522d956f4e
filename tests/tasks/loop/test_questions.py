"""Queries of uncommitted rows: answers between batches, for all stores, also with key ranges."""

import asyncio
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes.broker import CommitFate
from tests.tasks.loop.bench import Bench, Source
from tests.tasks.loop.group_bench import GroupBench, Host
from tidewheel import (
    InvalidStateStoreError,
    Materialized,
    Processor,
    QueryTimeoutError,
    Record,
    RecordFailedError,
    Serdes,
    SessionWindows,
    Stores,
    StreamsBuilder,
    TimeWindows,
    Topology,
)
from tidewheel.rebalance.model import TaskId
from tidewheel.state_stores.buffers.query_sources import UncommittedRows
from tidewheel.state_stores.stores.factory import make_query_store
from tidewheel.streams.worker.queries import _sources
from tidewheel.tasks.loop.stream_worker import StreamWorker

STRING, LONG = Serdes.string(), Serdes.int64()
CHANGELOG = "app-counts-changelog"
PATIENCE_S = 30.0
#: No commit by time.
NEVER_MS = 1 << 40
THREADS = pytest.mark.parametrize("threads", [1, 4], ids=["one thread", "key ranges"])


class Life:
    def __init__(self, bench: Bench, *, paused: bool = False) -> None:
        self.bench = bench
        self.worker = bench.make_worker()
        self.worker.paused = frozenset({0}) if paused else frozenset()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        bench.running.clear()
        bench.idle_polls = 1 << 30
        bench.at_poll = [self._slow_down]
        self._thread.start()

    @staticmethod
    def _slow_down(_worker: StreamWorker, source: Source) -> None:
        source.polls = 0
        time.sleep(0.0005)

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:  # noqa: BLE001 - for the test to see
            self.error = error

    def store(
        self, name: str, *, uncommitted: bool, timeout_s: float = PATIENCE_S, headers: bool = False
    ) -> Any:
        (number,) = self.bench.plan.subtopologies
        (spec,) = (
            each for each in self.bench.plan.subtopologies[number].spec.stores if each.name == name
        )
        threads: Any = lambda: [SimpleNamespace(worker=self.worker)]  # noqa: E731 - one of a kind
        asked_s = timeout_s if uncommitted else None
        return make_query_store(
            spec,
            f"app-{name}-changelog",
            lambda: _sources(threads, number, spec, stale=False, ask_timeout_s=asked_s),
            with_headers=headers,
        )

    def wait_until_running(self) -> None:
        until(lambda: self.bench.running[-1:] == [True])

    def stop(self) -> None:
        self.worker.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def until(condition: Any) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it never came true"
        time.sleep(0.001)


@contextmanager
def living(bench: Bench, *, paused: bool = False) -> Generator[Life]:
    life = Life(bench, paused=paused)
    try:
        life.wait_until_running()
        yield life
    finally:
        life.stop()


def all_kinds(*, caching: bool, store_type: Any) -> Topology:

    def kept(name: str, **options: Any) -> Materialized:
        return Materialized(name, caching=caching, store_type=store_type, **options)

    builder = StreamsBuilder()
    grouped = builder.stream("in", key_serde=STRING, value_serde=STRING).group_by_key()
    grouped.count(store=kept("counts"))
    grouped.count(store=kept("with-headers", headers=True))
    grouped.windowed_by(TimeWindows(1_000, grace=10_000)).count(store=kept("windows"))
    grouped.windowed_by(SessionWindows(100, grace=10_000)).count(store=kept("sessions"))
    return builder.build()


def rows_of(life: Life, *, uncommitted: bool) -> dict[str, list[Any]]:

    def store(name: str, *, headers: bool = False) -> Any:
        return life.store(name, uncommitted=uncommitted, headers=headers)

    return {
        "counts": sorted((key, row.value) for key, row in store("counts").all()),
        "with-headers": sorted(
            (key, row.value) for key, row in store("with-headers", headers=True).all()
        ),
        "without-headers": sorted((key, row.value) for key, row in store("with-headers").all()),
        "windows": sorted(
            (each.key, each.start, row.value) for each, row in store("windows").all()
        ),
        "sessions": sorted(
            (each.key, each.start, each.end, row)
            for each, row in store("sessions").fetch_range(None, None)
        ),
        "keys": [
            None if row is None else row.value for row in map(store("counts").get, ("a", "b", "x"))
        ],
        "fetched": [row.value for _, row in store("windows").fetch("a", 0, 10_000)],
    }


NOTHING = {
    "counts": [], "with-headers": [], "without-headers": [], "windows": [], "sessions": [], "keys": [None] * 3, "fetched": [],
}  # fmt: skip
FULL: dict[str, list[Any]] = {
    "counts": [("a", 3), ("b", 1), ("c", 1)],
    "with-headers": [("a", 3), ("b", 1), ("c", 1)],
    "without-headers": [("a", 3), ("b", 1), ("c", 1)],
    "windows": [("a", 1_000, 2), ("a", 3_000, 1), ("b", 1_000, 1), ("c", 1_000, 1)],
    "sessions": [
        ("a", 1_000, 1_050, 2), ("a", 3_000, 3_000, 1), ("b", 1_000, 1_000, 1), ("c", 1_000, 1_000, 1),
    ],
    "keys": [3, 1, None],
    "fetched": [2, 1],
}  # fmt: skip


@THREADS
@pytest.mark.parametrize("caching", [False, True], ids=["plain", "cached"])
@pytest.mark.parametrize("store_type", ["rocksdb", "in_memory"])
def test_only_uncommitted_reads_see_rows_before_their_commit(
    *, threads: int, caching: bool, store_type: str
) -> None:
    bench = Bench(
        all_kinds(caching=caching, store_type=store_type),
        {"in": 2},
        cache_bytes=10 << 20 if caching else 0,
        commit_interval_ms=NEVER_MS,
        threads=threads,
    )
    rows = [("a", 1_000), ("b", 1_000), ("a", 1_050), ("c", 1_000), ("a", 3_000)]
    with living(bench) as life:
        # A task that starts commits before its first record, and with it what the other has done.
        for key, timestamp in rows:
            bench.send("in", key, "x", timestamp)
        until(lambda: rows_of(life, uncommitted=True) == FULL)
        assert rows_of(life, uncommitted=False) == NOTHING
        life.worker._schedule.due_s = 0.0
        until(lambda: rows_of(life, uncommitted=False) == FULL)
        assert rows_of(life, uncommitted=True) == FULL


def counting(work: Any = lambda value: value) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=STRING, value_serde=STRING).map_values(work)
    stream.group_by_key().count(store="counts")
    return builder.build()


@THREADS
def test_uncommitted_rows_are_discarded_after_a_failure(*, threads: int) -> None:
    def work(value: str) -> str:
        if value == "bad":
            raise ValueError("bad")
        return value

    bench = Bench(counting(work), {"in": 1}, commit_interval_ms=NEVER_MS, threads=threads)
    bench.send("in", "a", "x")
    life = Life(bench)
    life.wait_until_running()
    store = life.store("counts", uncommitted=True)
    until(lambda: store.get("a") is not None)
    bench.send("in", "a", "bad")
    until(lambda: life.error is not None)
    life.stop()
    assert isinstance(life.error, RecordFailedError)
    with pytest.raises(InvalidStateStoreError):
        store.get("a")
    with living(bench, paused=True) as after:
        assert after.store("counts", uncommitted=True).get("a") is None
        assert list(after.store("counts", uncommitted=True).all()) == []


def test_rows_of_a_failed_transaction_are_rolled_back() -> None:
    bench = Bench(counting(), {"in": 1}, commit_interval_ms=NEVER_MS)
    bench.send("in", "a", "x")
    with living(bench) as life:
        store = life.store("counts", uncommitted=True)
        until(lambda: store.get("a") is not None)
        bench.broker.commit_fates.append(CommitFate.UNKNOWN_OPEN)
        life.worker.paused = frozenset({0})
        life.worker._schedule.due_s = 0.0
        until(lambda: life.worker.metrics.rolled_back == 1)

        def value() -> Any:
            try:
                return store.get("a")
            except InvalidStateStoreError:
                return "not running"

        until(lambda: value() is None)
        life.worker.paused = frozenset()
        until(lambda: store.get("a") is not None)
        assert store.get("a").value == 1


@THREADS
def test_a_worker_in_a_long_call_is_waited_for_until_the_deadline(*, threads: int) -> None:
    entered, released = threading.Event(), threading.Event()

    def slow(value: str) -> str:
        if value == "slow":
            entered.set()
            released.wait(PATIENCE_S)
        return value

    bench = Bench(counting(slow), {"in": 1}, commit_interval_ms=NEVER_MS, threads=threads)
    bench.send("in", "a", "slow")
    with living(bench) as life:
        assert entered.wait(PATIENCE_S)
        time.sleep(1.1 if threads > 1 else 0)  # calls of ranges are looked at when they are long
        with pytest.raises(QueryTimeoutError) as caught:
            life.store("counts", uncommitted=True, timeout_s=0.05).get("a")
        for word in ("store counts", "slow", "test_questions.py", "in-0 offset 0", "50 ms"):
            assert word in str(caught.value)
        assert life.store("counts", uncommitted=False).get("a") is None
        released.set()
        assert life.store("counts", uncommitted=True).get("a").value == 1
    assert life.error is None


def test_a_query_of_a_task_elsewhere_is_refused() -> None:
    bench = Bench(counting(), {"in": 1}, commit_interval_ms=NEVER_MS)
    with living(bench) as life:
        answers = life.worker.questions.ask(
            TaskId(0, 7), "counts", PATIENCE_S, UncommittedRows.entries_added
        )
        with pytest.raises(InvalidStateStoreError, match="no running task"):
            answers()
    with pytest.raises(InvalidStateStoreError, match="no running task"):
        life.worker.questions.ask(TaskId(0, 0), "counts", 1.0, UncommittedRows.entries_added)


def test_pending_queries_are_answered_when_a_worker_ends() -> None:
    bench = Bench(counting(), {"in": 1})
    worker = bench.make_worker()
    answers = worker.questions.ask(
        TaskId(0, 0), "counts", PATIENCE_S, UncommittedRows.entries_added
    )
    worker.stop()
    began_s = time.monotonic()
    worker.run()
    with pytest.raises(InvalidStateStoreError):
        answers()
    assert time.monotonic() - began_s < PATIENCE_S


@THREADS
def test_a_processor_that_queries_its_worker_is_refused(*, threads: int) -> None:
    found: list[Exception] = []

    class Asking(Processor[str, str, str, str]):
        keyed = True

        def process(self, record: Record[str, str]) -> None:
            try:
                lives[0].store("mine", uncommitted=True).get(record.key)
            except InvalidStateStoreError as error:
                found.append(error)

    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value("mine", key_serde=STRING, value_serde=LONG))
    builder.stream("in", key_serde=STRING, value_serde=STRING).process(Asking, stores=["mine"])
    bench = Bench(builder.build(), {"in": 1}, threads=threads)
    lives: list[Life] = []
    with living(bench) as life:
        lives.append(life)
        bench.send("in", "a", "x")
        until(lambda: found)
    assert "can't wait for its own uncommitted rows" in str(found[0])


def test_an_idle_worker_polls_faster_after_a_query() -> None:
    bench = Bench(counting(), {"in": 1}, commit_interval_ms=NEVER_MS)
    with living(bench) as life:
        usual_s = life.worker._loop.idle_s()
        life.store("counts", uncommitted=True).get("a")
        assert life.worker._loop.idle_s() < usual_s / 2 or not life.worker.questions.are_frequent


@THREADS
def test_an_error_of_a_query_is_raised_at_its_caller(*, threads: int) -> None:
    def fails(_rows: UncommittedRows) -> int:
        raise ZeroDivisionError

    bench = Bench(counting(), {"in": 1}, commit_interval_ms=NEVER_MS, threads=threads)
    bench.send("in", "a", "x")
    with living(bench) as life:
        with pytest.raises(ZeroDivisionError):
            life.worker.questions.ask(TaskId(0, 0), "counts", PATIENCE_S, fails)()
        until(lambda: life.store("counts", uncommitted=True).get("a") is not None)
    assert life.error is None


@THREADS
def test_paused_tasks_answer_queries(*, threads: int) -> None:
    bench = Bench(counting(), {"in": 1}, commit_interval_ms=NEVER_MS, threads=threads)
    bench.send("in", "a", "x")
    with living(bench) as life:
        store = life.store("counts", uncommitted=True)
        until(lambda: store.get("a") is not None)
        life.worker.paused = frozenset({0})
        bench.send("in", "a", "x")
        time.sleep(0.01)
        assert store.get("a").value == 1


def test_ranges_with_coroutines_answer_queries_between_records() -> None:
    entered, released = threading.Event(), threading.Event()

    class Counting(Processor[str, str, str, str]):
        keyed = True

        def init(self, context: Any) -> None:
            self._store = context.get_state_store("mine")

        async def process(self, record: Record[str, str]) -> None:
            self._store.put(record.key, (self._store.get(record.key) or 0) + 1)
            if record.value == "slow":
                entered.set()
                await asyncio.to_thread(released.wait, PATIENCE_S)
            self._store.put(record.key, self._store.get(record.key) + 1)

    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value("mine", key_serde=STRING, value_serde=LONG))
    builder.stream("in", key_serde=STRING, value_serde=STRING).process(Counting, stores=["mine"])
    bench = Bench(builder.build(), {"in": 1}, commit_interval_ms=NEVER_MS, threads=4)
    keys = [f"k{number}" for number in range(20)]
    for key in keys:
        bench.send("in", key, "x")
    with living(bench) as life:
        store = life.store("mine", uncommitted=True)
        until(lambda: dict(store.all()) == dict.fromkeys(keys, 2))
        bench.send("in", "k1", "slow")
        assert entered.wait(PATIENCE_S)
        with pytest.raises(QueryTimeoutError):
            life.store("mine", uncommitted=True, timeout_s=0.05).get("k1")
        released.set()
        assert store.get("k1") == 4


@THREADS
def test_many_threads_query_while_records_are_processed(*, threads: int) -> None:
    bench = Bench(counting(), {"in": 2}, commit_interval_ms=20, threads=threads)
    keys = [f"k{number}" for number in range(50)]
    errors: list[BaseException] = []

    def ask(life: Life, ended: threading.Event) -> None:
        seen = dict.fromkeys(keys, 0)
        try:
            while not ended.is_set():
                rows = list(life.store("counts", uncommitted=True).all())
                assert len(rows) == len(dict(rows))
                for key, row in rows:
                    assert row.value >= seen[key]
                    seen[key] = row.value
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    with living(bench) as life:
        ended = threading.Event()
        asking = [threading.Thread(target=ask, args=(life, ended)) for _ in range(3)]
        for each in asking:
            each.start()
        for _ in range(40):
            for key in keys:
                bench.send("in", key, "x")
        store = life.store("counts", uncommitted=True)
        until(lambda: {row.value for _, row in store.all()} == {40})
        ended.set()
        for each in asking:
            each.join(PATIENCE_S)
        assert not errors


@THREADS
def test_a_moved_task_answers_queries_at_its_owner(*, threads: int) -> None:
    with GroupBench(counting(), {"in": 1}, commit_interval_ms=NEVER_MS) as group:
        first, second = group.host("a", threads=threads), group.host("b", threads=threads)
        first.run_task("0_0", 1)
        group.send("a")
        group.send("a")
        (number,) = group.plan.subtopologies
        (spec,) = group.plan.subtopologies[number].spec.stores

        def value(host: Host, *, stale: bool = False) -> int | None:
            workers: Any = lambda: [SimpleNamespace(worker=host.worker)]  # noqa: E731 - one of a kind
            store: Any = make_query_store(
                spec,
                CHANGELOG,
                lambda: _sources(workers, number, spec, stale=stale, ask_timeout_s=PATIENCE_S),
            )
            row = store.get("a")
            return None if row is None else int(row.value)

        until(lambda: value(first) == 2)
        found: list[int | None] = []
        ended = threading.Event()
        gone = threading.Event()

        def ask() -> None:
            while not ended.is_set():
                try:
                    found.append(value(first))
                except InvalidStateStoreError:
                    gone.set()

        asking = threading.Thread(target=ask)
        asking.start()
        released = first.release("0_0", 1, keep=1)
        assert gone.wait(PATIENCE_S)
        second.run_task("0_0", 2, released)
        group.send("a")
        until(lambda: value(second) == 3)
        ended.set()
        asking.join(PATIENCE_S)
        assert not asking.is_alive()
        assert set(found) <= {2}
        until(lambda: value(first, stale=True) in {2, 3})  # it follows the changelog
