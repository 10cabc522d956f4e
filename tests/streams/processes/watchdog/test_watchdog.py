"""Watchdog process with control topics in its memory."""

import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.streams.processes.watchdog.playing import (
    ReceivedMessage,
    WorkerProgram,
    end_process,
    heard,
    hello,
    is_running,
    least,
    wait_until,
)
from tidewheel.rebalance.protocol.messages import Beat, LeaderBeat, MemberDied
from tidewheel.rebalance.protocol.orders import Welcome
from tidewheel.streams.processes.watchdog.hello import Hello
from tidewheel.streams.processes.watchdog.link import WatchdogLink
from tidewheel.streams.processes.watchdog.watchdog_process import WatchdogProcess

pytestmark = pytest.mark.slow

StartWorker = Callable[[Hello], WorkerProgram]


@pytest.fixture
def said(tmp_path: Path) -> Path:
    return tmp_path / "said"


@pytest.fixture
def command(said: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "tests.streams.processes.watchdog.programs.in_memory_watchdog",
        str(said),
    ]


@pytest.fixture
def start(tmp_path: Path, command: list[str]) -> Iterator[StartWorker]:
    """Start workers with a watchdog each."""
    workers: list[WorkerProgram] = []

    def started(words: Hello) -> WorkerProgram:
        workers.append(WorkerProgram(words, tmp_path, command))
        return workers[-1]

    yield started
    for worker in workers:
        worker.close()
        end_process(worker.watchdog_pid)


def _beats(said: Path, since_ns: int, until_ns: int) -> list[ReceivedMessage]:
    return [
        each
        for each in heard(said)
        if isinstance(each.message, Beat) and since_ns <= each.at_ns <= until_ns
    ]


def test_a_worker_receives_a_welcome_and_every_task(start: StartWorker) -> None:
    worker = start(hello("a"))
    worker.wait_for_order("welcome", transactional_id="app-a-1-0")
    worker.wait_for_order("run", task="0_0")
    worker.wait_for_order("run", task="0_1")
    wait_until(lambda: 0 < worker.lease_left_s() <= 1)


#: Time limit of a death message (ns).
_AT_ONCE_NS = 100_000_000


def _deaths(said: Path, member: str) -> list[int]:
    """Return the times of death messages."""
    return [
        each.at_ns
        for each in heard(said)
        if isinstance(each.message, MemberDied) and each.message.incarnation == f"{member}-1"
    ]


def _death_is_said_after_ns(worker: WorkerProgram, said: Path, member: str) -> int:
    killed_ns = worker.kill()
    wait_until(lambda: bool(_deaths(said, member)))
    return _deaths(said, member)[0] - killed_ns


def test_H21_the_death_of_a_worker_is_reported_within_100_ms(
    start: StartWorker, said: Path
) -> None:
    def measure(number: int) -> int:
        worker = start(hello(f"a{number}"))
        worker.wait_for_order("run")
        return _death_is_said_after_ns(worker, said, f"a{number}")

    assert least(measure, _AT_ONCE_NS) < _AT_ONCE_NS


def test_H21_the_death_of_a_worker_is_noticed_although_its_children_live(
    start: StartWorker, said: Path
) -> None:
    def measure(number: int) -> int:
        worker = start(hello(f"a{number}"))
        worker.wait_for_order("run")
        worker.tell("fork")
        child = int(worker.wait(lambda line: line.text.startswith("child")).text.split()[1])
        took_ns = _death_is_said_after_ns(worker, said, f"a{number}")
        assert is_running(child)
        end_process(child)
        return took_ns

    assert least(measure, _AT_ONCE_NS) < _AT_ONCE_NS


def test_H21_beats_continue_while_a_worker_blocks_the_gil(start: StartWorker, said: Path) -> None:
    def longest_gap_ns(number: int) -> int:
        worker = start(hello(f"a{number}", session_timeout_ms=1_500))
        worker.wait_for_order("run")
        began_ns = time.monotonic_ns()
        worker.tell("hold 2")
        held = worker.wait(lambda line: line.text == "held")
        assert held.at_ns - began_ns > 2_000_000_000
        assert worker.lease_left_s() > 0
        beats = [each.at_ns for each in _beats(said, began_ns, held.at_ns)]
        worker.close()
        times_ns = [began_ns, *beats, held.at_ns]
        return max(later - earlier for earlier, later in itertools.pairwise(times_ns))

    assert least(longest_gap_ns, 400_000_000) < 400_000_000


def test_H21_a_hanging_worker_has_no_more_beats(start: StartWorker, said: Path) -> None:
    worker = start(hello("a", session_timeout_ms=500, worker_hang_timeout_ms=400))
    worker.wait_for_order("run")
    worker.tell("hold 3")
    held = worker.wait(lambda line: line.text == "held")
    beats = _beats(said, 0, held.at_ns)
    assert beats[-1].at_ns < held.at_ns - 1_000_000_000
    worker.wait_for_order("end")


def test_signals_do_not_end_a_watchdog(start: StartWorker, said: Path) -> None:
    worker = start(hello("a"))
    worker.wait_for_order("run")
    assert os.getsid(worker.watchdog_pid) == worker.watchdog_pid
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(worker.watchdog_pid, number)
    since_ns = time.monotonic_ns()
    wait_until(lambda: len(_beats(said, since_ns, 1 << 62)) >= 3)


def test_a_watchdog_ends_with_its_worker_and_resigns(start: StartWorker, said: Path) -> None:
    worker = start(hello("a"))
    worker.wait_for_order("run")
    worker.tell("close")
    assert worker.process.wait(10) == 0
    wait_until(lambda: not is_running(worker.watchdog_pid), 5.0)
    last = [each.message for each in heard(said) if isinstance(each.message, LeaderBeat)][-1]
    assert last.resigns
    assert not any(isinstance(each.message, MemberDied) for each in heard(said))


def test_a_watchdog_ends_after_its_program_was_killed(start: StartWorker) -> None:
    worker = start(hello("a"))
    worker.wait_for_order("run")
    worker.kill()
    wait_until(lambda: not is_running(worker.watchdog_pid), 10.0)


def test_a_killed_watchdog_is_replaced_immediately(start: StartWorker) -> None:
    worker = start(hello("a"))
    worker.wait_for_order("run")
    os.kill(worker.watchdog_pid, signal.SIGKILL)
    end = worker.wait_for_order("end")
    assert "not have this incarnation" in end.order["reason"]


def test_one_watchdog_serves_several_workers(command: list[str], said: Path) -> None:
    watchdog = WatchdogProcess(command)
    links = [
        WatchdogLink.start(
            hello(name), fd=watchdog.connect_worker().detach(), woken=lambda: None, command=command
        )
        for name in ("a", "b")
    ]
    orders: list[list[object]] = [[], []]

    def all_welcome() -> bool:
        for link, taken in zip(links, orders, strict=True):
            taken.extend(link.receive_orders())
        return all(any(isinstance(each, Welcome) for each in taken) for taken in orders)

    wait_until(all_welcome)
    links[0].close()  # without a last message: like a death
    wait_until(lambda: any(isinstance(each.message, MemberDied) for each in heard(said)))
    since_ns = time.monotonic_ns()
    wait_until(lambda: len(_beats(said, since_ns, 1 << 62)) >= 3)
    assert {each.message.incarnation for each in _beats(said, since_ns, 1 << 62)[1:]} == {"b-1"}
    assert links[1].lease_left_s() > 0
    links[1].close()
    watchdog.close()
    assert not watchdog.is_alive()
