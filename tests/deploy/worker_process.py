"""`tidewheel run` as a container or a pod starts it."""

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.integration.cluster import PATIENCE_S


class Worker:
    """Process that is killed at the end of the block, with its workers."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, *, cwd: Path
    ) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                # Popen looks for the command in this process's PATH.
                executable=_found(command[0], environment),
                env=dict(environment),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[-8_000:]

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(
        self, signal_number: signal.Signals = signal.SIGTERM, timeout_s: float = PATIENCE_S
    ) -> int:
        """Signal the first process only, as a container's runtime does; return its exit code."""
        self._process.send_signal(signal_number)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        return self._process.wait(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_running:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(PATIENCE_S)


def _found(command: str, environment: Mapping[str, str]) -> str:
    for folder in environment["PATH"].split(":"):
        path = Path(folder) / command
        if path.is_file():
            return str(path)
    return command


def free_ports(count: int) -> list[int]:
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def body_of(port: int, path: str, token: str | None = None) -> tuple[int, bytes]:
    """Return status and body of a worker's answer; 0 if it does not answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, HTTPException):
        return 0, b""
    finally:
        connection.close()


def status_of(port: int, path: str, token: str | None = None) -> int:
    return body_of(port, path, token)[0]
