"""Lives of a worker: restarts and ends."""

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.clock import FakeClock
from tidewheel import (
    ApplicationShutdownError,
    FencedError,
    IncompatibleMemberError,
    RunOptions,
    StreamsBuilder,
    StreamsConfig,
)
from tidewheel.state_stores.errors import DiskFullError
from tidewheel.state_stores.state_directory import StateDirectory
from tidewheel.streams.worker import stream_thread
from tidewheel.streams.worker.application.application import Application
from tidewheel.streams.worker.application.application_state import ApplicationState
from tidewheel.streams.worker.application.memory import ProcessMemory
from tidewheel.streams.worker.group_membership import Departure
from tidewheel.streams.worker.host_watchdog import HostWatchdog
from tidewheel.streams.worker.stream_thread import Answer, StreamThread
from tidewheel.tasks.errors import GlobalStoreDamagedError

_PATIENCE_S = 30.0


class FakeLife:
    """Life that runs one of `Stage.lives`."""

    def __init__(self, stage: "Stage", arguments: dict[str, Any]) -> None:
        self.stage = stage
        self.wipe_globals = arguments["wipe_globals"]
        self.claim_slot: Callable[[], StateDirectory] = arguments["claim_slot"]
        self.ending: threading.Event = arguments["ending"]
        self.ends_all: Callable[[BaseException], bool] = arguments["ends_all"]
        self.worker = None
        self.outdated = False
        self.departures: list[Departure] = []
        self.stops = 0

    def run(self) -> None:
        self.stage.lives.pop(0)(self)

    def depart(self, departure: Departure) -> None:
        self.departures.append(departure)

    def stop(self) -> None:
        self.stops += 1


Life = Callable[[FakeLife], None]


class Stage:
    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *lives: Life, fixed: bool = False, **settings: Any
    ) -> None:
        self.lives = list(lives)
        self.lived: list[FakeLife] = []
        self.errors: list[BaseException] = []
        self.answer: Callable[[], Answer] = lambda: "shutdown_client"
        self.shutdowns: list[str] = []
        self.ended: list[StreamThread] = []
        self.clock = FakeClock()
        builder = StreamsBuilder()
        builder.stream("in", key_serde=str, value_serde=str).to("out")
        config = StreamsConfig(application_id="app", bootstrap_servers="unused:9092", **settings)
        application = Application(
            spec=builder.build().spec(config),
            topology_hash=b"12345678",
            config=config,
            options=RunOptions(fixed=fixed),
            state=ApplicationState(),
            clock=self.clock,
            memory=ProcessMemory(config.rocksdb),
            on_restore=lambda _event: None,
        )

        def make(*_: Any, **arguments: Any) -> FakeLife:
            self.lived.append(FakeLife(self, arguments))
            return self.lived[-1]

        monkeypatch.setattr(stream_thread, "WorkerLife", make)
        monkeypatch.setattr(stream_thread, "_REPLACE_WAIT_S", 0.001)
        monkeypatch.setattr(stream_thread, "_REJOIN_WAIT_S", 0.001)
        self.thread = StreamThread(
            application, HostWatchdog(), self, name="worker", preferred_slot=None, alone=True
        )

    def live(self) -> StreamThread:
        self.thread.start()
        assert self.thread.join(_PATIENCE_S), "the thread ends"
        return self.thread

    def on_running(self) -> None:
        pass

    def answer_to(self, error: BaseException) -> Answer:
        self.errors.append(error)
        return self.answer()

    def on_shutdown(self, reason: str) -> None:
        self.shutdowns.append(reason)

    def on_end(self, thread: StreamThread) -> None:
        self.ended.append(thread)


def clean(_life: FakeLife) -> None:
    """End without an error."""


def ends_by(error: BaseException) -> Life:
    """Return a fixed life that ends by an error."""

    def run(_life: FakeLife) -> None:
        raise error

    return run


def fenced(*, final: bool, code: str = "FENCED") -> Life:
    """Return a life of a member that the group fences."""

    return ends_by(FencedError("over", final=final, code=code))


def test_a_clean_end_is_not_followed_by_another_incarnation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, clean)
    assert stage.live().error is None
    assert (len(stage.lived), stage.ended, stage.errors) == (1, [stage.thread], [])


def test_a_fenced_member_rejoins_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, fenced(final=False), fenced(final=False), clean)
    assert stage.live().error is None
    assert len(stage.lived) == 3
    assert stage.errors == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [("FENCED_INSTANCE", FencedError), ("INCOMPATIBLE_TOPOLOGY", IncompatibleMemberError)],
)
def test_S3_a_finally_fenced_member_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch, code: str, kind: type[Exception]
) -> None:
    stage = Stage(monkeypatch, fenced(final=True, code=code))
    stage.answer = lambda: "replace_thread"
    assert isinstance(stage.live().error, kind)
    assert stage.errors == []


