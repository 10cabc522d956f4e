"""KIP-441 movements: a caught-up member runs the task while its planned owner warms up.

Kafka Streams assigns the moved plan and rebalances again some minutes later. Here the refiner waits
for READY messages instead, and tests compare its steps with these movements.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from tidewheel.rebalance.model import TaskId

_NO_STATE = float("inf")


@dataclass(slots=True)
class Plan:
    threads: Mapping[str, int]
    active: dict[str, set[TaskId]]
    standby: dict[str, set[TaskId]]
    warmups_left: int = 0
    #: Warm-up copies added so far, as (member, task).
    warmups: set[tuple[str, TaskId]] = field(default_factory=set[tuple[str, TaskId]])

    def load(self, member: str) -> float:
        return (len(self.active[member]) + len(self.standby[member])) / self.threads[member]

    def has(self, member: str, task: TaskId) -> bool:
        return task in self.active[member] or task in self.standby[member]

    def least_loaded(self, members: Iterable[str]) -> str | None:
        return min(members, key=lambda member: (self.load(member), member), default=None)

    def warm_up(self, task: TaskId, member: str) -> bool:
        if self.warmups_left <= 0:
            return False
        self.warmups_left -= 1
        self.standby[member].add(task)
        self.warmups.add((member, task))
        return True


@dataclass(frozen=True, slots=True)
class Freshness:
    #: Changelog records behind, by task and member with state; -1: the member owns the task.
    lags: Mapping[TaskId, Mapping[str, float]]
    #: Members at most `acceptable_recovery_lag` records behind, by task.
    caught_up: Mapping[TaskId, frozenset[str]]

    def fresher(self, task: TaskId, than: str, members: Iterable[str]) -> str | None:
        """Return the member with the freshest state, if it is fresher than member `than`'s."""
        limit = self._lag(task, than)
        lags = [(self._lag(task, member), member) for member in members]
        return min((lag for lag in lags if lag[0] < limit), default=(_NO_STATE, None))[1]

    def _lag(self, task: TaskId, member: str) -> float:
        return self.lags[task].get(member, _NO_STATE)

    def outdone(self, task: TaskId, member: str) -> bool:
        if member in self.caught_up[task]:
            return False
        return self.fresher(task, member, self.lags[task]) is not None


def move_actives(plan: Plan, freshness: Freshness, tasks: Iterable[TaskId]) -> int:
    """Move active tasks to members with fresher state; return the number of moves.

    A caught-up standby comes first: it and the planned owner swap. Next is the least loaded
    caught-up member, then the freshest one. Without a swap, the planned owner gets a warm-up copy
    while `warmups_left` is above 0.
    """
    movements = _movements(plan.active, freshness, frozenset(tasks))
    for task, planned in movements:
        caught_up = freshness.caught_up[task]
        holder = plan.least_loaded(member for member in caught_up if task in plan.standby[member])
        if holder is None:
            holder = plan.least_loaded(caught_up)
        if holder is None:
            holder = freshness.fresher(task, planned, freshness.lags[task])
        assert holder is not None, "a task moves only if another member has fresher state"
        plan.active[planned].discard(task)
        plan.active[holder].add(task)
        if task in plan.standby[holder]:
            plan.standby[holder].discard(task)
            plan.standby[planned].add(task)
        else:
            plan.warm_up(task, planned)
    return len(movements)


def move_standbys(plan: Plan, freshness: Freshness, tasks: Iterable[TaskId]) -> int:
    """Move standbys to members with fresher state; return the number of moves."""
    done = 0
    for task, planned in _movements(plan.standby, freshness, frozenset(tasks), plan.warmups):
        free = [member for member in plan.threads if not plan.has(member, task)]
        source = plan.least_loaded(member for member in free if member in freshness.caught_up[task])
        if source is None:
            source = freshness.fresher(task, planned, free)
        if source is not None:
            plan.standby[source].add(task)
            if not plan.warm_up(task, planned):
                plan.standby[planned].discard(task)
            done += 1
    return done


def _movements(
    placed: Mapping[str, set[TaskId]],
    freshness: Freshness,
    movable: frozenset[TaskId],
    fixed: Container[tuple[str, TaskId]] = (),
) -> list[tuple[TaskId, str]]:
    movements = [
        (task, member)
        for member, tasks in placed.items()
        for task in tasks & movable
        if (member, task) not in fixed and freshness.outdone(task, member)
    ]
    return sorted(
        movements, key=lambda movement: (len(freshness.caught_up[movement[0]]), *movement)
    )
