"""Starts a watchdog process and gives it workers to look after."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

#: `--intake FD` is added to it.
WATCHDOG_COMMAND: Final = (sys.executable, "-m", "tidewheel.streams.processes.watchdog")


class WatchdogProcess:
    """A watchdog that was started: in a session of its own, so that a terminal's Ctrl-C does not reach it.

    It ends by itself when its workers and this object are gone, after it has said what is to be said for them.

    Attributes:
        pid: The process.
    """

    def __init__(self, command: Sequence[str] = WATCHDOG_COMMAND) -> None:
        self._intake, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own program, without a shell
                    [*command, "--intake", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except BaseException:
                self._intake.close()
                raise
        self.pid = self._process.pid

    def adopt(self) -> socket.socket:
        """Return a worker's end of a new connection (`WatchdogLink.start(fd=...)` in that worker's process).

        Raises OSError if the watchdog is gone.
        """
        return hand_over(self._intake)

    @property
    def intake(self) -> socket.socket:
        """Return what `hand_over` needs; a worker in another process may have it too, and connect by itself."""
        return self._intake

    def is_alive(self) -> bool:
        """Return whether the process still runs."""
        return self._process.poll() is None

    def close(self, timeout_s: float = 5.0) -> None:
        """Give it no more workers and wait for its end; kill it after `timeout_s`. Idempotent."""
        self._intake.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()


def hand_over(intake: socket.socket) -> socket.socket:
    """Return a worker's end of a new connection to the watchdog behind an intake; raises OSError if it is gone."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            socket.send_fds(intake, [b"\0"], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
    return ours
