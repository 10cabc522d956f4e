"""Standby placement: spreads a task's copies over machines, racks and tags.

As in Kafka Streams' tag-aware placement, a copy goes where it adds most tag values that the task's
other members lack. The least loaded member wins ties. Differences: `rack_id` counts as a tag,
another host comes first, and every tag counts.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from tidewheel.rebalance.assignors.process_load import LoadOrder
from tidewheel.rebalance.assignors.task_assignor import AssignmentMember, AssignmentRequest
from tidewheel.rebalance.model import TaskId

#: (tag or rack, its value) of a member; the host is separate because it outweighs these.
_Place = tuple[str, str]

#: Gain of a copy: True if it adds a host, and the number of tag values and racks it adds.
_Gain = tuple[bool, int]


def place_standbys(
    request: AssignmentRequest, owners: Mapping[TaskId, str], *, sticky: bool = True
) -> dict[TaskId, tuple[str, ...]]:
    """Return the standby members of each stateful task; fewer than requested if members are short.

    `owners` is the final assignment. With `sticky`, existing copies stay.
    """
    stateful = [task for task in sorted(owners) if request.tasks[task].stateful]
    if not request.num_standby_replicas:
        return {}
    placement = _Placement(request.members, {task: owners[task] for task in stateful})
    if sticky:
        for task, holders in _holders(request, placement).items():
            for holder in holders[: request.num_standby_replicas]:
                placement.put(task, holder)
    for task in stateful:
        placement.fill(task, request.num_standby_replicas)
    moved = True
    while moved:  # Terminates: each move improves a task's spread, or the load at equal spread.
        moved = sum(placement.improve(task) for task in stateful) > 0
    return {task: placement.standbys(task) for task in stateful}


def _holders(request: AssignmentRequest, placement: "_Placement") -> dict[TaskId, list[str]]:
    ranked: dict[TaskId, list[tuple[int, float, str]]] = {}
    for member in request.members:
        kinds = (member.copies, member.owned - member.copies, member.on_disk - member.copies)
        for rank, tasks in enumerate(kinds):
            for task in tasks:
                if placement.owners.get(task) not in (None, member.name):
                    lag = member.lags.get(task, float("inf"))
                    ranked.setdefault(task, []).append((rank, lag, member.name))
    return {
        task: list(dict.fromkeys(name for _, _, name in sorted(ranked[task])))
        for task in sorted(ranked)
    }


class _Placement:
    def __init__(self, members: Iterable[AssignmentMember], owners: Mapping[TaskId, str]) -> None:
        self.owners = owners
        members = sorted(members, key=lambda member: member.name)
        threads = {member.name: member.threads for member in members}
        self._load = LoadOrder(threads, Counter(owners.values()))
        self._host = {member.name: member.host for member in members}
        self._places = {member.name: _places(member) for member in members}
        #: All members' hosts, and the number of values per tag: limits of a copy's gain.
        self._hosts = frozenset(filter(None, self._host.values()))
        self._values = Counter(kind for kind, _ in set[_Place]().union(*self._places.values()))
        #: Per task: its owner, then its copies in placement order.
        self._members = {task: [owner] for task, owner in owners.items()}

    def standbys(self, task: TaskId) -> tuple[str, ...]:
        return tuple(sorted(self._members[task][1:]))

    def put(self, task: TaskId, member: str) -> None:
        self._members[task].append(member)
        self._load.change(member, +1)

    def fill(self, task: TaskId, copies: int) -> None:
        while len(self._members[task]) <= copies:
            chosen = self._best(self._members[task])
            if chosen is None:
                return
            self.put(task, chosen)

    def improve(self, task: TaskId) -> bool:
        moved = False
        for copy in list(self._members[task][1:]):
            other_members = [member for member in self._members[task] if member != copy]
            better = self._best(other_members)
            if better is None or better == copy:
                continue
            gain, gained = self._gain(better, other_members), self._gain(copy, other_members)
            if gain > gained or (gain == gained and self._load.relieves(copy, better)):
                self._members[task] = other_members
                self._load.change(copy, -1)
                self.put(task, better)
                moved = True
        return moved

    def _best(self, holders: list[str]) -> str | None:
        best: str | None = None
        best_gain: _Gain = (False, -1)
        possible = self._possible(holders)
        for member in self._load:
            if member in holders:
                continue
            gain = self._gain(member, holders)
            if gain > best_gain:
                best, best_gain = member, gain
                if gain >= possible:
                    break
        return best

    def _gain(self, member: str, other_members: list[str]) -> _Gain:
        host = self._host[member]
        new_host = bool(host) and all(self._host[other] != host for other in other_members)
        places = self._places[member]
        return new_host, len(places.difference(*(self._places[other] for other in other_members)))

    def _possible(self, holders: list[str]) -> _Gain:
        """Return the most that one more copy can add: a host (True), and new tags and racks."""
        used_hosts = {self._host[member] for member in holders}
        used = Counter(
            kind for kind, _ in set[_Place]().union(*(self._places[member] for member in holders))
        )
        open_kinds = sum(1 for kind, values in self._values.items() if used[kind] < values)
        return not self._hosts <= used_hosts, open_kinds


def _places(member: AssignmentMember) -> frozenset[_Place]:
    """Return rack and tags; the `tag:` prefix keeps a tag named "rack" apart."""
    places = {(f"tag:{key}", value) for key, value in member.tags.items()}
    if member.rack is not None:
        places.add(("rack", member.rack))
    return frozenset(places)
