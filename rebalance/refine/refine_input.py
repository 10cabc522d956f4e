"""Input of the refinement: members, tasks, copies and target, with an index over them."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import msgspec

from tidewheel.rebalance.model import TaskId, TaskPhase, TaskRole, TaskShape

_NOTHING: Mapping[Any, Any] = MappingProxyType({})

# Bound once: enum member lookups are slow.
_RUNNING: Final = TaskPhase.RUNNING


class Readiness(StrEnum):
    """Progress of a copy, from its member's messages and the leader's own reads of end offsets.

    READY: announced under its current learn epoch, and within `acceptable_recovery_lag` of an end
    offset read after that. PROGRESSING: has restored something. NOTHING: has not begun. UNKNOWN:
    not heard of; never counts as ready.
    """

    READY = "READY"
    PROGRESSING = "PROGRESSING"
    NOTHING = "NOTHING"
    UNKNOWN = "UNKNOWN"


class CurrentMember(msgspec.Struct, frozen=True, kw_only=True):
    """A live member (one incarnation of each name)."""

    name: str
    threads: int = 1
    settled: bool = True  # Can receive running tasks from others (N11).
    #: Still runs tasks but receives none; its tasks move away through learners.
    leaving: bool = False
    expelled: bool = False  # Its deadline has passed: its tasks are revoked without a learner.


class CurrentCopy(msgspec.Struct, frozen=True, kw_only=True):
    member: str
    role: TaskRole
    readiness: Readiness = Readiness.UNKNOWN


class CurrentTask(msgspec.Struct, frozen=True, kw_only=True):
    phase: TaskPhase = TaskPhase.UNOWNED
    owner: str | None = None  # The live member that can commit (RUNNING, REVOKING), else None.
    next_member: str | None = None  # Member it was revoked for (REVOKING, RELEASED).
    #: READY if the owner processes or its progress is unknown (the safe side: the task is
    #: protected), else its restore progress.
    owner_state: Readiness = Readiness.READY
    copies: tuple[CurrentCopy, ...] = ()
    #: Lag in changelog records, -1 unknown, of live members with state on disk only.
    on_disk: Mapping[str, int] = _NOTHING


class RefineInput(msgspec.Struct, frozen=True, kw_only=True):
    tasks: Mapping[TaskId, TaskShape]
    #: The target by member name; names may be gone.
    owners: Mapping[TaskId, str]
    standbys: Mapping[TaskId, tuple[str, ...]] = msgspec.field(default_factory=lambda: _NOTHING)
    members: tuple[CurrentMember, ...]
    states: Mapping[TaskId, CurrentTask] = msgspec.field(default_factory=lambda: _NOTHING)
    #: Names that are gone but expected back: their tasks stay unowned unless a ready copy exists.
    waiting: frozenset[str] = frozenset()
    #: Learners in the whole group; at least two while a member leaves, and the additional ones are
    #: for its tasks.
    max_warmup_replicas: int = 2
    #: Lag, in records, up to which disk state counts as ready.
    acceptable_recovery_lag: int = 10_000
    enabled: bool = True  # False: the target as is, without learners (the baseline).


class Index(msgspec.Struct, frozen=True):
    """`RefineInput`, indexed."""

    given: RefineInput
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
        """Return the live member that has the task open as owner, even if it is being revoked."""
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


def index_of(given: RefineInput) -> Index:
    members = {member.name: member for member in sorted(given.members, key=lambda each: each.name)}
    usable = frozenset(
        name for name, each in members.items() if not (each.leaving or each.expelled)
    )
    count = dict.fromkeys(members, 0)
    copies: dict[TaskId, dict[str, CurrentCopy]] = {}
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
