"""Lifecycle of an application: states, signals, pausing, metrics, and store queries."""

import signal
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.cluster import Cluster, SteadyFeed, until
from tests.integration.conftest import StartApp, StartWorker
from tests.integration.programs.jobs import JOBS, STORE
from tidewheel import (
    ApplicationShutdownError,
    InvalidStateStoreError,
    IsolationLevel,
    KafkaStreams,
    KafkaStreamsState,
    Processor,
    ProcessorContext,
    Record,
    RecordFailedError,
    RunOptions,
    Serdes,
    StreamsBuilder,
    StreamsError,
    TimeWindows,
)

_RECORDS: Final = [(b"key-%d" % (index % 10), b"word-%d" % (index % 7)) for index in range(200)]
_HOUR_MS: Final = 3_600_000


@pytest.fixture
def source(cluster: Cluster, unique: str) -> str:
    cluster.create({f"in-{unique}": 2, f"out-{unique}": 1})
    return f"in-{unique}"


@pytest.mark.parametrize(
    ("number", "guarantee"),
    [
        (signal.SIGTERM, "exactly_once"),
        (signal.SIGTERM, "at_least_once"),
        (signal.SIGINT, "exactly_once"),
    ],
)
def test_signal_commits_everything_and_closes(
    cluster: Cluster,
    start_worker: StartWorker,
    config: dict[str, Any],
    source: str,
    unique: str,
    number: signal.Signals,
    guarantee: str,
) -> None:
    config |= {"processing_guarantee": guarantee, "commit_interval_ms": 10_000}
    feed = SteadyFeed(cluster, source, lambda n: _RECORDS[n % 200], rate=2_000)
    feed.start()
    worker = start_worker("worker")
    worker.go("count_by_key", source, f"out-{unique}", config)
    worker.wait_until_running()
    until(lambda: _processed(worker.numbers()) > 1_000, "it has processed records")

    worker.send(number)

    assert worker.wait() == 0, worker.log[-3000:]
    numbers = worker.numbers()
    assert {
        str(each): offset for each, offset in cluster.committed(config["application_id"]).items()
    } == {
        name.removeprefix("position:"): position
        for name, position in numbers.items()
        if name.startswith("position:")
    }
    feed.stop()
    successor = start_worker("successor")
    successor.go("count_by_key", source, f"out-{unique}", config | {"commit_interval_ms": 50})
    cluster.wait_until_consumed(config["application_id"], source)
    assert successor.stop() == 0
    assert not [name for name in successor.numbers() if name.startswith("restored:")]
    output = cluster.values_by_key(f"out-{unique}")
    assert sum(map(len, output.values())) == len(feed.records), (
        "each update once, in both guarantees"
    )


def _processed(numbers: dict[str, int]) -> int:
    return sum(offset for name, offset in numbers.items() if name.startswith("position:"))


def test_states_of_a_run_without_errors(
    start_app: StartApp, config: dict[str, Any], source: str, unique: str
) -> None:
    moves: list[tuple[str, str]] = []

    app = start_app(
        JOBS["count_by_key"](source, f"out-{unique}"),
        config,
        prepare=lambda app: app.set_state_listener(lambda new, old: moves.append((old, new))),
    )
    assert app.close(timeout=30_000)

    assert moves == [
        ("CREATED", "REBALANCING"),
        ("REBALANCING", "RUNNING"),
        ("RUNNING", "PENDING_SHUTDOWN"),
        ("PENDING_SHUTDOWN", "NOT_RUNNING"),
    ]
    assert app.close(timeout=1), "again, and nothing happens"
    with pytest.raises(StreamsError, match="make a new one"):
        app.start()


def _failing(source: str, fails: list[Exception]) -> StreamsBuilder:
    def work(value: bytes) -> bytes:
        if fails:
            raise fails.pop()
        return value

    builder = StreamsBuilder()
    builder.stream(source, key_serde=Serdes.bytes(), value_serde=Serdes.bytes()).map_values(
        work
    ).to(source.replace("in", "out"), key_serde=Serdes.bytes(), value_serde=Serdes.bytes())
    return builder


def _failing_at(source: str, bad: bytes) -> StreamsBuilder:
    def work(value: bytes) -> bytes:
        if value == bad:
            raise ValueError("as told")
        return value

    builder = StreamsBuilder()
    stream = builder.stream(source, key_serde=bytes, value_serde=bytes)
    stream.map_values(work).to(source.replace("in", "out"), key_serde=bytes, value_serde=bytes)
    return builder


