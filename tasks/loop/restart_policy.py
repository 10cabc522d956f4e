"""Restart policy: decides which errors let a worker start its tasks again."""

from typing import Final

from tidewheel.rebalance.model import TaskId
from tidewheel.tasks.kafka.ports import Clock

#: Seconds that the workers of one program may take to start.
_SIBLINGS_START_S: Final = 60.0
#: Maximum fences of this worker by one other worker that starts: to abort our open transaction, by
#: a retry of its client, and to abort a transaction that we began meanwhile.
_FENCES_PER_SIBLING: Final = 3


class RestartPolicy:
    """Limits of a worker's restarts and wipes; `siblings`: number of the program's others."""

    def __init__(self, siblings: int, clock: Clock) -> None:
        self._siblings = siblings
        self._clock = clock
        self._born_s = clock.monotonic_s()
        self._fenced = 0
        #: Number of the worker's commits at each task's last wipe.
        self._wiped: dict[TaskId, int] = {}

    def may_fence_back(self) -> bool:
        """Count a fence; return True if this worker may restart.

        In its first minute, siblings that start fence it a few times. A later fence is final.
        """
        self._fenced += 1
        is_young = self._clock.monotonic_s() - self._born_s < _SIBLINGS_START_S
        return is_young and self._fenced <= _FENCES_PER_SIBLING * self._siblings

    def may_wipe(self, task_id: TaskId, commits: int) -> bool:
        """Return False if the worker has not committed since the last wipe: the disk is damaged."""
        if self._wiped.get(task_id) == commits:
            return False
        self._wiped[task_id] = commits
        return True
