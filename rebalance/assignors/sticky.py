"""The default: tasks stay where they are as long as the loads are even, and go to where their state is when they move.

Stateful and stateless tasks are spread apart from each other, each by threads. A task stays with its owner while that one
is within its fair share, else goes to a member that has a copy or state on disk and has room, else to the least loaded.
From this follow (L5, invariant 20): what makes no load smaller is not moved; a member that joins takes over its own share and
nothing else moves; when one leaves, only its tasks move.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush

from tidewheel.rebalance.assignors.process_load import Shares, fair_shares
from tidewheel.rebalance.assignors.standby_placement import place_standbys
from tidewheel.rebalance.assignors.task_assignor import (
    Assignment,
    AssignmentMember,
    AssignmentRequest,
)
from tidewheel.rebalance.model import TaskId


class StickyAssignor:
    """`task_assignor="sticky"`."""

    name = "sticky"

    def assign(self, request: AssignmentRequest) -> Assignment:
        """Return even loads, reached with as few moves as possible."""
        if not request.members:
            return Assignment(owners={})
        members = {
            member.name: member for member in sorted(request.members, key=lambda each: each.name)
        }
        owners: dict[TaskId, str] = {}
        for stateful in (True, False):
            tasks = {task for task, shape in request.tasks.items() if shape.stateful is stateful}
            kind = _Kind(members, tasks, Counter(owners.values()), request.acceptable_recovery_lag)
            owners |= kind.placed()
        return Assignment(owners=owners, standbys=place_standbys(request, owners))


class _Kind:
    """The tasks of one kind (stateful, or stateless), while they are being placed."""

    def __init__(
        self,
        members: Mapping[str, AssignmentMember],
        tasks: Iterable[TaskId],
        others: Mapping[str, int],
        acceptable_recovery_lag: int,
    ) -> None:
        self._members = members
        self._others = others
        self._lag_max = acceptable_recovery_lag
        self._threads = {name: member.threads for name, member in members.items()}
        self._left = set(tasks)
        self._shares: Shares = fair_shares(len(self._left), self._threads)
        self._extras = self._shares.extras
        #: How many each member has so far: never more than its cap, and one above its base for no more than `extras`.
        self._have = dict.fromkeys(members, 0)
        self._owners: dict[TaskId, str] = {}

    def placed(self) -> dict[TaskId, str]:
        """Return the owner of every task."""
        self._keep()
        self._go_to_state()
        self._go_to_the_least_loaded()
        return self._owners

    def _put(self, task: TaskId, name: str) -> None:
        if self._have[name] >= self._shares.base[name]:
            self._extras -= 1
        self._have[name] += 1
        self._owners[task] = name
        self._left.discard(task)

    def _has_room(self, name: str) -> bool:
        have = self._have[name]
        return have < self._shares.base[name] or (
            self._extras > 0 and have < self._shares.cap[name]
        )

    def _keep(self) -> None:
        """Leave tasks with their owners, up to each one's share; those who have too many compete for the extra places."""
        owned = self._owned()
        crowded = [name for name in owned if len(owned[name]) > self._shares.base[name]]
        crowded.sort(key=lambda name: (self._others.get(name, 0) / self._threads[name], name))
        wanting = {name for name in owned if len(owned[name]) < self._shares.base[name]}
        copied = frozenset[TaskId]().union(*(self._members[name].copies for name in wanting))
        for name, tasks in owned.items():
            # What a member in want of tasks learns already is given up first: its work is not thrown away.
            tasks.sort(key=lambda task: (task in copied, task))
            for task in tasks[: self._shares.base[name]]:
                self._put(task, name)
        for name in crowded:
            if self._has_room(name):
                self._put(owned[name][self._shares.base[name]], name)

    def _owned(self) -> dict[str, list[TaskId]]:
        """Return what each member has of these tasks; a task that two claim counts as the first one's."""
        unclaimed = set(self._left)
        owned: dict[str, list[TaskId]] = {}
        for name, member in self._members.items():
            owned[name] = sorted(member.owned & unclaimed)
            unclaimed -= member.owned
        return owned

    def _go_to_state(self) -> None:
        """Give tasks to members that have their state and room, the freshest state first."""
        ranked = sorted(
            (*self._freshness(member, task), task, name)
            for name, member in self._members.items()
            for task in self._left & (member.copies | member.on_disk)
        )
        for _, _, task, name in ranked:
            if task in self._left and self._has_room(name):
                self._put(task, name)

    def _freshness(self, member: AssignmentMember, task: TaskId) -> tuple[int, float]:
        """Return a rank: caught up, then open copies, then state on disk; the smaller lag first."""
        lag = member.lags.get(task, float("inf"))
        if lag <= self._lag_max:
            return 0, lag
        return (1 if task in member.copies else 2), lag

    def _go_to_the_least_loaded(self) -> None:
        """Spread what is left: the lowest load of this kind first, then the lowest of all."""
        heap = [self._entry(name) for name in self._members]
        heapify(heap)
        for task in sorted(self._left):
            name = heappop(heap)[-1]
            self._put(task, name)
            heappush(heap, self._entry(name))

    def _entry(self, name: str) -> tuple[float, float, str]:
        have, threads = self._have[name] + 1, self._threads[name]
        return have / threads, (have + self._others.get(name, 0)) / threads, name
