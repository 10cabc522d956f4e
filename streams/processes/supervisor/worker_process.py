"""One worker process, seen by the supervisor.

Orders go to the worker's standard input. Reports come through a pipe whose descriptor is an
argument of the worker.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from tidewheel.streams.processes.child import UNREADABLE, ChildProcess, LineReader, open_pid_fd
from tidewheel.streams.processes.supervisor.worker_messages import (
    LINE_BYTES_MAX,
    Order,
    Report,
    StartWorker,
    decode_report,
    encode,
)

#: `WorkerProcess` appends `--reports FD`, and `--watchdog FD` for a group member.
WORKER_COMMAND: Final = (sys.executable, "-m", "tidewheel.streams.cli.worker_main")


class WorkerProcess:
    """A started worker, used by the supervisor's thread only. Call `close` after its death.

    Attributes:
        reports_fd: Becomes readable with reports, and at the end of the worker's pipe.
        pid_fd: See `open_pid_fd`.
    """

    def __init__(
        self,
        start: StartWorker,
        command: Sequence[str] = WORKER_COMMAND,
        *,
        watchdog_fd: int | None = None,
    ) -> None:
        reading, writing = os.pipe()
        arguments = ["--reports", str(writing)]
        passed = [writing]
        if watchdog_fd is not None:
            arguments += ["--watchdog", str(watchdog_fd)]
            passed.append(watchdog_fd)
        try:
            self._child = ChildProcess(
                [*command, *arguments], stdin=subprocess.PIPE, stdout=None, pass_fds=passed
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        os.set_blocking(reading, False)
        self.pid = self._child.pid
        self.reports_fd = reading
        self.pid_fd = open_pid_fd(self.pid)
        self._lines = LineReader(reading, LINE_BYTES_MAX)
        self.send(start)

    def send(self, order: Order) -> None:
        self._child.write(encode(order))

    def read_reports(self) -> tuple[list[Report], bool]:
        """Return the reports that have arrived, and True if the pipe has ended. Never waits."""
        reports: list[Report] = []
        lines, ended = self._lines.read()
        for line in lines:
            # Ignore other lines: user code may write to the pipe.
            with contextlib.suppress(*UNREADABLE):
                reports.append(decode_report(line))
        return reports, ended

    def exit_code(self) -> int | None:
        return self._child.exit_code()

    def kill(self) -> None:
        self._child.kill_session()

    def close(self) -> None:
        os.close(self.reports_fd)
        if self.pid_fd is not None:
            os.close(self.pid_fd)
        self._child.close_stdin()
