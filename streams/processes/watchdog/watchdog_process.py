"""A started watchdog process, and connections of workers to it."""

import socket
import sys
from collections.abc import Sequence
from typing import Final

from tidewheel.streams.processes.child import ChildProcess, new_connection

#: `WatchdogProcess` appends `--intake FD`.
WATCHDOG_COMMAND: Final = (sys.executable, "-m", "tidewheel.streams.processes.watchdog")


class WatchdogProcess:
    """A watchdog; it ends by itself when all its workers and this object are gone.

    Attributes:
        intake: The socket for `connect_worker`. Workers in other processes may inherit it and
            connect by themselves.
    """

    def __init__(self, command: Sequence[str] = WATCHDOG_COMMAND) -> None:
        with new_connection() as (self.intake, child_end):
            self._process = ChildProcess(
                [*command, "--intake", str(child_end.fileno())], pass_fds=(child_end.fileno(),)
            )
        self.pid = self._process.pid

    def connect_worker(self) -> socket.socket:
        """Return a worker's end of a new connection, for `WatchdogLink.start(fd=...)`.

        Raises OSError if the watchdog is gone.
        """
        return connect_worker(self.intake)

    def is_alive(self) -> bool:
        return self._process.exit_code() is None

    def close(self, timeout_s: float = 5.0) -> None:
        """Close the intake, wait for the watchdog's end, and kill it after `timeout_s`. Idempotent."""
        self.intake.close()
        self._process.wait_or_kill(timeout_s)


def connect_worker(intake: socket.socket) -> socket.socket:
    """Return a worker's end of a new connection to a watchdog; raise OSError if that is gone."""
    with new_connection() as (own_end, watchdog_end):
        socket.send_fds(intake, [b"\0"], [watchdog_end.fileno()])
    return own_end
