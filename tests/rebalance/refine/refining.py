"""Helpers for refiner tests: short inputs, and a group that executes steps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from tidewheel.rebalance.assignors.task_assignor import (
    Assignment,
    AssignmentMember,
    AssignmentRequest,
    TaskAssignor,
    validated,
)
from tidewheel.rebalance.model import TaskId, TaskPhase, TaskRole, TaskShape
from tidewheel.rebalance.refine.refine import Refinement, refine
from tidewheel.rebalance.refine.refine_input import (
    CurrentCopy,
    CurrentMember,
    CurrentTask,
    Readiness,
    RefineInput,
)

Key = TypeVar("Key")
Value = TypeVar("Value")

STATEFUL = TaskShape(stateful=True, changelogs=("changelog",))
STATELESS = TaskShape(stateful=False)
T0, T1, T2, T3 = (TaskId(0, partition) for partition in range(4))


def learner(member: str, readiness: Readiness = Readiness.PROGRESSING) -> CurrentCopy:
    return CurrentCopy(member=member, role=TaskRole.LEARNER, readiness=readiness)


def standby(member: str, readiness: Readiness = Readiness.PROGRESSING) -> CurrentCopy:
    return CurrentCopy(member=member, role=TaskRole.STANDBY, readiness=readiness)


def running(owner: str, *copies: CurrentCopy, state: Readiness = Readiness.READY) -> CurrentTask:
    return CurrentTask(phase=TaskPhase.RUNNING, owner=owner, copies=copies, owner_state=state)


def unowned(*copies: CurrentCopy, on_disk: Mapping[str, int] | None = None) -> CurrentTask:
    return CurrentTask(phase=TaskPhase.RELEASED, copies=copies, on_disk=on_disk or {})


def revoking(owner: str, following: str | None, *copies: CurrentCopy) -> CurrentTask:
    return CurrentTask(phase=TaskPhase.REVOKING, owner=owner, next_member=following, copies=copies)


def members(names: str, **flags: bool) -> tuple[CurrentMember, ...]:
    return tuple(CurrentMember(name=name, **flags) for name in names.split())


def step(
    states: Mapping[TaskId, CurrentTask],
    owners: Mapping[TaskId, str],
    *,
    present: tuple[CurrentMember, ...] = members("a b c"),
    standbys: Mapping[TaskId, tuple[str, ...]] | None = None,
    warmups: int = 2,
    waiting: str = "",
    enabled: bool = True,
    stateless: tuple[TaskId, ...] = (),
) -> Refinement:
    """Return the step from these states towards a target."""
    tasks = {task: STATELESS if task in stateless else STATEFUL for task in {*states, *owners}}
    return refine(
        RefineInput(
            tasks=tasks,
            owners=owners,
            standbys=standbys or {},
            members=present,
            states=states,
            waiting=frozenset(waiting.split()),
            max_warmup_replicas=warmups,
            enabled=enabled,
        )
    )


@dataclass(slots=True)
class SmallGroup:
    """Executes every order immediately; each copy catches up by the next step."""

    assignor: TaskAssignor
    tasks: Mapping[TaskId, TaskShape]
    num_standby_replicas: int
    max_warmup_replicas: int
    names: set[str]
    owners: dict[TaskId, str] = field(default_factory=dict[TaskId, str])
    copies: dict[tuple[TaskId, str], TaskRole] = field(
        default_factory=dict[tuple[TaskId, str], TaskRole]
    )
    on_disk: set[tuple[TaskId, str]] = field(default_factory=set[tuple[TaskId, str]])
    #: Stateful tasks that moved from a running owner to a member without state.
    cold: list[TaskId] = field(default_factory=list[TaskId])

    def drop(self, name: str) -> None:
        self.names.discard(name)
        gone = {(task, owner) for task, owner in self.owners.items() if owner == name}
        gone |= {copy for copy in self.copies if copy[1] == name}
        self.on_disk |= {(task, owner) for task, owner in gone if self.tasks[task].stateful}
        self.owners = {task: owner for task, owner in self.owners.items() if owner != name}
        self.copies = {copy: how for copy, how in self.copies.items() if copy[1] != name}

    def closed(self) -> set[tuple[TaskId, str]]:
        """Return disk state that is not open."""
        return self.on_disk - self.copies.keys() - set(self.owners.items())

    def request(self) -> AssignmentRequest:
        return AssignmentRequest(
            number=1,
            members=tuple(
                AssignmentMember(
                    name=name,
                    owned=frozenset(task for task in self.owners if self.owners[task] == name),
                    copies=frozenset(task for task, where in self.copies if where == name),
                    on_disk=frozenset(task for task, where in self.closed() if where == name),
                )
                for name in sorted(self.names)
            ),
            tasks=self.tasks,
            num_standby_replicas=self.num_standby_replicas,
        )

    def given(self, target: Assignment) -> RefineInput:
        states = {
            task: CurrentTask(
                phase=TaskPhase.RUNNING if task in self.owners else TaskPhase.RELEASED,
                owner=self.owners.get(task),
                copies=tuple(
                    CurrentCopy(member=name, role=role, readiness=Readiness.READY)
                    for (of, name), role in self.copies.items()
                    if of == task
                ),
                on_disk={name: -1 for name in self.names if (task, name) in self.closed()},
            )
            for task in self.tasks
        }
        return RefineInput(
            tasks=self.tasks,
            owners=target.owners,
            standbys=target.standbys,
            members=tuple(CurrentMember(name=name) for name in sorted(self.names)),
            states=states,
            max_warmup_replicas=self.max_warmup_replicas,
        )

    def settle(self, limit: int) -> int:
        """Step until nothing changes; return the number of changing steps, at most `limit`."""
        target = validated(self.request(), self.assignor.assign(self.request()))
        for steps in range(limit + 1):
            before = dict(self.owners), dict(self.copies)
            if self.move(refine(self.given(target))):
                assert not self.move(refine(self.given(target)))
            answer = refine(self.given(target))
            self.keep_copies(answer)
            if before == (self.owners, self.copies):
                assert answer.owners == target.owners
                assert answer.standbys == target.standbys
                assert not answer.learners
                assert not answer.parked
                return steps
        raise AssertionError(f"has not converged after {limit} steps")

    def move(self, answer: Refinement) -> bool:
        moves = [
            (task, owner) for task, owner in answer.owners.items() if self.owners.get(task) != owner
        ]
        for task, owner in moves:
            held = self.owners.get(task)
            copy = self.copies.pop((task, owner), None)
            if self.tasks[task].stateful and held is not None and copy is None:
                self.cold.append(task)
            self.owners[task] = owner
            if task in answer.kept and held is not None:
                self.copies[task, held] = TaskRole.STANDBY
        return bool(moves)

    def keep_copies(self, answer: Refinement) -> None:
        wanted = [(task, name, TaskRole.LEARNER) for task, name in answer.learners.items()]
        for task, names in answer.standbys.items():
            wanted += [(task, name, TaskRole.STANDBY) for name in names]
        self.copies = {(task, name): role for task, name, role in wanted}


def backwards(mapping: Mapping[Key, Value]) -> dict[Key, Value]:
    return dict(reversed(list(mapping.items())))


def reversed_input(given: RefineInput) -> RefineInput:
    states = {
        task: msgspec.structs.replace(
            state, copies=state.copies[::-1], on_disk=backwards(state.on_disk)
        )
        for task, state in backwards(given.states).items()
    }
    return msgspec.structs.replace(
        given,
        tasks=backwards(given.tasks),
        owners=backwards(given.owners),
        standbys=backwards(given.standbys),
        members=given.members[::-1],
        states=states,
    )
