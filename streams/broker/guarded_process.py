"""Starts a program that can't outlive this one, and stops it."""

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
    """A child that is stopped when this process stops, exits, crashes or is killed.

    Between the two stands a guard (`guard.py`), which holds one end of a pipe whose other end only
    this process has.

    Args:
        command: What to run.
        output: A file that gets what the child prints.
        lock_fd: A descriptor the child keeps open, and with it the lock on its data.
        orphaned_dir: Deleted by the guard if this process dies first.
        grace_ms: How long the child may take to end by itself before it is killed.
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
            self._guard = subprocess.Popen(  # noqa: S603  # our own script
                [*guard, str(lock_fd), str(orphaned_dir or "-"), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=(lock_fd,),
                # Ctrl-C in a terminal goes to all processes of its group; this one is to be
                # stopped by its owner, in order.
                start_new_session=True,
            )
        assert self._guard.stdout is not None, "the guard's output is a pipe"
        with self._guard.stdout:
            said = self._guard.stdout.readline().strip()
        if not said.isdigit():
            self._close()
            tail = output.read_text(errors="replace").strip().split("\n")[-1]
            raise BrokerError(f"{command[0]} could not be started: {tail}; see {output}")
        self.pid = int(said)
        """The child's process id."""

    @property
    def is_running(self) -> bool:
        """Whether the child lives."""
        return self._guard.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How the child ended (128 + number if by a signal); None while it runs."""
        return self._guard.poll()

    def stop(self) -> None:
        """Ask the child to end, and after the grace time kill it. Harmless when it has ended."""
        # After a fork both processes hold this object, but the child belongs to one.
        if os.getpid() != self._owner_pid:
            return
        if self.is_running:
            self._guard.terminate()
        self._close()

    def kill(self) -> None:
        """End the child at once, as a crash would."""
        if os.getpid() == self._owner_pid and self.is_running:
            os.kill(self.pid, signal.SIGKILL)
            self._close()  # the guard leaves by itself: a signal on its way out would hide how the child ended
        else:
            self.stop()

    def _close(self) -> None:
        try:
            self._guard.wait((self._grace_ms + _EXTRA_WAIT_MS) / 1000)
        except subprocess.TimeoutExpired:  # the guard itself hangs: Linux then kills the child too
            self._guard.kill()
            self._guard.wait()
        assert self._guard.stdin is not None, "the guard's input is a pipe"
        self._guard.stdin.close()
