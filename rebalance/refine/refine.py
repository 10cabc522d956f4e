"""Assignment refinement: derives the intermediate assignment from the target.

Invariant: a running task never moves to a member that is not caught up. A task stays with its live
owner until a copy on the target owner is ready; then it moves there.

The rules are those of Kafka's `AssignmentRefinerImpl` (KIP-1071 warm-up tasks). Additions:
unsettled and leaving members; freshness from READY messages; a free learner in place of a standby
that must wait; standbys kept until their successors are ready.
"""

from collections.abc import Mapping
from enum import StrEnum
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import Final

import msgspec

from tidewheel.rebalance.model import TaskId, TaskPhase, TaskRole
from tidewheel.rebalance.refine.refine_input import (
    CurrentCopy,
    CurrentMember,
    CurrentTask,
    Readiness,
    RefineInput,
)

_RUNNING: Final = TaskPhase.RUNNING
_READY: Final = Readiness.READY
_UNKNOWN: Final = Readiness.UNKNOWN

#: Fewest learners while a member leaves: with one at a time it would miss its deadline.
_WARMUPS_WHILE_LEAVING: Final = 2


class Refinement(msgspec.Struct, frozen=True, kw_only=True):
    """Intermediate assignment, by names of live members."""

    #: Owner per task. The leader revokes a task that another member runs. A missing task stays
    #: unowned: it waits for its owner's return, or no member can run it.
    owners: Mapping[TaskId, str]
    learners: Mapping[TaskId, str]
    #: A member has at most one copy of a task. A new owner's copy stays in `learners` or `standbys`
    #: until it becomes the active task.
    standbys: Mapping[TaskId, tuple[str, ...]]
    kept: frozenset[TaskId]  # Tasks whose current owner keeps a standby after it releases them.
    #: Tasks whose move waits for the learner budget, or for a target owner that can receive them.
    parked: frozenset[TaskId]
    #: Reason per task that moves or is away from its target, for people.
    reasons: Mapping[TaskId, str]


class Refiner:
    """Cache of the last `refine` result: most of a leader's messages do not change the input."""

    def __init__(self) -> None:
        self._last: tuple[RefineInput, Refinement] | None = None

    def refine(self, refine_input: RefineInput) -> Refinement:
        if self._last is None or self._last[0] != refine_input:
            self._last = refine_input, refine(refine_input)
        return self._last[1]


def refine(refine_input: RefineInput) -> Refinement:
    index = index_of(refine_input)
    verdicts = [analyse(index, task) for task in sorted(refine_input.tasks)]
    moving = [verdict for verdict in verdicts if verdict.reason]
    plan = plan_warmups(index, verdicts, moving)
    standbys = {verdict.task: _filter_standbys(index, verdict, plan) for verdict in verdicts}
    return _assemble(index, verdicts, moving, plan, standbys)


# -- index --------------------------------------------------------------------------------------------


class Index(msgspec.Struct, frozen=True):
    refine_input: RefineInput
    states: Mapping[TaskId, CurrentTask]
    members: Mapping[str, CurrentMember]
    receiving: frozenset[str]
    copies: Mapping[TaskId, Mapping[str, CurrentCopy]]
    load: Mapping[str, float]

    def task(self, task: TaskId) -> CurrentTask:
        return self.states.get(task, _UNOWNED)

    def can_receive(self, member: str | None) -> bool:
        return member in self.receiving

    def current_owner(self, task: TaskId) -> str | None:
        """Return the live member that owns the task, even while it must release it."""
        owner = self.states.get(task, _UNOWNED).owner
        return owner if owner in self.members else None

    def staying_owner(self, task: TaskId) -> str | None:
        """Return the owner if it can keep the task: not being revoked, not expelled."""
        state = self.states.get(task, _UNOWNED)
        member = self.members.get(state.owner or "")
        if member is None or state.phase != _RUNNING or member.expelled:
            return None
        return member.name

    def copy_on(self, task: TaskId, member: str | None) -> CurrentCopy | None:
        return self.copies.get(task, _NO_COPIES).get(member or "")

    def copies_of(self, task: TaskId) -> Mapping[str, CurrentCopy]:
        return self.copies.get(task, _NO_COPIES)


