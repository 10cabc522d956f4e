"""A guarded child ends on request, and when its starter is gone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.streams.broker.fake_tools import script
from tidewheel.streams.broker.broker_errors import BrokerError
from tidewheel.streams.broker.file_lock import FileLock
from tidewheel.streams.broker.guarded_process import GuardedProcess

Start = Callable[..., GuardedProcess]

_STARTER = """
import sys, time
from pathlib import Path
from tidewheel.streams.broker.file_lock import FileLock
from tidewheel.streams.broker.guarded_process import GuardedProcess
lock = FileLock(Path(sys.argv[1]) / "lock")
lock.acquire(timeout_ms=100)
child = GuardedProcess(sys.argv[2:], output=Path(sys.argv[1]) / "out", lock_fd=lock.fileno(),
                       orphaned_dir=Path(sys.argv[1]) / "data", grace_ms=5000)
print(child.pid, child._guard.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[GuardedProcess] = []
    lock = FileLock(tmp_path / "lock")
    lock.acquire(timeout_ms=100)

    def start(*command: str, grace_ms: int = 5_000) -> GuardedProcess:
        process = GuardedProcess(
            command,
            output=tmp_path / "out",
            lock_fd=lock.fileno(),
            orphaned_dir=None,
            grace_ms=grace_ms,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
    lock.release()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A process that has ended, but is not reaped by its new parent yet, is a zombie.
    state = Path(f"/proc/{pid}/stat")
    try:
        return (
            not state.parent.parent.exists()
            or state.read_text().rsplit(")", 1)[1].split()[0] != "Z"
        )
    except (FileNotFoundError, ProcessLookupError):
        return False


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def _traps(folder: Path) -> Path:
    """A program that ignores SIGTERM and then creates a file."""
    return script(
        folder / "deaf", f"trap '' TERM; : > '{folder}/is-deaf'; while :; do /bin/sleep 0.1; done"
    )


def test_stop_ends_the_child_and_records_its_exit_code(start: Start) -> None:
    child = start("/bin/sleep", "60")
    assert child.is_running
    assert _lives(child.pid)
    child.stop()
    assert not child.is_running
    assert child.exit_code == 128 + signal.SIGTERM
    assert not _lives(child.pid)
    child.stop()


@pytest.mark.slow
def test_a_child_that_ignores_the_signal_is_killed(start: Start, tmp_path: Path) -> None:
    child = start(str(_traps(tmp_path)), grace_ms=200)
    _until((tmp_path / "is-deaf").exists, "the program did not start")
    child.stop()
    assert child.exit_code == 128 + signal.SIGKILL
    assert not _lives(child.pid)


def test_kill_ends_the_child_without_a_grace_period(start: Start, tmp_path: Path) -> None:
    child = start(str(_traps(tmp_path)), grace_ms=60_000)
    _until((tmp_path / "is-deaf").exists, "the program did not start")
    child.kill()
    assert child.exit_code == 128 + signal.SIGKILL


def test_the_end_of_a_child_is_detected(start: Start, tmp_path: Path) -> None:
    child = start("/bin/sh", "-c", "echo good; echo bye >&2; exit 7")
    _until(lambda: not child.is_running, "the end went unnoticed")
    assert child.exit_code == 7
    assert (tmp_path / "out").read_text() == "good\nbye\n"


def test_a_program_that_can_not_be_started_is_named(start: Start, tmp_path: Path) -> None:
    with pytest.raises(BrokerError) as failure:
        start("/nowhere/java")
    assert "/nowhere/java could not be started" in str(failure.value)
    assert "No such file or directory" in str(failure.value)
    assert str(tmp_path / "out") in str(failure.value)


def test_a_forked_copy_of_the_owner_does_not_stop_the_child(start: Start) -> None:
    child = start("/bin/sleep", "60")
    child._owner_pid += 1  # as in a forked process
    child.stop()
    child.kill()
    assert child.is_running
    child._owner_pid -= 1


def _start_starter(folder: Path, *command: str) -> tuple[subprocess.Popen[bytes], int, int]:
    """Start `command` under guard in another process; return it and both pids."""
    (folder / "data").mkdir()
    starter = subprocess.Popen(
        [sys.executable, "-c", _STARTER, str(folder), *command],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert starter.stdout is not None
    with starter.stdout:
        child, guard = (int(pid) for pid in starter.stdout.readline().split())
    return starter, child, guard


@pytest.mark.slow
def test_the_child_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    starter, child, guard = _start_starter(tmp_path, "/bin/sleep", "60")
    assert not FileLock(tmp_path / "lock").try_acquire()
    starter.kill()
    starter.wait()
    _until(lambda: not _lives(child) and not _lives(guard), "the child lives on")
    assert not (tmp_path / "data").exists()
    with FileLock(tmp_path / "lock"):
        pass


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a child with its parent")
def test_the_child_ends_when_the_guard_is_killed(tmp_path: Path) -> None:
    starter, child, guard = _start_starter(tmp_path, str(_traps(tmp_path)))
    os.kill(guard, signal.SIGKILL)
    _until(lambda: not _lives(child), "the child lives on")
    starter.kill()
    starter.wait()
    assert (tmp_path / "data").exists()


@pytest.mark.slow
def test_the_lock_lasts_as_long_as_the_child(tmp_path: Path) -> None:
    starter, child, _guard = _start_starter(tmp_path, str(_traps(tmp_path)))
    _until((tmp_path / "is-deaf").exists, "the program did not start")
    starter.kill()
    starter.wait()
    assert _lives(child)
    assert not FileLock(tmp_path / "lock").try_acquire()
    os.kill(child, signal.SIGKILL)
    lock = FileLock(tmp_path / "lock")
    lock.acquire(timeout_ms=20_000)
    lock.release()
