"""Task moves: refine the target, pace the moves, reconcile members, write the difference."""

from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Final

import msgspec

from tidewheel.rebalance.leader.draft import Draft
from tidewheel.rebalance.leader.readiness import (
    current_copies,
    has_failed,
    is_fresh,
    waits_for_checks,
)
from tidewheel.rebalance.leader.reconcile import MemberAssignment, MemberState, reconcile
from tidewheel.rebalance.leader.targets import awaited_names, disk_lags
from tidewheel.rebalance.model import MemberPhase, TaskId, TaskPhase, TaskRole
from tidewheel.rebalance.protocol.group import IntermediateAssignment, step_record
from tidewheel.rebalance.protocol.records import Copy, MemberRecord, TaskRecord
from tidewheel.rebalance.refine.refine import Refinement, Refiner
from tidewheel.rebalance.refine.refine_input import (
    CurrentCopy,
    CurrentMember,
    CurrentTask,
    Readiness,
    RefineInput,
)

_RUNNING: Final = TaskPhase.RUNNING
_REVOKING: Final = TaskPhase.REVOKING
_FENCE_WAIT: Final = TaskPhase.FENCE_WAIT
_FREE: Final = (TaskPhase.UNOWNED, TaskPhase.RELEASED)
_PHASES: Final = {phase.value: phase for phase in TaskPhase}
_ACTIVE: Final = TaskRole.ACTIVE
_READY: Final = Readiness.READY


def move_tasks(draft: Draft, refiner: Refiner) -> None:
    """Write the next intermediate assignment, with the revocations and grants that it allows."""
    if draft.group.target.group_epoch == 0 or draft.group.about.held:
        return
    expelled = _expelled(draft)
    owners = _spared_owners(draft)
    intermediate = refiner.refine(_refine_input(draft, owners, expelled))
    wanted = _wanted(draft, intermediate, expelled)
    for change in _changes(draft, wanted):
        phase = draft.group.phase_of(change.task)
        if phase in (_FREE if change.grant else (_RUNNING,)):
            draft.observations.set_aside.pop(change.task, None)
            _apply_change(draft, change, intermediate)
        else:
            verb = "granted to" if change.grant else "revoked from"
            draft.set_aside(
                change.task, f"it is {phase} and was to be {verb} {change.member.member}"
            )
    _write_step(draft, intermediate)


def _expelled(draft: Draft) -> frozenset[str]:
    """Return leaving members whose deadline has passed: their tasks are revoked now."""
    live = draft.live().values()
    has_no_active = not any(record.phase == MemberPhase.ACTIVE for record in live)
    names: set[str] = set()
    for record in live:
        if record.phase == MemberPhase.LEAVING:
            since_ms = draft.observations.phase_ms.get(
                record.incarnation, draft.observations.claimed_ms
            )
            if has_no_active or draft.due_or_schedule(since_ms + record.drain_ms):
                names.add(record.member)
    return frozenset(names)


def _spared_owners(draft: Draft) -> dict[TaskId, str]:
    """Return the target owners, but other members for tasks that theirs failed to open recently."""
    owners = dict(draft.group.target.owners)
    spared: dict[TaskId, set[str]] = {}
    for (task, name), failure in draft.observations.failures.items():
        if not draft.due_or_schedule(failure.until_ms):
            spared.setdefault(task, set()).add(name)
    if not spared:
        return owners
    active = [record for record in draft.live().values() if record.phase == MemberPhase.ACTIVE]
    load = Counter(owners.values())
    for task, names in sorted(spared.items()):
        if owners.get(task) not in names:
            continue
        other_names = sorted(record.member for record in active if record.member not in names)
        holder = _holder(draft, draft.group.states.get(task))
        if holder in other_names:
            owners[task] = holder
        elif other_names:
            owners[task] = min(other_names, key=lambda name: (load[name], name))
            load[owners[task]] += 1
        else:
            del owners[task]
    return owners


def _holder(draft: Draft, state: TaskRecord | None) -> str | None:
    record = None if state is None else draft.live().get(state.owner or "")
    return None if record is None else record.member