_NO_COPIES: Mapping[str, CurrentCopy] = MappingProxyType({})
_UNOWNED: Final = CurrentTask()


def index_of(refine_input: RefineInput) -> Index:
    members = {
        member.name: member
        for member in sorted(refine_input.members, key=lambda member: member.name)
    }
    usable = frozenset(
        name for name, member in members.items() if not (member.leaving or member.expelled)
    )
    count = dict.fromkeys(members, 0)
    copies: dict[TaskId, dict[str, CurrentCopy]] = {}
    for task, state in refine_input.states.items():
        shape = refine_input.tasks.get(task)
        if shape is None or not shape.stateful:
            continue
        if state.owner in count:
            count[state.owner] += 1
        if not state.copies:
            continue
        live = {copy.member: copy for copy in state.copies if copy.member in members}
        if live:
            copies[task] = dict(sorted(live.items())) if len(live) > 1 else live
        for name in live:
            count[name] += 1
    load = {name: count[name] / members[name].threads for name in members}
    return Index(refine_input, refine_input.states, members, usable, copies, load)


# -- verdicts -----------------------------------------------------------------------------------------


class Verdict(msgspec.Struct, frozen=True):
    task: TaskId
    owner: str | None
    warmed: str | None = None  # Target owner that must catch up first, if any.
    staged: bool = False  # The task is not at its target yet.
    cold: bool = False  # The new owner must restore while the task is stopped.
    reason: str = ""


def analyse(index: Index, task: TaskId) -> Verdict:
    target, holder = index.refine_input.owners.get(task), index.staying_owner(task)
    if holder is not None and target in (holder, None):
        return Verdict(task, holder)
    finished = _finished_revocation(index, task)
    if finished is not None:
        return finished
    if target is None or not index.can_receive(target):
        return _without_target(index, task, holder, target or "its next owner")
    if not index.refine_input.tasks[task].stateful:
        return _stateless(index, task, holder, target)
    if holder is not None:
        return _owned(index, task, holder, target)
    return _unowned(index, task, target)


def _finished_revocation(index: Index, task: TaskId) -> Verdict | None:
    """Finish a revocation for its next owner, even if the target has changed since.

    If that member is gone, the owner gets the task back after the release. None: no revocation.
    """
    state = index.task(task)
    if state.phase == TaskPhase.RELEASED and index.can_receive(state.next_member):
        ready = _copies(index, task, Readiness.READY)
        if state.next_member in ready or not ready:
            return Verdict(task, state.next_member, reason="was revoked for it")
    if state.phase != TaskPhase.REVOKING:
        return None
    if index.can_receive(state.next_member):
        return Verdict(task, state.next_member, reason="is being revoked")
    if index.can_receive(state.owner):
        return Verdict(task, state.owner, reason="returns: its next owner is gone")
    return None


def _without_target(index: Index, task: TaskId, holder: str | None, target: str) -> Verdict:
    """Keep the task, or run it on a ready copy, until the next target names a usable owner."""
    if holder is not None:
        return Verdict(task, holder, staged=True, reason=f"{target} is gone; stays")
    ready = _copies(index, task, Readiness.READY)
    if ready:
        return Verdict(task, ready[0], staged=True, reason=f"{target} is gone; has a ready copy")
    waits = target in index.refine_input.waiting
    return Verdict(task, None, staged=True, reason=f"waits for {target}" if waits else "no owner")


def _stateless(index: Index, task: TaskId, holder: str | None, target: str) -> Verdict:
    """Move without a learner; to an unsettled member only if the owner leaves or is gone."""
    if holder is None or _can_move(index, holder, target):
        return Verdict(task, target, reason="has no state to restore")
    return Verdict(task, holder, staged=True, reason=f"{target} has not settled")


