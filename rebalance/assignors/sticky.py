"""Sticky assignor (default): balanced load with as few moves as possible.

Stateful and stateless tasks are balanced separately, by threads. A task stays with its owner within
that member's fair share. Otherwise it goes to a member with a copy or disk state and room, then to
the least loaded. A joining member takes its share only; if one leaves, only its tasks move.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from itertools import zip_longest

from tidewheel.rebalance.assignors.process_load import Shares, fair_shares
from tidewheel.rebalance.assignors.standby_placement import place_standbys
from tidewheel.rebalance.assignors.task_assignor import (
    Assignment,
    AssignmentMember,
    AssignmentRequest,
)
from tidewheel.rebalance.model import TaskId


class StickyAssignor:
    name = "sticky"

    def assign(self, request: AssignmentRequest) -> Assignment:
        if not request.members:
            return Assignment(owners={})
        members = {
            member.name: member
            for member in sorted(request.members, key=lambda member: member.name)
        }
        owners: dict[TaskId, str] = {}
        for stateful in (True, False):
            tasks = {task for task, shape in request.tasks.items() if shape.stateful is stateful}
            kind = _Kind(members, tasks, Counter(owners.values()), request.acceptable_recovery_lag)
            owners |= kind.placed()
        return Assignment(owners=owners, standbys=place_standbys(request, owners))


class _Kind:
    """Placement of all stateful, or all stateless, tasks."""

    def __init__(
        self,
        members: Mapping[str, AssignmentMember],
        tasks: Iterable[TaskId],
        other_counts: Mapping[str, int],
        acceptable_recovery_lag: int,
    ) -> None:
        self._members = members
        self._other_counts = other_counts
        self._lag_max = acceptable_recovery_lag
        self._threads = {name: member.threads for name, member in members.items()}
        self._unassigned = set(tasks)
        self._shares: Shares = fair_shares(len(self._unassigned), self._threads)
        self._extras = self._shares.extras
        #: Tasks given so far: at most `cap` each; at most `extras` members exceed their `base`.
        self._have = dict.fromkeys(members, 0)
        self._owners: dict[TaskId, str] = {}

    def placed(self) -> dict[TaskId, str]:
        self._keep_owners()
        self._go_to_state()
        self._go_to_the_least_loaded()
        return self._owners

    def _assign(self, task: TaskId, name: str) -> None:
        if self._have[name] >= self._shares.base[name]:
            self._extras -= 1
        self._have[name] += 1
        self._owners[task] = name
        self._unassigned.discard(task)

    def _has_capacity(self, name: str) -> bool:
        have = self._have[name]
        return have < self._shares.base[name] or (
            self._extras > 0 and have < self._shares.cap[name]
        )

    def _keep_owners(self) -> None:
        """Keep tasks with their owners up to their base; owners of more compete for the extras."""
        owned = self._owned()
        crowded = [name for name in owned if len(owned[name]) > self._shares.base[name]]
        crowded.sort(key=lambda name: (self._other_counts.get(name, 0) / self._threads[name], name))
        wanting = {name for name in owned if len(owned[name]) < self._shares.base[name]}
        copied = frozenset[TaskId]().union(*(self._members[name].copies for name in wanting))
        for turn, (name, tasks) in enumerate(owned.items()):
            tasks[:] = _interleaved(tasks, turn)
            # Last, and so first to move, are tasks that a member with room already has a copy of.
            tasks.sort(key=lambda task: task in copied)
            for task in tasks[: self._shares.base[name]]:
                self._assign(task, name)
        for name in crowded:
            if self._has_capacity(name):
                self._assign(owned[name][self._shares.base[name]], name)

    def _owned(self) -> dict[str, list[TaskId]]:
        """Return each member's tasks; of two members that claim one, the first counts."""
        unclaimed = set(self._unassigned)
        owned: dict[str, list[TaskId]] = {}
        for name, member in self._members.items():
            owned[name] = sorted(member.owned & unclaimed)
            unclaimed -= member.owned
        return owned

    def _go_to_state(self) -> None:
        ranked = sorted(
            (*self._freshness(member, task), task, name)
            for name, member in self._members.items()
            for task in self._unassigned & (member.copies | member.on_disk)
        )
        for _, _, task, name in ranked:
            if task in self._unassigned and self._has_capacity(name):
                self._assign(task, name)

    def _freshness(self, member: AssignmentMember, task: TaskId) -> tuple[int, float]:
        """Return a sort key: caught up, open copies, disk state; smaller lag first."""
        lag = member.lags.get(task, float("inf"))
        if lag <= self._lag_max:
            return 0, lag
        return (1 if task in member.copies else 2), lag

    def _go_to_the_least_loaded(self) -> None:
        heap = [self._entry(name) for name in self._members]
        heapify(heap)
        for task in sorted(self._unassigned):
            name = heappop(heap)[-1]
            self._assign(task, name)
            heappush(heap, self._entry(name))

    def _entry(self, name: str) -> tuple[float, float, str]:
        have, threads = self._have[name] + 1, self._threads[name]
        return have / threads, (have + self._other_counts.get(name, 0)) / threads, name


def _interleaved(tasks: Iterable[TaskId], turn: int) -> list[TaskId]:
    """Return the tasks in an order in which sub-topologies take turns.

    So a joining member gets tasks of all, not one sub-topology as a whole. Members give up different
    ones first, by their `turn`.

    >>> [str(task) for task in _interleaved([TaskId(0, 0), TaskId(0, 1), TaskId(3, 0), TaskId(3, 1)], 1)]
    ['3_0', '0_0', '3_1', '0_1']
    """
    by_subtopology: dict[int, list[TaskId]] = {}
    for task in sorted(tasks):
        by_subtopology.setdefault(task.subtopology, []).append(task)
    turns = deque(by_subtopology.values())
    turns.rotate(turn)
    rounds = zip_longest(*turns)
    return [task for tasks in rounds for task in tasks if task is not None]