def _refine_input(
    draft: Draft, owners: Mapping[TaskId, str], expelled: frozenset[str]
) -> RefineInput:
    group, settings = draft.group, draft.settings
    members = tuple(
        CurrentMember(
            name=record.member,
            threads=record.threads,
            settled=_is_settled(draft, record),
            leaving=record.phase == MemberPhase.LEAVING and record.member not in expelled,
            expelled=record.member in expelled,
        )
        for record in draft.live().values()
        if record.phase != MemberPhase.PARKED
    )
    failing = {
        key
        for key, failure in draft.observations.failures.items()
        if not draft.due_or_schedule(failure.until_ms)
    }
    return RefineInput(
        tasks=group.tasks,
        owners=owners,
        standbys=group.target.standbys if not failing else _without(group.target.standbys, failing),
        members=members,
        states=_current_tasks(draft, failing),
        waiting=awaited_names(group),
        max_warmup_replicas=settings.max_warmup_replicas,
        acceptable_recovery_lag=settings.acceptable_recovery_lag,
        enabled=settings.refine,
    )


def _without(
    standbys: Mapping[TaskId, tuple[str, ...]], failing: AbstractSet[tuple[TaskId, str]]
) -> dict[TaskId, tuple[str, ...]]:
    return {
        task: tuple(name for name in names if (task, name) not in failing)
        for task, names in standbys.items()
    }


def _is_settled(draft: Draft, record: MemberRecord) -> bool:
    """Return True if a member was heard after `settling_ms` in the group.

    A member that vanished counts as alive for a session timeout. One that had tasks before this
    leader's claim is settled once heard again.
    """
    heard = draft.observations.of(record.incarnation)
    settling_ms = draft.settings.settling_ms
    if not settling_ms:
        return True
    if heard.admitted_ms is None:
        heard.awaited = heard.heard_ms <= draft.observations.claimed_ms
    elif draft.due_or_schedule(heard.admitted_ms + settling_ms):
        heard.awaited = heard.heard_ms < heard.admitted_ms + settling_ms
    else:
        return False
    return not heard.awaited


def _current_tasks(
    draft: Draft, failing: AbstractSet[tuple[TaskId, str]]
) -> dict[TaskId, CurrentTask]:
    group, live = draft.group, draft.live()
    on_disk: dict[TaskId, dict[str, int]] = {}
    for incarnation, record in live.items():
        for task, lag in disk_lags(draft, incarnation):
            if (task, record.member) not in failing:
                on_disk.setdefault(task, {})[record.member] = lag
    tasks: dict[TaskId, CurrentTask] = {}
    states, step = group.states, group.step
    for task in group.tasks:
        state = states.get(task)
        copied = task in step.standbys or task in step.learners
        copies = current_copies(draft, task) if copied else ()
        disk = on_disk.get(task, _NO_DISK)
        if state is None:
            if copies or disk:
                tasks[task] = CurrentTask(copies=copies, on_disk=_closed(disk, copies, None))
            continue
        owner = live.get(state.owner or "")
        holder = None if owner is None else owner.member
        tasks[task] = CurrentTask(
            phase=_PHASES[state.phase],
            owner=None if state.phase == _FENCE_WAIT else holder,
            next_member=_next_member(draft, task, state),
            owner_state=_owner_state(draft, task, state),
            copies=copies,
            on_disk=_closed(disk, copies, holder) if disk else disk,
        )
    return tasks


_NO_DISK: Mapping[str, int] = MappingProxyType({})


def _closed(
    disk: Mapping[str, int], copies: tuple[CurrentCopy, ...], holder: str | None
) -> dict[str, int]:
    """Return disk state on members that don't have the task open."""
    open_at = {holder, *(copy.member for copy in copies)}
    return {name: lag for name, lag in disk.items() if name not in open_at}


def _next_member(draft: Draft, task: TaskId, state: TaskRecord) -> str | None:
    name = state.next_member
    if name is None:
        return None
    failure = draft.observations.failures.get((task, name))
    return name if failure is None or draft.due_or_schedule(failure.until_ms) else None


def _owner_state(draft: Draft, task: TaskId, state: TaskRecord) -> Readiness:
    """Return the owner's restore progress; READY if it processes or was not heard.

    Only a grant of this leader can have NOTHING: after an older one, a late beat may lack progress.
    """
    if draft.observations.running.get(task) == state.task_epoch:
        return _READY
    heard = draft.observations.members.get(state.owner or "")
    row = heard.rows.get(task) if heard is not None else None
    epoch, has_some = draft.observations.cold.get(task, (0, False))
    is_current_grant = epoch == state.task_epoch
    if row is not None and row.role == _ACTIVE and row.epoch == state.task_epoch:
        if row.state != "RESTORING":
            return Readiness.READY
        has_started = any(row.changelog.values()) or not is_current_grant
        return Readiness.PROGRESSING if has_started else Readiness.NOTHING
    if not is_current_grant:
        return Readiness.READY
    return Readiness.PROGRESSING if has_some else Readiness.NOTHING


