"""One worker process: its pipes, its start, its death.

Workers are started by `subprocess` (never by fork or multiprocessing) in a session of their own, so that Ctrl-C on a
terminal reaches the supervisor alone. Orders go to the worker's standard input, reports come through a pipe whose
number is an argument of the worker's, and so is the way to the watchdog if there is one. When this process dies, the worker reads the end of its orders.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from tidewheel.streams.processes.supervisor.messages import (
    LineBuffer,
    Order,
    Report,
    StartWorker,
    decode_report,
    encode,
)

#: `--reports FD` is added to it, and `--watchdog FD` in a group.
WORKER_COMMAND: Final = (sys.executable, "-m", "tidewheel.streams.cli.worker_main")

_READ_BYTES: Final = 64 * 1024


class WorkerProcess:
    """A worker that was started. Only the supervisor's thread uses it; `close` it after its death.

    Attributes:
        pid: The process.
        reports_fd: Becomes readable with reports, and at the worker's end.
        pid_fd: Becomes readable when the process is dead, whoever else holds its pipes; None where there is no such
            thing (everywhere but Linux).
    """

    def __init__(
        self,
        start: StartWorker,
        command: Sequence[str] = WORKER_COMMAND,
        *,
        watchdog_fd: int | None = None,
    ) -> None:
        reading, writing = os.pipe()
        passed = [writing] if watchdog_fd is None else [writing, watchdog_fd]
        intake = [] if watchdog_fd is None else ["--watchdog", str(watchdog_fd)]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own program, without a shell
                [*command, "--reports", str(writing), *intake],
                stdin=subprocess.PIPE,
                pass_fds=passed,
                start_new_session=True,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        os.set_blocking(reading, False)
        self.pid = self._process.pid
        self.reports_fd = reading
        self.pid_fd = _pid_fd(self.pid)
        self._lines = LineBuffer()
        self.order(start)

    def order(self, order: Order) -> None:
        """Send an order. A worker that is gone does not hear it; its death is noticed elsewhere."""
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.write(encode(order))
            stdin.flush()

    def reports(self) -> tuple[list[Report], bool]:
        """Return what the worker said since the last call, and whether its pipe has ended. Never waits."""
        found: list[Report] = []
        while True:
            try:
                data = os.read(self.reports_fd, _READ_BYTES)
            except BlockingIOError:
                return found, False
            if not data:
                return found, True
            for line in self._lines.feed(data):
                # Whatever else a user's code writes there is no report.
                with contextlib.suppress(msgspec.DecodeError):
                    found.append(decode_report(line))

    def exit_code(self) -> int | None:
        """Return how the process ended (a signal as its negative number), or None while it lives."""
        return self._process.poll()

    def kill(self) -> None:
        """End the process at once, and all it started in its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Let go of the pipes."""
        os.close(self.reports_fd)
        if self.pid_fd is not None:
            os.close(self.pid_fd)
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.close()


def _pid_fd(pid: int) -> int | None:
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # a kernel or a sandbox without it; the pipe's end tells as well
        return None
