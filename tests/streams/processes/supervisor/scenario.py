"""What tests of the supervisor share: fake workers, short waits, and polling with a deadline."""

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
#: The policy with milliseconds in place of seconds.
QUICK = RestartSettings(first_delay_ms=1, delay_max_ms=60, healthy_ms=60_000)
#: The same with two crashes on an offset in place of five.
IMPATIENT = replace(QUICK, crashes_per_offset_max=2)


def starts(*targets: str) -> list[StartWorker]:
    """One worker a target."""
    return [
        StartWorker(target=target, slot=slot, workers=len(targets))
        for slot, target in enumerate(targets)
    ]


def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.01)


def written(path: Path) -> str:
    """The text of a file, "" while there is none."""
    return path.read_text(encoding="ascii") if path.exists() else ""


def is_alive(pid: int) -> bool:
    """Whether a process lives; one that is dead but not yet waited for does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def drive(*targets: str) -> subprocess.Popen[str]:
    """A supervisor in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.streams.processes.supervisor.drive", *targets],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
