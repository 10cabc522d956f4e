"""A supervisor over real processes."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.streams.processes.supervisor.scenario import (
    FAKE_WATCHDOG,
    FAKE_WORKER,
    IMPATIENT,
    QUICK,
    drive,
    is_alive,
    starts,
    until,
    written,
)
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.processes.supervisor.restart_policy import RestartSettings
from tidewheel.streams.processes.supervisor.supervisor import Supervisor
from tidewheel.streams.processes.supervisor.worker_messages import (
    Report,
    StartWorker,
    StateChanged,
    WorkerReady,
    WorkerStopped,
)
from tidewheel.streams.processes.watchdog.watchdog_process import WatchdogProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def _supervise(*targets: str, restart: RestartSettings = QUICK) -> ExitCode:
    return Supervisor(starts(*targets), restart=restart, command=FAKE_WORKER).run()


def test_workers_that_end_by_themselves_end_the_command() -> None:
    assert _supervise("ready", "ready") is ExitCode.OK


def test_a_restarted_worker_gets_the_slot_that_it_took(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    orders = [StartWorker(target=f"slot=7,echo={seen},record=3", slot=0, next_free=True)]
    assert Supervisor(orders, restart=IMPATIENT, command=FAKE_WORKER).run() is not ExitCode.OK
    start = json.loads(seen.with_suffix(".7").read_text())
    assert (start["slot"], start["next_free"]) == (7, False)


def test_a_restarted_worker_knows_the_error_that_was_logged(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    orders = [StartWorker(target=f"echo={seen},record=3")]
    assert Supervisor(orders, restart=IMPATIENT, command=FAKE_WORKER).run() is not ExitCode.OK
    start = json.loads(seen.with_suffix(".0").read_text())
    assert start["known_error"] == "RecordFailedError: bad record"


def test_every_worker_gets_its_slot_and_the_settings_through_its_pipe(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    orders = [
        StartWorker(
            target=f"echo={seen}",
            slot=slot,
            workers=2,
            overrides={"consumer": {"sasl.password": "canary"}},
        )
        for slot in range(2)
    ]
    assert Supervisor(orders, command=FAKE_WORKER).run() is ExitCode.OK
    for slot in range(2):
        start = json.loads(seen.with_suffix(f".{slot}").read_text())
        assert (start["slot"], start["workers"]) == (slot, 2)
        assert start["overrides"]["consumer"]["sasl.password"] == "canary"


def test_reports_of_workers_are_forwarded() -> None:
    said: list[tuple[int, Report]] = []
    Supervisor(
        starts("ready,run"),
        command=FAKE_WORKER,
        on_report=lambda slot, report: said.append((slot, report)),
    ).run()
    assert said == [
        (0, WorkerReady(application_id="app", drain_timeout_ms=5_000)),
        (0, StateChanged(new="RUNNING", old="REBALANCING")),
        (0, WorkerStopped()),
    ]


def test_five_crashes_on_one_offset_end_the_command(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    count = tmp_path / "count"
    assert _supervise(f"count={count},record=42") is ExitCode.CRASH_LOOP
    assert written(count) == "xxxxx"
    assert "topic t, partition 1, offset 42: RecordFailedError: bad record" in caplog.text


@pytest.mark.parametrize("code", [ExitCode.FENCED, ExitCode.MISSING_SOURCE_TOPIC, ExitCode.USAGE])
def test_final_errors_stop_the_other_workers_too(code: ExitCode, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    assert _supervise(f"crash={code.value}", f"ready,serve,mark={mark}") is code
    assert written(mark) == "stop"


def test_without_restarts_a_crash_ends_the_command_with_its_code() -> None:
    once = RestartSettings(enabled=False)
    assert _supervise("record=1", restart=once) is ExitCode.RECORD_FAILED
    assert _supervise("exit=77", restart=once) is ExitCode.FAILED


def test_sigterm_stops_workers_cleanly_and_leaves_with_0(tmp_path: Path) -> None:
    pid, mark = tmp_path / "pid", tmp_path / "mark"
    supervisor = drive(f"ready,run,pid={pid},serve,mark={mark}")
    until(lambda: written(pid))
    supervisor.send_signal(signal.SIGTERM)
    _, said = supervisor.communicate(timeout=20)
    assert supervisor.returncode == ExitCode.OK
    assert written(mark) == "stop"
    assert "SIGTERM: stopping" in said


def test_a_worker_has_its_own_session(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    supervisor = drive(f"pid={pid},serve")
    until(lambda: written(pid))
    worker = int(written(pid))
    assert os.getsid(worker) == worker
    supervisor.send_signal(signal.SIGINT)
    supervisor.communicate(timeout=20)
    assert supervisor.returncode == ExitCode.OK


def test_a_second_ctrl_c_ends_all_processes_immediately(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    supervisor = drive(f"ready,pid={pid},hang")
    until(lambda: written(pid))
    assert supervisor.stderr is not None
    supervisor.send_signal(signal.SIGINT)
    while "stopping" not in supervisor.stderr.readline():
        pass
    supervisor.send_signal(signal.SIGINT)
    supervisor.communicate(timeout=20)
    assert supervisor.returncode == ExitCode.INTERRUPTED
    assert not is_alive(int(written(pid)))


def test_a_worker_that_does_not_stop_in_time_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tidewheel.streams.processes.supervisor.supervisor._CLOSE_GRACE_MS", 0)
    pid = tmp_path / "pid"
    supervisor = Supervisor(
        starts(f"pid={pid},ready=50,hang"),
        command=FAKE_WORKER,
        on_report=lambda _slot, _report: supervisor.request_stop(),
    )
    assert supervisor.run() is ExitCode.NOT_STOPPED_IN_TIME
    assert "did not stop within 50 ms (drain_timeout_ms)" in caplog.text
    assert not is_alive(int(written(pid)))


def test_a_killed_worker_is_started_again(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    supervisor = drive(f"ready,run,pid={pid},serve")
    until(lambda: written(pid))
    first = written(pid)
    os.kill(int(first), signal.SIGKILL)
    until(lambda: written(pid) not in {"", first})
    supervisor.send_signal(signal.SIGTERM)
    _, said = supervisor.communicate(timeout=20)
    assert "killed by SIGKILL" in said
    assert "starting it again" in said
    assert supervisor.returncode == ExitCode.OK


def test_workers_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    pid, mark = tmp_path / "pid", tmp_path / "mark"
    supervisor = drive(f"ready,pid={pid},serve,mark={mark}")
    until(lambda: written(pid))
    supervisor.kill()
    supervisor.communicate(timeout=20)
    until(lambda: written(mark) == "lost")
    until(lambda: not is_alive(int(written(pid))))


class _StopsAfterADeath(Supervisor):
    """Stops between a worker's death and its restart."""

    def _handle_exit(self, slot: Any, code: int) -> None:
        super()._handle_exit(slot, code)
        self.request_stop()


