"""End of an application: closing, draining, signals, failed threads."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tidewheel import (
    KafkaStreams,
    KafkaStreamsState,
    RunOptions,
    StreamsBuilder,
    StreamsConfig,
    StreamsError,
)
from tidewheel.streams.worker.group_membership import Departure
from tidewheel.streams.worker.incarnation import WorkerLife

_PATIENCE_S = 30.0

S = KafkaStreamsState


class Stage:
    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.lives: list[WorkerLife] = []
        self.departures: list[Departure] = []
        self.free = threading.Event()
        self.error: BaseException | None = None

    def app(self, options: RunOptions | None = None, **settings: Any) -> KafkaStreams:
        builder = StreamsBuilder()
        builder.stream("in", key_serde=str, value_serde=str).to("out")
        config = StreamsConfig(application_id="app", bootstrap_servers="unused:9092", **settings)
        return KafkaStreams(builder.build(), config, options=options)

    def run(self, life: WorkerLife) -> None:
        self.lives.append(life)
        life._on_running(True)
        self.begun.release()
        assert self.free.wait(_PATIENCE_S)
        if self.error is not None:
            raise self.error

    def depart(self, life: WorkerLife, departure: Departure) -> None:
        # A closing thread may outlive its test and reach the next one's stage.
        if life in self.lives:
            self.departures.append(departure)
            self.free.set()


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    made = Stage()
    monkeypatch.setattr(WorkerLife, "run", lambda life: made.run(life))  # noqa: PLW0108 - a bound method would not get the life
    monkeypatch.setattr(WorkerLife, "depart", lambda life, each: made.depart(life, each))  # noqa: PLW0108 - as above
    yield made
    made.free.set()


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def started(app: KafkaStreams) -> KafkaStreams:
    app.start()
    assert app.wait_until_running(_PATIENCE_S)
    return app


@pytest.mark.parametrize(
    ("options", "settings", "end", "departure"),
    [
        (None, {}, lambda app: app.drain(timeout=700), Departure(drain_ms=700)),
        (None, {}, lambda app: app.drain(), Departure(drain_ms=25_000)),
        (None, {"group_instance_id": "a"}, lambda app: app.drain(), Departure(rejoin=True)),
        (RunOptions(fixed=True), {}, lambda app: app.drain(), Departure()),
        (None, {"task_assignor": "fixed"}, lambda app: app.drain(), Departure()),
        (None, {}, lambda app: app.close(), Departure()),
        (None, {}, lambda app: app.close(leave_group=False), Departure(rejoin=True)),
    ],
)
def test_L4_S1_the_kind_of_departure_depends_on_the_member(
    stage: Stage,
    options: RunOptions | None,
    settings: dict[str, Any],
    end: Callable[[KafkaStreams], bool],
    departure: Departure,
) -> None:
    app = started(stage.app(options, **settings))
    assert end(app)
    assert stage.departures == [departure]
    assert app.state is S.NOT_RUNNING


def test_a_closed_application_can_not_be_started(stage: Stage) -> None:
    app = stage.app()
    assert app.close()
    with pytest.raises(StreamsError, match="was closed before; make a new one"):
        app.start()


def test_a_stop_closes_in_the_background(stage: Stage) -> None:
    app = started(stage.app())
    app.stop()
    assert app.wait(_PATIENCE_S)
    assert app.close(timeout=30_000)
    assert stage.departures == [Departure()]


def test_close_returns_after_its_timeout(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerLife, "depart", lambda _life, _departure: None)
    app = started(stage.app())
    assert not app.close(timeout=10)
    assert app.state is S.PENDING_SHUTDOWN
    stage.free.set()
    assert app.close(timeout=30_000)


def test_a_drain_without_a_broker_does_not_wait_for_the_group(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerLife, "depart", lambda _life, _departure: None)
    monkeypatch.setattr(WorkerLife, "stop", lambda _life: stage.free.set())
    app = started(stage.app())
    assert app.drain(timeout=3_600_000)
    assert app.state is S.NOT_RUNNING


def test_a_close_without_a_broker_gives_up_its_last_commit(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerLife, "depart", lambda _life, _departure: None)
    monkeypatch.setattr(WorkerLife, "stop", lambda _life: None)
    app = started(stage.app())
    assert not app.drain(timeout=3_600_000)
    assert app.state is S.PENDING_SHUTDOWN


def test_L4_the_first_signal_drains_and_the_second_ends_immediately(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerLife, "depart", lambda _life, each: stage.departures.append(each))
    app = stage.app(drain_timeout_ms=60_000)
    # Set explicitly: processes started in the background ignore Ctrl-C.
    before = signal.default_int_handler
    found = signal.signal(signal.SIGINT, before)

    def interrupt() -> None:
        assert stage.begun.acquire(timeout=_PATIENCE_S)
        os.kill(os.getpid(), signal.SIGINT)
        shutting_down.wait(_PATIENCE_S)
        os.kill(os.getpid(), signal.SIGINT)

    shutting_down = threading.Event()
    app.set_state_listener(
        lambda new, _: shutting_down.set() if new is S.PENDING_SHUTDOWN else None
    )
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            app.run()
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, found)
    assert stage.departures in ([], [Departure(drain_ms=60_000)]), "it had begun to drain, at most"
    stage.free.set()
    assert app.close(timeout=30_000)


def test_run_drains_when_the_application_stops(stage: Stage) -> None:
    app = stage.app(drain_timeout_ms=900)
    app.set_state_listener(lambda new, _: app.stop() if new is S.RUNNING else None)
    app.run()
    assert stage.departures == [Departure(drain_ms=900)]
    assert app.state is S.NOT_RUNNING


def test_a_thread_that_fails_ends_the_others(stage: Stage) -> None:
    app = started(stage.app())
    assert app.add_stream_thread() == "tidewheel-worker-2"
    for _ in range(2):
        assert stage.begun.acquire(timeout=_PATIENCE_S)
    stage.error = ValueError("the first of two")
    stage.free.set()
    assert app.wait(_PATIENCE_S)
    assert app.close(timeout=30_000)
    assert app.state is S.ERROR
    assert app.error is stage.error


def test_the_last_of_concurrent_state_changes_counts(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = started(stage.app())
    (thread,) = app._threads
    move_to = app._state.move_to

    def overtaken(state: S) -> None:
        if thread.running:
            thread.running = False
            app.on_running()
        move_to(state)

    thread.running = False
    app.on_running()
    assert app.state is S.REBALANCING
    thread.running = True
    monkeypatch.setattr(app._state, "move_to", overtaken)
    app.on_running()
    assert app.state is S.REBALANCING


def test_a_pause_applies_to_workers_that_start_later(stage: Stage) -> None:
    app = started(stage.app())
    (life,) = stage.lives
    assert life.worker is None
    app.pause()
    assert life._paused
    app.resume()
    assert not life._paused


def test_sub_topologies_are_paused_one_by_one(stage: Stage) -> None:
    app = started(stage.app())
    (life,) = stage.lives
    with pytest.raises(StreamsError, match=r"no sub-topology 3, 7; this topology has 0 \("):
        app.pause([7, 0, 3])
    assert life._paused == frozenset()
    app.pause(subtopologies=[0])
    assert life._paused == {0}
    with pytest.raises(StreamsError, match="no sub-topology 1"):
        app.resume([1])
    app.resume([0])
    assert life._paused == frozenset()


def test_threads_are_added_and_removed(stage: Stage) -> None:
    app = stage.app()
    assert app.add_stream_thread() is None
    started(app)
    assert app.remove_stream_thread() is None
    name = app.add_stream_thread()
    for _ in range(2):
        assert stage.begun.acquire(timeout=_PATIENCE_S)
    assert app.remove_stream_thread(timeout=500) == name
    assert stage.departures == [Departure(drain_ms=500)]
    assert app.close(timeout=30_000)
    assert app.add_stream_thread() is None


def test_two_concurrent_removals_end_two_threads(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    departing = threading.Semaphore(0)
    monkeypatch.setattr(WorkerLife, "depart", lambda _life, _departure: departing.release())
    app = started(stage.app())
    names = {app.add_stream_thread(), app.add_stream_thread()}
    for _ in range(3):
        assert stage.begun.acquire(timeout=_PATIENCE_S)
    with ThreadPoolExecutor(2) as pool:
        removals = [pool.submit(app.remove_stream_thread, 10_000) for _ in range(2)]
        for _ in range(2):
            assert departing.acquire(timeout=5)
        assert app.remove_stream_thread() is None
        stage.free.set()
        assert {each.result() for each in removals} == names


@pytest.mark.parametrize("caller", [0, 1])
def test_a_removal_by_a_worker_thread_does_not_wait(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caller: int
) -> None:
    both, done = threading.Event(), threading.Event()
    removed: list[str | None] = []
    monkeypatch.setattr(WorkerLife, "depart", lambda _life, each: stage.departures.append(each))

    def run(life: WorkerLife) -> None:
        number = len(stage.lives)
        stage.lives.append(life)
        life._on_running(True)
        stage.begun.release()
        if number == caller:
            assert both.wait(_PATIENCE_S)
            removed.append(app.remove_stream_thread(timeout=60_000))
            done.set()
        assert stage.free.wait(_PATIENCE_S)

    monkeypatch.setattr(WorkerLife, "run", run)
    app = started(stage.app())
    assert stage.begun.acquire(timeout=_PATIENCE_S)
    name = app.add_stream_thread()
    assert stage.begun.acquire(timeout=_PATIENCE_S)
    both.set()
    assert done.wait(5)
    assert removed == [name]
    assert stage.departures == [Departure(drain_ms=60_000)]
    stage.free.set()
    assert app.close(timeout=30_000)
    assert app.error is None


def test_functions_of_start_and_stop_run_around_the_workers(stage: Stage) -> None:
    app = stage.app()
    calls: list[tuple[str, object]] = []

    @app.on_start
    def opened() -> None:
        calls.append(("start", len(stage.lives)))

    @app.on_start
    async def connected() -> None:
        calls.append(("connect", asyncio.get_running_loop()))

    @app.on_stop
    async def disconnected() -> None:
        calls.append(("disconnect", asyncio.get_running_loop()))

    app.on_stop(lambda: calls.append(("stop", app.state)))
    started(app)
    assert [name for name, _ in calls] == ["start", "connect"]
    assert calls[0][1] == 0, "no worker has started yet"
    assert app.close(timeout=10_000)
    assert [name for name, _ in calls] == ["start", "connect", "stop", "disconnect"]
    assert calls[1][1] is calls[3][1], "one loop"


@pytest.mark.parametrize("is_coroutine", [True, False])
def test_a_failed_function_of_the_start_ends_the_application(
    stage: Stage, is_coroutine: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = stage.app()
    stopped: list[str] = []

    async def connect() -> None:
        raise OSError("no route")

    def connect_plainly() -> None:
        raise OSError("no route")

    app.on_start(connect if is_coroutine else connect_plainly)
    app.on_stop(lambda: stopped.append("stopped"))
    with pytest.raises(OSError, match="no route"):
        app.start()
    assert app.state is S.ERROR
    assert isinstance(app.error, OSError)
    assert not stage.lives
    assert stopped == ["stopped"]
    assert "test_kafka_streams.py:" in caplog.text, "the line of the user's code"


def test_a_failed_function_of_the_end_stops_no_other(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidewheel.streams.worker.application.life_hooks._STOP_S", 0.01)
    app = stage.app()
    stopped: list[str] = []

    @app.on_stop
    def last() -> None:
        stopped.append("last")

    @app.on_stop
    async def hangs() -> None:
        await asyncio.Event().wait()

    @app.on_stop
    def fails() -> None:
        raise ValueError("refused")

    assert started(app).close(timeout=10_000)
    assert app.state is S.NOT_RUNNING
    assert stopped == ["last"]
    assert "hangs" in caplog.text
    assert "refused" in caplog.text


def test_a_close_ends_a_function_of_the_start_that_waits(stage: Stage) -> None:
    app, entered, cancelled = stage.app(), threading.Event(), threading.Event()

    @app.on_start
    async def waits() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(app.start)
        assert entered.wait(_PATIENCE_S)
        assert app.close(timeout=30_000)
        starting.result(_PATIENCE_S)
    assert cancelled.wait(_PATIENCE_S)
    assert app.state is S.NOT_RUNNING
    assert not stage.lives


@pytest.mark.parametrize("call", ["on_start", "on_stop"])
def test_a_function_that_does_not_return_is_logged_by_name_and_line(
    stage: Stage, call: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidewheel.streams.worker.application.life_hooks._REPORT_S", 0.01)
    app, free = stage.app(), threading.Event()

    def hangs() -> None:
        assert free.wait(_PATIENCE_S)

    getattr(app, call)(hangs)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: started(app).close(timeout=60_000))
        until(lambda: "hangs (test_kafka_streams.py:" in caplog.text)
        free.set()
        assert running.result(_PATIENCE_S)
    assert f"waiting for {call} function" in caplog.text


def test_functions_of_start_and_stop_are_checked(stage: Stage) -> None:
    app = stage.app()

    def generator() -> Iterator[int]:
        yield 1

    for bad in (5, lambda needed: needed, generator):
        with pytest.raises(StreamsError):
            app.on_start(bad)  # type: ignore[arg-type, call-overload, unused-ignore] # what the check finds
        with pytest.raises(StreamsError):
            app.on_stop(bad)  # type: ignore[arg-type, call-overload, unused-ignore] # as above
    started(app)
    with pytest.raises(StreamsError):
        app.on_start(lambda: None)
    with pytest.raises(StreamsError):
        app.on_stop(lambda: None)
    assert app.close(timeout=10_000)


def test_functions_of_the_end_are_not_called_without_a_start(stage: Stage) -> None:
    app, stopped = stage.app(), threading.Event()
    app.on_stop(stopped.set)
    assert app.close(timeout=10_000)
    assert not stopped.is_set()


def test_a_run_ends_at_its_time_out(stage: Stage) -> None:
    app = stage.app()
    app.run(timeout=50)
    assert app.state is S.NOT_RUNNING
    assert len(stage.departures) == 1


def test_a_run_ends_once_so_many_records_are_processed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = stage.app()
    counts = [
        {},
        {"tasks": {"0_0": {"process-total": 2}}},
        {"tasks": {"0_0": {"process-total": 7}}},
    ]
    processed = iter(counts)
    monkeypatch.setattr("tidewheel.streams.kafka_streams._COUNT_S", 0.01)
    monkeypatch.setattr(app, "metrics", lambda: next(processed))
    app.run(count=5)
    assert app.state is S.NOT_RUNNING
    assert not list(processed)


@pytest.mark.parametrize("options", [{"count": 0}, {"count": "5"}, {"timeout": -1}, {"collect": 1}])
def test_arguments_of_a_run_are_checked(stage: Stage, options: dict[str, Any]) -> None:
    with pytest.raises(StreamsError, match=next(iter(options))):
        stage.app().run(**options)
