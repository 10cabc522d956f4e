"""`tidewheel` as a process, with its output."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.integration.cluster import PATIENCE_S, until

ROOT = Path(__file__).parents[3]


class Command:
    """Process that is killed at the end of the block."""

    def __init__(
        self,
        *arguments: str,
        cwd: Path = ROOT,
        program: Sequence[str] = ("-m", "tidewheel"),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def said(self) -> str:
        return "".join(self._lines)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def workers(self) -> list[int]:
        """Return its worker processes, oldest first."""
        marks = (line.partition("started (process ")[2] for line in list(self._lines))
        return [int(mark.partition(")")[0]) for mark in marks if mark]

    def until_said(self, text: str, times: int = 1) -> None:
        until(
            lambda: self.said.count(text) >= times or self._process.poll() is not None,
            f"{text!r} in:\n{self.said}",
        )
        assert self.said.count(text) >= times, self.said

    def signal(self, number: int) -> None:
        """Send a signal to the command only."""
        self._process.send_signal(number)

    def kill_worker(self, pid: int) -> None:
        assert pid in self.workers
        os.kill(pid, signal.SIGKILL)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        code = self._process.wait(timeout_s)
        self._reader.join(10)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._reader.join(PATIENCE_S)  # its workers end with it, and hold its output until then
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
