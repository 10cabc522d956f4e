"""How a process lets the running tasks of its machine go first, and still gets on.

Niceness is for good: a process can't take it back. So a helper takes little of it, a quarter of a processor beside a task that
wants all of it. But where Linux shares processors between sessions first (sched(7), "The autogroup feature"), niceness only
counts inside one, and that of a session can be set as one likes. A helper has a session of its own, so that a terminal's Ctrl-C does
not reach it; there its session has the lowest priority, so that a commit never waits for the end of its time slice, until
it gets less than a quarter of what it wants. Then it takes the quarter for some seconds, and sees again.
"""

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Final

#: A quarter of a processor's weight beside a task that wants all of it; all that nobody else wants.
NICENESS: Final = 5
#: Next to nothing beside a task that wants all of it.
LOWEST: Final = 19

#: Less of what it wants is too little; and to want less than this share of a processor is to want nothing.
_TOO_LITTLE: Final = 1 / 4
#: How often it is seen what was got.
_LOOK_S: Final = 1.0
#: For so many looks a helper that got too little takes more.
_RAISED_LOOKS: Final = 5

_AUTOGROUP: Final = Path("/proc/self/autogroup")
#: For each thread: for how long it has run, and for how long it could have and waited for a processor, in ns.
_THREADS: Final = Path("/proc/self/task")


class SessionNiceness:
    """Says which niceness a helper's session is to have. Pure.

    >>> session = SessionNiceness()
    >>> session.after(used_s=0.9, waited_s=0.1, elapsed_s=1.0)
    19
    >>> session.after(used_s=0.1, waited_s=0.9, elapsed_s=1.0)
    5
    """

    def __init__(self) -> None:
        self._raised = 0

    def after(self, *, used_s: float, waited_s: float, elapsed_s: float) -> int:
        """Return it after some time, of which the helper has used a processor and waited for one for so long."""
        wanted_s = used_s + waited_s
        self._raised = max(self._raised - 1, 0)
        if (
            not self._raised
            and wanted_s > _TOO_LITTLE * elapsed_s
            and used_s < _TOO_LITTLE * wanted_s
        ):
            self._raised = _RAISED_LOOKS
        return NICENESS if self._raised else LOWEST


def step_back() -> None:
    """Lower this process's priority for good, and that of its session as is seen fit; what the system does not have is left out."""
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    if not _AUTOGROUP.exists() or os.getsid(0) != os.getpid():
        return
    try:
        seen = processor_seconds()
        _AUTOGROUP.write_text(str(LOWEST))
    except OSError:  # nobody could tell whether it gets on
        with contextlib.suppress(OSError):
            _AUTOGROUP.write_text(str(NICENESS))
        return
    threading.Thread(
        target=_set_niceness, args=(seen,), name="tidewheel-priority", daemon=True
    ).start()


def processor_seconds() -> tuple[float, float]:
    """Return for how long this process's threads have used a processor, and for how long they have waited for one.

    Raises:
        OSError: The system does not tell.
    """
    used_ns = waited_ns = threads = 0
    for each in _THREADS.iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            used, waited, _ = (each / "schedstat").read_text().split()
            used_ns += int(used)
            waited_ns += int(waited)
            threads += 1
    if not threads:
        raise FileNotFoundError(f"{_THREADS}/*/schedstat")
    return used_ns / 1e9, waited_ns / 1e9


def _set_niceness(seen: tuple[float, float]) -> None:
    session, niceness, since_s = SessionNiceness(), LOWEST, time.monotonic()
    while True:
        time.sleep(_LOOK_S)
        now, now_s = processor_seconds(), time.monotonic()
        wanted = session.after(
            # Threads that have ended took theirs with them.
            used_s=max(now[0] - seen[0], 0.0),
            waited_s=max(now[1] - seen[1], 0.0),
            elapsed_s=now_s - since_s,
        )
        seen, since_s = now, now_s
        if wanted != niceness:
            with contextlib.suppress(BlockingIOError):  # too soon for the system: at the next look
                _AUTOGROUP.write_text(str(wanted))
                niceness = wanted
