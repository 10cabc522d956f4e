"""Low priority for a helper process: running tasks go first, and the helper still makes progress.

A process can't undo its niceness, so a helper uses a moderate one. It gets a quarter of a CPU while
a task uses the rest.

Where Linux first shares CPUs between sessions (sched(7), "The autogroup feature"), niceness
counts only inside a session. A session's niceness can change at any time. A helper has its own
session with the lowest priority, so a commit never waits for the end of its time slice. If the
helper gets less than a quarter of the time it wants, its session takes a quarter for some seconds.
"""

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Final

#: Gives the helper a quarter of a busy CPU, and all of an idle one.
NICENESS: Final = 5
#: Gives the helper nearly no time of a busy CPU.
LOWEST: Final = 19

#: A helper starves if it gets less than this share of the time it wants. If it wants less than
#: this share of a CPU, starving does not count.
_TOO_LITTLE: Final = 1 / 4
_CHECK_S: Final = 1.0
#: Checks for which a starved helper keeps the higher priority.
_RAISED_CHECKS: Final = 5

_AUTOGROUP: Final = Path("/proc/self/autogroup")
#: Folder with a file per thread: its running time and its wait for a CPU, in ns.
_THREADS: Final = Path("/proc/self/task")


class SessionNiceness:
    """Niceness of a helper's Linux session (autogroup). Pure.

    `LOWEST`, or `NICENESS` for some checks after the helper got too little CPU time.

    >>> session = SessionNiceness()
    >>> session.after(used_s=0.9, waited_s=0.1, elapsed_s=1.0)
    19
    >>> session.after(used_s=0.1, waited_s=0.9, elapsed_s=1.0)
    5
    """

    def __init__(self) -> None:
        self._raised = 0

    def after(self, *, used_s: float, waited_s: float, elapsed_s: float) -> int:
        """Return the niceness to set; the arguments cover the `elapsed_s` since the last call."""
        wanted_s = used_s + waited_s
        self._raised = max(self._raised - 1, 0)
        if (
            not self._raised
            and wanted_s > _TOO_LITTLE * elapsed_s
            and used_s < _TOO_LITTLE * wanted_s
        ):
            self._raised = _RAISED_CHECKS
        return NICENESS if self._raised else LOWEST


def lower_priority() -> None:
    """Lower this process's priority. With Linux autogroups, a thread adapts the session's."""
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    if not _AUTOGROUP.exists() or os.getsid(0) != os.getpid():
        return
    try:
        seen = processor_seconds()
        _AUTOGROUP.write_text(str(LOWEST))
    except OSError:  # the helper's CPU time can't be measured
        with contextlib.suppress(OSError):
            _AUTOGROUP.write_text(str(NICENESS))
        return
    threading.Thread(
        target=_set_niceness, args=(seen,), name="tidewheel-priority", daemon=True
    ).start()


def processor_seconds() -> tuple[float, float]:
    """Return the seconds that this process's threads have run, and have waited for a CPU.

    Raises OSError where the system has no such figures.
    """
    used_ns = waited_ns = threads = 0
    for thread in _THREADS.iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            used, waited, _ = (thread / "schedstat").read_text().split()
            used_ns += int(used)
            waited_ns += int(waited)
            threads += 1
    if not threads:
        raise FileNotFoundError(f"{_THREADS}/*/schedstat")
    return used_ns / 1e9, waited_ns / 1e9


def _set_niceness(last: tuple[float, float]) -> None:
    session, niceness, since_s = SessionNiceness(), LOWEST, time.monotonic()
    while True:
        time.sleep(_CHECK_S)
        now, now_s = processor_seconds(), time.monotonic()
        target = session.after(
            # `max`, because the sums fall when a thread ends.
            used_s=max(now[0] - last[0], 0.0),
            waited_s=max(now[1] - last[1], 0.0),
            elapsed_s=now_s - since_s,
        )
        last, since_s = now, now_s
        if target != niceness:
            with contextlib.suppress(
                BlockingIOError
            ):  # too soon for the system; the next check retries
                _AUTOGROUP.write_text(str(target))
                niceness = target
