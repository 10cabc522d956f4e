"""The file lock: exclusive, with a time limit, and kept by a child."""

import subprocess
from pathlib import Path

import pytest

from tidewheel.streams.broker.broker_errors import BrokerError
from tidewheel.streams.broker.file_lock import FileLock


def test_the_lock_has_one_owner(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    with first:
        assert not second.try_acquire()
        with pytest.raises(BrokerError, match="locked by another process"), second:
            pass
    assert second.try_acquire()
    second.release()
    second.release()


def test_waiting_ends_with_an_error_that_names_the_file(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock"), pytest.raises(BrokerError, match=f"{tmp_path}/lock is still"):
        FileLock(tmp_path / "lock").acquire(timeout_ms=60)


def test_a_child_with_the_descriptor_keeps_the_lock(tmp_path: Path) -> None:
    lock, other = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    lock.acquire(timeout_ms=100)
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, pass_fds=(lock.fileno(),)) as child:
        lock.release()
        assert not other.try_acquire()
        child.communicate()
    assert other.try_acquire()
    other.release()


def test_an_unlocked_file_has_no_descriptor(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="not locked"):
        FileLock(tmp_path / "lock").fileno()