class _StopsAfterDeaths(Supervisor):
    """Stops after this many deaths."""

    deaths = 4

    def _handle_exit(self, slot: Any, code: int) -> None:
        super()._handle_exit(slot, code)
        self.deaths -= 1
        if not self.deaths:
            self.request_stop()


@pytest.mark.parametrize(
    ("death", "described"),
    [
        (f"kill={signal.SIGSEGV.value}", "killed by SIGSEGV"),
        ("exit=4", "exit code 4 without a report"),
    ],
)
def test_the_record_of_silent_deaths_is_named(
    death: str, described: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    count = tmp_path / "count"
    target = f"count={count},hold=16,hold=17,{death}"
    assert _supervise(target, restart=IMPATIENT) is ExitCode.CRASH_LOOP
    assert written(count) == "xxx"
    place = "topic t, partition 1, offset 17"
    assert f"2 crashes on {place}: {described} while processing {place}. Correct" in caplog.text


@pytest.mark.parametrize("steps", ["run,hold=17,hold=,kill=9", "run,exit=0", "exit=2", "exit=12"])
def test_a_silent_death_between_records_counts_for_no_record(steps: str, tmp_path: Path) -> None:
    count = tmp_path / "count"
    supervisor = _StopsAfterDeaths(
        starts(f"count={count},{steps}"), restart=IMPATIENT, command=FAKE_WORKER
    )
    assert supervisor.run() is ExitCode.OK
    assert written(count) == "xxxx"


def test_a_worker_is_careful_only_after_a_silent_death(tmp_path: Path) -> None:
    for death, careful in (("kill=9", True), ("record=3", False)):
        seen = tmp_path / "seen"
        supervisor = _StopsAfterDeaths(
            starts(f"echo={seen},{death}"), restart=QUICK, command=FAKE_WORKER
        )
        supervisor.deaths = 2
        supervisor.run()
        assert json.loads(seen.with_suffix(".0").read_text())["careful"] is careful


def test_a_stopping_supervisor_restarts_no_worker(tmp_path: Path) -> None:
    count = tmp_path / "count"
    supervisor = _StopsAfterADeath(
        starts(f"count={count},crash=1"),
        restart=RestartSettings(first_delay_ms=60_000),
        command=FAKE_WORKER,
    )
    assert supervisor.run() is ExitCode.OK
    assert written(count) == "x"


def test_all_workers_have_one_watchdog_which_ends_with_them(tmp_path: Path) -> None:
    started: list[WatchdogProcess] = []

    def start() -> WatchdogProcess:
        started.append(WatchdogProcess(FAKE_WATCHDOG))
        return started[-1]

    targets = [f"watchdog={tmp_path / str(slot)}" for slot in range(2)]
    supervisor = Supervisor(starts(*targets), command=FAKE_WORKER, start_watchdog=start)
    assert supervisor.run() is ExitCode.OK
    (watchdog,) = started
    assert [written(tmp_path / str(slot)) for slot in range(2)] == [str(watchdog.pid)] * 2
    assert not watchdog.is_alive()


def test_a_dead_watchdog_is_replaced_for_workers_that_start_later() -> None:
    started: list[WatchdogProcess] = []

    def start() -> WatchdogProcess:
        started.append(WatchdogProcess(FAKE_WATCHDOG))
        return started[-1]

    supervisor = Supervisor([], start_watchdog=start)
    supervisor._watchdog_fd()
    supervisor._watchdog_fd()
    assert len(started) == 1
    os.kill(started[0].pid, signal.SIGKILL)
    started[0]._process.wait()
    supervisor._watchdog_fd()
    assert [watchdog.is_alive() for watchdog in started] == [False, True]
    assert supervisor.run() is ExitCode.OK
    assert not started[1].is_alive()
