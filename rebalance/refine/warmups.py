"""Learner budget: selects which waiting moves get a learner now."""

from collections.abc import Mapping
from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import Final

import msgspec

from tidewheel.rebalance.model import TaskId, TaskRole
from tidewheel.rebalance.refine.refine_input import Index, Readiness
from tidewheel.rebalance.refine.verdicts import Verdict

# Bound once: enum member lookups are slow.
_READY: Final = Readiness.READY

#: A leaving member has a deadline: with one learner at a time it would miss it.
_WARMUPS_WHILE_LEAVING: Final = 2


class _LearnerCost(StrEnum):
    """Cost of a staged move in learners."""

    FREE = "FREE"  # a standby on the target owner, or one in place of a waiting standby
    EXISTING = "EXISTING"
    NEW = "NEW"


class WarmupPlan(msgspec.Struct, frozen=True):
    """Learners of staged moves: each move is in `learners`, `free` or `parked`."""

    learners: Mapping[TaskId, str]
    free: Mapping[TaskId, str]  # Standby on the target owner that acts as a learner, per task.
    parked: frozenset[TaskId]
    promoted: Mapping[TaskId, str]  # Learners about to become owners; they still count.


def plan_warmups(index: Index, verdicts: list[Verdict], moving: list[Verdict]) -> WarmupPlan:
    staged = [each for each in moving if each.staged and _is_stateful(index, each.task)]
    warmed = {each.task: each for each in staged if each.warmed is not None}
    needs = {task: _learner_cost(index, each) for task, each in warmed.items()}
    free = {
        task: each.warmed or "" for task, each in warmed.items() if needs[task] == _LearnerCost.FREE
    }
    candidates = {task: each for task, each in warmed.items() if task not in free}
    promoted = {
        each.task: each.owner
        for each in moving
        if each.owner is not None
        and each.owner != index.current_owner(each.task)
        and each.task not in candidates
        and (copy := index.copy_on(each.task, each.owner)) is not None
        and copy.role == TaskRole.LEARNER
    }
    learners = _select_learners(index, candidates, needs, verdicts, _budget(index, promoted))
    parked = frozenset(each.task for each in staged) - free.keys() - learners.keys()
    return WarmupPlan(learners, free, parked, promoted)


class _Budget(msgspec.Struct, frozen=True):
    """Remaining learners: in total, and for tasks whose owners stay."""

    all: int
    staying: int


def _budget(index: Index, promoted: Mapping[TaskId, str]) -> _Budget:
    """Return the remaining budget; the surplus while a member leaves is for its tasks only."""
    allowed = most = index.given.max_warmup_replicas
    if any(member.leaving for member in index.members.values()):
        most = max(allowed, _WARMUPS_WHILE_LEAVING)
    staying = sum(
        index.current_owner(task) is not None and not _is_left(index, task) for task in promoted
    )
    return _Budget(most - len(promoted), allowed - staying)


def _is_left(index: Index, task: TaskId) -> bool:
    member = index.members.get(index.current_owner(task) or "")
    return member is not None and member.leaving


def _is_stateful(index: Index, task: TaskId) -> bool:
    return index.given.tasks[task].stateful


def _learner_cost(index: Index, verdict: Verdict) -> _LearnerCost:
    """Return a move's cost.

    If a target standby must wait because its member still runs the task, the target owner's copy
    takes its place. The number of copies stays the same, so the move is free (KIP-441's swap).
    """
    task, warmed = verdict.task, verdict.warmed or ""
    copy = index.copy_on(task, warmed)
    if copy is not None and copy.role == TaskRole.STANDBY:
        return _LearnerCost.FREE
    if verdict.owner in index.given.standbys.get(task, ()):
        return _LearnerCost.FREE
    return _LearnerCost.NEW if copy is None else _LearnerCost.EXISTING


def _select_learners(
    index: Index,
    candidates: Mapping[TaskId, Verdict],
    costs: Mapping[TaskId, _LearnerCost],
    verdicts: list[Verdict],
    budget: _Budget,
) -> dict[TaskId, str]:
    """Return the moves that get a learner.

    Each new learner raises its member's load before the next choice, which spreads restores.
    """
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
        is_left = _is_left(index, task)
        if not is_left and staying >= budget.staying:
            continue
        if (fresh := rank(task)) != entry:
            heappush(heap, fresh)
            continue
        staying += not is_left
        learners[task] = candidates[task].warmed or ""
        added[learners[task]] += costs[task] == _LearnerCost.NEW
    return learners


def _restoring(index: Index, verdicts: list[Verdict]) -> set[str]:
    """Return members that restore a stopped task: a learner on them makes little progress."""
    restoring = {each.owner for each in verdicts if each.owner is not None and each.cold}
    for task, state in index.given.states.items():
        if state.owner_state != _READY and (holder := index.staying_owner(task)) is not None:
            restoring.add(holder)
    return restoring


def _priority(index: Index, verdict: Verdict, cost: _LearnerCost, restoring: set[str]) -> int:
    """Return the priority class of a move; the lowest number comes first.

    A target member has prospects if it restores no stopped task. Classes: learners with progress or
    prospects (0), new learners with prospects (1), other learners (2), other new learners (3).
    """
    prospects = verdict.warmed not in restoring
    if cost == _LearnerCost.NEW:
        return 1 if prospects else 3
    copy = index.copy_on(verdict.task, verdict.warmed or "")
    begun = copy is not None and copy.readiness in (Readiness.READY, Readiness.PROGRESSING)
    return 0 if prospects or begun else 2
