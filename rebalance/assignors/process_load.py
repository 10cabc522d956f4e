"""Load of a member (tasks per thread) and the fair share of each.

Shares are fair if no single move makes the sorted loads (highest first) smaller.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heapreplace


@dataclass(frozen=True, slots=True)
class Shares:
    base: Mapping[str, int]  # Fewest tasks per member.
    cap: Mapping[str, int]  # Most tasks per member: its base, or base + 1.
    extras: int  # Number of members that get base + 1 tasks; their cap allows it.


def fair_shares(tasks: int, threads: Mapping[str, int]) -> Shares:
    """Return the members' fair shares of a number of tasks.

    Deal the tasks one by one to the member whose load stays lowest: the last receiver's load is the
    level. A base is the largest task count below the level, a cap the largest at the level.

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
    if not tasks:
        return 0.0
    heap = [(1 / count, 1, count) for count in threads.values()]
    heapify(heap)
    for _ in range(tasks - 1):
        _, have, count = heap[0]
        heapreplace(heap, ((have + 1) / count, have + 1, count))
    return heap[0][0]


def _below(level: float, threads: int, *, inclusive: bool) -> int:
    """Return the largest task count below (or at) the level; `==` is exact for equal quotients."""
    tasks = int(level * threads) + 1
    while tasks and (tasks / threads > level or (tasks / threads == level and not inclusive)):
        tasks -= 1
    return tasks


class LoadOrder:
    """Members sorted by load, the least loaded first."""

    def __init__(self, threads: Mapping[str, int], tasks: Mapping[str, int] | None = None) -> None:
        self._threads = threads
        self._tasks = {name: (tasks or {}).get(name, 0) for name in sorted(threads)}
        self._order = sorted((self.load(name), name) for name in self._tasks)

    def __iter__(self) -> Iterator[str]:
        """Yield names; the order must not change during iteration."""
        return (name for _, name in self._order)

    def load(self, name: str, added: int = 0) -> float:
        return (self._tasks[name] + added) / self._threads[name]

    def change(self, name: str, added: int) -> None:
        del self._order[bisect_left(self._order, (self.load(name), name))]
        self._tasks[name] += added
        insort(self._order, (self.load(name), name))

    def relieves(self, source: str, destination: str) -> bool:
        """Return True if, after moving one task, the destination is no fuller than the source.

        >>> LoadOrder({"a": 1, "b": 1}, {"a": 2, "b": 1}).relieves("a", "b")
        False
        """
        return self.load(source, -1) >= self.load(destination, +1)

    def best(self, names: Iterable[str]) -> str | None:
        return min(names, key=lambda name: (self.load(name), name), default=None)
