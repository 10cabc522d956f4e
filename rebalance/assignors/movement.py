"""KIP-441's movements: a planned owner that is not caught up steps back for a member that is, and warms up meanwhile.

Planned is what balances; moved is what can run at once. Kafka Streams hands the moved assignment out and asks again some
minutes later; here the refiner waits for announcements instead (`tidewheel.rebalance.refine.refine`), and the movements are what its cases
and its steps are compared with. The order of all choices is that of Kafka's `TaskMovement`.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from tidewheel.rebalance.model import TaskId

_NO_STATE = float("inf")


@dataclass(slots=True)
class Plan:
    """Who runs and who keeps what, while tasks are being moved.

    Attributes:
        threads: By member; its keys are the members.
        active, standby: Tasks by member.
        warmups_left: How many copies more may be added.
        warmups: Copies (member, task) that were added to warm up.
    """

    threads: Mapping[str, int]
    active: dict[str, set[TaskId]]
    standby: dict[str, set[TaskId]]
    warmups_left: int = 0
    warmups: set[tuple[str, TaskId]] = field(default_factory=set[tuple[str, TaskId]])

    def load(self, member: str) -> float:
        """Return a member's tasks per thread, copies included."""
        return (len(self.active[member]) + len(self.standby[member])) / self.threads[member]

    def has(self, member: str, task: TaskId) -> bool:
        """Return whether a member has a task in any role."""
        return task in self.active[member] or task in self.standby[member]

    def least_loaded(self, members: Iterable[str]) -> str | None:
        """Return the least loaded of some members, or None if there are none."""
        return min(members, key=lambda member: (self.load(member), member), default=None)

    def warm_up(self, task: TaskId, member: str) -> bool:
        """Put a copy on a member if one more may be added."""
        if self.warmups_left <= 0:
            return False
        self.warmups_left -= 1
        self.standby[member].add(task)
        self.warmups.add((member, task))
        return True


@dataclass(frozen=True, slots=True)
class Freshness:
    """Whose state of a task is how good.

    Attributes:
        lags: Per task and member how many records its state is behind, where it has any.
        caught_up: Members whose state is as good as the owner's.
    """

    lags: Mapping[TaskId, Mapping[str, float]]
    caught_up: Mapping[TaskId, frozenset[str]]

    def fresher(self, task: TaskId, than: str, members: Iterable[str]) -> str | None:
        """Return the one of some members with the freshest state if it is fresher than another member's."""
        limit = self._lag(task, than)
        known = [(self._lag(task, each), each) for each in members]
        return min((each for each in known if each[0] < limit), default=(_NO_STATE, None))[1]

    def _lag(self, task: TaskId, member: str) -> float:
        return self.lags[task].get(member, _NO_STATE)

    def outdone(self, task: TaskId, member: str) -> bool:
        """Return whether a member is not caught up on a task and another one has fresher state."""
        if member in self.caught_up[task]:
            return False
        return self.fresher(task, member, self.lags[task]) is not None


def move_actives(plan: Plan, freshness: Freshness, tasks: Iterable[TaskId]) -> int:
    """Move some tasks' active role to members that are caught up; returns how many had to be moved.

    In turn: swapped with a caught-up copy (costs nothing), else run by the least loaded caught-up member while the planned
    one warms up, else run by the freshest. Without a place among the warm-ups the planned one gets nothing for now.
    """
    movements = _movements(plan.active, freshness, frozenset(tasks))
    for task, planned in movements:
        caught_up = freshness.caught_up[task]
        holder = plan.least_loaded(each for each in caught_up if task in plan.standby[each])
        if holder is None:
            holder = plan.least_loaded(caught_up)
        if holder is None:
            holder = freshness.fresher(task, planned, freshness.lags[task])
        assert holder is not None, "what moves is outdone by somebody"
        plan.active[planned].discard(task)
        plan.active[holder].add(task)
        if task in plan.standby[holder]:
            plan.standby[holder].discard(task)
            plan.standby[planned].add(task)
        else:
            plan.warm_up(task, planned)
    return len(movements)


def move_standbys(plan: Plan, freshness: Freshness, tasks: Iterable[TaskId]) -> int:
    """Move some tasks' copies to members whose state is fresher, where there are any without the task; returns how many."""
    done = 0
    for task, planned in _movements(plan.standby, freshness, frozenset(tasks), plan.warmups):
        free = [member for member in plan.threads if not plan.has(member, task)]
        source = plan.least_loaded(each for each in free if each in freshness.caught_up[task])
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
    """Return the tasks to move and who gives them up: those with the fewest caught-up members first, then by id."""
    movements = [
        (task, member)
        for member, tasks in placed.items()
        for task in tasks & movable
        if (member, task) not in fixed and freshness.outdone(task, member)
    ]
    return sorted(movements, key=lambda each: (len(freshness.caught_up[each[0]]), *each))