class _Wanted(msgspec.Struct, kw_only=True):
    owners: dict[TaskId, str]
    #: Tasks that leave a healthy owner: these moves are paced.
    planned: set[TaskId] = msgspec.field(default_factory=set[TaskId])
    #: Unowned tasks whose grant waits until the leader knows their copies' lags.
    waiting: set[TaskId] = msgspec.field(default_factory=set[TaskId])


def _wanted(draft: Draft, intermediate: Refinement, expelled: frozenset[str]) -> _Wanted:
    wanted = _Wanted(owners=dict(intermediate.owners))
    live, incarnations = draft.live(), draft.incarnations()
    for task, state in draft.group.states.items():
        owner = live.get(state.owner or "")
        if state.phase == _RUNNING and owner is not None:
            next_member = wanted.owners.get(task)
            if draft.observations.failed_tasks.get(task) == state.task_epoch:
                wanted.owners.pop(task, None)
            elif next_member not in (None, owner.member) and owner.member not in expelled:
                if _may_move(draft, wanted, task, incarnations[next_member or ""]):
                    wanted.planned.add(task)
                else:
                    wanted.owners[task] = owner.member
        elif state.phase in _FREE and waits_for_checks(draft, task, state):
            wanted.waiting.add(task)
    return wanted


def _may_move(draft: Draft, wanted: _Wanted, task: TaskId, incarnation: str) -> bool:
    """Return True if a planned move can start; moves of leaving members don't wait for others."""
    record = draft.live()[draft.group.states[task].owner or ""]
    interval_ms = draft.settings.task_move_interval_ms
    if interval_ms > 0 and record.phase != MemberPhase.LEAVING:
        if wanted.planned or _is_move_open(draft, wanted):
            return False
        if draft.observations.moved_ms is not None and not draft.due_or_schedule(
            draft.observations.moved_ms + interval_ms
        ):
            return False
    return is_fresh(draft, task, incarnation)


def _is_move_open(draft: Draft, wanted: _Wanted) -> bool:
    """Return True if an earlier planned move is not granted yet.

    Moves that wait for the return of a member don't count.
    """
    planned = draft.observations.planned - wanted.owners.keys()
    if len(planned) < len(draft.observations.planned):
        return True
    awaited, belongs = awaited_names(draft.group), draft.group.target.owners
    return any(belongs.get(task) not in awaited for task in planned)


class _OwnershipChange(msgspec.Struct, frozen=True, kw_only=True):
    task: TaskId
    member: MemberRecord
    grant: bool
    planned: bool = False


def _changes(draft: Draft, wanted: _Wanted) -> list[_OwnershipChange]:
    running: dict[str, set[TaskId]] = {}
    revoking: dict[str, set[TaskId]] = {}
    for task, state in draft.group.states.items():
        if state.owner is not None and state.phase == _RUNNING:
            running.setdefault(state.owner, set()).add(task)
        elif state.owner is not None and state.phase == _REVOKING:
            revoking.setdefault(state.owner, set()).add(task)
    targets: dict[str, set[TaskId]] = {}
    for task, name in wanted.owners.items():
        targets.setdefault(name, set()).add(task)

    def unreleased(task: TaskId) -> bool:
        return draft.group.phase_of(task) not in _FREE or task in wanted.waiting

    changes: list[_OwnershipChange] = []
    for incarnation, record in draft.live().items():
        assigned = frozenset(running.get(incarnation, ()))
        pending = frozenset(revoking.get(incarnation, ()))
        target = frozenset(targets.get(record.member, ()))
        if assigned == target and not pending:
            continue
        now = MemberAssignment(
            state=MemberState.UNREVOKED_TASKS if pending else MemberState.UNRELEASED_TASKS,
            epoch=draft.group.step.step_epoch,
            assigned=assigned,
            pending_revocation=pending,
        )
        following = reconcile(
            now,
            target_epoch=draft.group.step.step_epoch,
            target=target,
            unreleased=unreleased,
            owned=assigned | pending,
        )
        revoked = following.pending_revocation - pending
        granted = following.assigned - assigned
        changes += [
            _OwnershipChange(task=task, member=record, grant=False, planned=task in wanted.planned)
            for task in revoked
        ]
        changes += [_OwnershipChange(task=task, member=record, grant=True) for task in granted]
    return sorted(changes, key=lambda change: (change.grant, change.task))


