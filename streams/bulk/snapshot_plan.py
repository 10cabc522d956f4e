"""What a snapshot has to read, cut into Spark tasks, and which runs are made into one. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tidewheel.state_stores.bulk_restore.manifest import (
    ChangelogFacts,
    PartitionRuns,
    Run,
    may_extend,
)

#: Below this a Spark task costs more to start than it reads in.
RECORDS_PER_TASK: Final = 500_000

#: As many runs a partition gets at once: each may hold every key of it.
_MOST_PARTS: Final = 6

#: More runs than this are made into one.
_MOST_RUNS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """How one partition of a snapshot is made.

    Attributes:
        facts: What the cluster says of it.
        kept: The runs of the snapshot before that stay; None where it is made in full.
        ranges: Offsets (first, end) to read, a task each.
        reason: Why, in one sentence for people.
        slowest_ms: The store's time at its task's slowest key range (`SegmentLayout.first_restored`).
    """

    facts: ChangelogFacts
    kept: PartitionRuns | None
    ranges: tuple[tuple[int, int], ...]
    reason: str
    slowest_ms: int | None = None

    @property
    def offsets(self) -> int:
        """Return how many offsets there are to read."""
        return sum(end - first for first, end in self.ranges)

    def expired_by_ms(self, observed_ms: int) -> int | None:
        """Return by what time its runs leave out what has expired; None by that of their latest row, `observed_ms`."""
        if self.slowest_ms is None:
            return None
        before_ms = -1 if self.kept is None else self.kept.left_out_by_ms
        left_out_by_ms = max(before_ms, min(self.slowest_ms, observed_ms))
        return None if left_out_by_ms == observed_ms else left_out_by_ms

    @property
    def is_on_nothing(self) -> bool:
        """Return whether no row lies below what is read."""
        return self.kept is None or not self.kept.runs

    @property
    def to_offset(self) -> int:
        """Return where its runs end."""
        begin = self.facts.log_start if self.kept is None else self.kept.to_offset
        return max(self.facts.stable_end, begin)

    @property
    def from_offset(self) -> int:
        """Return where its runs begin."""
        return self.facts.log_start if self.kept is None else self.kept.from_offset


def plan_partition(
    facts: ChangelogFacts,
    previous: PartitionRuns | None,
    refused: str | None,
    *,
    records_per_task: int = RECORDS_PER_TASK,
    slowest_ms: int | None = None,
) -> PartitionPlan:
    """Return how to make a partition of a snapshot: on top of the runs of the one before where that is valid.

    Args:
        facts: What the cluster says.
        previous: The runs of the snapshot before, if there are any.
        refused: Why that snapshot as a whole is not used, if it is not.
        records_per_task: As many offsets a task reads, about.
        slowest_ms: The store's time at its task's slowest key range (`SegmentLayout.first_restored`).
    """
    kept = previous
    reason = refused
    if previous is None:
        reason = refused or "there is no snapshot of it"
    elif refused is None:
        reason = may_extend(previous, facts)
    if reason is not None:
        kept = None
    begin = facts.log_start if kept is None else kept.to_offset
    end = max(facts.stable_end, begin)
    ranges = cut(begin, end, records_per_task)
    told = f"in full: {reason}" if reason is not None else f"{end - begin} offsets more"
    return PartitionPlan(facts=facts, kept=kept, ranges=ranges, reason=told, slowest_ms=slowest_ms)


def cut(first: int, end: int, records_per_task: int) -> tuple[tuple[int, int], ...]:
    """Return a range of offsets in parts of about the same size, in order; none of nothing.

    >>> cut(0, 10, 4), cut(5, 5, 4)
    (((0, 3), (3, 6), (6, 10)), ())
    """
    size = end - first
    if size <= 0:
        return ()
    parts = min(-(-size // records_per_task), _MOST_PARTS)
    bounds = [first + size * part // parts for part in range(parts + 1)]
    return tuple(pairwise(bounds))


def to_merge(runs: Sequence[Run]) -> bool:
    """Return whether some runs of a partition are better made into one.

    They are when they are many, or when those on top of the first have grown larger than it: then each byte is merged
    about as often as the partition doubles.
    """
    if len(runs) > _MOST_RUNS:
        return True
    return len(runs) > 1 and sum(run.file_bytes for run in runs[1:]) > runs[0].file_bytes
