"""Restart policy: decides which errors let a worker start its tasks again."""

from typing import Final

from tidewheel.rebalance.model import TaskId
from tidewheel.tasks.ports import Clock

#: Seconds that the workers of one program may take to start.
_SIBLINGS_START_S: Final = 60.0
#: Fences that one other worker of the program may cause: aborting an open transaction raises the
#: producer epoch. So do the client's retry and a transaction begun meanwhile.
_FENCED_BY_ONE: Final = 3


class RestartPolicy:
    """Counts of one worker's fences and wiped states; `siblings`: its program's other workers."""

    def __init__(self, siblings: int, clock: Clock) -> None:
        self._siblings = siblings
        self._clock = clock
        self._born_s = clock.monotonic_s()
        self._fenced = 0
        #: Number of commits at the last wipe of each task's state.
        self._wiped: dict[TaskId, int] = {}

    def may_fence_back(self) -> bool:
        """Return True if a fenced worker may restart and fence back: a few times at the start."""
        self._fenced += 1
        is_young = self._clock.monotonic_s() - self._born_s < _SIBLINGS_START_S
        return is_young and self._fenced <= _FENCED_BY_ONE * self._siblings

    def may_wipe(self, task_id: TaskId, commits: int) -> bool:
        """Return True if a task's corrupt state may be wiped.

        False if it was wiped and nothing was committed since: then the disk itself is at fault.
        """
        if self._wiped.get(task_id) == commits:
            return False
        self._wiped[task_id] = commits
        return True
