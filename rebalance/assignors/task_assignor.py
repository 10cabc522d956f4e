"""The assignor interface: request, answer, and validation of the answer.

An assignor returns the target assignment. It knows nothing of learners or moves in progress: the
refiner (`rebalance/refine`) gets the group there, so every assignor gains warm-ups.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from tidewheel.rebalance.model import TaskId, TaskShape

_NO_LAGS: Mapping[TaskId, int] = MappingProxyType({})
_NO_TAGS: Mapping[str, str] = MappingProxyType({})
_NO_STANDBYS: Mapping[TaskId, tuple[str, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentMember:
    name: str  # Lasting member name, used in the answer.
    threads: int = 1
    host: str = ""  # Machine name, "" if unknown. Copies avoid the machine of the active task.
    rack: str | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: _NO_TAGS)
    owned: frozenset[TaskId] = frozenset()  # It runs them, or they wait for its return.
    copies: frozenset[TaskId] = frozenset()  # It has a standby or learner open.
    on_disk: frozenset[TaskId] = frozenset()  # State on its disk, not open.
    #: Changelog records behind, per task where known; 0 for owned tasks.
    lags: Mapping[TaskId, int] = field(default_factory=lambda: _NO_LAGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentRequest:
    number: int  # Request counter of one leader; answers to older requests are dropped.
    members: tuple[AssignmentMember, ...]
    tasks: Mapping[TaskId, TaskShape]
    num_standby_replicas: int = 0
    acceptable_recovery_lag: int = 10_000  # Lag, in records, up to which state counts as caught up.
    assignor: str = "sticky"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    owners: Mapping[TaskId, str]
    standbys: Mapping[TaskId, tuple[str, ...]] = field(default_factory=lambda: _NO_STANDBYS)


class TaskAssignor(Protocol):
    """Interface of built-in and user-written assignors.

    `assign` must be pure: no I/O, no clock, no randomness. Without members the answer is empty.
    """

    @property
    def name(self) -> str:
        """Name as in `task_assignor`; the leader refuses members with another one."""
        ...

    def assign(self, request: AssignmentRequest) -> Assignment:
        """Return an owner for every task, and standbys for stateful ones."""
        ...


class AssignmentRefusedError(ValueError):
    """Raised for an assignor's invalid answer; the message names the task."""


def validated(request: AssignmentRequest, assignment: Assignment) -> Assignment:
    """Return an assignor's answer in canonical order, or raise AssignmentRefusedError.

    Invalid: a missing or unknown task, an unknown member, a standby of a stateless task, two copies
    of one task on a member. Any number of standbys is valid.

    >>> request = AssignmentRequest(number=1, members=(AssignmentMember(name="a"),), tasks={TaskId(0, 0): TaskShape(stateful=True)})
    >>> validated(request, Assignment(owners={TaskId(0, 0): "b"}))
    Traceback (most recent call last):
    tidewheel.rebalance.assignors.task_assignor.AssignmentRefusedError: assignor 'sticky': task 0_0 is given to 'b', which is not in the group
    """
    names = {member.name for member in request.members}
    for problem in _problems(request, assignment, names):
        raise AssignmentRefusedError(f"assignor {request.assignor!r}: {problem}")
    return Assignment(
        owners=dict(sorted(assignment.owners.items())),
        standbys={
            task: tuple(members) for task, members in sorted(assignment.standbys.items()) if members
        },
    )


def _problems(request: AssignmentRequest, assignment: Assignment, names: set[str]) -> Iterator[str]:
    for task in sorted(request.tasks.keys() - assignment.owners.keys() if names else ()):
        yield f"task {task} has no owner"
    for task, owner in sorted(assignment.owners.items()):
        if task not in request.tasks:
            yield f"task {task} does not exist"
        if owner not in names:
            yield f"task {task} is given to {owner!r}, which is not in the group"
    for task, standbys in sorted(assignment.standbys.items()):
        yield from _standby_problems(request, task, standbys, names)
        if len({assignment.owners.get(task), *standbys}) != 1 + len(standbys):
            yield f"two copies of task {task} are given to one member"


def _standby_problems(
    request: AssignmentRequest, task: TaskId, standbys: tuple[str, ...], names: set[str]
) -> Iterator[str]:
    shape = request.tasks.get(task)
    if shape is None:
        yield f"there is a standby of task {task}, which does not exist"
    elif standbys and not shape.stateful:
        yield f"there is a standby of task {task}, which has no state"
    for standby in standbys:
        if standby not in names:
            yield f"a standby of task {task} is given to {standby!r}, which is not in the group"
