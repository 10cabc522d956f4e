"""Host watchdog: one process per program, replaced when dead."""

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

_GOODBYE_S: Final = 5.0


class HostWatchdog:
    """Connection of a program's workers to their watchdog, the process that sends heartbeats.

    Args:
        intake_fd: Inherited watchdog socket; None starts a watchdog here.
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
            # Child processes of the user must not inherit this descriptor.
            os.set_inheritable(intake_fd, False)
            self._intake = socket.socket(fileno=intake_fd)

    def connect(self) -> int:
        with self._lock:
            if self._intake is not None:
                try:
                    return connect_worker(self._intake).detach()
                except OSError:  # the inherited watchdog is dead: this program starts its own
                    self._intake.close()
                    self._intake = None
            if self._process is not None and not self._process.is_alive():
                self._process.close(0)
                self._process = None
            if self._process is None:
                self._process = WatchdogProcess(self._command)
            return self._process.connect_worker().detach()

    def close(self) -> None:
        with self._lock:
            if self._intake is not None:
                self._intake.close()
                self._intake = None
            if self._process is not None:
                self._process.close(_GOODBYE_S)
                self._process = None
