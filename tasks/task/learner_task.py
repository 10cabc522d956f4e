"""Copies of a task's state: learners and standbys. They restore and follow it, and say when they are ready to take over.

Both do the same work; a learner is meant to become the owner, a standby stays. A copy is kept as the task that it would
become, with its databases open and nothing that processes begun, so that it is promoted in place: nothing is closed, and
no record is read a second time. The thread of `tidewheel.tasks.restore.state_updater` moves it on.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from tidewheel.rebalance.model import TaskId, TopicPartition, position_key
from tidewheel.rebalance.protocol.orders import CopyNotReady, CopyReady
from tidewheel.rebalance.protocol.task_status import TaskStatus
from tidewheel.tasks.task.task import Task

#: A copy that is ready says so again as it moves on, but not more often than this.
_SAY_AGAIN_S: Final = 0.1

#: The lag of a copy whose end is not known.
_UNKNOWN: Final = -1


class CopyProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a copy is: its position per partition it follows, and the end that is known there (None: not known).

    The end is that of the log, undecided records included; where a table is restored from its input, the committed input offset.
    """

    positions: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int | None]

    @property
    def lag(self) -> int | None:
        """Return how many offsets are to be read; None if that is not known.

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
    """One copy. Owned by the updater's thread; others may read its attributes.

    Attributes:
        task: What it becomes.
        role: "learner" or "standby".
        learn_epoch: The step of the group that planted it; its announcements name it.
        store_uuid: Identity of the data it has.
        progress: How far it is; None before anything is known.
        is_ready: Whether it has said so.
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
        self._said: Mapping[TopicPartition, int] | None = None
        self._said_s = 0.0

    @property
    def task_id(self) -> TaskId:
        """Return the id of the task."""
        return self.task.task_id

    def appoint(self, role: str, learn_epoch: int) -> None:
        """Give the copy another role or epoch, or the same again: it announces itself anew."""
        if learn_epoch != self.learn_epoch:
            self.is_ready = False  # what it said under the old one counts no more
        self.role = role
        self.learn_epoch = learn_epoch
        self._said = None

    def begins_anew(self, reason: str) -> CopyNotReady | None:
        """Note that its data is read from the beginning again; return what is to be said about it."""
        self.progress = None
        return self._falls_back(reason)

    def moves_on(self, progress: CopyProgress, now_s: float) -> CopyReady | CopyNotReady | None:
        """Note how far it is; return what is to be said about it: L2."""
        self.progress = progress
        lag = progress.lag
        if lag is None or lag > self._acceptable_lag:
            return self._falls_back("its lag is not known" if lag is None else f"{lag} behind")
        again = self.is_ready and self._said is not None
        if again and (now_s - self._said_s < _SAY_AGAIN_S or progress.positions == self._said):
            return None
        self.is_ready = True
        self._said, self._said_s = progress.positions, now_s
        return CopyReady(
            task=str(self.task_id),
            learn_epoch=self.learn_epoch,
            store_uuid=self.store_uuid,
            positions=_keyed(progress.positions),
            ends=_keyed(progress.ends),
        )

    def _falls_back(self, reason: str) -> CopyNotReady | None:
        if not self.is_ready:
            return None
        self.is_ready = False
        return CopyNotReady(task=str(self.task_id), learn_epoch=self.learn_epoch, reason=reason)

    def status(self, waits: str = "") -> TaskStatus:
        """Return how far it is, for `WorkerStatus`; `waits` says why it does not go on."""
        progress = self.progress or CopyProgress(positions={}, ends={})
        lag = None if self.progress is None else progress.lag
        return TaskStatus(
            task=str(self.task_id),
            role=self.role,
            epoch=self.learn_epoch,
            state="READY" if self.is_ready else "RESTORING",
            changelog=_keyed(progress.positions),
            ends=_keyed(progress.ends),
            lag=_UNKNOWN if lag is None else lag,
            waits=waits,
        )


def _keyed(offsets: Mapping[TopicPartition, int | None]) -> dict[str, int]:
    return {
        position_key(partition): offset
        for partition, offset in offsets.items()
        if offset is not None
    }
