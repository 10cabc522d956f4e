"""Process of a measured system: start, end, memory and processor time."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

from benchmarks.environment.systems import System

STOP_TIMEOUT_S = 90
LOG_TAIL_CHARACTERS = 3_000


class RunFailedError(Exception):
    """A run without a figure: the system died, was too slow, or committed too rarely."""


@dataclass(slots=True)
class Usage:
    """Resource use of a system's processes, sampled a few times a second.

    Attributes:
        rss_bytes: Resident memory at the last sample; 0 after their end.
        rss_bytes_max: Maximum of all samples.
        cpu_s: Processor time so far.
    """

    rss_bytes: int = 0
    rss_bytes_max: int = 0
    cpu_s: float = 0.0

    def look(self, pid: int) -> None:
        self.rss_bytes, cpu_s = 0, 0.0
        try:
            root = psutil.Process(pid)
            for process in (root, *root.children(recursive=True)):
                try:
                    times = process.cpu_times()
                    self.rss_bytes += process.memory_info().rss
                    cpu_s += times.user + times.system
                except psutil.NoSuchProcess:
                    continue  # ended since the listing
        except psutil.NoSuchProcess:
            return
        self.rss_bytes_max = max(self.rss_bytes_max, self.rss_bytes)
        self.cpu_s = max(self.cpu_s, cpu_s)


@dataclass(slots=True)
class PeerProcess:
    system: System
    process: subprocess.Popen[bytes]
    log_path: Path
    usage: Usage = field(default_factory=Usage)

    def look(self) -> Usage:
        self.usage.look(self.process.pid)
        return self.usage

    def check(self) -> None:
        code = self.process.poll()
        if code is not None:
            raise RunFailedError(f"it ended by itself with exit code {code}\n{self.log_tail()}")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as late:
            raise RunFailedError(
                f"it did not stop within {STOP_TIMEOUT_S} s of SIGTERM\n{self.log_tail()}"
            ) from late
        if code not in self.system.clean_exits:
            raise RunFailedError(f"it ended with exit code {code} on SIGTERM\n{self.log_tail()}")

    def log_tail(self) -> str:
        return tail_of(self.log_path)


@contextmanager
def peer_process(
    system: System, program: str, arguments: Mapping[str, str]
) -> Generator[PeerProcess]:
    """Start a system's program in a new folder; end its remaining processes after the block."""
    folder = Path(tempfile.mkdtemp(prefix=f"{arguments['application_id']}-"))
    log_path = folder / "log"
    given = {**arguments, "state_dir": str(folder / "state")}
    try:
        with (
            log_path.open("wb") as log,
            started(system.command(program), given, folder, out=log, log=log) as process,
        ):
            yield PeerProcess(system, process, log_path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def started(
    command: Iterable[str],
    arguments: Mapping[str, str],
    folder: Path,
    *,
    out: IO[bytes],
    log: IO[bytes],
) -> Generator[subprocess.Popen[bytes]]:
    """Run a command with NAME=VALUE arguments in a folder; end remaining processes afterwards."""
    with subprocess.Popen(
        [*command, *(f"{name}={value}" for name, value in arguments.items())],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=log,
        env=environment(),
        cwd=folder,
        start_new_session=True,  # Ctrl-C is handled by this process
    ) as process:
        try:
            yield process
        finally:
            end_process(process)


def environment() -> dict[str, str]:
    """Return our environment, in which the run's folder can import our packages."""
    root = str(Path(__file__).parents[2])
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{root}:{before}" if before else root}


def end_process(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    try:
        left = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for each in left:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait(STOP_TIMEOUT_S)


def tail_of(path: Path) -> str:
    text = path.read_text(errors="replace").strip()
    return f"It wrote:\n{text[-LOG_TAIL_CHARACTERS:]}" if text else "It wrote nothing."
