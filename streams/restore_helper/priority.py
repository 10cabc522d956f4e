"""How a process lets the running tasks of its machine go first."""

import contextlib
import os
from pathlib import Path
from typing import Final

#: A quarter of a processor's weight beside a task that wants all of it; all that nobody else wants.
NICENESS: Final = 5

#: Linux shares processors between sessions first (sched(7), "The autogroup feature"), and niceness only counts inside
#: one. A helper has a session of its own, so that a terminal's Ctrl-C does not reach it.
_AUTOGROUP: Final = Path("/proc/self/autogroup")


def step_back() -> None:
    """Lower this process's priority for good, and that of its session; what the system does not have is left out."""
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    if _AUTOGROUP.exists() and os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            _AUTOGROUP.write_text(str(NICENESS))
