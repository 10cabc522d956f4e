"""What an assignor is asked, what it answers, and what of an answer is refused.

An assignor says where every task belongs in the end. It knows nothing of learners, budgets or moves under way: how the
group gets there is the refiner's part (`tidewheel.rebalance.refine.refine`), so that every assignor gains learners without doing anything.
It is a pure function: the same request, members and tasks in any order, gives the same answer.
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
    """A member that may be given tasks.

    Attributes:
        name: Its lasting name; answers use it.
        threads: Its capacity: load is tasks per thread.
        host: Name of its machine, "" if not known; copies are kept off the machine of the active task if possible.
        rack, tags: `rack_id` and `client_tags`: copies are spread over their values.
        owned: Tasks it runs now, or that wait for its return.
        copies: Tasks it keeps a standby or a learner of.
        on_disk: Tasks whose state lies on its disk, not open.
        lags: Changelog records its state of a task is behind, where that is known; 0 for tasks it runs.
    """

    name: str
    threads: int = 1
    host: str = ""
    rack: str | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: _NO_TAGS)
    owned: frozenset[TaskId] = frozenset()
    copies: frozenset[TaskId] = frozenset()
    on_disk: frozenset[TaskId] = frozenset()
    lags: Mapping[TaskId, int] = field(default_factory=lambda: _NO_LAGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentRequest:
    """Where do these tasks belong?

    Attributes:
        number: Counts the requests of a leader; an answer to an older one is dropped.
        members: Everybody who may be given tasks; names are unique.
        tasks: Every task there is.
        num_standby_replicas: How many copies of each stateful task to keep.
        acceptable_recovery_lag: State that is at most this many records behind is as good as caught up.
        assignor: Name of the assignor that is asked.
    """

    number: int
    members: tuple[AssignmentMember, ...]
    tasks: Mapping[TaskId, TaskShape]
    num_standby_replicas: int = 0
    acceptable_recovery_lag: int = 10_000
    assignor: str = "sticky"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Who runs each task, and who keeps copies of it, by members' names."""

    owners: Mapping[TaskId, str]
    standbys: Mapping[TaskId, tuple[str, ...]] = field(default_factory=lambda: _NO_STANDBYS)


class TaskAssignor(Protocol):
    """Something that says where tasks belong.

    `assign` must be pure: no I/O, no clock, no chance. With no member in the request the answer is empty.
    """

    @property
    def name(self) -> str:
        """What a member's `task_assignor` calls it; members with another one are refused."""
        ...

    def assign(self, request: AssignmentRequest) -> Assignment:
        """Return an owner for every task, and standbys for stateful ones."""
        ...


class AssignmentRefusedError(ValueError):
    """An assignor's answer can't be carried out; the text says what is wrong with it."""


def validated(request: AssignmentRequest, assignment: Assignment) -> Assignment:
    """Return an assignor's answer in canonical order, or raise AssignmentRefusedError.

    Refused: a task without an owner or that does not exist, a member that is not in the request, a standby of a
    stateless task, two copies of one task on a member. Fewer or more standbys than asked for are the assignor's choice.

    >>> request = AssignmentRequest(number=1, members=(AssignmentMember(name="a"),), tasks={TaskId(0, 0): TaskShape(stateful=True)})
    >>> validated(request, Assignment(owners={TaskId(0, 0): "b"}))
    Traceback (most recent call last):
    tidewheel.rebalance.assignors.task_assignor.AssignmentRefusedError: assignor 'sticky': task 0_0 is given to 'b', who is not in the group
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
    """Name what is wrong, in an order that does not depend on the answer's."""
    for task in sorted(request.tasks.keys() - assignment.owners.keys() if names else ()):
        yield f"task {task} is given to nobody"
    for task, owner in sorted(assignment.owners.items()):
        if task not in request.tasks:
            yield f"task {task} does not exist"
        if owner not in names:
            yield f"task {task} is given to {owner!r}, who is not in the group"
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
            yield f"a standby of task {task} is given to {standby!r}, who is not in the group"
