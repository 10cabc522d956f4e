"""Where copies of a task belong: on another machine, in another rack, under other tags than the task and its other copies.

As in Kafka Streams' tag-aware standby placement, a copy goes where it adds most to what the task is spread over; the
least loaded member is taken among those that add equally much. Differences: `rack_id` and the host count as tags (another
host comes first), every tag that a member names counts, and copies that exist stay where they are unless moving one
spreads the task better or takes load from a member that has at least one task too many.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from tidewheel.rebalance.assignors.process_load import LoadOrder
from tidewheel.rebalance.assignors.task_assignor import AssignmentMember, AssignmentRequest
from tidewheel.rebalance.model import TaskId

#: What of a member can be different: its host is kept apart, because it counts more than all the rest.
_Place = tuple[str, str]

#: How much a task's spread gains by a copy: another host, and how many other tags or racks.
_Gain = tuple[bool, int]


def place_standbys(
    request: AssignmentRequest, owners: Mapping[TaskId, str], *, sticky: bool = True
) -> dict[TaskId, tuple[str, ...]]:
    """Return the members that keep a copy of each stateful task; fewer than asked for if there are too few members.

    Args:
        request: What is asked; `num_standby_replicas` says how many.
        owners: Who runs each task in the end.
        sticky: Whether copies that exist stay where they are.
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
    while (
        moved
    ):  # ends: each move spreads a task better, or evens out the loads and spreads none worse
        moved = sum(placement.improve(task) for task in stateful) > 0
    return {task: placement.standbys(task) for task in stateful}


def _holders(request: AssignmentRequest, placement: "_Placement") -> dict[TaskId, list[str]]:
    """Return who has state of each task and may keep it: open copies first, then its owner of now, then state on disk."""
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
    """Owners and copies of the stateful tasks, while they are being placed."""

    def __init__(self, members: Iterable[AssignmentMember], owners: Mapping[TaskId, str]) -> None:
        self.owners = owners
        members = sorted(members, key=lambda member: member.name)
        threads = {member.name: member.threads for member in members}
        self._load = LoadOrder(threads, Counter(owners.values()))
        self._host = {member.name: member.host for member in members}
        self._places = {member.name: _places(member) for member in members}
        #: Every value of each dimension: a copy gains nothing in a dimension that is used up.
        self._hosts = frozenset(filter(None, self._host.values()))
        self._values = Counter(kind for kind, _ in set[_Place]().union(*self._places.values()))
        #: Per task its owner, then its copies in the order they were placed.
        self._members = {task: [owner] for task, owner in owners.items()}

    def standbys(self, task: TaskId) -> tuple[str, ...]:
        return tuple(sorted(self._members[task][1:]))

    def put(self, task: TaskId, member: str) -> None:
        self._members[task].append(member)
        self._load.change(member, +1)

    def fill(self, task: TaskId, copies: int) -> None:
        """Place the copies that a task lacks, as far as there are members."""
        while len(self._members[task]) <= copies:
            chosen = self._best(self._members[task])
            if chosen is None:
                return
            self.put(task, chosen)

    def improve(self, task: TaskId) -> bool:
        """Move each copy of a task for which there is a better place; returns whether any was moved."""
        moved = False
        for copy in list(self._members[task][1:]):
            others = [member for member in self._members[task] if member != copy]
            better = self._best(others)
            if better is None or better == copy:
                continue
            gain, gained = self._gain(better, others), self._gain(copy, others)
            if gain > gained or (gain == gained and self._load.relieves(copy, better)):
                self._members[task] = others
                self._load.change(copy, -1)
                self.put(task, better)
                moved = True
        return moved

    def _best(self, taken: list[str]) -> str | None:
        """Return the member that spreads a task most, the least loaded of those; None if all have it already."""
        best: str | None = None
        best_gain: _Gain = (False, -1)
        possible = self._possible(taken)
        for member in self._load:
            if member in taken:
                continue
            gain = self._gain(member, taken)
            if gain > best_gain:
                best, best_gain = member, gain
                if gain >= possible:
                    break
        return best

    def _gain(self, member: str, others: list[str]) -> _Gain:
        host = self._host[member]
        new_host = bool(host) and all(self._host[other] != host for other in others)
        places = self._places[member]
        return new_host, len(places.difference(*(self._places[other] for other in others)))

    def _possible(self, taken: list[str]) -> _Gain:
        """Return the most that any member could gain: one new value in each dimension that is not used up."""
        used_hosts = {self._host[member] for member in taken}
        used = Counter(
            kind for kind, _ in set[_Place]().union(*(self._places[each] for each in taken))
        )
        open_kinds = sum(1 for kind, values in self._values.items() if used[kind] < values)
        return not self._hosts <= used_hosts, open_kinds


def _places(member: AssignmentMember) -> frozenset[_Place]:
    """Return a member's rack and tags; a tag can't be mistaken for the rack."""
    places = {(f"tag:{key}", value) for key, value in member.tags.items()}
    if member.rack is not None:
        places.add(("rack", member.rack))
    return frozenset(places)
