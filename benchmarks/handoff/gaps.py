"""Gaps in the output, computed from arrival times (pure).

Results become visible in bursts, one per commit. A gap is the time between two bursts of one
partition. A partition has moved when another instance writes its results.
"""

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

#: Arrivals closer than this many seconds belong to one commit or one fetch.
BURST_S = 0.02
#: Seconds before and after a move that are searched for its gap.
AROUND_S = 0.5


@dataclass(slots=True)
class Arrivals:
    times_s: list[float] = field(default_factory=list[float])
    writers: list[str] = field(default_factory=list[str])

    def add(self, at_s: float, writer: str) -> None:
        """Add a result; a burst of one writer keeps its first and last arrival."""
        same = len(self.times_s) >= 2 and self.writers[-1] == self.writers[-2] == writer
        if same and at_s - self.times_s[-2] < BURST_S:
            self.times_s[-1] = at_s
            return
        self.times_s.append(at_s)
        self.writers.append(writer)

    def writer_at(self, at_s: float) -> str | None:
        index = bisect_right(self.times_s, at_s)
        return self.writers[index - 1] if index else None

    def gaps(self, from_s: float, until_s: float) -> list[float]:
        pairs = self._pairs(from_s, until_s)
        return [after - before for before, after in pairs if after - before >= BURST_S]

    def longest(self, from_s: float, until_s: float, count: int) -> list[tuple[float, float]]:
        """Return the longest gaps that end between two times, with their starts, in seconds."""
        found = [(after - before, before) for before, after in self._pairs(from_s, until_s)]
        return sorted(found, reverse=True)[:count]

    def _pairs(self, from_s: float, until_s: float) -> Iterator[tuple[float, float]]:
        low, high = bisect_left(self.times_s, from_s), bisect_right(self.times_s, until_s)
        return pairwise(self.times_s[max(low - 1, 0) : high])

    def moves(self, from_s: float, until_s: float) -> list[float]:
        low, high = bisect_left(self.times_s, from_s), bisect_right(self.times_s, until_s)
        return [
            self.times_s[index]
            for index in range(max(low, 1), high)
            if self.writers[index] != self.writers[index - 1]
        ]

    def gap_around(self, at_s: float, *, around_s: float = AROUND_S) -> float:
        return max(self.gaps(at_s, at_s + around_s) + self.gaps(at_s - around_s, at_s), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    event: str
    from_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFigures:
    """Cost of one event.

    Attributes:
        moved_ms: The gap of each move.
        unmoved_ms: The longest gap of unmoved partitions; 0 if all moved.
        quiet_longest_ms: Their longest gap in an equally long quiet stretch.
    """

    event: str
    moved_ms: tuple[float, ...]
    unmoved_ms: float
    quiet_longest_ms: float
    seconds: float


def quiet_median_ms(partitions: Sequence[Arrivals], quiet: Sequence[Stretch]) -> float:
    found = [
        gap
        for partition in partitions
        for part in quiet
        for gap in partition.gaps(part.from_s, part.until_s)
    ]
    return statistics.median(found) * 1000 if found else 0.0


def event_figures(partitions: Sequence[Arrivals], part: Stretch, quiet: Stretch) -> EventFigures:
    moved: list[float] = []
    unmoved_ms, quiet_ms = 0.0, 0.0
    for partition in partitions:
        moves = partition.moves(part.from_s, part.until_s)
        moved += [partition.gap_around(at_s) * 1000 for at_s in moves]
        if not moves:
            unmoved_ms = max(
                unmoved_ms, max(partition.gaps(part.from_s, part.until_s), default=0.0) * 1000
            )
            quiet_ms = max(
                quiet_ms, max(partition.gaps(quiet.from_s, quiet.until_s), default=0.0) * 1000
            )
    return EventFigures(
        event=part.event,
        moved_ms=tuple(moved),
        unmoved_ms=unmoved_ms,
        quiet_longest_ms=quiet_ms,
        seconds=part.until_s - part.from_s,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value at or above this share of the values.

    >>> percentile([1, 2, 3, 4], 0.5)
    2
    """
    ordered = sorted(values)
    return ordered[max(0, -(-int(len(ordered) * share * 1000) // 1000) - 1)] if ordered else 0.0
