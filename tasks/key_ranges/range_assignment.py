"""Range assignment: assigns key ranges of tasks to threads. Iterative, fair, sticky. Pure.

Threads that share no task share no store. So **whole tasks** come first: the heaviest goes to the
idlest thread. **While the load is uneven**, the busiest thread then gives the idlest a whole task
or range, or part of its heaviest task.

The previous placement stays while it is as even as a new one within `TOLERANCE` and needs no more
ranges. Load counts as even within a range.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from operator import attrgetter
from typing import Final

import msgspec

from tidewheel.rebalance.model import TaskId
from tidewheel.tasks.key_ranges.key_ranges import RANGES_MAX

#: Allowed load difference of threads, as part of the mean. A new assignment pauses the tasks that
#: it splits. So it evens loads out to half of this, and the next one is needed later.
TOLERANCE: Final = 1 / 4

#: Load by which a move must at least relieve the busiest thread, as part of the mean load.
_GAIN: Final = TOLERANCE / 16

#: One part in so many of the total load is added to all tasks evenly, so idle ones count too.
_IDLE_SHARE: Final = 16

_EVEN_SHARE: Final = 4

#: Integer units per unit of load, so small parts of a range stay exact.
_UNITS: Final = 1 << 20


class RangeLoad(msgspec.Struct, frozen=True):
    """Load of the range from `first_hash`, in any unit that all ranges share."""

    first_hash: int
    load: int = 0


class TaskLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One task with its measured load.

    Attributes:
        ranges_max: Parallelising factor, or 1 for an unsplittable task.
        fixed: True to keep the ranges for now; they may change threads.
    """

    task: TaskId
    ranges: tuple[RangeLoad, ...] = (RangeLoad(0),)
    ranges_max: int = 1
    fixed: bool = False


class PlacedRange(msgspec.Struct, frozen=True, order=True):
    """Range from `first_hash`, and its thread, numbered from 0."""

    first_hash: int
    thread: int


Placement = Mapping[TaskId, tuple[PlacedRange, ...]]


def assign_ranges(
    tasks: Sequence[TaskLoad],
    threads: int,
    previous: Placement | None = None,
    *,
    capacity: int = 0,
) -> dict[TaskId, tuple[PlacedRange, ...]]:
    """Return the ranges of each task and their threads.

    Args:
        previous: Last placement; it may name tasks and threads that no longer exist.
        capacity: Maximum load of one thread, 0 if unlimited. A quarter of all threads' capacity is
            added evenly to the tasks' loads, so chance differences of idle threads move nothing.

    >>> task = TaskLoad(task=TaskId(0, 0), ranges_max=4)
    >>> assign_ranges([task], 2)
    {TaskId.parse('0_0'): (PlacedRange(first_hash=0, thread=0), PlacedRange(first_hash=2147483648, thread=1))}
    """
    if not tasks:
        return {}
    loads = _weighted(sorted(tasks, key=lambda load: load.task), threads * capacity)
    fresh = _Draft(loads, threads)
    fresh.place_unplaced()
    fresh.balance(TOLERANCE / 2)
    if previous is None:
        return fresh.placement()
    previous_draft = _Draft(loads, threads)
    previous_draft.place_previous(previous)
    changed = previous_draft.place_unplaced()
    if not changed and previous_draft.is_as_good_as(fresh):
        return previous_draft.placement()
    changed = previous_draft.balance(TOLERANCE) or changed
    if changed:
        previous_draft.balance(TOLERANCE / 2)
    if previous_draft.is_as_good_as(fresh):
        return previous_draft.placement()
    fresh.rename_threads(previous)
    return fresh.placement()


