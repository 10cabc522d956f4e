"""Input of the refinement: members, tasks, copies and target."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import msgspec

from tidewheel.rebalance.model import TaskId, TaskPhase, TaskRole, TaskShape

_NOTHING: Mapping[Any, Any] = MappingProxyType({})


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
    settled: bool = True  # Can receive running tasks from others.
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
    #: READY if the owner processes or its progress is unknown: such a task moves only to a ready
    #: copy. Else its restore progress.
    owner_state: Readiness = Readiness.READY
    copies: tuple[CurrentCopy, ...] = ()
    #: Lag in changelog records (-1 if unknown) by live member that has state on disk only.
    on_disk: Mapping[str, int] = _NOTHING


class RefineInput(msgspec.Struct, frozen=True, kw_only=True):
    tasks: Mapping[TaskId, TaskShape]
    #: Target owner (a member's name) per task; that member may be gone.
    owners: Mapping[TaskId, str]
    standbys: Mapping[TaskId, tuple[str, ...]] = msgspec.field(default_factory=lambda: _NOTHING)
    members: tuple[CurrentMember, ...]
    states: Mapping[TaskId, CurrentTask] = msgspec.field(default_factory=lambda: _NOTHING)
    #: Members that are gone but expected back: their tasks wait, unless a ready copy exists.
    waiting: frozenset[str] = frozenset()
    #: Maximum number of learners in the group. While a member leaves, it is at least 2; additional
    #: learners are for its tasks.
    max_warmup_replicas: int = 2
    acceptable_recovery_lag: int = 10_000
    enabled: bool = True  # False: moves without learners, as a baseline.
