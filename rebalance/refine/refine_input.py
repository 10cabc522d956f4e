"""What the learner gate looks at: members, tasks, copies and the target as values, and all of it by what it is looked up by.

Pure. `refine` is asked with a `RefineInput`; each of its passes reads the `Index` of it.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import msgspec

from tidewheel.rebalance.model import TaskId, TaskPhase, TaskRole, TaskShape

_NOTHING: Mapping[Any, Any] = MappingProxyType({})

# Looking a member of an enumeration up by its name costs more than all that is done with it here, for every task in every
# decision.
_RUNNING: Final = TaskPhase.RUNNING


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


class Index(msgspec.Struct, frozen=True):
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
        """Return where a task is."""
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

    def copies_of(self, task: TaskId) -> Mapping[str, CopyNow]:
        """Return the copies of a task by the live members that keep them."""
        return self.copies.get(task, _NO_COPIES)


_NO_COPIES: Mapping[str, CopyNow] = MappingProxyType({})
_UNOWNED: Final = TaskNow()


def index_of(given: RefineInput) -> Index:
    """Return what is looked at, by what it is looked up by."""
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
    return Index(given, given.states, members, usable, copies, load)
