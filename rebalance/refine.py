"""The learner gate: turns the target into what the group does now. Never hands a running task to a cold member.

The target says where every task belongs in the end. `refine` says who runs each task **now**, who keeps a copy of it now,
and which moves wait. A task whose owner lives goes on running there until a copy on the target owner is ready; then, and
only then, its owner here becomes the target owner. Five passes, each a function of values: index what is there, analyse
each task, plan the learners within their budget, filter the standbys, assemble.

The rules are those of Kafka's `AssignmentRefinerImpl` (KIP-1071's warm-up tasks) with one member for one process, and
four additions: members that have not settled or are about to leave, freshness by READY announcements, a free place for
the learner where the target's own standby has to wait, and standbys that are kept until their successors are ready.
"""

from collections.abc import Mapping
from enum import StrEnum
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import Any, Final

import msgspec

from rebalance.model import TaskId, TaskPhase, TaskRole, TaskShape

_NOTHING: Mapping[Any, Any] = MappingProxyType({})


class Readiness(StrEnum):
    """How far a copy is, as its announcements and the leader's own look at the end offsets say.

    READY: announced under its current learn epoch, and found within `acceptable_recovery_lag` of an end offset read after
    that. PROGRESSING: has restored something. NOTHING: has not begun. UNKNOWN: nothing heard of it; never counts as ready.
    """

    READY = "READY"
    PROGRESSING = "PROGRESSING"
    NOTHING = "NOTHING"
    UNKNOWN = "UNKNOWN"


class MemberNow(msgspec.Struct, frozen=True, kw_only=True):
    """A live member (one incarnation of each name).

    Attributes:
        threads: Capacity.
        settled: May take running tasks from others (N11).
        leaving: Goes on working but is given nothing more; its tasks move away by the learner path.
        expelled: Its time is up: its tasks are taken from it at once.
    """

    name: str
    threads: int = 1
    settled: bool = True
    leaving: bool = False
    expelled: bool = False


