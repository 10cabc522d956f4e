"""One watchdog per program, replaced when dead."""

import os
import signal
import socket
import sys
from collections.abc import Iterator

import pytest

from tidewheel.streams.processes.watchdog.watchdog_process import WatchdogProcess
from tidewheel.streams.worker.host_watchdog import HostWatchdog

pytestmark = [pytest.mark.slow]

FAKE = (sys.executable, "-m", "tests.streams.worker.fake_watchdog")


@pytest.fixture
def host() -> Iterator[HostWatchdog]:
    made = HostWatchdog(command=FAKE)
    yield made
    made.close()


def pid_behind(fd: int) -> int:
    with socket.socket(fileno=fd) as connection:
        connection.sendall(b"who?\n")
        return int(connection.recv(100))


def test_all_workers_of_a_program_share_a_watchdog(host: HostWatchdog) -> None:
    assert pid_behind(host.connect()) == pid_behind(host.connect())


def test_a_dead_watchdog_is_replaced(host: HostWatchdog) -> None:
    first = pid_behind(host.connect())
    assert host._process is not None
    os.kill(first, signal.SIGKILL)
    host._process._process.wait()
    assert pid_behind(host.connect()) != first


def test_the_watchdog_of_the_host_program_is_used() -> None:
    theirs = WatchdogProcess(FAKE)
    host = HostWatchdog(os.dup(theirs.intake.fileno()), command=FAKE)
    assert pid_behind(host.connect()) == theirs.pid
    assert pid_behind(host.connect()) == theirs.pid
    host.close()
    theirs.close()
    assert not theirs.is_alive()


def test_a_worker_starts_a_watchdog_if_that_of_the_host_program_died() -> None:
    theirs = WatchdogProcess(FAKE)
    host = HostWatchdog(os.dup(theirs.intake.fileno()), command=FAKE)
    os.kill(theirs.pid, signal.SIGKILL)
    theirs._process.wait()
    own = pid_behind(host.connect())
    assert own != theirs.pid
    assert pid_behind(host.connect()) == own
    host.close()
    theirs.close()


def test_names_of_programs_differ() -> None:
    assert HostWatchdog().process_id != HostWatchdog().process_id
    assert HostWatchdog(process_id="shop").process_id == "shop"
