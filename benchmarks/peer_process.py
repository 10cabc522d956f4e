"""A system's program that runs while something else is looked at; its memory as its processes hold it."""

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.run import STOP_TIMEOUT_S, RunFailedError, end_process, environment, tail_of
from benchmarks.systems import System


@dataclass(slots=True)
class PeerProcess:
    """A program that was started."""

    system: System
    process: subprocess.Popen[bytes]
    log_path: Path

    def check(self) -> None:
        """Raise if it ended by itself."""
        code = self.process.poll()
        if code is not None:
            raise RunFailedError(
                f"it ended by itself with exit code {code}\n{tail_of(self.log_path)}"
            )

    def resident_mib(self) -> float:
        """Return what the program and its descendants hold resident; 0 if it is over."""
        total = 0
        try:
            root = psutil.Process(self.process.pid)
            for each in (root, *root.children(recursive=True)):
                try:
                    total += each.memory_info().rss
                except psutil.NoSuchProcess:
                    continue  # ended between the listing and the look
        except psutil.NoSuchProcess:
            return 0.0
        return total / 2**20

    def stop(self) -> None:
        """Ask it to end, and raise if it does not end in order."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as late:
            raise RunFailedError(
                f"it did not stop within {STOP_TIMEOUT_S} s of SIGTERM\n{tail_of(self.log_path)}"
            ) from late
        if code not in self.system.clean_exits:
            raise RunFailedError(
                f"it ended with exit code {code} on SIGTERM\n{tail_of(self.log_path)}"
            )


@contextmanager
def peer_process(
    system: System, program: str, arguments: Mapping[str, str]
) -> Generator[PeerProcess]:
    """Start a system's program in a folder of its own; what is left of it at the end is ended."""
    folder = Path(tempfile.mkdtemp(prefix=f"{arguments['application_id']}-"))
    log_path = folder / "log"
    given = {**arguments, "state_dir": str(folder / "state")}
    try:
        with (
            log_path.open("wb") as log,
            subprocess.Popen(
                [*system.command(program), *(f"{name}={value}" for name, value in given.items())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(),
                cwd=folder,
                start_new_session=True,  # a Ctrl-C here is handled here
            ) as process,
        ):
            try:
                yield PeerProcess(system, process, log_path)
            finally:
                end_process(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