def test_slot_is_held_between_the_lives_and_released_at_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slots: list[StateDirectory] = []

    def first(life: FakeLife) -> None:
        slots.append(life.claim_slot())
        raise FencedError("over")

    def second(life: FakeLife) -> None:
        with closing(StateDirectory.acquire(tmp_path, "app")) as taken:
            assert taken.slot == 1, "another process that starts meanwhile gets the next slot"
        slots.append(life.claim_slot())

    stage = Stage(monkeypatch, first, second, state_dir=str(tmp_path))
    assert stage.live().error is None
    assert slots[0] is slots[1]
    with closing(StateDirectory.acquire(tmp_path, "app")) as free:
        assert free.slot == slots[0].slot == 0


def test_N13_a_fenced_worker_without_a_group_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, ends_by(FencedError("a newer producer")), fixed=True)
    stage.answer = lambda: "replace_thread"
    assert isinstance(stage.live().error, FencedError)


@pytest.mark.parametrize("fixed", [True, False])
def test_a_full_disk_is_waited_for_without_asking_the_user(
    monkeypatch: pytest.MonkeyPatch, fixed: bool
) -> None:
    full = ends_by(DiskFullError("full"))
    stage = Stage(monkeypatch, full, full, full, clean, fixed=fixed)
    assert stage.live().error is None
    assert len(stage.lived) == 4
    assert not stage.errors
    assert stage.thread._next_wait_s(0.0) == 8 * stream_thread._REJOIN_WAIT_S


def test_the_users_handler_decides_about_other_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ValueError("first"), ValueError("second")
    stage = Stage(monkeypatch, ends_by(first), ends_by(second))
    answers: list[Answer] = ["replace_thread", "shutdown_client"]
    stage.answer = lambda: answers.pop(0)
    assert stage.live().error is second
    assert stage.errors == [first, second]


def test_a_handler_that_fails_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer() -> Answer:
        raise RuntimeError("the handler's own bug")

    error = ValueError("the first")
    stage = Stage(monkeypatch, ends_by(error))
    stage.answer = answer
    assert stage.live().error is error


def test_the_group_is_notified_before_the_incarnation_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = ValueError("no such city")
    told: list[bool] = []

    def fails(life: FakeLife) -> None:
        told.extend([life.ends_all(FencedError("over")), life.ends_all(error)])
        raise error

    stage = Stage(monkeypatch, fails)
    stage.answer = lambda: "shutdown_application"
    ended = stage.live().error
    assert isinstance(ended, ApplicationShutdownError)
    assert ended.__cause__ is error
    assert "no such city" in str(ended)
    assert (told, stage.errors) == ([False, True], [error])


def test_with_fixed_assignment_only_this_process_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ValueError("no such city")
    stage = Stage(monkeypatch, ends_by(error), fixed=True)
    stage.answer = lambda: "shutdown_application"
    assert isinstance(stage.live().error, ApplicationShutdownError)
    assert stage.errors == [error]


def test_N12_outdated_topics_start_a_new_incarnation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def outdated(life: FakeLife) -> None:
        life.outdated = True

    stage = Stage(monkeypatch, outdated, clean, fixed=True)
    assert stage.live().error is None
    assert len(stage.lived) == 2


def test_the_first_departure_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    started = threading.Event()

    def until_ending(life: FakeLife) -> None:
        started.set()
        assert life.ending.wait(_PATIENCE_S)

    stage = Stage(monkeypatch, until_ending)
    stage.thread.start()
    assert started.wait(_PATIENCE_S)
    stage.thread.depart(Departure(drain_ms=500))
    stage.thread.depart(Departure())
    assert stage.thread.join(_PATIENCE_S)
    assert stage.lived[0].departures == [Departure(drain_ms=500)]


def test_damage_is_repaired_a_limited_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = GlobalStoreDamagedError("a block is damaged")

    def damaged_after(ms: int) -> Life:
        def run(_life: FakeLife) -> None:
            stage.clock.advance(ms)
            raise damaged

        return run

    stage = Stage(monkeypatch, damaged_after(0), damaged_after(61_000), damaged_after(59_000))
    assert stage.live().error is damaged
    assert [life.wipe_globals for life in stage.lived] == [False, True, True]


def test_a_stopped_worker_repairs_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(life: FakeLife) -> None:
        stage.thread.stop()
        raise GlobalStoreDamagedError("a block is damaged")

    stage = Stage(monkeypatch, damaged)
    assert isinstance(stage.live().error, GlobalStoreDamagedError)


def test_a_member_fenced_while_it_leaves_has_not_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def leaves(life: FakeLife) -> None:
        life.stage.thread.depart(Departure(drain_ms=500))
        raise FencedError("the group has continued without it")

    stage = Stage(monkeypatch, leaves)
    assert stage.live().error is None
    assert len(stage.lived) == 1
