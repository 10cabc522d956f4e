"""Kafka Streams' HighAvailabilityTaskAssignor (KIP-441).

The assignment depends on tasks and members only, not on current owners.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from tidewheel.rebalance.assignors.movement import Freshness, Plan, move_actives, move_standbys
from tidewheel.rebalance.assignors.process_load import LoadOrder
from tidewheel.rebalance.assignors.standby_placement import place_standbys
from tidewheel.rebalance.assignors.task_assignor import Assignment, AssignmentRequest
from tidewheel.rebalance.model import TaskId


@dataclass(frozen=True, slots=True)
class Moved:
    """Assignment on caught-up members; `movements` counts tasks away from their planned member."""

    assignment: Assignment
    movements: int


class HighAvailabilityAssignor:
    name = "high_availability"

    def assign(self, request: AssignmentRequest) -> Assignment:
        return self.moved(request, frozenset(), max_warmup_replicas=0).assignment

    def moved(
        self, request: AssignmentRequest, movable: AbstractSet[TaskId], *, max_warmup_replicas: int
    ) -> Moved:
        """Return the plan after KIP-441's movements of the tasks in `movable`."""
        if not request.members:
            return Moved(Assignment(owners={}), 0)
        stateful = sorted(task for task, shape in request.tasks.items() if shape.stateful)
        threads = {member.name: member.threads for member in request.members}
        threads = dict(sorted(threads.items()))
        owners = _dealt_out(stateful, threads)
        standbys = place_standbys(request, owners)
        plan = Plan(
            threads=threads,
            active=_by_member(threads, owners.items()),
            standby=_by_member(threads, ((t, name) for t in standbys for name in standbys[t])),
            warmups_left=max_warmup_replicas,
        )
        tasks = movable & frozenset(stateful)
        freshness = _freshness(request, tasks)
        movements = move_actives(plan, freshness, tasks) + move_standbys(plan, freshness, tasks)
        self._add_stateless(request, plan)
        return Moved(_assignment(plan), movements)

    def _add_stateless(self, request: AssignmentRequest, plan: Plan) -> None:
        turns = LoadOrder(plan.threads, {name: len(tasks) for name, tasks in plan.active.items()})
        for task in sorted(task for task, shape in request.tasks.items() if not shape.stateful):
            owner = next(iter(turns))
            plan.active[owner].add(task)
            turns.change(owner, +1)


def _dealt_out(tasks: list[TaskId], threads: Mapping[str, int]) -> dict[TaskId, str]:
    names = list(threads)
    owners = {task: names[index % len(names)] for index, task in enumerate(tasks)}
    load = LoadOrder(threads, Counter(owners.values()))
    while True:
        fullest = max(names, key=lambda name: load.load(name, -1))
        emptiest = min(names, key=lambda name: load.load(name, +1))
        if fullest == emptiest or not load.relieves(fullest, emptiest):
            return owners
        task = next(task for task in tasks if owners[task] == fullest)
        owners[task] = emptiest
        load.change(fullest, -1)
        load.change(emptiest, +1)


def _freshness(request: AssignmentRequest, tasks: AbstractSet[TaskId]) -> Freshness:
    lags: dict[TaskId, dict[str, float]] = {task: {} for task in tasks}
    for member in request.members:
        for task in member.lags.keys() & tasks:
            lags[task][member.name] = member.lags[task]
        for task in member.owned & tasks:
            lags[task][member.name] = -1  # ahead of every copy
    caught_up = {
        task: frozenset(
            name for name in member_lags if member_lags[name] <= request.acceptable_recovery_lag
        )
        for task, member_lags in lags.items()
    }
    return Freshness(lags, caught_up)


def _by_member(
    members: Iterable[str], placed: Iterable[tuple[TaskId, str]]
) -> dict[str, set[TaskId]]:
    tasks: dict[str, set[TaskId]] = {member: set() for member in members}
    for task, member in placed:
        tasks[member].add(task)
    return tasks


def _assignment(plan: Plan) -> Assignment:
    owners = {task: name for name, tasks in plan.active.items() for task in tasks}
    standbys: dict[TaskId, tuple[str, ...]] = {}
    for name, tasks in plan.standby.items():
        for task in tasks:
            standbys[task] = (*standbys.get(task, ()), name)
    return Assignment(owners=dict(sorted(owners.items())), standbys=dict(sorted(standbys.items())))
