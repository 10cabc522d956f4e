"""Workers, leaders and watchdogs are stopped by SIGSTOP and continued by SIGCONT."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Final

import psutil
import pytest

from tests.faults.conftest import MakeRun
from tests.faults.fault_run import PATIENT, FaultRun, incarnations
from tests.integration.cluster import until
from tests.integration.processes import WorkerProcess, numbered, owned

pytestmark = [pytest.mark.timeout(600), pytest.mark.broker, pytest.mark.slow]

NIGHTLY: Final = pytest.mark.nightly("TIDEWHEEL_FAULTS")

HANG_MS: Final = 5_000
FROZEN_S: Final = 20.0
#: More than hang time-out, session time-out and a take-over need on a busy machine.
HELD_S: Final = 20.0


@contextmanager
def stopped(run: FaultRun, name: str, processes: list[psutil.Process]) -> Generator[WorkerProcess]:
    """Stop processes of a worker and leave it out of the run meanwhile."""
    zombie = run.workers.pop(name)
    for process in processes:
        process.suspend()
    try:
        yield zombie
    finally:
        run.workers[name] = zombie
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()


def watchdog(worker: WorkerProcess) -> psutil.Process:
    """Return the watchdog of a worker; it leads if the worker's group has chosen it."""
    (process,) = [
        each
        for each in worker.processes()
        if "tidewheel.streams.processes.watchdog" in each.cmdline()
    ]
    return process


def until_rejoined(worker: WorkerProcess, lives: int) -> None:
    until(lambda: len(incarnations(worker)) > lives, f"{worker.name} joins again")


@pytest.mark.fault("12")
@pytest.mark.parametrize("helpers", ["stopped too", pytest.param("alive", marks=NIGHTLY)])
def test_stopped_worker_is_fenced_and_rejoins_as_a_new_incarnation(
    make_run: MakeRun, helpers: str, record_property: Callable[..., None]
) -> None:
    run = make_run(config={**PATIENT, "worker_hang_timeout_ms": HANG_MS})
    run.begin()
    processes = run.workers["c"].processes()
    lives = len(incarnations(run.workers["c"]))
    until_s = time.monotonic() + FROZEN_S
    with stopped(run, "c", processes if helpers == "stopped too" else processes[:1]) as zombie:
        record_property("recovery_s", run.until_owned())
        run.until_progress()
        assert owned(zombie), "it was stopped with a task"
        time.sleep(max(until_s - time.monotonic(), 0.0))
    until_rejoined(zombie, lives)
    assert watchdog(zombie) in processes
    run.until_shared()
    run.verify()
    assert set(incarnations(zombie)[:lives]) <= run.trace().ended()


@NIGHTLY
@pytest.mark.fault("13")
@pytest.mark.parametrize("moment", ["between decisions", "in a transaction"])
def test_stopped_leader_is_replaced_and_steps_down(
    make_run: MakeRun, moment: str, record_property: Callable[..., None]
) -> None:
    run = make_run(config=PATIENT)
    stops = moment == "in a transaction"
    run.begin("a", failpoints="appending_REVOKING:1:stop" if stops else "")  # it leads
    claim = run.trace().claim()
    for name in ("b", "c"):
        run.start(name)
    if stops:
        assert run.until_one_stops() == "a"
    else:
        run.until_shared()
    with stopped(run, "a", [watchdog(run.workers["a"])]) as zombie:
        lives = len(incarnations(zombie))
        record_property("recovery_s", run.until_owned())
        assert run.trace().claim().leader_epoch > claim.leader_epoch
        run.until_progress()
    until(lambda: "no longer leader of group" in zombie.log, "the former leader steps down")
    until_rejoined(zombie, lives)
    run.until_shared()
    run.verify()


@NIGHTLY
@pytest.mark.fault("15")
def test_worker_of_a_stopped_watchdog_takes_no_input_after_its_lease(
    make_run: MakeRun, record_property: Callable[..., None]
) -> None:
    run = make_run(config=PATIENT)
    run.begin()
    partitions = owned(run.workers["c"])
    with stopped(run, "c", [watchdog(run.workers["c"])]) as zombie:
        lives = len(incarnations(zombie))
        record_property("recovery_s", run.until_owned())
        positions = numbered(zombie, "position")
        until(
            lambda: all(run.position(each) > positions[each] for each in partitions),
            "others process its records",
        )
        assert numbered(zombie, "position") == positions
    until_rejoined(zombie, lives)
    run.until_shared()
    run.verify()


@NIGHTLY
@pytest.mark.fault("15")
def test_worker_continues_while_its_watchdog_is_stopped_within_the_lease(
    make_run: MakeRun, record_property: Callable[..., None]
) -> None:
    run = make_run(config={**PATIENT, "session_timeout_ms": 60_000})
    run.begin()
    process = watchdog(run.workers["c"])
    process.suspend()
    record_property("recovery_s", run.until_progress())
    process.resume()
    run.verify()
    assert len(set(incarnations(run.workers["c"]))) == 1


@NIGHTLY
@pytest.mark.fault("15")
def test_watchdog_that_stays_stopped_is_replaced(
    make_run: MakeRun, record_property: Callable[..., None]
) -> None:
    # A worker that stops waits until its watchdog is replaced, after three session time-outs.
    run = make_run(config={**PATIENT, "drain_timeout_ms": 90_000})
    run.begin()
    worker = run.workers["c"]
    lives, stopped_s = len(incarnations(worker)), time.monotonic()
    watchdog(worker).suspend()
    until_rejoined(worker, lives)
    run.until_shared()
    record_property("recovery_s", time.monotonic() - stopped_s)
    watchdog(worker).suspend()
    run.verify()


@NIGHTLY
@pytest.mark.fault("16")
def test_worker_without_the_interpreter_lock_is_fenced(
    make_run: MakeRun, record_property: Callable[..., None]
) -> None:
    run = make_run(
        job="hold_and_count_by_key",
        config={
            "worker_hang_timeout_ms": HANG_MS,
            "max_call_ms": HANG_MS,
            "session_timeout_ms": 6_000,
            "heartbeat_interval_ms": 1_500,
        },
    )
    run.begin()
    lives = {name: len(incarnations(worker)) for name, worker in run.workers.items()}
    name = _hold_lock(run)
    record_property("recovery_s", run.until_progress())
    until_rejoined(run.workers[name], lives[name])
    run.until_shared()
    run.verify()


@NIGHTLY
@pytest.mark.fault("16")
@pytest.mark.fault("52")
def test_worker_without_the_interpreter_lock_is_slow_within_the_limit_of_calls(
    make_run: MakeRun, record_property: Callable[..., None]
) -> None:
    run = make_run(
        job="hold_and_count_by_key",
        config={**PATIENT, "worker_hang_timeout_ms": HANG_MS},
    )
    run.begin()
    owners = run.owners()
    _hold_lock(run)
    record_property("recovery_s", run.until_progress())
    assert run.owners() == owners
    run.verify()
    assert not run.trace().fenced()


def _hold_lock(run: FaultRun) -> str:
    """Have one worker hold its interpreter's lock; return its name."""
    path = run.folder / "held"
    value = f"{HELD_S} {path}"
    run.cluster.send(run.source, [(b"held", value.encode())])
    until(lambda: path.exists() and path.read_text(), "a worker holds its lock")
    return next(
        name for name, worker in run.workers.items() if worker.process.pid == int(path.read_text())
    )