class _Weights:
    """Load of one task by hash: an integer step function, so parts sum exactly."""

    def __init__(self, task: TaskLoad, floor: int) -> None:
        self.task = task
        self._firsts = [key_range.first_hash for key_range in task.ranges]
        self._ends = [*self._firsts[1:], task.task.shard.end_hash]
        width = self._ends[-1] - self._firsts[0]
        self._below: list[int] = []
        self._inside: list[int] = []
        below = 0
        for key_range, end in zip(task.ranges, self._ends, strict=True):
            self._below.append(below)
            size = end - key_range.first_hash
            self._inside.append(key_range.load * _UNITS + max(floor * size // width, 1))
            below += self._inside[-1]
        self.total = below

    def below(self, hash_: int) -> int:
        if hash_ == self._ends[-1]:
            return self.total
        index = bisect_right(self._firsts, hash_) - 1
        first, end = self._firsts[index], self._ends[index]
        return self._below[index] + self._inside[index] * (hash_ - first) // (end - first)

    def between(self, first: int, end: int) -> int:
        return self.below(end) - self.below(first)


def _weighted(tasks: Sequence[TaskLoad], capacity: int) -> dict[TaskId, _Weights]:
    total = sum(key_range.load for task in tasks for key_range in task.ranges)
    evenly = max(total // _IDLE_SHARE, capacity // _EVEN_SHARE, 1)
    floor = evenly * _UNITS // len(tasks)
    return {task.task: _Weights(task, floor) for task in tasks}


_NOWHERE: Final = -1


class _Piece(msgspec.Struct):
    """Hashes of a task, first <= hash < end, and their thread."""

    task: TaskId
    first: int
    end: int
    thread: int = _NOWHERE


def _index_of(pieces: Sequence[_Piece], first: int) -> int:
    return bisect_left(pieces, first, key=attrgetter("first"))


class _Draft:
    def __init__(self, weights: Mapping[TaskId, _Weights], threads: int) -> None:
        self._weights = weights
        self._threads = range(threads)
        self._busy = [0] * threads
        self._by_thread: dict[int, list[_Piece]] | None = None
        self._pieces = {
            name: _pieces_of(name, [key_range.first_hash for key_range in weight.task.ranges])
            if weight.task.fixed
            else _pieces_of(name, [name.shard.first_hash])
            for name, weight in weights.items()
        }

    @property
    def count(self) -> int:
        return sum(map(len, self._pieces.values()))

    @property
    def mean(self) -> float:
        return sum(self._busy) / len(self._busy)

    @property
    def gap(self) -> int:
        return max(self._busy) - min(self._busy)

    def is_as_good_as(self, other: "_Draft") -> bool:
        return self.count <= other.count and self.gap <= other.gap + other.mean * TOLERANCE

    def placement(self) -> dict[TaskId, tuple[PlacedRange, ...]]:
        return {
            name: tuple(PlacedRange(piece.first, piece.thread) for piece in pieces)
            for name, pieces in self._pieces.items()
        }

    def _all(self) -> Iterator[_Piece]:
        return chain.from_iterable(self._pieces.values())

    def _weight(self, piece: _Piece) -> int:
        return self._weights[piece.task].between(piece.first, piece.end)

    def place_previous(self, previous: Placement) -> None:
        for name, pieces in self._pieces.items():
            before = {placed.first_hash: placed.thread for placed in previous.get(name, ())}
            if not self._weights[name].task.fixed and before:
                pieces[:] = _pieces_of(name, sorted(before))
            for piece in pieces:
                thread = before.get(piece.first, _NOWHERE)
                if thread in self._threads:
                    self._place(piece, thread)
            self._merge_neighbours(name)
            self._limit(name)

    def place_unplaced(self) -> bool:
        unplaced = [piece for piece in self._all() if piece.thread == _NOWHERE]
        for piece in sorted(
            unplaced, key=lambda piece: (-self._weight(piece), piece.task, piece.first)
        ):
            self._place(piece, self._idlest(self._threads))
        for name in self._pieces:
            self._merge_neighbours(name)
        return bool(unplaced)

    def rename_threads(self, previous: Placement) -> None:
        """Renumber the threads to keep as much load as possible on its previous thread."""
        common: Counter[tuple[int, int]] = Counter()
        for piece in self._all():
            weights = self._weights[piece.task]
            before = previous.get(piece.task, ())
            ends = [*(placed.first_hash for placed in before[1:]), piece.task.shard.end_hash]
            for placed, upper in zip(before, ends, strict=False):
                first, end = max(placed.first_hash, piece.first), min(upper, piece.end)
                if first < end and placed.thread in self._threads:
                    common[piece.thread, placed.thread] += weights.between(first, end)
        names: dict[int, int] = {}
        for now, then in sorted(common, key=lambda pair: (-common[pair], pair)):
            if now not in names and then not in names.values():
                names[now] = then
        free = sorted(set(self._threads).difference(names.values()))
        for now in self._threads:
            if now not in names:
                names[now] = free.pop(0)
        for piece in self._all():
            piece.thread = names[piece.thread]

    def balance(self, tolerance: float) -> bool:
        """Move load until threads differ by `tolerance` x mean at most; True if any moved."""
        changed = False
        #: (Load, thread), idlest first, without threads that can move nothing.
        active = self._ranked()
        total = sum(self._busy)
        while len(active) > 1:
            mean = total / len(active)
            most, (least, taker) = active[-1][0], active[0]
            if most - least <= mean * tolerance:
                break
            at = bisect_left(active, (most, 0))
            giver = active[at][1]
            gain = max(int(mean * _GAIN), 1)
            if self._move_whole(giver, taker, gain) or self._move_part(giver, taker, mean, gain):
                active = self._ranked()
                total = sum(self._busy)
                changed = True
            else:
                del active[at]
                total -= most
        return changed

    def _ranked(self) -> list[tuple[int, int]]:
        return sorted(zip(self._busy, self._threads, strict=True))

    def _move_whole(self, giver: int, taker: int, gain: int) -> bool:
        busy, idle = self._busy[giver], self._busy[taker]
        best: tuple[tuple[int, bool, TaskId, int], _Piece] | None = None
        for piece in self._of(giver):
            weight = self._weight(piece)
            after = max(busy - weight, idle + weight)
            rank = (after, not self._has_neighbour_on(piece, taker), piece.task, piece.first)
            if after <= busy - gain and (best is None or rank < best[0]):
                best = (rank, piece)
        if best is None:
            return False
        self._place(best[1], taker)
        self._merge_neighbours(best[1].task)
        return True

    def _move_part(self, giver: int, taker: int, mean: float, gain: int) -> bool:
        busy, idle = self._busy[giver], self._busy[taker]
        wanted = int(min(busy - mean, mean - idle))
        if wanted < gain:
            wanted = (busy - idle) // 2
        candidates = sorted(
            (
                not self._has_neighbour_on(piece, taker),
                -self._weight(piece),
                piece.task,
                piece.first,
            )
            for piece in self._of(giver)
            if not self._weights[piece.task].task.fixed
        )
        for needs_split, _, task, first in candidates:
            pieces = self._pieces[task]
            splits_left = self._limit_of(task) - len(pieces)
            if needs_split and splits_left <= 0:
                continue
            piece = pieces[_index_of(pieces, first)]
            # The fewer further ranges the task may have, the larger each part must be.
            part = self._weight(piece) // (max(splits_left, 0) + 1)
            if self._split_off(piece, taker, max(wanted, min(part, (busy - idle) // 2))):
                return True
        return False

    def _split_off(self, piece: _Piece, taker: int, wanted: int) -> bool:
        """Move a part of at most `wanted` load to `taker`, next to its own range if possible."""
        below = self._weights[piece.task].below
        inner = range(piece.first + 1, piece.end)
        if taker in (neighbour.thread for neighbour in self._neighbours_of(piece, below_it=True)):
            count = bisect_right(inner, below(piece.first) + wanted, key=below)
            boundary = inner[count - 1] if count else piece.first
            moved = _Piece(piece.task, piece.first, boundary, piece.thread)
            remaining = _Piece(piece.task, boundary, piece.end, piece.thread)
        else:
            count = bisect_left(inner, below(piece.end) - wanted, key=below)
            boundary = inner[count] if count < len(inner) else piece.end
            remaining = _Piece(piece.task, piece.first, boundary, piece.thread)
            moved = _Piece(piece.task, boundary, piece.end, piece.thread)
        if moved.first >= moved.end or self._weight(moved) == 0:
            return False
        pieces = self._pieces[piece.task]
        at = _index_of(pieces, piece.first)
        pieces[at : at + 1] = sorted((remaining, moved), key=lambda neighbour: neighbour.first)
        self._place(moved, taker)
        self._merge_neighbours(piece.task)
        return True

    def _of(self, thread: int) -> list[_Piece]:
        if self._by_thread is None:
            self._by_thread = {}
            for piece in self._all():
                self._by_thread.setdefault(piece.thread, []).append(piece)
        return self._by_thread.get(thread, [])

    def _idlest(self, threads: Iterable[int]) -> int:
        return min(threads, key=lambda thread: (self._busy[thread], thread))

    def _place(self, piece: _Piece, thread: int) -> None:
        weight = self._weight(piece)
        if piece.thread != _NOWHERE:
            self._busy[piece.thread] -= weight
        self._busy[thread] += weight
        piece.thread = thread
        self._by_thread = None

    def _neighbours_of(self, piece: _Piece, *, below_it: bool) -> list[_Piece]:
        pieces = self._pieces[piece.task]
        at = _index_of(pieces, piece.first) + (-1 if below_it else 1)
        return pieces[at : at + 1] if at >= 0 else []

    def _has_neighbour_on(self, piece: _Piece, thread: int) -> bool:
        return any(
            neighbour.thread == thread
            for below_it in (True, False)
            for neighbour in self._neighbours_of(piece, below_it=below_it)
        )

    def _merge_neighbours(self, task: TaskId) -> None:
        if self._weights[task].task.fixed:
            return
        joined: list[_Piece] = []
        for piece in self._pieces[task]:
            if joined and joined[-1].thread == piece.thread:
                joined[-1].end = piece.end
            else:
                joined.append(piece)
        self._pieces[task][:] = joined
        self._by_thread = None

    def _limit_of(self, task: TaskId) -> int:
        return min(self._weights[task].task.ranges_max, RANGES_MAX)

    def _limit(self, task: TaskId) -> None:
        """Merge a task's lightest neighbouring ranges until it has no more than its maximum."""
        pieces = self._pieces[task]
        while len(pieces) > self._limit_of(task) and not self._weights[task].task.fixed:
            pairs = [
                (self._weight(low) + self._weight(high), low.first)
                for low, high in pairwise(pieces)
            ]
            first = min(pairs)[1]
            at = next(index for index, piece in enumerate(pieces) if piece.first == first)
            low, high = pieces[at], pieces[at + 1]
            heavier, lighter = sorted((low, high), key=self._weight, reverse=True)
            if _NOWHERE not in {lighter.thread, heavier.thread}:
                self._place(lighter, heavier.thread)
            else:
                self._unplace(low)
                self._unplace(high)
            low.thread, low.end = heavier.thread, high.end
            del pieces[at + 1]
            self._merge_neighbours(task)

    def _unplace(self, piece: _Piece) -> None:
        if piece.thread != _NOWHERE:
            self._busy[piece.thread] -= self._weight(piece)
            piece.thread = _NOWHERE


def _pieces_of(task: TaskId, firsts: Sequence[int]) -> list[_Piece]:
    ends = [*firsts[1:], task.shard.end_hash]
    return [_Piece(task, first, end) for first, end in zip(firsts, ends, strict=True)]
