"""A decision in progress: its records, and the group as they change it."""

from typing import Final

import msgspec

from tidewheel.rebalance.leader.decision import CoordinatorSettings
from tidewheel.rebalance.leader.observations import Observations
from tidewheel.rebalance.model import MemberPhase, Positions, TaskId, TaskPhase
from tidewheel.rebalance.protocol.group import Group, apply
from tidewheel.rebalance.protocol.records import AnyRecord, MemberRecord, TaskRecord, task_record

_OWNED: Final = (TaskPhase.RUNNING, TaskPhase.REVOKING, TaskPhase.FENCE_WAIT)

IDLE_MAX_MS: Final = 60_000


class Draft(msgspec.Struct, kw_only=True):
    group: Group  # Includes the changes by `records`.
    observations: Observations
    settings: CoordinatorSettings
    now_ms: int
    records: list[AnyRecord] = msgspec.field(default_factory=list[AnyRecord])
    ends_wanted: set[str] = msgspec.field(default_factory=set[str])
    wake_ms: int = 0  # Next time at which a decision can change without a message.
    _live: dict[str, MemberRecord] = msgspec.field(default_factory=dict[str, MemberRecord])
    _incarnations: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    _live_of: object = None

    def __post_init__(self) -> None:
        self.wake_ms = self.now_ms + IDLE_MAX_MS

    @property
    def epoch(self) -> int:
        return self.group.leader_epoch

    def live(self) -> dict[str, MemberRecord]:
        if self._live_of is not self.group.members:
            self._live, self._live_of = self.group.live(), self.group.members
            self._incarnations = {
                record.member: incarnation for incarnation, record in self._live.items()
            }
        return self._live

    def incarnations(self) -> dict[str, str]:
        self.live()
        return self._incarnations

    def write(self, record: AnyRecord) -> None:
        self.records.append(record)
        self.group = apply(self.group, record)

    def due_or_schedule(self, at_ms: int) -> bool:
        """Return True if `at_ms` has come; otherwise schedule the next decision for it."""
        if self.now_ms >= at_ms:
            return True
        self.wake_ms = min(self.wake_ms, at_ms)
        return False

    def move_member(self, record: MemberRecord, phase: MemberPhase, reason: str) -> MemberRecord:
        moved = msgspec.structs.replace(
            record, leader_epoch=self.epoch, phase=phase.value, reason=reason
        )
        self.write(moved)
        return moved

    def set_aside(self, task: TaskId, problem: str) -> None:
        """Report a task as an alarm: its record contradicts the decision, so it stays unchanged."""
        self.observations.set_aside[task] = f"task {task} is left unchanged: {problem}"

    # -- transitions of `TaskPhase` --

    def grant(self, task: TaskId, owner: MemberRecord, reason: str) -> None:
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
        """Move a dead owner's task to FENCE_WAIT; log the offsets it last reported as committed."""
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
        before = self._task(task, TaskPhase.REVOKING)
        self._release(before, "ack", committed, changelog_end)

    def release_by_fence(self, task: TaskId) -> None:
        """Move a task from FENCE_WAIT to RELEASED: its owner can no longer commit.

        The next owner starts at the committed offsets. If they are below the record's `input`, it
        refuses to start.
        """
        before = self._task(task, *_OWNED)
        self._release(before, "fence", {}, {})

    def forget_input(self, task: TaskId) -> None:
        """Drop a RELEASED task's input offsets: its topics are gone."""
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
        """Return a task's record, with this leader's epoch. Other phases raise ValueError."""
        record = self.group.states.get(task)
        if record is None:
            record = task_record(
                task, leader_epoch=self.epoch, phase=TaskPhase.UNOWNED.value, task_epoch=0
            )
        if record.phase not in phases:
            raise ValueError(
                f"task {task} is {record.phase}: this change needs {' or '.join(phases)}"
            )
        return msgspec.structs.replace(record, leader_epoch=self.epoch)


def _raised(floor: Positions, committed: Positions) -> dict[str, int]:
    return {**floor, **{key: max(at, floor.get(key, at)) for key, at in committed.items()}}
