"""How full members are: the one measure and the one ordering that all placement uses.

A member's load is its tasks per thread. A share is fair if no task could be moved so that the loads, the highest first,
come out lower: then nothing is worth moving (L5).
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heapreplace


@dataclass(frozen=True, slots=True)
class Shares:
    """How many tasks each member has when they are spread fairly.

    Attributes:
        base: What each member has at least.
        cap: What each member has at most: its base, or one more.
        extras: How many members have one more than their base.
    """

    base: Mapping[str, int]
    cap: Mapping[str, int]
    extras: int


def fair_shares(tasks: int, threads: Mapping[str, int]) -> Shares:
    """Return how `tasks` tasks are spread over members with `threads` threads each.

    The level is the load that the last task makes when each goes where it makes the lowest; whoever stays below it with
    one task more gets that task.

    >>> fair_shares(5, {"a": 1, "b": 1})
    Shares(base={'a': 2, 'b': 2}, cap={'a': 3, 'b': 3}, extras=1)
    >>> fair_shares(6, {"a": 2, "b": 1})
    Shares(base={'a': 3, 'b': 1}, cap={'a': 4, 'b': 2}, extras=2)
    """
    level = _level(tasks, threads)
    cap = {name: _below(level, count, inclusive=True) for name, count in threads.items()}
    base = {name: _below(level, count, inclusive=False) for name, count in threads.items()}
    return Shares(base=base, cap=cap, extras=tasks - sum(base.values()))


def _level(tasks: int, threads: Mapping[str, int]) -> float:
    """Return the load that the last of `tasks` tasks makes."""
    if not tasks:
        return 0.0
    heap = [(1 / count, 1, count) for count in threads.values()]
    heapify(heap)
    for _ in range(tasks - 1):
        _, have, count = heap[0]
        heapreplace(heap, ((have + 1) / count, have + 1, count))
    return heap[0][0]


def _below(level: float, threads: int, *, inclusive: bool) -> int:
    """Return with how many tasks the load is below (or at) the level. Loads are quotients, so equal ones are equal floats."""
    tasks = int(level * threads) + 1
    while tasks and (tasks / threads > level or (tasks / threads == level and not inclusive)):
        tasks -= 1
    return tasks


class LoadOrder:
    """Members in the order of their load, the least loaded first; names break ties."""

    def __init__(self, threads: Mapping[str, int], tasks: Mapping[str, int] | None = None) -> None:
        """`tasks`: how many each member has already."""
        self._threads = threads
        self._tasks = {name: (tasks or {}).get(name, 0) for name in sorted(threads)}
        #: Always sorted, one entry for each member.
        self._order = sorted((self.load(name), name) for name in self._tasks)

    def __iter__(self) -> Iterator[str]:
        """Yield the names; must not be changed meanwhile."""
        return (name for _, name in self._order)

    def load(self, name: str, more: int = 0) -> float:
        """Return a member's load if it had `more` tasks more."""
        return (self._tasks[name] + more) / self._threads[name]

    def change(self, name: str, more: int) -> None:
        """Give a member `more` tasks more (or fewer)."""
        del self._order[bisect_left(self._order, (self.load(name), name))]
        self._tasks[name] += more
        insort(self._order, (self.load(name), name))

    def relieves(self, source: str, destination: str) -> bool:
        """Return whether moving a task takes load from the fuller member without making the other as full as it was.

        >>> LoadOrder({"a": 1, "b": 1}, {"a": 2, "b": 1}).relieves("a", "b")
        False
        """
        return self.load(source, -1) >= self.load(destination, +1)

    def best(self, names: Iterable[str]) -> str | None:
        """Return the least loaded of some members, or None if there are none."""
        return min(names, key=lambda name: (self.load(name), name), default=None)
