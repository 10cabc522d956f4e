"""Copies of a task's state, learners and standbys: their progress, and their readiness.

A copy is the task with open databases and unstarted processors: promotion closes nothing and reads
no record twice.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from tidewheel.rebalance.model import TaskId, TopicPartition, position_key
from tidewheel.rebalance.protocol.orders import CopyNotReady, CopyReady
from tidewheel.rebalance.protocol.task_status import TaskStatus
from tidewheel.tasks.task.task import Task

#: Minimum seconds between announcements of a ready copy's positions to the leader.
_ANNOUNCE_S: Final = 0.1

_UNKNOWN_LAG: Final = -1


class CopyProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Positions of a copy, and the ends that it must reach; None is unknown.

    An end is the changelog's end, or the committed offset of an input that restores a table.
    """

    positions: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int | None]

    @property
    def lag(self) -> int | None:
        """Return the number of offsets left to read; None if an end is unknown.

        >>> part = TopicPartition("app-counts-changelog", 0)
        >>> CopyProgress(positions={part: 5}, ends={part: 8}).lag
        3
        """
        lag = 0
        for partition, position in self.positions.items():
            end = self.ends.get(partition)
            if end is None:
                return None
            lag += max(end - position, 0)
        return lag


class LearnerTask:
    """One copy of a task. The state updater's thread owns it; others may read its attributes.

    Attributes:
        role: "learner" or "standby".
        learn_epoch: Epoch of the leader's order for this copy; announcements carry it.
        is_ready: True after the copy was announced as ready.
    """

    def __init__(
        self, task: Task, *, role: str, learn_epoch: int, acceptable_recovery_lag: int
    ) -> None:
        self.task = task
        self.role = role
        self.learn_epoch = learn_epoch
        self.store_uuid = ""
        self.progress: CopyProgress | None = None
        self.is_ready = False
        self._acceptable_lag = acceptable_recovery_lag
        self._announced: Mapping[TopicPartition, int] | None = None
        self._announced_s = 0.0

    @property
    def task_id(self) -> TaskId:
        return self.task.task_id

    def appoint(self, role: str, learn_epoch: int) -> None:
        if learn_epoch != self.learn_epoch:
            self.is_ready = False  # it was announced under the old epoch
        self.role = role
        self.learn_epoch = learn_epoch
        self._announced = None

    def reset(self, reason: str) -> CopyNotReady | None:
        """Reset the progress before a full restore; return "not ready" if ready was announced."""
        self.progress = None
        return self._withdraw(reason)

    def advance(self, progress: CopyProgress, now_s: float) -> CopyReady | CopyNotReady | None:
        """Record the progress; report a lag that becomes acceptable ("ready") or not ("not ready").

        "Ready" is repeated when positions change.
        """
        self.progress = progress
        lag = progress.lag
        if lag is None or lag > self._acceptable_lag:
            return self._withdraw("its lag is not known" if lag is None else f"{lag} behind")
        is_repeated = self.is_ready and self._announced is not None
        if is_repeated and (
            now_s - self._announced_s < _ANNOUNCE_S or progress.positions == self._announced
        ):
            return None
        self.is_ready = True
        self._announced, self._announced_s = progress.positions, now_s
        return CopyReady(
            task=str(self.task_id),
            learn_epoch=self.learn_epoch,
            store_uuid=self.store_uuid,
            positions=_keyed(progress.positions),
            ends=_keyed(progress.ends),
        )

    def _withdraw(self, reason: str) -> CopyNotReady | None:
        if not self.is_ready:
            return None
        self.is_ready = False
        return CopyNotReady(task=str(self.task_id), learn_epoch=self.learn_epoch, reason=reason)

    def status(self, waits: str = "") -> TaskStatus:
        progress = self.progress or CopyProgress(positions={}, ends={})
        lag = None if self.progress is None else progress.lag
        return TaskStatus(
            task=str(self.task_id),
            role=self.role,
            epoch=self.learn_epoch,
            state="READY" if self.is_ready else "RESTORING",
            changelog=_keyed(progress.positions),
            ends=_keyed(progress.ends),
            lag=_UNKNOWN_LAG if lag is None else lag,
            waits=waits,
        )


def _keyed(offsets: Mapping[TopicPartition, int | None]) -> dict[str, int]:
    return {
        position_key(partition): offset
        for partition, offset in offsets.items()
        if offset is not None
    }
