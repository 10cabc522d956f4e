"""Helpers of supervisor tests: fake workers, short waits, polling with a deadline."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tidewheel.streams.processes.supervisor.restart_policy import RestartSettings
from tidewheel.streams.processes.supervisor.worker_messages import StartWorker

ROOT = Path(__file__).parents[4]
FAKE_WORKER = (sys.executable, "-m", "tests.streams.processes.supervisor.fake_worker")
FAKE_WATCHDOG = (sys.executable, "-m", "tests.streams.worker.fake_watchdog")
#: Milliseconds instead of seconds.
QUICK = RestartSettings(first_delay_ms=1, delay_max_ms=60, healthy_ms=60_000)
#: Two crashes on an offset instead of five.
IMPATIENT = replace(QUICK, crashes_per_offset_max=2)


def starts(*targets: str) -> list[StartWorker]:
    return [
        StartWorker(target=target, slot=slot, workers=len(targets))
        for slot, target in enumerate(targets)
    ]


def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.01)


def written(path: Path) -> str:
    """Return the text of a file; "" without one."""
    return path.read_text(encoding="ascii") if path.exists() else ""


def is_alive(pid: int) -> bool:
    """Return True if a process lives; a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def drive(*targets: str) -> subprocess.Popen[str]:
    """Start a supervisor in its own process."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.streams.processes.supervisor.drive", *targets],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
