"""Workers in processes of their own, as tests start, kill and question them."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import psutil

from tests.integration.cluster import PATIENCE_S, until
from tests.integration.forked import ForkedProcess
from tests.integration.programs.probes import STATE_NUMBERS
from tests.integration.programs.scoreboard import Scoreboard
from tests.integration.programs.worker import Orders
from tidewheel.streams.worker.application.application_state import KafkaStreamsState

_ROOT: Final = Path(__file__).resolve().parents[2]
#: The program that most workers run.
WORKER: Final = "tests.integration.programs.worker"
_RUNNING: Final = STATE_NUMBERS[KafkaStreamsState.RUNNING]


class WorkerProcess:
    """One life of a worker, from its start to its end; `program` is the module that it runs."""

    def __init__(self, folder: Path, name: str, program: str = WORKER) -> None:
        self.name = name
        self._board_path = folder / f"{name}.board"
        self.board = Scoreboard(self._board_path)
        self.log_path = folder / f"{name}.log"
        with self.log_path.open("wb") as log:
            self.process: ForkedProcess | subprocess.Popen[bytes] = (
                ForkedProcess(WORKER, log.fileno()) if program == WORKER else _started(program, log)
            )

    def go(self, job: str, source: str, sink: str, config: Mapping[str, Any], **more: Any) -> None:
        """Tell it what to do; see `programs.worker.Orders`."""
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
        """Return what it has logged."""
        return self.log_path.read_text(errors="replace")

    def numbers(self) -> dict[str, int]:
        """Return its scoreboard, also after its end."""
        return self.board.read()

    def wait_until_running(self) -> None:
        """Wait until it is RUNNING."""
        until(lambda: self.is_running or self.has_ended, f"{self.name} is RUNNING")
        assert self.is_running, f"{self.name} ended:\n{self.log[-4000:]}"

    @property
    def is_running(self) -> bool:
        """Return whether it lives and is RUNNING."""
        return not self.has_ended and self.numbers().get("state") == _RUNNING

    @property
    def has_ended(self) -> bool:
        """Return whether its process has ended."""
        return self.process.poll() is not None

    def kill_watchdog(self) -> None:
        """End its watchdog by SIGKILL; it starts another."""
        for each in psutil.Process(self.process.pid).children(recursive=True):
            each.kill()

    @property
    def is_stopped(self) -> bool:
        """Return whether a signal has stopped its process."""
        return psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it by SIGKILL and wait for its end."""
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def wait(self) -> int:
        """Wait for its end; returns its exit code, negative for a signal."""
        return self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        """End it by SIGTERM; returns its exit code."""
        self.send(signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        """End it if it still lives, and let go of its pipe and scoreboard."""
        self.process.kill()
        self.process.wait(PATIENCE_S)
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.board.close()


def _started(program: str, log: BinaryIO) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", program],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=log,
    )
