"""The leader's side of a group: what it observes in, what it decides out; no I/O, no clock.

A decision is a function of the group (the fold of the log), what was observed, and the moment; it is made in passes, each
of which adds records to a draft: membership, program, target, task moves. The caller carries it out:

        decide() -> records in one transaction -> committed() -> fences, reads, the assignor, messages -> what came of them

If the transaction failed, or its outcome is unknown, the coordinator is dropped: the log is the only truth, and whoever
claims next begins from it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from tidewheel.rebalance.assignors.task_assignor import Assignment, AssignmentRequest
from tidewheel.rebalance.group import Group, replay
from tidewheel.rebalance.leader.decision import CoordinatorSettings, Decision, Fence
from tidewheel.rebalance.leader.draft import Draft
from tidewheel.rebalance.leader.membership import (
    admit,
    bury,
    choose_program,
    correct_members,
    fences_due,
    let_leave,
    log_ids,
    shut_down,
    take_acks,
)
from tidewheel.rebalance.leader.observations import Observations
from tidewheel.rebalance.leader.readiness import want_checks
from tidewheel.rebalance.leader.targets import Assigning, ask_for_target, write_target
from tidewheel.rebalance.leader.task_moves import move_tasks
from tidewheel.rebalance.model import TaskPhase
from tidewheel.rebalance.protocol.messages import AnyMessage, LeaderBeat
from tidewheel.rebalance.protocol.records import AnyRecord, StepRecord, TaskRecord
from tidewheel.rebalance.refine.refine import Refiner

__all__ = ["Coordinator", "CoordinatorSettings", "Decision", "Fence"]

#: Passes over the tasks in one decision at most: what a grant frees, the next pass gives away.
MOVE_PASSES_MAX: Final = 8


class Coordinator:
    """Decides for the group while its process leads.

    Attributes:
        group: The fold of the log, as far as this leader wrote it.
        state_offset: End of the group log, for its beats; whoever writes the log keeps it up to date.
        warnings: What else people are to know, for its beats, by topic of the warning.
    """

    def __init__(
        self,
        group: Group,
        *,
        app: str,
        leader: str,
        settings: CoordinatorSettings,
        now_ms: int,
    ) -> None:
        """Take over: `group` is the fold of the log, this leader's claim included; `leader` is its process's id."""
        live = group.live()
        self.group = group
        self.state_offset = 0
        self.warnings: dict[str, str] = {}
        self._app = app
        self._leader = leader
        self._settings = settings
        self._seen = Observations(
            claimed_ms=now_ms,
            ready_lag_max=settings.acceptable_recovery_lag,
            # The joins of a live incarnation count, even if the log lists it as ended.
            ended=dict.fromkeys(each for each in group.ended if each not in live),
        )
        self._seen.planned.update(
            task
            for task, state in group.states.items()
            if task in group.tasks
            and state.next_member
            and state.phase in (TaskPhase.REVOKING, TaskPhase.RELEASED)
        )
        self._seen.moved_ms = now_ms
        self._let_settle(now_ms)
        self._assigning = Assigning()
        self._refiner = Refiner()
        self._beats = 0
        self._beat_ms = now_ms
        self._dirty = True
        self._look_ms = now_ms

    @property
    def alarm(self) -> str:
        """Why the assignor's last answer could not be used, or ""."""
        return self._assigning.alarm

    def observe(self, message: AnyMessage, now_ms: int) -> None:
        """Take in anything from the inbox; what is not of this application or not of a current incarnation is dropped."""
        if message.app == self._app:
            self._dirty = self._seen.note(message, self.group, now_ms) or self._dirty

    def committed(self, records: Sequence[AnyRecord], now_ms: int) -> None:
        """Take note that the records of the last decision are in the log.

        What follows from steps and task moves was decided together with them; what follows from the rest is looked at.
        """
        self.group = replay(records, self.group)
        self._note_moves(now_ms)
        if not all(isinstance(record, StepRecord | TaskRecord) for record in records):
            self._dirty = True

    def fenced(self, incarnation: str, now_ms: int) -> None:  # noqa: ARG002 - every input has its moment
        """Take note that a fence is done: nothing of that incarnation can be committed any more."""
        self._seen.fenced.add(incarnation)
        self._dirty = True

    def ends_read(self, ends: Mapping[str, int], asked_ms: int, now_ms: int) -> None:  # noqa: ARG002 - every input has its moment
        """Take in read-committed end offsets by position key, asked for at `asked_ms` (this leader's clock)."""
        self._seen.note_ends(ends, asked_ms, self.group.tasks)
        self._dirty = True

    def assigned(
        self,
        request: AssignmentRequest,
        answer: Assignment | None,
        error: str,
        now_ms: int,
    ) -> None:
        """Take in the assignor's answer; without one, or with a bad one, the target stays and `alarm` says why."""
        self._assigning.take(request, answer, error, now_ms)
        self._dirty = True

    def decide(self, now_ms: int) -> Decision:
        """Return what is to be done now; with nothing new since the last one, nothing but a beat when it is due."""
        if not self._dirty and now_ms < self._look_ms:
            beats = self._beat_if_due(now_ms)
            return Decision(messages=beats, wake_ms=min(self._look_ms, self._next_beat_ms))
        draft = Draft(group=self.group, seen=self._seen, settings=self._settings, now_ms=now_ms)
        take_acks(draft)
        refused = admit(draft, app=self._app, leader=self._leader)
        correct_members(draft)
        log_ids(draft)
        shut_down(draft)
        bury(draft)
        let_leave(draft)
        choose_program(draft)
        write_target(draft, self._assigning)
        request = ask_for_target(draft, self._assigning)
        want_checks(draft)
        self._move(draft)
        let_leave(draft)
        fences = tuple(fences_due(draft))
        self._seen.ends_asked_ms.update(dict.fromkeys(draft.ends_wanted, now_ms))
        self._dirty = False
        self._look_ms = draft.wake_ms
        messages: tuple[AnyMessage, ...] = (*refused, *self._beat_if_due(now_ms))
        return Decision(
            records=tuple(draft.records),
            messages=messages,
            fences=fences,
            read_ends=tuple(sorted(draft.ends_wanted)),
            assign=request,
            wake_ms=now_ms if draft.records else min(self._look_ms, self._next_beat_ms),
        )

    def _foreign_assignor(self) -> str:
        """Return that the log names another assignor than this process was started with, or ""."""
        own, named = self._settings.assignor, self.group.about.assignor
        if not own or not named or own == named:
            return ""
        return (
            f"the group log names task_assignor {named!r}, and this process was started with {own!r}, which it goes on to ask: "
            "no other is imported"
        )

    def resign(self, now_ms: int) -> LeaderBeat:
        """Return the last beat: the next candidate need not wait. Decide no more after it."""
        self._beat_ms = now_ms
        return self._beat(resigns=True)

    def _let_settle(self, now_ms: int) -> None:
        """Have everybody without a task settle anew: for how long they have been here is not in the log (N11)."""
        owners = {state.owner for state in self.group.states.values()}
        for incarnation in self.group.live():
            if incarnation not in owners:
                self._seen.of(incarnation).admitted_ms = now_ms

    def _note_moves(self, now_ms: int) -> None:
        """Take note of planned moves whose grants are in the log now: the pace counts from here, however slow the log was (N3)."""
        planned, tasks = self._seen.planned, self.group.tasks
        gone = {task for task in planned if task not in tasks}  # its topic is, or its program
        over = {task for task in planned if self.group.phase_of(task) == TaskPhase.RUNNING}
        if gone:
            self._seen.planned -= gone
            self._dirty = True
        if over:
            self._seen.planned -= over
            self._seen.moved_ms = now_ms
            self._look_ms = min(self._look_ms, now_ms + self._settings.task_move_interval_ms)

    def _move(self, draft: Draft) -> None:
        """Move tasks until nothing follows from what was decided."""
        for _ in range(MOVE_PASSES_MAX):
            before = len(draft.records)
            move_tasks(draft, self._refiner)
            if len(draft.records) == before:
                return

    # -- beats --------------------------------------------------------------------------------------------------------

    @property
    def _next_beat_ms(self) -> int:
        return self._beat_ms + (self._settings.heartbeat_interval_ms if self._beats else 0)

    def _beat_if_due(self, now_ms: int) -> tuple[LeaderBeat, ...]:
        """Return a beat if one is due, or if somebody doubts that this leader lives (H2)."""
        if now_ms < self._next_beat_ms and not self._seen.suspected:
            return ()
        self._seen.suspected = False
        self._beat_ms = now_ms
        return (self._beat(resigns=False),)

    def _beat(self, *, resigns: bool) -> LeaderBeat:
        self._beats += 1
        members = self._seen.members
        return LeaderBeat(
            app=self._app,
            member=self._leader,
            incarnation=self._leader,
            leader_epoch=self.group.leader_epoch,
            seq=self._beats,
            state_offset=self.state_offset,
            seen={
                each: members[each].sequence
                for each in self.group.live()
                if each in members and members[each].sequence >= 0
            },
            resigns=resigns,
            alarms=tuple(
                each
                for each in (
                    self.alarm,
                    self._foreign_assignor(),
                    *self.warnings.values(),
                    *self._seen.set_aside.values(),
                )
                if each
            ),
        )