def _owned(index: Index, task: TaskId, holder: str, target: str) -> Verdict:
    can_move = _can_move(index, holder, target)
    if not index.refine_input.enabled:
        owner = target if can_move else holder
        return Verdict(task, owner, staged=not can_move, cold=can_move, reason="no learners")
    copy, owner_state = index.copy_on(task, target), index.task(task).owner_state
    if copy is not None and copy.readiness == Readiness.READY:
        if can_move:
            return Verdict(task, target, reason="its copy is ready")
        why = f"the copy is ready, {target} has not settled"
    else:
        why = f"stays until {target} has caught up"
        ready = _copies(index, task, Readiness.READY)
        if owner_state != Readiness.READY and ready:
            holder, why = ready[0], "its owner restores, this copy is ready"
        elif owner_state == Readiness.NOTHING and can_move:
            # Restore once, on the target owner, instead of twice.
            return Verdict(task, target, cold=True, reason="no member has restored any of it")
    return Verdict(task, holder, target, staged=True, reason=why)


def _unowned(index: Index, task: TaskId, target: str) -> Verdict:
    """Assign an unowned task where it can run soonest; the target owner wins ties.

    A task never waits for an unready copy, but prefers it to a member without state.
    """
    for readiness in (Readiness.READY, Readiness.PROGRESSING, Readiness.UNKNOWN):
        cold = readiness != Readiness.READY
        members = _with_state(index, task, readiness)
        if target in members:
            return Verdict(task, target, cold=cold, reason="no owner, its state is there")
        if members and index.refine_input.enabled:
            why = "no owner, this member has the best copy"
            return Verdict(task, members[0], target, staged=True, cold=cold, reason=why)
    return Verdict(task, target, cold=True, reason="no owner and no copy")


def _with_state(index: Index, task: TaskId, readiness: Readiness) -> list[str]:
    disk = {
        name: lag if lag >= 0 else float("inf")
        for name, lag in index.task(task).on_disk.items()
        if index.can_receive(name)
    }
    fresh = {
        name for name, lag in disk.items() if lag <= index.refine_input.acceptable_recovery_lag
    }
    on_disk = {Readiness.READY: fresh, Readiness.UNKNOWN: disk.keys() - fresh}
    closed = on_disk.get(readiness, set[str]())
    closed_first = sorted(closed, key=lambda name: (disk[name], index.load[name], name))
    return _copies(index, task, readiness) + closed_first


def _can_move(index: Index, holder: str, target: str) -> bool:
    return index.members[target].settled or index.members[holder].leaving


def _copies(index: Index, task: TaskId, readiness: Readiness) -> list[str]:
    """Return members with copies of this readiness, best first.

    Copies that the target does not want as standbys come first: its standbys stay in place.
    """
    wanted = index.refine_input.standbys.get(task, ())
    members = [
        name
        for name, copy in index.copies_of(task).items()
        if copy.readiness == readiness and index.can_receive(name)
    ]
    return sorted(members, key=lambda name: (name in wanted, index.load[name], name))


# -- learner budget -----------------------------------------------------------------------------------


class _LearnerCost(StrEnum):
    #: No extra copy: the target owner has a standby, or its learner takes the place of the standby
    #: that the running owner will have after the move.
    FREE = "FREE"
    EXISTING = "EXISTING"
    NEW = "NEW"


class WarmupPlan(msgspec.Struct, frozen=True):
    """Learners of tasks that stay until their target owner's copy is ready.

    Each task is in `learners`, `free` or `parked`.
    """

    learners: Mapping[TaskId, str]
    free: Mapping[TaskId, str]  # Target owner whose copy acts as a FREE learner, per task.
    parked: frozenset[TaskId]
    promoted: Mapping[TaskId, str]  # Learners about to become owners; the budget counts them.


