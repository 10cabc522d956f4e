"""Processes by fork, instead of a new interpreter that imports everything for each: that takes a second of processor every time."""

import atexit
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[2]
_NURSERY: Final = "tests.integration.programs.nursery"


class _Nursery:
    """The process that forks those of a program, one for all tests of this process; started when it is first needed."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def fork(self, orders: int, log: int, told: int) -> None:
        """Have a process forked; the files are its input, its log, and where its number and its end are told."""
        with self._lock:
            if self._socket is None:
                self._socket = self._start()
            socket.send_fds(self._socket, [b"+"], [orders, log, told])

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", _NURSERY, self._program],
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
            )
        atexit.register(process.wait)
        atexit.register(ours.close)  # goes first, and is what ends it
        return ours


_nurseries: Final[dict[str, _Nursery]] = {}


class ForkedProcess:
    """A process of a program, a module with a `main`: what tests use of `subprocess.Popen`.

    Attributes:
        pid: The process.
        stdin: A pipe to its standard input.
        returncode: How it has ended, once that is known.
    """

    def __init__(self, program: str, log: int) -> None:
        orders, to_orders = os.pipe()
        told, to_told = os.pipe()
        self.stdin = os.fdopen(to_orders, "wb")
        self._told = os.fdopen(told, "rb", buffering=0)
        self.returncode: int | None = None
        try:
            _nurseries.setdefault(program, _Nursery(program)).fork(orders, log, to_told)
        finally:
            os.close(orders)
            os.close(to_told)
        number = self._told.readline()
        if not number:
            self.stdin.close()
            self._told.close()
            raise RuntimeError(f"{program} could not be imported; standard error says why")
        self.pid = int(number)
        self._end = select.poll()  # unlike `select.select`, however many files are open
        self._end.register(self._told, select.POLLIN)

    def poll(self) -> int | None:
        """Return how it has ended, None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for its end; return its exit code, negative for a signal."""
        if self.returncode is None:
            if not self._end.poll(timeout * 1000):
                raise subprocess.TimeoutExpired(_NURSERY, timeout)
            self.returncode = int(self._told.readline())
            self._told.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # its end is about to be told
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.send_signal(signal.SIGKILL)
