"""Assignment refinement: derives the intermediate assignment from the target.

Invariant: a running task never moves to a member that is not caught up. A task stays with its live
owner until a copy on the target owner is ready; then the intermediate owner becomes the target
owner. Passes: index (`refine_input.py`), one verdict per task (`verdicts.py`), learner budget
(`warmups.py`), standbys (here).

The rules are those of Kafka's `AssignmentRefinerImpl` (KIP-1071 warm-up tasks), with four
additions: unsettled and leaving members, freshness from READY messages, a free learner in place of
a standby that must wait, and standbys kept until their successors are ready.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from tidewheel.rebalance.model import TaskId
from tidewheel.rebalance.refine.refine_input import Index, Readiness, RefineInput, index_of
from tidewheel.rebalance.refine.verdicts import Verdict, analyse
from tidewheel.rebalance.refine.warmups import WarmupPlan, plan_warmups

# Bound once: enum member lookups are slow.
_READY: Final = Readiness.READY
_UNKNOWN: Final = Readiness.UNKNOWN


class Refinement(msgspec.Struct, frozen=True, kw_only=True):
    """Intermediate assignment, by names of live members."""

    #: Owner per task. If it differs from the running owner, the task is revoked for it. A missing
    #: task stays unowned: it waits for its owner's return, or no member can run it.
    owners: Mapping[TaskId, str]
    learners: Mapping[TaskId, str]  # Learner per task, within `max_warmup_replicas`.
    #: Never two copies of one task on a member. A copy on the new owner stays in `learners` or
    #: `standbys` until promoted in place.
    standbys: Mapping[TaskId, tuple[str, ...]]
    kept: frozenset[TaskId]  # Tasks whose current owner keeps a standby after it releases them.
    parked: frozenset[TaskId]  # Tasks that wait for the learner budget, or for a target owner.
    #: Reason per task that moves or is away from its target, for people.
    reasons: Mapping[TaskId, str]


class Refiner:
    """Caches the last answer of `refine`: most messages a leader receives change no input of it."""

    def __init__(self) -> None:
        self._last: tuple[RefineInput, Refinement] | None = None

    def refine(self, given: RefineInput) -> Refinement:
        if self._last is None or self._last[0] != given:
            self._last = given, refine(given)
        return self._last[1]


def refine(given: RefineInput) -> Refinement:
    index = index_of(given)
    verdicts = [analyse(index, task) for task in sorted(given.tasks)]
    moving = [each for each in verdicts if each.reason]
    plan = plan_warmups(index, verdicts, moving)
    standbys = {each.task: _filter_standbys(index, each, plan) for each in verdicts}
    return _assemble(index, verdicts, moving, plan, standbys)


# -- filter -----------------------------------------------------------------------------------------------------------


def _filter_standbys(index: Index, verdict: Verdict, plan: WarmupPlan) -> tuple[str, ...]:
    """Return the members that keep a standby of a task now.

    These are the target's standbys, except on the member that still runs the task. The target
    owner's copy can replace one of those. Ready copies elsewhere stay until every listed standby is
    ready.
    """
    task = verdict.task
    wanted = index.given.standbys.get(task, ())
    if not wanted and task not in index.copies:
        return ()
    at_rest = not verdict.reason and verdict.owner not in wanted
    if at_rest and index.receiving.issuperset(wanted):
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
    """Return surplus copies to keep until as many of the target's standbys are ready.

    Includes copies of unknown readiness: a new leader drops no copy before it has heard its member.
    """
    copies = index.copies_of(task)
    if not copies.keys() - placed - busy:
        return set()
    ready = {name for name in copies if copies[name].readiness == _READY}
    unknown = {name for name in copies if copies[name].readiness == _UNKNOWN}
    spare = [name for name in (ready | unknown) - placed - busy if not index.members[name].expelled]
    spare.sort(key=lambda name: (name in unknown, index.load[name], name))
    return set(spare[: len(placed - ready)])


# -- assemble ---------------------------------------------------------------------------------------------------------


def _assemble(
    index: Index,
    verdicts: list[Verdict],
    moving: list[Verdict],
    plan: WarmupPlan,
    standbys: Mapping[TaskId, tuple[str, ...]],
) -> Refinement:
    wanted = index.given.standbys
    return Refinement(
        owners={each.task: each.owner for each in verdicts if each.owner is not None},
        learners=dict(sorted({**plan.promoted, **plan.learners}.items())),
        standbys={task: members for task, members in standbys.items() if members},
        kept=frozenset(
            each.task
            for each in moving
            if each.task in wanted
            and (current_owner := index.current_owner(each.task)) != each.owner
            and current_owner in wanted[each.task]
            and index.can_receive(current_owner)
        ),
        parked=plan.parked,
        reasons={each.task: each.reason for each in moving},
    )