def _apply_change(draft: Draft, change: _OwnershipChange, intermediate: Refinement) -> None:
    observations, task = draft.observations, change.task
    reason = intermediate.reasons.get(task, "")
    if not change.grant:
        next_member = intermediate.owners.get(task)
        if next_member == change.member.member:
            next_member = None
        if observations.failed_tasks.get(task) == draft.group.states[task].task_epoch:
            reason = f"{change.member.member} could not open it"
        draft.revoke(task, next_member, reason, draft.settings.revoke_timeout_ms)
        observations.revoked_ms[task] = draft.now_ms
        if change.planned:
            observations.planned.add(task)
        return
    copies = {copy.member: copy.readiness for copy in current_copies(draft, task)}
    readiness = copies.get(change.member.member)
    if task in observations.planned:
        reason = draft.group.states[task].reason
    draft.grant(task, change.member, reason)
    if readiness == Readiness.READY:
        observations.cold.pop(task, None)
    else:
        on_disk = any(other == task for other, _ in disk_lags(draft, change.member.incarnation))
        some = on_disk or readiness is not None
        observations.cold[task] = (draft.group.states[task].task_epoch, some)


def _write_step(draft: Draft, intermediate: Refinement) -> None:
    """Write learners and standbys as a STEP record if they changed.

    A revoked owner's standby is in one transaction with its REVOKE, so the owner keeps its stores
    open.
    """
    group = draft.group
    step_epoch = group.step.step_epoch + 1
    learners: dict[TaskId, Copy] = {}
    standbys: dict[TaskId, tuple[Copy, ...]] = {}
    for task, name in intermediate.learners.items():
        for copy in _copies(draft, task, (name,), step_epoch):
            learners[task] = copy
    for task, names in intermediate.standbys.items():
        copies = group.step.standbys.get(task, ())
        if not _copies_stay(draft, task, copies, names):
            copies = tuple(_copies(draft, task, names, step_epoch))
        standbys[task] = copies
    for task in intermediate.kept:
        state = group.states.get(task)
        if state is not None and state.owner is not None and state.phase == TaskPhase.REVOKING:
            own_copy = _copy(draft, task, state.owner, step_epoch)
            standbys[task] = (*standbys.get(task, ()), own_copy)
    fresh = IntermediateAssignment(
        group_epoch=group.target.group_epoch,
        step_epoch=group.step.step_epoch,
        learners=learners,
        standbys={task: copies for task, copies in standbys.items() if copies},
        parked=intermediate.parked,
    )
    if fresh != group.step:
        draft.write(step_record(fresh, group.leader_epoch, step_epoch))


def _copies_stay(
    draft: Draft, task: TaskId, copies: tuple[Copy, ...], names: tuple[str, ...]
) -> bool:
    """Return True if the current `copies` stay, as for most tasks."""
    state, observations = draft.group.states.get(task), draft.observations
    if task in draft.group.step.learners or observations.failed_copies or len(copies) != len(names):
        return False
    owner = None if state is None else state.owner
    incarnations = draft.incarnations()
    for copy, name in zip(copies, names, strict=True):
        if not copy.incarnation == incarnations.get(name) != owner:
            return False
    return True


def _copies(draft: Draft, task: TaskId, names: tuple[str, ...], step_epoch: int) -> Iterator[Copy]:
    state = draft.group.states.get(task)
    incarnations = draft.incarnations()
    for name in names:
        incarnation = incarnations.get(name)
        if incarnation is None or (state is not None and state.owner == incarnation):
            continue
        yield _copy(draft, task, incarnation, step_epoch)


def _copy(draft: Draft, task: TaskId, incarnation: str, step_epoch: int) -> Copy:
    for copy in draft.group.step.copies(task):
        if copy.incarnation == incarnation and not has_failed(draft, task, copy):
            return copy
    return Copy(incarnation=incarnation, learn_epoch=step_epoch)
