"""One decision while it is being made: the records so far, the group as it will be with them, and when to look again."""

from typing import Final

import msgspec

from tidewheel.rebalance.group import Group, apply
from tidewheel.rebalance.leader.decision import CoordinatorSettings
from tidewheel.rebalance.leader.observations import Observations
from tidewheel.rebalance.model import MemberPhase, Positions, TaskId, TaskPhase
from tidewheel.rebalance.protocol.records import AnyRecord, MemberRecord, TaskRecord

#: Phases with an owner. Its fence releases a task from each of them.
_OWNED: Final = (TaskPhase.RUNNING, TaskPhase.REVOKING, TaskPhase.FENCE_WAIT)

#: A decision is looked at again after this long even if nothing was observed.
LOOK_AGAIN_MS: Final = 60_000


class Draft(msgspec.Struct, kw_only=True):
    """What is known, and what has been decided so far; each pass adds its records.

    Attributes:
        group: With the records so far.
        seen: What the leader observed.
        settings: The leader's.
        now_ms: The moment of the decision.
        records: Decided so far.
        ends_wanted: Position keys whose end offsets are to be read.
        wake_ms: Nothing that depends on time alone changes before then.
    """

    group: Group
    seen: Observations
    settings: CoordinatorSettings
    now_ms: int
    records: list[AnyRecord] = msgspec.field(default_factory=list[AnyRecord])
    ends_wanted: set[str] = msgspec.field(default_factory=set[str])
    wake_ms: int = 0
    _live: dict[str, MemberRecord] = msgspec.field(default_factory=dict[str, MemberRecord])
    _incarnations: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    _live_of: object = None

    def __post_init__(self) -> None:
        """Begin with the furthest moment."""
        self.wake_ms = self.now_ms + LOOK_AGAIN_MS

    @property
    def epoch(self) -> int:
        """The leader's."""
        return self.group.leader_epoch

    def live(self) -> dict[str, MemberRecord]:
        """Return the live incarnations, as `Group.live` does, without sorting them anew while none changes."""
        if self._live_of is not self.group.members:
            self._live, self._live_of = self.group.live(), self.group.members
            self._incarnations = {record.member: each for each, record in self._live.items()}
        return self._live

    def incarnations(self) -> dict[str, str]:
        """Return the live incarnation of each member's name."""
        self.live()
        return self._incarnations

    def write(self, record: AnyRecord) -> None:
        """Add a record; from here on the group is the one with it."""
        self.records.append(record)
        self.group = apply(self.group, record)

    def due(self, at_ms: int) -> bool:
        """Return whether a moment has come; if not, the next decision is made by then."""
        if self.now_ms >= at_ms:
            return True
        self.wake_ms = min(self.wake_ms, at_ms)
        return False

    # -- members ------------------------------------------------------------------------------------------------------

    def move_member(self, record: MemberRecord, phase: MemberPhase, reason: str) -> MemberRecord:
        """Write that a member is in another phase; return its new record."""
        moved = msgspec.structs.replace(
            record, leader_epoch=self.epoch, phase=phase.value, reason=reason
        )
        self.write(moved)
        return moved

    def set_aside(self, task: TaskId, problem: str) -> None:
        """Leave a task as it is because the group contradicts itself about it; people are told."""
        self.seen.set_aside[task] = f"task {task} is left as it is: {problem}"

    # -- tasks: the table of `TaskPhase`, each arrow a method ----------------------------------------------------------

    def grant(self, task: TaskId, owner: MemberRecord, reason: str) -> None:
        """UNOWNED, RELEASED -> RUNNING, at the next task epoch."""
        before = self._task(task, TaskPhase.UNOWNED, TaskPhase.RELEASED)
        granted = msgspec.structs.replace(
            before,
            phase=TaskPhase.RUNNING.value,
            task_epoch=before.task_epoch + 1,
            owner=owner.incarnation,
            member=owner.member,
            next_member=None,
            event="GRANT",
            reason=reason,
            source="",
            deadline_ms=0,
        )
        self.write(granted)

    def revoke(self, task: TaskId, next_member: str | None, reason: str, deadline_ms: int) -> None:
        """RUNNING -> REVOKING."""
        before = self._task(task, TaskPhase.RUNNING)
        self.write(
            msgspec.structs.replace(
                before,
                phase=TaskPhase.REVOKING.value,
                next_member=next_member,
                event="REVOKE",
                reason=reason,
                deadline_ms=deadline_ms,
            )
        )

    def await_fence(self, task: TaskId, reason: str, committed: Positions) -> None:
        """RUNNING, REVOKING -> FENCE_WAIT: its owner is to be fenced; what it last said to have committed is logged."""
        before = self._task(task, *_OWNED)
        self.write(
            msgspec.structs.replace(
                before,
                phase=TaskPhase.FENCE_WAIT.value,
                event="FENCE_WAIT",
                reason=reason,
                input=_raised(before.input, committed),
            )
        )

    def release_by_ack(self, task: TaskId, committed: Positions, changelog_end: Positions) -> None:
        """REVOKING -> RELEASED: its owner has let go, and says where it stopped."""
        before = self._task(task, TaskPhase.REVOKING)
        self._release(before, "ack", committed, changelog_end)

    def release_by_fence(self, task: TaskId) -> None:
        """FENCE_WAIT -> RELEASED: its owner can't commit any more; where it stopped is read from what is committed.

        That is never below what it was granted with, nor below what it last said to have committed, so these are the
        floor of whoever is next (H15): also if the owner died because it refused to begin below it, as often as it is
        started again.
        """
        before = self._task(task, *_OWNED)
        self._release(before, "fence", {}, {})

    def forget_input(self, task: TaskId) -> None:
        """RELEASED stays RELEASED: where its owner stopped is of no use, because the topics are gone, and their offsets."""
        before = self.group.states.get(task)
        if before is not None and before.phase == TaskPhase.RELEASED and before.input:
            self.write(msgspec.structs.replace(before, leader_epoch=self.epoch, input={}))

    def _release(
        self, before: TaskRecord, source: str, committed: Positions, changelog_end: Positions
    ) -> None:
        self.write(
            msgspec.structs.replace(
                before,
                phase=TaskPhase.RELEASED.value,
                owner=None,
                member=None,
                event="RELEASED",
                input=_raised(before.input, committed),
                changelog_end=dict(changelog_end),
                source=source,
                deadline_ms=0,
            )
        )

    def _task(self, task: TaskId, *phases: TaskPhase) -> TaskRecord:
        """Return a task's record under this leader's epoch; ValueError if there is no such arrow from its phase."""
        record = self.group.states.get(task)
        if record is None:
            record = TaskRecord(
                leader_epoch=self.epoch,
                task=str(task),
                phase=TaskPhase.UNOWNED.value,
                task_epoch=0,
            )
        if record.phase not in phases:
            raise ValueError(
                f"task {task} is {record.phase}: what was to be done with it needs {' or '.join(phases)}"
            )
        return msgspec.structs.replace(record, leader_epoch=self.epoch)


def _raised(floor: Positions, committed: Positions) -> dict[str, int]:
    """Return a floor with what was committed since: an owner that did not come to commit takes nothing from it."""
    return {**floor, **{key: max(at, floor.get(key, at)) for key, at in committed.items()}}