def plan_warmups(index: Index, verdicts: list[Verdict], moving: list[Verdict]) -> WarmupPlan:
    staged = [verdict for verdict in moving if verdict.staged and _is_stateful(index, verdict.task)]
    warmed = {verdict.task: verdict for verdict in staged if verdict.warmed is not None}
    needs = {task: _learner_cost(index, verdict) for task, verdict in warmed.items()}
    free = {
        task: verdict.warmed or ""
        for task, verdict in warmed.items()
        if needs[task] == _LearnerCost.FREE
    }
    candidates = {task: verdict for task, verdict in warmed.items() if task not in free}
    promoted = {
        verdict.task: verdict.owner
        for verdict in moving
        if verdict.owner is not None
        and verdict.owner != index.current_owner(verdict.task)
        and verdict.task not in candidates
        and (copy := index.copy_on(verdict.task, verdict.owner)) is not None
        and copy.role == TaskRole.LEARNER
    }
    learners = _select_learners(index, candidates, needs, verdicts, _budget(index, promoted))
    parked = frozenset(verdict.task for verdict in staged) - free.keys() - learners.keys()
    return WarmupPlan(learners, free, parked, promoted)


class _Budget(msgspec.Struct, frozen=True):
    """Number of learners to choose: in total, and for tasks whose owners stay."""

    all: int
    staying: int


def _budget(index: Index, promoted: Mapping[TaskId, str]) -> _Budget:
    allowed = most = index.refine_input.max_warmup_replicas
    if any(member.leaving for member in index.members.values()):
        most = max(allowed, _WARMUPS_WHILE_LEAVING)
    staying = sum(
        index.current_owner(task) is not None and not _is_leaving(index, task) for task in promoted
    )
    return _Budget(most - len(promoted), allowed - staying)


def _is_leaving(index: Index, task: TaskId) -> bool:
    member = index.members.get(index.current_owner(task) or "")
    return member is not None and member.leaving


def _is_stateful(index: Index, task: TaskId) -> bool:
    return index.refine_input.tasks[task].stateful


def _learner_cost(index: Index, verdict: Verdict) -> _LearnerCost:
    """Return FREE if the target owner has a standby, or swaps roles with the owner (KIP-441)."""
    task, warmed = verdict.task, verdict.warmed or ""
    copy = index.copy_on(task, warmed)
    if copy is not None and copy.role == TaskRole.STANDBY:
        return _LearnerCost.FREE
    if verdict.owner in index.refine_input.standbys.get(task, ()):
        return _LearnerCost.FREE
    return _LearnerCost.NEW if copy is None else _LearnerCost.EXISTING


def _select_learners(
    index: Index,
    candidates: Mapping[TaskId, Verdict],
    costs: Mapping[TaskId, _LearnerCost],
    verdicts: list[Verdict],
    budget: _Budget,
) -> dict[TaskId, str]:
    """Choose learners within the budget; each raises its member's load, which spreads restores."""
    if not candidates:
        return {}
    restoring = _restoring(index, verdicts)
    added = dict.fromkeys(index.members, 0)

    def rank(task: TaskId) -> tuple[bool, int, bool, float, float, TaskId]:
        verdict = candidates[task]
        target, source = index.members[verdict.warmed or ""], verdict.owner or ""
        return (
            not target.settled,  # an unsettled member may vanish: it takes no place from others
            _priority(index, verdict, costs[task], restoring),
            not index.members[source].leaving,
            index.load[target.name] + added[target.name] / target.threads,
            -index.load[source],
            task,
        )

    heap = [rank(task) for task in candidates]
    heapify(heap)
    learners: dict[TaskId, str] = {}
    staying = 0
    while heap and len(learners) < budget.all:
        entry = heappop(heap)
        task = entry[-1]
        is_leaving = _is_leaving(index, task)
        if not is_leaving and staying >= budget.staying:
            continue
        if (fresh := rank(task)) != entry:
            heappush(heap, fresh)
            continue
        staying += not is_leaving
        learners[task] = candidates[task].warmed or ""
        added[learners[task]] += costs[task] == _LearnerCost.NEW
    return learners


