"""Restart policy: decides which errors let a worker start its tasks again."""

from typing import Final

from tidewheel.rebalance.model import TaskId
from tidewheel.tasks.ports import Clock

#: Seconds that the workers of one program may take to start.
_SIBLINGS_START_S: Final = 60.0
#: Maximum fences of this worker by one other worker that starts. Kafka raises our producer epoch
#: to abort our open transaction, for the other client's retry, and if we began one more meanwhile.
_FENCED_BY_ONE: Final = 3


class RestartPolicy:
    """Counts of one worker's fences and wipes; `siblings`: number of the program's others."""

    def __init__(self, siblings: int, clock: Clock) -> None:
        self._siblings = siblings
        self._clock = clock
        self._born_s = clock.monotonic_s()
        self._fenced = 0
        #: The worker's number of commits when it last wiped each task's state. Without a commit
        #: since, another wipe would not help.
        self._wiped: dict[TaskId, int] = {}

    def may_fence_back(self) -> bool:
        """Count a fence; return True if the worker may restart: a few times in its first minute."""
        self._fenced += 1
        is_young = self._clock.monotonic_s() - self._born_s < _SIBLINGS_START_S
        return is_young and self._fenced <= _FENCED_BY_ONE * self._siblings

    def may_wipe(self, task_id: TaskId, commits: int) -> bool:
        """Return False without a commit since a task's last wipe: the disk itself is at fault."""
        if self._wiped.get(task_id) == commits:
            return False
        self._wiped[task_id] = commits
        return True