def test_states_of_a_run_that_ends_with_an_error(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], source: str
) -> None:
    moves: list[tuple[str, str]] = []
    cluster.send(source, _RECORDS[:1])

    app = start_app(
        _failing(source, [ValueError("no")]),
        config,
        prepare=lambda app: app.set_state_listener(lambda new, old: moves.append((old, new))),
        wait=False,
    )
    until(lambda: app.state is KafkaStreamsState.ERROR, "it ends")
    assert app.close(timeout=30_000)

    assert moves == [
        ("CREATED", "REBALANCING"),
        ("REBALANCING", "RUNNING"),
        ("RUNNING", "PENDING_ERROR"),
        ("PENDING_ERROR", "ERROR"),
    ]
    assert app.state is KafkaStreamsState.ERROR
    assert isinstance(app.error, RecordFailedError)


def test_uncaught_exception_handler_may_start_the_worker_again(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], source: str
) -> None:
    seen: list[BaseException] = []

    def handle(error: BaseException) -> Any:
        seen.append(error)
        return "replace_thread"

    cluster.send(source, _RECORDS)
    start_app(
        _failing(source, [ValueError("only once")]),
        config,
        prepare=lambda app: app.set_uncaught_exception_handler(handle),
        wait=False,
    )
    cluster.wait_until_consumed(config["application_id"], source)

    assert [type(error) for error in seen] == [RecordFailedError]
    assert len(cluster.read(source.replace("in", "out"))) == len(_RECORDS)


def test_one_worker_may_end_the_whole_application(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], source: str, tmp_path: Path
) -> None:
    apps = [
        start_app(
            _failing_at(source, b"bad"),
            config | {"state_dir": str(tmp_path / name)},
            options=RunOptions(),
            prepare=lambda app: app.set_uncaught_exception_handler(
                lambda _error: "shutdown_application"
            ),
        )
        for name in ("a", "b")
    ]
    cluster.send(source, [*_RECORDS, (b"key-0", b"bad")])
    until(lambda: all(app.state is KafkaStreamsState.ERROR for app in apps), "both end")

    assert all(isinstance(app.error, ApplicationShutdownError) for app in apps)
    assert all("RecordFailedError" in str(app.error) for app in apps)
    assert {type(app.error.__cause__) for app in apps if app.error is not None} == {
        RecordFailedError,
        type(None),
    }, "one failed, one was told"

    start_app(
        _failing_at(source, b"never"),
        config | {"state_dir": str(tmp_path / "c")},
        options=RunOptions(),
    )
    cluster.wait_until_consumed(config["application_id"], source)
    assert len(cluster.read(source.replace("in", "out"))) == len(_RECORDS) + 1


def test_pause_and_resume(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], source: str, unique: str
) -> None:
    app = start_app(JOBS["count_by_key"](source, f"out-{unique}"), config)
    cluster.send(source, _RECORDS)
    cluster.wait_until_consumed(config["application_id"], source)

    app.pause()
    cluster.send(source, _RECORDS)
    until(lambda: app.metrics()["records-lag"] == len(_RECORDS), "it sees what it does not process")

    assert app.metrics()["process-total"] == len(_RECORDS)
    assert app.state is KafkaStreamsState.RUNNING
    assert app.store(STORE).get("key-0").value == 20
    assert sum(cluster.committed(config["application_id"]).values()) == len(_RECORDS)

    app.resume()
    cluster.wait_until_consumed(config["application_id"], source)
    until(lambda: app.metrics()["records-lag"] == 0, "it has caught up")
    assert app.metrics()["process-total"] == 2 * len(_RECORDS)
    assert app.store(STORE).get("key-0").value == 40


class _CommitOnRequest(Processor[str, bytes, str, bytes]):
    """Requests a commit when a record asks for it."""

    def init(self, context: ProcessorContext[str, bytes]) -> None:
        self._context = context

    def process(self, record: Record[str, bytes]) -> None:
        if record.value == b"commit":
            self._context.commit()


def test_store_shows_committed_values_only(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], source: str
) -> None:
    builder = StreamsBuilder()
    stream = builder.stream(source, key_serde=Serdes.string(), value_serde=Serdes.bytes())
    stream.group_by_key().count(store=STORE)
    stream.process(_CommitOnRequest)
    app = start_app(builder, config | {"commit_interval_ms": _HOUR_MS})
    store = app.store(STORE)
    # The first commit comes early and records the application's name.
    cluster.send(source, [(b"key", b"x")] * 5, partition=0)
    until(lambda: app.metrics()["process-total"] == 5, "five are processed")
    before = store.get("key")
    cluster.send(source, [(b"key", b"x")] * 5, partition=0)
    until(lambda: app.metrics()["process-total"] == 10, "five more are processed")

    assert store.get("key") == before
    assert before is None or before.value <= 5

    cluster.send(source, [(b"key", b"commit")], partition=0)
    until(lambda: (row := store.get("key")) is not None and row.value == 11, "it is committed")
    assert [key for key, _ in store.all()] == ["key"]