class CopyNow(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of a task that a live member keeps."""

    member: str
    role: TaskRole
    readiness: Readiness = Readiness.UNKNOWN


class TaskNow(msgspec.Struct, frozen=True, kw_only=True):
    """Where a task is.

    Attributes:
        phase: As the group log says.
        owner: The live member that may commit for it (RUNNING, REVOKING), else None.
        next_member: REVOKING, RELEASED: whom it was revoked for.
        owner_state: How far the owner is: READY if it processes, is within `acceptable_recovery_lag`, or nothing is known
            of it (the safe side: the task is protected); else how much it has restored.
        copies: Standbys and learners on live members.
        on_disk: By live member that keeps no open copy but has state on disk: its lag in changelog records, -1 unknown.
    """

    phase: TaskPhase = TaskPhase.UNOWNED
    owner: str | None = None
    next_member: str | None = None
    owner_state: Readiness = Readiness.READY
    copies: tuple[CopyNow, ...] = ()
    on_disk: Mapping[str, int] = _NOTHING


class RefineInput(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `refine` looks at.

    Attributes:
        tasks: Shape of every task there is; others are left out of the answer.
        owners, standbys: The target, by members' names; some may be gone.
        members: Everybody alive.
        states: Where each task is; a task without one is UNOWNED.
        waiting: Names that are gone but whose return is waited for: their tasks stay unowned unless a ready copy exists.
        max_warmup_replicas: Learners at once in the whole group; while somebody leaves at least two, those on top for its tasks.
        acceptable_recovery_lag: State on disk that is at most this many records behind counts as ready.
        enabled: False: the target as it is, cold (the baseline).
    """

    tasks: Mapping[TaskId, TaskShape]
    owners: Mapping[TaskId, str]
    standbys: Mapping[TaskId, tuple[str, ...]] = msgspec.field(default_factory=lambda: _NOTHING)
    members: tuple[MemberNow, ...]
    states: Mapping[TaskId, TaskNow] = msgspec.field(default_factory=lambda: _NOTHING)
    waiting: frozenset[str] = frozenset()
    max_warmup_replicas: int = 2
    acceptable_recovery_lag: int = 10_000
    enabled: bool = True


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
    index = _index(given)
    verdicts = [_analyse(index, task) for task in sorted(given.tasks)]
    moving = [each for each in verdicts if each.reason]
    plan = _plan(index, verdicts, moving)
    standbys = {each.task: _filter_standbys(index, each, plan) for each in verdicts}
    return _assemble(index, verdicts, moving, plan, standbys)


# -- index ------------------------------------------------------------------------------------------------------------


class _Index(msgspec.Struct, frozen=True):
    """What there is, for looking up.

    Attributes:
        members: Everybody alive, by name.
        open: Those of them that may be given tasks.
        copies: Copies on live members, by task and member, in the order of the names.
        load: Stateful tasks in any role per thread, by member.
    """

    given: RefineInput
    states: Mapping[TaskId, TaskNow]
    members: Mapping[str, MemberNow]
    open: frozenset[str]
    copies: Mapping[TaskId, Mapping[str, CopyNow]]
    load: Mapping[str, float]

    def now(self, task: TaskId) -> TaskNow:
        return self.states.get(task, _UNOWNED)

    def usable(self, member: str | None) -> bool:
        """Return whether a member may be given tasks."""
        return member in self.open

    def occupant(self, task: TaskId) -> str | None:
        """Return the live member that has the task open as its owner, on its way out or not."""
        owner = self.states.get(task, _UNOWNED).owner
        return owner if owner in self.members else None

    def holder(self, task: TaskId) -> str | None:
        """Return the occupant if it may go on: it was not told to stop, and its time is not up."""
        state = self.states.get(task, _UNOWNED)
        member = self.members.get(state.owner or "")
        if member is None or state.phase != _RUNNING or member.expelled:
            return None
        return member.name

    def copy_on(self, task: TaskId, member: str | None) -> CopyNow | None:
        """Return the copy that a live member keeps of a task."""
        return self.copies.get(task, _NO_COPIES).get(member or "")


_NO_COPIES: Mapping[str, CopyNow] = MappingProxyType({})
_UNOWNED = TaskNow()

# Looking a member of an enumeration up by its name costs more than all that is done with it here, for every task in every
# decision.
_RUNNING: Final = TaskPhase.RUNNING
_READY: Final = Readiness.READY
_UNKNOWN: Final = Readiness.UNKNOWN


def _index(given: RefineInput) -> _Index:
    members = {member.name: member for member in sorted(given.members, key=lambda each: each.name)}
    usable = frozenset(
        name for name, each in members.items() if not (each.leaving or each.expelled)
    )
    count = dict.fromkeys(members, 0)
    copies: dict[TaskId, dict[str, CopyNow]] = {}
    for task, state in given.states.items():
        shape = given.tasks.get(task)
        if shape is None or not shape.stateful:
            continue
        if state.owner in count:
            count[state.owner] += 1
        if not state.copies:
            continue
        live = {each.member: each for each in state.copies if each.member in members}
        if live:
            copies[task] = dict(sorted(live.items())) if len(live) > 1 else live
        for name in live:
            count[name] += 1
    load = {name: count[name] / members[name].threads for name in members}
    return _Index(given, given.states, members, usable, copies, load)


# -- analyse ----------------------------------------------------------------------------------------------------------


class _Verdict(msgspec.Struct, frozen=True):
    """What is decided for one task.

    Attributes:
        owner: Who is to own it now, or None.
        warmed: The target owner that has to catch up first, or None if there is nothing to wait for.
        staged: Whether the target wants it elsewhere.
        cold: Whether its new owner has to restore it while it stands still.
        reason: Why, for people; "" for a task that goes on where it is, and belongs.
    """

    task: TaskId
    owner: str | None
    warmed: str | None = None
    staged: bool = False
    cold: bool = False
    reason: str = ""


def _analyse(index: _Index, task: TaskId) -> _Verdict:
    """Decide whether a task stays, moves now, or waits for a copy on its target owner."""
    target, holder = index.given.owners.get(task), index.holder(task)
    if holder is not None and target in (holder, None):
        return _Verdict(task, holder)
    handed_over = _handed_over(index, task)
    if handed_over is not None:
        return handed_over
    if target is None or not index.usable(target):
        return _without_target(index, task, holder, target or "its next owner")
    if not index.given.tasks[task].stateful:
        return _stateless(index, task, holder, target)
    if holder is not None:
        return _owned(index, task, holder, target)
    return _unowned(index, task, target)


def _handed_over(index: _Index, task: TaskId) -> _Verdict | None:
    """A hand-over under way is finished, never turned around; where the target wants the task by now comes after."""
    state = index.now(task)
    if state.phase == TaskPhase.RELEASED and index.usable(state.next_member):
        ready = _copies(index, task, Readiness.READY)
        if state.next_member in ready or not ready:
            return _Verdict(task, state.next_member, reason="was revoked for it")
    if state.phase != TaskPhase.REVOKING:
        return None
    if index.usable(state.next_member):
        return _Verdict(task, state.next_member, reason="is being revoked")
    if index.usable(state.owner):
        return _Verdict(task, state.owner, reason="goes back: who was to have it is gone")
    return None


def _without_target(index: _Index, task: TaskId, holder: str | None, target: str) -> _Verdict:
    """The target owner is gone or going: the task stays, or runs on a ready copy, until the next target."""
    if holder is not None:
        return _Verdict(task, holder, staged=True, reason=f"{target} is gone; stays")
    ready = _copies(index, task, Readiness.READY)
    if ready:
        return _Verdict(task, ready[0], staged=True, reason=f"{target} is gone; has a ready copy")
    waits = target in index.given.waiting
    return _Verdict(task, None, staged=True, reason=f"waits for {target}" if waits else "no owner")


def _stateless(index: _Index, task: TaskId, holder: str | None, target: str) -> _Verdict:
    """There is nothing to restore; but a member that has just come takes nothing from others (N11)."""
    if holder is None or _may_take(index, holder, target):
        return _Verdict(task, target, reason="has no state to restore")
    return _Verdict(task, holder, staged=True, reason=f"{target} has not settled")


def _owned(index: _Index, task: TaskId, holder: str, target: str) -> _Verdict:
    """Somebody runs the task: it stays there until a copy on the target owner is ready."""
    may_take = _may_take(index, holder, target)
    if not index.given.enabled:
        owner = target if may_take else holder
        return _Verdict(task, owner, staged=not may_take, cold=may_take, reason="no learners")
    copy, owner_state = index.copy_on(task, target), index.now(task).owner_state
    if copy is not None and copy.readiness == Readiness.READY:
        if may_take:
            return _Verdict(task, target, reason="its copy is ready")
        why = f"the copy is ready, {target} has not settled"
    else:
        why = f"stays until {target} has caught up"
        ready = _copies(index, task, Readiness.READY)
        if owner_state != Readiness.READY and ready:
            holder, why = ready[0], "its owner restores, this copy is ready"
        elif owner_state == Readiness.NOTHING and may_take:
            # Nobody has state: restoring once, where the task belongs, is less work than twice.
            return _Verdict(task, target, cold=True, reason="nobody has restored anything of it")
    return _Verdict(task, holder, target, staged=True, reason=why)


def _unowned(index: _Index, task: TaskId, target: str) -> _Verdict:
    """Nobody runs the task: it goes where it can run soonest; the target owner wins ties.

    State that is not ready, or of which nothing is known yet (the leader is new), is no reason to wait for it. But it is
    better than none: restoring goes on where it stopped.
    """
    for readiness in (Readiness.READY, Readiness.PROGRESSING, Readiness.UNKNOWN):
        cold = readiness != Readiness.READY
        found = _with_state(index, task, readiness)
        if target in found:
            return _Verdict(task, target, cold=cold, reason="nobody has it, its state is there")
        if found and index.given.enabled:
            why = "nobody has it, this member has the best copy"
            return _Verdict(task, found[0], target, staged=True, cold=cold, reason=why)
    return _Verdict(task, target, cold=True, reason="nobody has it or a copy of it")


def _with_state(index: _Index, task: TaskId, readiness: Readiness) -> list[str]:
    """Return the members whose state of a task is as good as that, open copies before state on disk, the best first."""
    disk = {
        name: lag if lag >= 0 else float("inf")
        for name, lag in index.now(task).on_disk.items()
        if index.usable(name)
    }
    fresh = {name for name, lag in disk.items() if lag <= index.given.acceptable_recovery_lag}
    on_disk = {Readiness.READY: fresh, Readiness.UNKNOWN: disk.keys() - fresh}
    closed = on_disk.get(readiness, set[str]())
    closed_first = sorted(closed, key=lambda name: (disk[name], index.load[name], name))
    return _copies(index, task, readiness) + closed_first


def _may_take(index: _Index, holder: str, target: str) -> bool:
    """Return whether a member has been here long enough to take a running task, or its owner is going anyway."""
    return index.members[target].settled or index.members[holder].leaving


def _copies(index: _Index, task: TaskId, readiness: Readiness) -> list[str]:
    """Return the members whose copies could be promoted, the best first.

    Those that the target does not want as standbys come first, so that its standbys stay in place; then the least loaded.
    """
    wanted = index.given.standbys.get(task, ())
    found = [
        name
        for name, copy in index.copies.get(task, _NO_COPIES).items()
        if copy.readiness == readiness and index.usable(name)
    ]
    return sorted(found, key=lambda name: (name in wanted, index.load[name], name))


# -- plan -------------------------------------------------------------------------------------------------------------


class _Warming(StrEnum):
    """What a staged move needs of the budget, by what its target owner has already."""

    FREE = "FREE"  # a standby there warms it, or takes the place of one that has to wait
    KEEP = "KEEP"  # a learner is at it
    PLANT = "PLANT"  # nothing is there


class _Plan(msgspec.Struct, frozen=True):
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


def _plan(index: _Index, verdicts: list[_Verdict], moving: list[_Verdict]) -> _Plan:
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
    return _Plan(learners, free, parked, promoted)


#: Whoever leaves has a deadline: one learner at a time would miss it.
_WARMUPS_WHILE_LEAVING = 2


class _Budget(msgspec.Struct, frozen=True):
    """How many more learners there may be: in all, and of tasks whose owners stay."""

    all: int
    staying: int


def _budget(index: _Index, promoted: Mapping[TaskId, str]) -> _Budget:
    """Return what is left beside learners that are being promoted; what is allowed on top while somebody leaves is its alone."""
    allowed = most = index.given.max_warmup_replicas
    if any(member.leaving for member in index.members.values()):
        most = max(allowed, _WARMUPS_WHILE_LEAVING)
    staying = sum(
        index.occupant(task) is not None and not _is_left(index, task) for task in promoted
    )
    return _Budget(most - len(promoted), allowed - staying)


def _is_left(index: _Index, task: TaskId) -> bool:
    """Return whether the member that has the task open as its owner leaves."""
    member = index.members.get(index.occupant(task) or "")
    return member is not None and member.leaving


def _is_stateful(index: _Index, task: TaskId) -> bool:
    return index.given.tasks[task].stateful


def _warming(index: _Index, verdict: _Verdict) -> _Warming:
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
    index: _Index,
    candidates: Mapping[TaskId, _Verdict],
    warmings: Mapping[TaskId, _Warming],
    verdicts: list[_Verdict],
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


def _restoring(index: _Index, verdicts: list[_Verdict]) -> set[str]:
    """Return the members that restore a task that stands still, or begin to in this step: learners there make no headway."""
    restoring = {each.owner for each in verdicts if each.owner is not None and each.cold}
    for task, state in index.given.states.items():
        if state.owner_state != _READY and (holder := index.holder(task)) is not None:
            restoring.add(holder)
    return restoring


def _tier(index: _Index, verdict: _Verdict, warming: _Warming, restoring: set[str]) -> int:
    """Return a move's class, the most deserving first.

    Learners with progress or prospects (0), new ones with prospects (1), old ones without (2), new ones without (3).
    """
    prospects = verdict.warmed not in restoring
    if warming == _Warming.PLANT:
        return 1 if prospects else 3
    copy = index.copy_on(verdict.task, verdict.warmed or "")
    begun = copy is not None and copy.readiness in (Readiness.READY, Readiness.PROGRESSING)
    return 0 if prospects or begun else 2


# -- filter -----------------------------------------------------------------------------------------------------------


def _filter_standbys(index: _Index, verdict: _Verdict, plan: _Plan) -> tuple[str, ...]:
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
        if index.copies.get(task, _NO_COPIES).keys() <= keepers:
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


def _bridging(index: _Index, task: TaskId, placed: set[str], busy: set[str | None]) -> set[str]:
    """Return copies that the target does not want but that are kept until as many of its own are ready.

    Ready ones, and those of which nothing is known yet: a new leader throws away nothing before it has heard of it.
    """
    copies = index.copies.get(task, _NO_COPIES)
    if not copies.keys() - placed - busy:
        return set()
    ready = {name for name in copies if copies[name].readiness == _READY}
    unknown = {name for name in copies if copies[name].readiness == _UNKNOWN}
    spare = [name for name in (ready | unknown) - placed - busy if not index.members[name].expelled]
    spare.sort(key=lambda name: (name in unknown, index.load[name], name))
    return set(spare[: len(placed - ready)])


# -- assemble ---------------------------------------------------------------------------------------------------------


def _assemble(
    index: _Index,
    verdicts: list[_Verdict],
    moving: list[_Verdict],
    plan: _Plan,
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
