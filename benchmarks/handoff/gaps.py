"""Turns what came out, and when, into gaps: pure, from arrival times to figures.

Results become visible in bursts, one a commit. A gap is the time between two bursts of one partition: arrivals closer
than `BURST_S` are one burst. A partition has moved where the instance that wrote its results changes.
"""

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

#: Arrivals closer than this are of one commit (or of one fetch of the observer).
BURST_S = 0.02
#: Longest gaps are looked for this long around the moment a partition changed hands.
AROUND_S = 0.5


@dataclass(slots=True)
class Arrivals:
    """When results of one partition became visible, and who had written them."""

    times_s: list[float] = field(default_factory=list[float])
    writers: list[str] = field(default_factory=list[str])

    def add(self, at_s: float, writer: str) -> None:
        """Take one result; a burst of one writer is kept once, with its first and its last arrival."""
        same = len(self.times_s) >= 2 and self.writers[-1] == self.writers[-2] == writer
        if same and at_s - self.times_s[-2] < BURST_S:
            self.times_s[-1] = at_s
            return
        self.times_s.append(at_s)
        self.writers.append(writer)

    def writer_at(self, at_s: float) -> str | None:
        """Return who wrote the last result before a time."""
        index = bisect_right(self.times_s, at_s)
        return self.writers[index - 1] if index else None

    def gaps(self, from_s: float, until_s: float) -> list[float]:
        """Return the gaps that end between two times, in seconds."""
        pairs = self._pairs(from_s, until_s)
        return [after - before for before, after in pairs if after - before >= BURST_S]

    def longest(self, from_s: float, until_s: float, count: int) -> list[tuple[float, float]]:
        """Return the longest gaps that end between two times, with when each began, both in seconds."""
        found = [(after - before, before) for before, after in self._pairs(from_s, until_s)]
        return sorted(found, reverse=True)[:count]

    def _pairs(self, from_s: float, until_s: float) -> Iterator[tuple[float, float]]:
        """Return each arrival between two times, after the one before it."""
        low, high = bisect_left(self.times_s, from_s), bisect_right(self.times_s, until_s)
        return pairwise(self.times_s[max(low - 1, 0) : high])

    def moves(self, from_s: float, until_s: float) -> list[float]:
        """Return when the writer changed between two times."""
        low, high = bisect_left(self.times_s, from_s), bisect_right(self.times_s, until_s)
        return [
            self.times_s[index]
            for index in range(max(low, 1), high)
            if self.writers[index] != self.writers[index - 1]
        ]

    def gap_around(self, at_s: float, *, around_s: float = AROUND_S) -> float:
        """Return the longest gap around a move, the one in which it happened included."""
        return max(self.gaps(at_s, at_s + around_s) + self.gaps(at_s - around_s, at_s), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Part of a run: something was done (`event`), or nothing (`quiet`)."""

    event: str
    from_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFigures:
    """What one event cost.

    Attributes:
        moved_ms: The gap of each move.
        unmoved_ms: The longest gap of the partitions that did not move; 0 if all did.
        quiet_longest_ms: The longest gap of those partitions in an equally long quiet stretch.
    """

    event: str
    moved_ms: tuple[float, ...]
    unmoved_ms: float
    quiet_longest_ms: float
    seconds: float


def quiet_median_ms(partitions: Sequence[Arrivals], quiet: Sequence[Stretch]) -> float:
    """Return the median gap while nothing was done."""
    found = [
        gap for each in partitions for part in quiet for gap in each.gaps(part.from_s, part.until_s)
    ]
    return statistics.median(found) * 1000 if found else 0.0


def event_figures(partitions: Sequence[Arrivals], part: Stretch, quiet: Stretch) -> EventFigures:
    """Return the figures of one event, beside the quiet stretch nearest to it."""
    moved: list[float] = []
    unmoved_ms, quiet_ms = 0.0, 0.0
    for each in partitions:
        moves = each.moves(part.from_s, part.until_s)
        moved += [each.gap_around(at_s) * 1000 for at_s in moves]
        if not moves:
            unmoved_ms = max(
                unmoved_ms, max(each.gaps(part.from_s, part.until_s), default=0.0) * 1000
            )
            quiet_ms = max(
                quiet_ms, max(each.gaps(quiet.from_s, quiet.until_s), default=0.0) * 1000
            )
    return EventFigures(
        event=part.event,
        moved_ms=tuple(moved),
        unmoved_ms=unmoved_ms,
        quiet_longest_ms=quiet_ms,
        seconds=part.until_s - part.from_s,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values do not pass.

    >>> percentile([1, 2, 3, 4], 0.5)
    2
    """
    ordered = sorted(values)
    return ordered[max(0, -(-int(len(ordered) * share * 1000) // 1000) - 1)] if ordered else 0.0