@pytest.mark.parametrize("factor", [1, 4])
def test_queries_of_uncommitted_rows_return_them(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], source: str, factor: int
) -> None:
    builder = StreamsBuilder()
    stream = builder.stream(source, key_serde=Serdes.string(), value_serde=Serdes.bytes())
    stream = stream.map_values(_refuse_bad)
    stream.group_by_key().count(store=STORE)
    stream.group_by_key().windowed_by(TimeWindows(_HOUR_MS)).count(store="hours")
    config |= {
        "commit_interval_ms": _HOUR_MS,
        "parallelising_factor": factor,
        "default_interactive_query_isolation_level": "read_uncommitted",
    }
    app = start_app(builder, config)
    seen = app.store(STORE)
    committed = app.store(STORE, isolation_level="read_committed")
    first = {f"key-{number}": 3 for number in range(20)}
    cluster.send(source, [(key.encode(), b"x") for key in first] * 3, partition=0)
    until(lambda: _counts(seen) == first, "all are seen")
    cluster.send(source, [(b"key-1", b"x")] * 2, partition=0)
    until(lambda: seen.get("key-1").value == 5, "a row that is not committed is seen")
    hours = app.store("hours", isolation_level=IsolationLevel.READ_UNCOMMITTED)
    assert sum(row.value for each, row in hours.all() if each.key == "key-1") == 5
    kept = _counts(committed)
    assert kept.get("key-1", 0) <= 3, "the first commit comes early"

    cluster.send(source, [(b"key-2", b"bad")], partition=0)
    until(lambda: app.state is KafkaStreamsState.ERROR, "a record fails")
    with pytest.raises(InvalidStateStoreError, match=STORE):
        seen.get("key-1")

    after = start_app(builder, config, prepare=lambda app: app.pause())
    assert _counts(after.store(STORE)) == kept


def _refuse_bad(value: bytes) -> bytes:
    if value == b"bad":
        raise ValueError("bad")
    return value


def _counts(store: Any) -> dict[str, int]:
    return {key: row.value for key, row in store.all()}


def test_only_stores_of_a_running_application_are_read(
    start_app: StartApp, config: dict[str, Any], source: str, unique: str
) -> None:
    app = start_app(JOBS["count_by_key"](source, f"out-{unique}"), config)
    store = app.store(STORE)
    assert list(store.all()) == []
    with pytest.raises(InvalidStateStoreError, match=f"no store other .*{STORE}"):
        app.store("other")

    assert app.close(timeout=30_000)

    with pytest.raises(InvalidStateStoreError, match=STORE):
        store.get("key")


def test_metrics_and_tasks_show_the_progress(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], source: str, unique: str
) -> None:
    app = start_app(JOBS["word_count"](source, f"out-{unique}"), config)
    cluster.send(source, _RECORDS)
    repartition = f"{config['application_id']}-{STORE}-repartition"
    cluster.wait_until_consumed(config["application_id"], source)
    cluster.wait_until_consumed(config["application_id"], repartition)
    until(lambda: app.metrics()["records-lag"] == 0, "it knows that it has caught up")

    metrics = app.metrics()

    assert metrics["state"] == "RUNNING"
    assert metrics["poll-records-total"] == metrics["process-total"] == 2 * len(_RECORDS)
    assert metrics["process-rate"] == pytest.approx(
        metrics["process-total"] / metrics["uptime-ms"] * 1000, rel=0.1
    )
    assert metrics["commit-total"] >= 2
    assert 0 < metrics["commit-latency-avg"] <= metrics["commit-latency-max"]
    assert metrics["restore-total"] == metrics["restore-remaining-records-total"] == 0
    assert metrics["rolled-back-total"] == 0
    assert set(metrics["tasks"]) == {"0_0", "0_1", "1_0", "1_1"}
    assert sum(task["process-total"] for task in metrics["tasks"].values()) == 2 * len(_RECORDS)
    assert metrics["lag"] == {
        f"{topic}-{partition}": 0 for topic in (source, repartition) for partition in (0, 1)
    }
    tasks = {task.task_id: task for task in app.tasks()}
    assert {task.state for task in tasks.values()} == {"RUNNING"}
    assert {task.role for task in tasks.values()} == {"active"}
    assert sum(tasks[f"0_{n}"].positions[f"{source}-{n}"] for n in (0, 1)) == len(_RECORDS)


def test_metrics_before_and_after(config: dict[str, Any], source: str, unique: str) -> None:
    from tidewheel import StreamsConfig  # noqa: PLC0415 - only here it is not started

    settings = StreamsConfig(**config)
    app = KafkaStreams(JOBS["count_by_key"](source, f"out-{unique}").build(settings), settings)

    assert app.metrics() == {"state": "CREATED", "uptime-ms": 0}
    assert app.tasks() == []
    assert app.close()
    assert app.state is KafkaStreamsState.NOT_RUNNING
