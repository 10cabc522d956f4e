"""Which of the moves that wait are warmed up now: the budget of learners, and how it is spent. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import Final

import msgspec

from tidewheel.rebalance.model import TaskId, TaskRole
from tidewheel.rebalance.refine.refine_input import Index, Readiness
from tidewheel.rebalance.refine.verdicts import Verdict

# Looking a member of an enumeration up by its name costs more than all that is done with it here, for every task in every
# decision.
_READY: Final = Readiness.READY

#: Whoever leaves has a deadline: one learner at a time would miss it.
_WARMUPS_WHILE_LEAVING: Final = 2


class _Warming(StrEnum):
    """What a staged move needs of the budget, by what its target owner has already."""

    FREE = "FREE"  # a standby there warms it, or takes the place of one that has to wait
    KEEP = "KEEP"  # a learner is at it
    PLANT = "PLANT"  # nothing is there


class WarmupPlan(msgspec.Struct, frozen=True):
    """How staged moves are warmed up: each is in exactly one of these.

    Attributes:
        learners: Who learns what.
        free: Standbys on target owners that do a learner's work, by task.
        parked: Nothing warms them up for now.
        promoted: Learners that are to own their task but do not yet; they keep their places.
    """

    learners: Mapping[TaskId, str]
    free: Mapping[TaskId, str]
    parked: frozenset[TaskId]
    promoted: Mapping[TaskId, str]


def plan_warmups(index: Index, verdicts: list[Verdict], moving: list[Verdict]) -> WarmupPlan:
    """Spend the budget of learners on the moves that wait for one."""
    staged = [each for each in moving if each.staged and _is_stateful(index, each.task)]
    warmed = {each.task: each for each in staged if each.warmed is not None}
    needs = {task: _warming(index, each) for task, each in warmed.items()}
    free = {
        task: each.warmed or "" for task, each in warmed.items() if needs[task] == _Warming.FREE
    }
    candidates = {task: each for task, each in warmed.items() if task not in free}
    promoted = {
        each.task: each.owner
        for each in moving
        if each.owner is not None
        and each.owner != index.occupant(each.task)
        and each.task not in candidates
        and (copy := index.copy_on(each.task, each.owner)) is not None
        and copy.role == TaskRole.LEARNER
    }
    learners = _funded(index, candidates, needs, verdicts, _budget(index, promoted))
    parked = frozenset(each.task for each in staged) - free.keys() - learners.keys()
    return WarmupPlan(learners, free, parked, promoted)


class _Budget(msgspec.Struct, frozen=True):
    """How many more learners there may be: in all, and of tasks whose owners stay."""

    all: int
    staying: int


def _budget(index: Index, promoted: Mapping[TaskId, str]) -> _Budget:
    """Return what is left beside learners that are being promoted; what is allowed on top while somebody leaves is its alone."""
    allowed = most = index.given.max_warmup_replicas
    if any(member.leaving for member in index.members.values()):
        most = max(allowed, _WARMUPS_WHILE_LEAVING)
    staying = sum(
        index.occupant(task) is not None and not _is_left(index, task) for task in promoted
    )
    return _Budget(most - len(promoted), allowed - staying)


def _is_left(index: Index, task: TaskId) -> bool:
    """Return whether the member that has the task open as its owner leaves."""
    member = index.members.get(index.occupant(task) or "")
    return member is not None and member.leaving


def _is_stateful(index: Index, task: TaskId) -> bool:
    return index.given.tasks[task].stateful


def _warming(index: Index, verdict: Verdict) -> _Warming:
    """Say what a move needs.

    Where a standby of the target has to wait because its member still runs the task, the target owner's copy takes its
    place: as many copies as there should be, none too many, so it costs nothing (KIP-441's swap).
    """
    task, warmed = verdict.task, verdict.warmed or ""
    copy = index.copy_on(task, warmed)
    if copy is not None and copy.role == TaskRole.STANDBY:
        return _Warming.FREE
    if verdict.owner in index.given.standbys.get(task, ()):
        return _Warming.FREE
    return _Warming.PLANT if copy is None else _Warming.KEEP


def _funded(
    index: Index,
    candidates: Mapping[TaskId, Verdict],
    warmings: Mapping[TaskId, _Warming],
    verdicts: list[Verdict],
    budget: _Budget,
) -> dict[TaskId, str]:
    """Return the learners that get a place.

    Each new one makes its member fuller before the next is chosen, so that restores are spread.
    """
    if not candidates:
        return {}
    restoring = _restoring(index, verdicts)
    planted = dict.fromkeys(index.members, 0)

    def rank(task: TaskId) -> tuple[bool, int, bool, float, float, TaskId]:
        verdict = candidates[task]
        target, source = index.members[verdict.warmed or ""], verdict.owner or ""
        return (
            not target.settled,  # who may be gone in a moment takes no place from others
            _tier(index, verdict, warmings[task], restoring),
            not index.members[source].leaving,
            index.load[target.name] + planted[target.name] / target.threads,
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
        planted[learners[task]] += warmings[task] == _Warming.PLANT
    return learners


def _restoring(index: Index, verdicts: list[Verdict]) -> set[str]:
    """Return the members that restore a task that stands still, or begin to in this step: learners there make no headway."""
    restoring = {each.owner for each in verdicts if each.owner is not None and each.cold}
    for task, state in index.given.states.items():
        if state.owner_state != _READY and (holder := index.holder(task)) is not None:
            restoring.add(holder)
    return restoring


def _tier(index: Index, verdict: Verdict, warming: _Warming, restoring: set[str]) -> int:
    """Return a move's class, the most deserving first.

    Learners with progress or prospects (0), new ones with prospects (1), old ones without (2), new ones without (3).
    """
    prospects = verdict.warmed not in restoring
    if warming == _Warming.PLANT:
        return 1 if prospects else 3
    copy = index.copy_on(verdict.task, verdict.warmed or "")
    begun = copy is not None and copy.readiness in (Readiness.READY, Readiness.PROGRESSING)
    return 0 if prospects or begun else 2
