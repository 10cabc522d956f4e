"""The coordinator: turns observations into decisions, without I/O or a clock.

A decision depends on the group (the folded log), the observations and the time. Passes add records
to a draft: membership, program, target, task moves. The caller executes it:

        decide() -> records in one transaction -> committed() -> fences, reads, assignor, messages

If the transaction fails, or its outcome is unknown, the caller drops the coordinator: the next
leader starts from the log.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from tidewheel.rebalance.assignors.task_assignor import Assignment, AssignmentRequest
from tidewheel.rebalance.leader.decision import CoordinatorSettings, Decision, Fence
from tidewheel.rebalance.leader.draft import Draft
from tidewheel.rebalance.leader.membership import (
    admit_members,
    correct_members,
    fence_dead_members,
    log_transactional_ids,
    pending_fences,
    process_leaves,
    release_acknowledged,
    shut_down,
    update_program,
)
from tidewheel.rebalance.leader.observations import Observations
from tidewheel.rebalance.leader.readiness import request_checks
from tidewheel.rebalance.leader.targets import AssignorRequests, request_target, write_target
from tidewheel.rebalance.leader.task_moves import move_tasks
from tidewheel.rebalance.model import TaskPhase
from tidewheel.rebalance.protocol.group import Group, replay
from tidewheel.rebalance.protocol.messages import AnyMessage, LeaderBeat
from tidewheel.rebalance.protocol.records import AnyRecord, StepRecord, TaskRecord
from tidewheel.rebalance.refine.refine import Refiner

__all__ = ["Coordinator", "CoordinatorSettings", "Decision", "Fence"]

#: Passes that move tasks in one decision: a pass can permit further moves.
MOVE_PASSES_MAX: Final = 8


class Coordinator:
    def __init__(
        self,
        group: Group,
        *,
        app: str,
        leader: str,
        settings: CoordinatorSettings,
        now_ms: int,
    ) -> None:
        """Start from a group that includes this leader's claim; `leader` is the process's id."""
        live = group.live()
        self.group = group  # The folded log, up to this leader's last committed record.
        self.state_offset = 0  # Position in the group log, for beats; `Leadership` updates it.
        self.warnings: dict[str, str] = {}  # Alarms that `Leadership` adds to beats, by subject.
        self._app = app
        self._leader = leader
        self._settings = settings
        self._observations = Observations(
            claimed_ms=now_ms,
            ready_lag_max=settings.acceptable_recovery_lag,
            # A contradictory log can list a live incarnation as ended: its join must be accepted.
            ended=dict.fromkeys(
                incarnation for incarnation in group.ended if incarnation not in live
            ),
        )
        self._observations.planned.update(
            task
            for task, state in group.states.items()
            if task in group.tasks
            and state.next_member
            and state.phase in (TaskPhase.REVOKING, TaskPhase.RELEASED)
        )
        self._observations.moved_ms = now_ms
        self._restart_settling(now_ms)
        self._assigning = AssignorRequests()
        self._refiner = Refiner()
        self._beats = 0
        self._beat_ms = now_ms
        self._dirty = True
        self._decide_by_ms = now_ms

    @property
    def alarm(self) -> str:
        return self._assigning.alarm

    def observe(self, message: AnyMessage, now_ms: int) -> None:
        if message.app == self._app:
            self._dirty = self._observations.process(message, self.group, now_ms) or self._dirty

    def committed(self, records: Sequence[AnyRecord], now_ms: int) -> None:
        """Apply the last decision's records, now that they are in the log.

        STEP and TASK records leave nothing to decide; all others make a new decision due.
        """
        self.group = replay(records, self.group)
        self._record_moves(now_ms)
        if not all(isinstance(record, StepRecord | TaskRecord) for record in records):
            self._dirty = True

    def pardon_silence(self, now_ms: int) -> None:
        """Start waits for members again after a time in which this leader read nothing."""
        observations = self._observations
        observations.claimed_ms = now_ms
        for member in observations.members.values():
            member.heard_ms = now_ms
        observations.phase_ms = dict.fromkeys(observations.phase_ms, now_ms)
        observations.revoked_ms.clear()
        self._dirty = True

    def fenced(self, incarnation: str, now_ms: int) -> None:  # noqa: ARG002 - every input method takes the time
        self._observations.fenced.add(incarnation)
        self._dirty = True

    def ends_read(self, ends: Mapping[str, int], requested_ms: int, now_ms: int) -> None:  # noqa: ARG002 - every input method takes the time
        """Record high watermarks; `requested_ms` is this leader's clock at the request."""
        self._observations.record_ends(ends, requested_ms, self.group.tasks)
        self._dirty = True

    def assigned(
        self,
        request: AssignmentRequest,
        answer: Assignment | None,
        error: str,
        now_ms: int,
    ) -> None:
        """Process the assignor's answer; an invalid one keeps the target and sets `alarm`."""
        self._assigning.accept(request, answer, error, now_ms)
        self._dirty = True

    def decide(self, now_ms: int) -> Decision:
        """Return the actions due now; without new observations only a beat."""
        if not self._dirty and now_ms < self._decide_by_ms:
            beats = self.due_beats(now_ms)
            return Decision(messages=beats, wake_ms=min(self._decide_by_ms, self.next_beat_ms))
        draft = Draft(
            group=self.group,
            observations=self._observations,
            settings=self._settings,
            now_ms=now_ms,
        )
        release_acknowledged(draft)
        refused = admit_members(draft, app=self._app, leader=self._leader)
        correct_members(draft)
        log_transactional_ids(draft)
        shut_down(draft)
        fence_dead_members(draft)
        process_leaves(draft)
        update_program(draft)
        write_target(draft, self._assigning)
        request = request_target(draft, self._assigning)
        request_checks(draft)
        self._move(draft)
        process_leaves(draft)
        fences = tuple(pending_fences(draft))
        self._observations.ends_requested_ms.update(dict.fromkeys(draft.ends_wanted, now_ms))
        self._dirty = False
        self._decide_by_ms = draft.wake_ms
        messages: tuple[AnyMessage, ...] = (*refused, *self.due_beats(now_ms))
        return Decision(
            records=tuple(draft.records),
            messages=messages,
            fences=fences,
            read_ends=tuple(sorted(draft.ends_wanted)),
            assign=request,
            wake_ms=now_ms if draft.records else min(self._decide_by_ms, self.next_beat_ms),
        )

    @property
    def next_beat_ms(self) -> int:
        return self._beat_ms + (self._settings.heartbeat_interval_ms if self._beats else 0)

    def due_beats(self, now_ms: int) -> tuple[LeaderBeat, ...]:
        if now_ms < self.next_beat_ms and not self._observations.suspected:
            return ()
        self._observations.suspected = False
        self._beat_ms = now_ms
        return (self._beat(resigns=False),)

    def _foreign_assignor(self) -> str:
        own_assignor, named = self._settings.assignor, self.group.about.assignor
        if not own_assignor or not named or own_assignor == named:
            return ""
        return (
            f"the group log names task_assignor {named!r}, and this process was started with {own_assignor!r}, which it continues to use: "
            "it imports no other"
        )

    def resign(self, now_ms: int) -> LeaderBeat:
        """Return the last beat, which lets the next candidate lead without waiting."""
        self._beat_ms = now_ms
        return self._beat(resigns=True)

    def _restart_settling(self, now_ms: int) -> None:
        """Keep running tasks from taskless members for `settling_ms`: join times are not logged."""
        owners = {state.owner for state in self.group.states.values()}
        for incarnation in self.group.live():
            if incarnation not in owners:
                self._observations.of(incarnation).admitted_ms = now_ms

    def _record_moves(self, now_ms: int) -> None:
        """Time the next planned move from the grant that ended the last, not its revocation."""
        planned, tasks = self._observations.planned, self.group.tasks
        removed = {task for task in planned if task not in tasks}
        over = {task for task in planned if self.group.phase_of(task) == TaskPhase.RUNNING}
        if removed:
            self._observations.planned -= removed
            self._dirty = True
        if over:
            self._observations.planned -= over
            self._observations.moved_ms = now_ms
            self._decide_by_ms = min(
                self._decide_by_ms, now_ms + self._settings.task_move_interval_ms
            )

    def _move(self, draft: Draft) -> None:
        for _ in range(MOVE_PASSES_MAX):
            before = len(draft.records)
            move_tasks(draft, self._refiner)
            if len(draft.records) == before:
                return

    def _beat(self, *, resigns: bool) -> LeaderBeat:
        self._beats += 1
        members = self._observations.members
        return LeaderBeat(
            app=self._app,
            member=self._leader,
            incarnation=self._leader,
            leader_epoch=self.group.leader_epoch,
            seq=self._beats,
            state_offset=self.state_offset,
            seen={
                incarnation: members[incarnation].sequence
                for incarnation in self.group.live()
                if incarnation in members and members[incarnation].sequence >= 0
            },
            resigns=resigns,
            alarms=tuple(
                alarm
                for alarm in (
                    self.alarm,
                    self._foreign_assignor(),
                    *self.warnings.values(),
                    *self._observations.set_aside.values(),
                )
                if alarm
            ),
        )