def _restoring(index: Index, verdicts: list[Verdict]) -> set[str]:
    """Return members that restore a stopped task: a learner on them makes little progress."""
    restoring = {
        verdict.owner for verdict in verdicts if verdict.owner is not None and verdict.cold
    }
    for task, state in index.refine_input.states.items():
        if state.owner_state != _READY and (holder := index.staying_owner(task)) is not None:
            restoring.add(holder)
    return restoring


def _priority(index: Index, verdict: Verdict, cost: _LearnerCost, restoring: set[str]) -> int:
    """Return the priority class of a move; the lowest number comes first.

    A target member has prospects if it restores no stopped task.
    """
    prospects = verdict.warmed not in restoring
    if cost == _LearnerCost.NEW:
        return 1 if prospects else 3
    copy = index.copy_on(verdict.task, verdict.warmed or "")
    has_started = copy is not None and copy.readiness in (Readiness.READY, Readiness.PROGRESSING)
    return 0 if prospects or has_started else 2


# -- standbys -----------------------------------------------------------------------------------------


def _filter_standbys(index: Index, verdict: Verdict, plan: WarmupPlan) -> tuple[str, ...]:
    """Return the target's standbys, except on the member that still runs the task.

    The target owner's copy can take the place of such a standby.
    """
    task = verdict.task
    wanted = index.refine_input.standbys.get(task, ())
    if not wanted and task not in index.copies:
        return ()
    is_stable = not verdict.reason and verdict.owner not in wanted
    if is_stable and index.receiving.issuperset(wanted):
        keepers = set(wanted)
        if index.copies_of(task).keys() <= keepers:
            return tuple(sorted(keepers))
    current_owner = index.current_owner(task)
    busy = {current_owner, verdict.owner, plan.learners.get(task)}
    placed = {name for name in wanted if name not in busy and index.can_receive(name)}
    free = plan.free.get(task)
    if free is not None:
        new = sorted(name for name in placed - {free} if index.copy_on(task, name) is None)
        if len(placed | {free}) > len(wanted) and new:
            placed.discard(new[0])
        placed.add(free)
    placed |= _surplus_copies(index, task, placed, busy)
    promoted = verdict.owner
    if promoted is not None and promoted != current_owner and task not in plan.promoted:
        placed |= {promoted} if index.copy_on(task, promoted) is not None else set()
    return tuple(sorted(placed))


def _surplus_copies(
    index: Index, task: TaskId, placed: set[str], busy: set[str | None]
) -> set[str]:
    """Return surplus copies to keep: one per standby of the target that is not ready yet.

    Copies of unknown readiness count: a new leader drops none before it has heard its member.
    """
    copies = index.copies_of(task)
    if not copies.keys() - placed - busy:
        return set()
    ready = {name for name in copies if copies[name].readiness == _READY}
    unknown = {name for name in copies if copies[name].readiness == _UNKNOWN}
    spare = [name for name in (ready | unknown) - placed - busy if not index.members[name].expelled]
    spare.sort(key=lambda name: (name in unknown, index.load[name], name))
    return set(spare[: len(placed - ready)])


# -- result -------------------------------------------------------------------------------------------


def _assemble(
    index: Index,
    verdicts: list[Verdict],
    moving: list[Verdict],
    plan: WarmupPlan,
    standbys: Mapping[TaskId, tuple[str, ...]],
) -> Refinement:
    wanted = index.refine_input.standbys
    return Refinement(
        owners={verdict.task: verdict.owner for verdict in verdicts if verdict.owner is not None},
        learners=dict(sorted({**plan.promoted, **plan.learners}.items())),
        standbys={task: members for task, members in standbys.items() if members},
        kept=frozenset(
            verdict.task
            for verdict in moving
            if verdict.task in wanted
            and (current_owner := index.current_owner(verdict.task)) != verdict.owner
            and current_owner in wanted[verdict.task]
            and index.can_receive(current_owner)
        ),
        parked=plan.parked,
        reasons={verdict.task: verdict.reason for verdict in moving},
    )
