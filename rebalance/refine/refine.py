"""The learner gate: turns the target into what the group does now. Never hands a running task to a cold member.

The target says where every task belongs in the end. `refine` says who runs each task **now**, who keeps a copy of it now,
and which moves wait. A task whose owner lives goes on running there until a copy on the target owner is ready; then, and
only then, its owner here becomes the target owner. Five passes, each a function of values:

    index what is there            refine_input.py
    analyse each task              verdicts.py
    plan the learners              warmups.py
    filter the standbys, assemble  here

The rules are those of Kafka's `AssignmentRefinerImpl` (KIP-1071's warm-up tasks) with one member for one process, and
four additions: members that have not settled or are about to leave, freshness by READY announcements, a free place for
the learner where the target's own standby has to wait, and standbys that are kept until their successors are ready.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from tidewheel.rebalance.model import TaskId
from tidewheel.rebalance.refine.refine_input import Index, Readiness, RefineInput, index_of
from tidewheel.rebalance.refine.verdicts import Verdict, analyse
from tidewheel.rebalance.refine.warmups import WarmupPlan, plan_warmups

# Looking a member of an enumeration up by its name costs more than all that is done with it here, for every task in every
# decision.
_READY: Final = Readiness.READY
_UNKNOWN: Final = Readiness.UNKNOWN


class Intermediate(msgspec.Struct, frozen=True, kw_only=True):
    """What the group does now, by members' names; every name is alive.

    Attributes:
        owners: Who is to own each task now. Differs from a RUNNING task's owner: revoke it for this member. A task that
            is left out is not to be owned by anybody for now: it waits for its owner's return, or nobody can be given it.
        learners: Who learns each task; within the budget.
        standbys: Who keeps standbys; never two copies of one task on a member. A copy on the member that `owners` names
            stays in `learners` or `standbys` until the task is that member's: it is promoted in place.
        kept: Tasks whose owner of now, when it releases them, keeps the state open as a standby.
        parked: Tasks whose move waits for a place among the learners (or for its target owner to exist).
        reasons: For each task that is not where the target wants it, or is moved now: why, for people.
    """

    owners: Mapping[TaskId, str]
    learners: Mapping[TaskId, str]
    standbys: Mapping[TaskId, tuple[str, ...]]
    kept: frozenset[TaskId]
    parked: frozenset[TaskId]
    reasons: Mapping[TaskId, str]


class Refiner:
    """Gives the answer of `refine`, and again if it is asked the same: much that a leader hears changes nothing here."""

    def __init__(self) -> None:
        """Begin without an answer."""
        self._last: tuple[RefineInput, Intermediate] | None = None

    def refine(self, given: RefineInput) -> Intermediate:
        """Return what the group does now on its way to the target."""
        if self._last is None or self._last[0] != given:
            self._last = given, refine(given)
        return self._last[1]


def refine(given: RefineInput) -> Intermediate:
    """Return what the group does now on its way to the target."""
    index = index_of(given)
    verdicts = [analyse(index, task) for task in sorted(given.tasks)]
    moving = [each for each in verdicts if each.reason]
    plan = plan_warmups(index, verdicts, moving)
    standbys = {each.task: _filter_standbys(index, each, plan) for each in verdicts}
    return _assemble(index, verdicts, moving, plan, standbys)


# -- filter -----------------------------------------------------------------------------------------------------------


def _filter_standbys(index: Index, verdict: Verdict, plan: WarmupPlan) -> tuple[str, ...]:
    """Return who keeps standbys of a task now.

    The target's, less those on the member that still runs the task, which wait; and the target owner's copy where it
    takes the place of one of them. Then ready copies elsewhere stay for as long as one in the list is not ready.
    """
    task = verdict.task
    wanted = index.given.standbys.get(task, ())
    if not wanted and task not in index.copies:
        return ()
    at_rest = not verdict.reason and verdict.owner not in wanted
    if at_rest and index.open.issuperset(wanted):
        keepers = set(wanted)
        if index.copies_of(task).keys() <= keepers:
            return tuple(sorted(keepers))  # nobody has a copy that is not wanted
    occupant = index.occupant(task)
    busy = {occupant, verdict.owner, plan.learners.get(task)}
    placed = {name for name in wanted if name not in busy and index.usable(name)}
    free = plan.free.get(task)
    if free is not None:
        new = sorted(name for name in placed - {free} if index.copy_on(task, name) is None)
        if len(placed | {free}) > len(wanted) and new:
            placed.discard(new[0])
        placed.add(free)
    placed |= _bridging(index, task, placed, busy)
    promoted = verdict.owner
    if promoted is not None and promoted != occupant and task not in plan.promoted:
        placed |= {promoted} if index.copy_on(task, promoted) is not None else set()
    return tuple(sorted(placed))


def _bridging(index: Index, task: TaskId, placed: set[str], busy: set[str | None]) -> set[str]:
    """Return copies that the target does not want but that are kept until as many of its own are ready.

    Ready ones, and those of which nothing is known yet: a new leader throws away nothing before it has heard of it.
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
) -> Intermediate:
    wanted = index.given.standbys
    return Intermediate(
        owners={each.task: each.owner for each in verdicts if each.owner is not None},
        learners=dict(sorted({**plan.promoted, **plan.learners}.items())),
        standbys={task: members for task, members in standbys.items() if members},
        kept=frozenset(
            each.task
            for each in moving
            if each.task in wanted
            and (occupant := index.occupant(each.task)) != each.owner
            and occupant in wanted[each.task]
            and index.usable(occupant)
        ),
        parked=plan.parked,
        reasons={each.task: each.reason for each in moving},
    )
