"""Forked processes: a new interpreter with all imports costs a second of processor time."""

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

#: Tree of the packages and tests.
ROOT: Final = Path(__file__).resolve().parents[2]
_NURSERY: Final = "tests.integration.programs.nursery"


def program_environment(root: Path = ROOT) -> dict[str, str]:
    """Return the environment of a test's program, which may arm failpoints."""
    return {
        **os.environ,
        "PYTHONPATH": str(root),
        "PYTHONFAULTHANDLER": "1",
        "FAILPOINT": "",
    }


class _Nursery:
    """Parent of the forked children of one program, started on first use."""

    def __init__(self, program: str, root: Path) -> None:
        self._program = program
        self._root = root
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def fork(self, orders: int, log: int, report: int) -> None:
        with self._lock:
            if self._socket is None:
                self._socket = self._start()
            socket.send_fds(self._socket, [b"+"], [orders, log, report])

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", _NURSERY, self._program],
                cwd=self._root,
                env=program_environment(self._root),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
            )
        atexit.register(process.wait)
        atexit.register(ours.close)  # exits first, which ends the child
        return ours


_nurseries: Final[dict[tuple[str, Path], _Nursery]] = {}


class ForkedProcess:
    """A process of a module with a `main`, with the methods of `subprocess.Popen` that tests use.

    `root`: tree of another version.
    """

    def __init__(self, program: str, log: int, root: Path = ROOT) -> None:
        orders, to_orders = os.pipe()
        report, report_end = os.pipe()
        self.stdin = os.fdopen(to_orders, "wb")
        self._report = os.fdopen(report, "rb", buffering=0)
        self.returncode: int | None = None
        try:
            nursery = _nurseries.setdefault((program, root), _Nursery(program, root))
            nursery.fork(orders, log, report_end)
        finally:
            os.close(orders)
            os.close(report_end)
        number = self._report.readline()
        if not number:
            self.stdin.close()
            self._report.close()
            raise RuntimeError(f"{program} could not be imported; standard error says why")
        self.pid = int(number)
        self._end = select.poll()  # unlike `select.select`, works with any number of open files
        self._end.register(self._report, select.POLLIN)

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        if self.returncode is None:
            if not self._end.poll(timeout * 1000):
                raise subprocess.TimeoutExpired(_NURSERY, timeout)
            self.returncode = int(self._report.readline())
            self._report.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # its exit is about to be reported
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
