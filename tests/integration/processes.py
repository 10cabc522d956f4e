"""Worker processes that tests start, query and kill."""

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import psutil

from tests.integration.cluster import PATIENCE_S, until
from tests.integration.forked import ROOT, ForkedProcess, program_environment
from tests.integration.programs.probes import STATE_NUMBERS
from tests.integration.programs.scoreboard import Scoreboard
from tests.integration.programs.worker import Orders
from tidewheel.streams.worker.application.application_state import KafkaStreamsState

WORKER: Final = "tests.integration.programs.worker"
_RUNNING: Final = STATE_NUMBERS[KafkaStreamsState.RUNNING]


class WorkerProcess:
    """A worker.

    `within`: a command that replaces itself by the worker, such as `nsenter --net=…`. `root`: tree
    of another version.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        program: str = WORKER,
        *,
        within: Sequence[str] = (),
        root: Path = ROOT,
    ) -> None:
        self.name = name
        self._board_path = folder / f"{name}.board"
        self.board = Scoreboard(self._board_path)
        self.log_path = folder / f"{name}.log"
        with self.log_path.open("wb") as log:
            self.process: ForkedProcess | subprocess.Popen[bytes] = (
                ForkedProcess(WORKER, log.fileno(), root)
                if program == WORKER and not within
                else _started(program, log, within)
            )

    def go(self, job: str, source: str, sink: str, config: Mapping[str, Any], **more: Any) -> None:
        orders = Orders(
            job=job,
            source=source,
            sink=sink,
            config=dict(config),
            board=str(self._board_path),
            **more,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(orders) + b"\n")
        self.process.stdin.flush()

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def numbers(self) -> dict[str, int]:
        return self.board.read()

    def wait_until_running(self) -> None:
        until(lambda: self.is_running or self.has_ended, f"{self.name} is RUNNING")
        assert self.is_running, f"{self.name} ended:\n{self.log[-4000:]}"

    @property
    def is_running(self) -> bool:
        return not self.has_ended and self.numbers().get("state") == _RUNNING

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def processes(self) -> list[psutil.Process]:
        """Return the worker and its helpers; none if it has ended."""
        if self.has_ended:
            return []  # its number may be another process's by now
        try:
            worker = psutil.Process(self.process.pid)
            return [worker, *worker.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def signal_all(self, number: signal.Signals) -> None:
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill_watchdog(self) -> None:
        for child in self.processes()[1:]:
            child.kill()

    @property
    def is_stopped(self) -> bool:
        return psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        self.send(signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.board.close()


def numbered(worker: WorkerProcess, what: str) -> dict[int, int]:
    """Return a number of the scoreboard for each partition of a job with one input."""
    return {
        int(name.rpartition("-")[2]): number
        for name, number in worker.numbers().items()
        if name.startswith(f"{what}:")
    }


def owned(worker: WorkerProcess) -> set[int]:
    return {partition for partition, owned in numbered(worker, "owns").items() if owned}


def _started(program: str, log: BinaryIO, within: Sequence[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [*within, sys.executable, "-m", program],
        cwd=ROOT,
        env=program_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=log,
    )
