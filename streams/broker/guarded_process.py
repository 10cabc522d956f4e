"""A child process that does not outlive this one."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tidewheel.streams.broker.broker_errors import BrokerError

_GUARD = Path(__file__).with_name("guard.py")
_EXTRA_WAIT_MS = 5_000


class GuardedProcess:
    """A child that stops when this process stops, exits, crashes or is killed.

    A guard process (`guard.py`) runs in between; it reads a pipe that ends with this process.

    Args:
        lock_fd: Descriptor of the lock on the child's data; the child inherits it.
        orphaned_dir: Folder that the guard deletes if this process dies first.
        grace_ms: Time for the child to end by itself before it is killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        output: Path,
        lock_fd: int,
        orphaned_dir: Path | None,
        grace_ms: int,
    ) -> None:
        self._owner_pid = os.getpid()
        self._grace_ms = grace_ms
        guard = [sys.executable, "-I", "-S", str(_GUARD), str(self._owner_pid), str(grace_ms)]
        with output.open("ab") as log:
            self._guard = subprocess.Popen(  # noqa: S603 - our own script
                [*guard, str(lock_fd), str(orphaned_dir or "-"), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=(lock_fd,),
                # Ctrl-C signals all processes of the terminal's group, but the owner must stop this
                # child itself.
                start_new_session=True,
            )
        assert self._guard.stdout is not None, "the guard's output is a pipe"
        with self._guard.stdout:
            pid = self._guard.stdout.readline().strip()
        if not pid.isdigit():
            self._close()
            tail = output.read_text(errors="replace").strip().split("\n")[-1]
            raise BrokerError(f"{command[0]} could not be started: {tail}; see {output}")
        self.pid = int(pid)

    @property
    def is_running(self) -> bool:
        return self._guard.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The child's exit code (128 + signal number for a signal); None while it runs."""
        return self._guard.poll()

    def stop(self) -> None:
        """Terminate the child; kill it after the grace time. Idempotent."""
        # After a fork two processes have this object, and the child belongs to the older one.
        if os.getpid() != self._owner_pid:
            return
        if self.is_running:
            self._guard.terminate()
        self._close()

    def kill(self) -> None:
        if os.getpid() == self._owner_pid and self.is_running:
            os.kill(self.pid, signal.SIGKILL)
            self._close()  # the guard exits by itself; a signal would hide the child's exit code
        else:
            self.stop()

    def _close(self) -> None:
        try:
            self._guard.wait((self._grace_ms + _EXTRA_WAIT_MS) / 1000)
        except subprocess.TimeoutExpired:  # the guard hangs: when it dies, Linux kills the child
            self._guard.kill()
            self._guard.wait()
        assert self._guard.stdin is not None, "the guard's input is a pipe"
        self._guard.stdin.close()
