"""The watchdog of this program: started when the first worker needs it, replaced when it has died."""

import os
import secrets
import socket
import threading
from collections.abc import Sequence
from typing import Final

from tidewheel.streams.processes.watchdog.process import (
    WATCHDOG_COMMAND,
    WatchdogProcess,
    hand_over,
)

#: How long the end of the program waits until the watchdog has said goodbye for its members.
_GOODBYE_S: Final = 5.0


class HostWatchdog:
    """Connects the workers of one program to their watchdog.

    Args:
        intake_fd: Where the watchdog of the host program takes workers in (given by the supervisor, taken over); None
            starts one here.
        process_id: Name of the host program in its group; None makes one.
        command: The watchdog program.
    """

    def __init__(
        self,
        intake_fd: int | None = None,
        process_id: str | None = None,
        *,
        command: Sequence[str] = WATCHDOG_COMMAND,
    ) -> None:
        self.process_id = process_id or secrets.token_hex(8)
        self._command = command
        self._lock = threading.Lock()
        self._process: WatchdogProcess | None = None
        self._intake: socket.socket | None = None
        if intake_fd is not None:
            # The user's own programs are not to hold it open.
            os.set_inheritable(intake_fd, False)
            self._intake = socket.socket(fileno=intake_fd)

    def connect(self) -> int:
        """Return the descriptor of a new connection to the watchdog, for `WatchdogLink.start`."""
        with self._lock:
            if self._intake is not None:
                try:
                    return hand_over(self._intake).detach()
                except OSError:  # it has died; from here on this program has its own
                    self._intake.close()
                    self._intake = None
            if self._process is not None and not self._process.is_alive():
                self._process.close(0)
                self._process = None
            if self._process is None:
                self._process = WatchdogProcess(self._command)
            return self._process.adopt().detach()

    def close(self) -> None:
        """Let go of the watchdog, and wait a little until one that was started here has ended. Idempotent."""
        with self._lock:
            if self._intake is not None:
                self._intake.close()
                self._intake = None
            if self._process is not None:
                self._process.close(_GOODBYE_S)
                self._process = None
