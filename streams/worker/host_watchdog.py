"""The watchdog of this program: started for the first worker that needs it, replaced when dead."""

import os
import secrets
import socket
import threading
from collections.abc import Sequence
from typing import Final

from tidewheel.streams.processes.watchdog.watchdog_process import (
    WATCHDOG_COMMAND,
    WatchdogProcess,
    connect_worker,
)

#: Time for the watchdog's last messages at the end of the program.
_GOODBYE_S: Final = 5.0


class HostWatchdog:
    """Connects the workers of one program to their watchdog.

    Args:
        intake_fd: Intake of the host program's watchdog, from the supervisor; owned by this object.
            None starts a watchdog here.
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
            # Programs of the user must not keep this descriptor open.
            os.set_inheritable(intake_fd, False)
            self._intake = socket.socket(fileno=intake_fd)

    def connect(self) -> int:
        """Return the descriptor of a new connection to the watchdog, for `WatchdogLink.start`."""
        with self._lock:
            if self._intake is not None:
                try:
                    return connect_worker(self._intake).detach()
                except OSError:  # it is dead; this program starts its own from now on
                    self._intake.close()
                    self._intake = None
            if self._process is not None and not self._process.is_alive():
                self._process.close(0)
                self._process = None
            if self._process is None:
                self._process = WatchdogProcess(self._command)
            return self._process.connect_worker().detach()

    def close(self) -> None:
        """Release the watchdog; wait for the end of one that was started here. Idempotent."""
        with self._lock:
            if self._intake is not None:
                self._intake.close()
                self._intake = None
            if self._process is not None:
                self._process.close(_GOODBYE_S)
                self._process = None
