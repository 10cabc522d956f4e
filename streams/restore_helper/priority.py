"""How a process lets the running tasks of its machine go first."""

import contextlib
import os
from pathlib import Path
from typing import Final

#: A quarter of a processor's weight beside a task that wants all of it; all that nobody else wants. Of who restores what
#: tasks wait for.
NICENESS: Final = 5

#: All that nobody else wants and next to nothing beside that: of who restores copies, for which nobody waits. At a higher one
#: brokers and tasks that wake up wait for the end of its time slice again and again, and a commit has many such turns.
COPY_NICENESS: Final = 19

#: The argument of a helper for copies.
COPIES: Final = "copies"

#: Linux shares processors between sessions first (sched(7), "The autogroup feature"), and niceness only counts inside
#: one. A helper has a session of its own, so that a terminal's Ctrl-C does not reach it.
_AUTOGROUP: Final = Path("/proc/self/autogroup")


def step_back(niceness: int = NICENESS) -> None:
    """Lower this process's priority for good, and that of its session; what the system does not have is left out."""
    with contextlib.suppress(OSError):
        os.nice(niceness)
    if _AUTOGROUP.exists() and os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            _AUTOGROUP.write_text(str(niceness))
