"""Snapshot plan: offsets to read per Spark task, and runs to merge. Pure."""

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

#: Most offsets per Spark task, up to _MOST_PARTS tasks; smaller ones start longer than they read.
RECORDS_PER_TASK: Final = 500_000

#: Most Spark tasks per partition: each makes a run (sorted file), which may have every key.
_MOST_PARTS: Final = 6

#: More runs than this are merged into one.
_MOST_RUNS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """Plan for one partition of a snapshot.

    Attributes:
        reused: Runs kept from the previous snapshot; None for a full one.
        ranges: Offsets (first, exclusive end), one per Spark task.
        slowest_ms: Stream time of the task's slowest key range, by which rows expire.
    """

    facts: ChangelogFacts
    reused: PartitionRuns | None
    ranges: tuple[tuple[int, int], ...]
    reason: str
    slowest_ms: int | None = None

    @property
    def offsets(self) -> int:
        return sum(end - first for first, end in self.ranges)

    def expired_by_ms(self, observed_ms: int) -> int | None:
        """Return the stream time by which the snapshot omits expired rows; None: `observed_ms`."""
        if self.slowest_ms is None:
            return None
        before_ms = -1 if self.reused is None else self.reused.expired_until_ms
        expired_until_ms = max(before_ms, min(self.slowest_ms, observed_ms))
        return None if expired_until_ms == observed_ms else expired_until_ms

    @property
    def has_no_reused_runs(self) -> bool:
        return self.reused is None or not self.reused.runs

    @property
    def to_offset(self) -> int:
        begin = self.facts.log_start if self.reused is None else self.reused.to_offset
        return max(self.facts.stable_end, begin)

    @property
    def from_offset(self) -> int:
        return self.facts.log_start if self.reused is None else self.reused.from_offset


def plan_partition(
    facts: ChangelogFacts,
    previous: PartitionRuns | None,
    refused: str | None,
    *,
    records_per_task: int = RECORDS_PER_TASK,
    slowest_ms: int | None = None,
) -> PartitionPlan:
    """Return the plan of one partition: extends a valid previous snapshot, else reads all.

    `refused` is the reason the previous snapshot can't be used.
    """
    reused = previous
    reason = refused
    if previous is None:
        reason = refused or "there is no snapshot of it"
    elif refused is None:
        reason = may_extend(previous, facts)
    if reason is not None:
        reused = None
    begin = facts.log_start if reused is None else reused.to_offset
    end = max(facts.stable_end, begin)
    ranges = cut(begin, end, records_per_task)
    explanation = f"in full: {reason}" if reason is not None else f"{end - begin} offsets more"
    return PartitionPlan(
        facts=facts, reused=reused, ranges=ranges, reason=explanation, slowest_ms=slowest_ms
    )


def cut(first: int, end: int, records_per_task: int) -> tuple[tuple[int, int], ...]:
    """Split an offset range into parts of similar size.

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
    """Return true if a partition's runs should become one.

    Merging when the later runs outgrow the first rewrites each byte about once per doubling.
    """
    if len(runs) > _MOST_RUNS:
        return True
    return len(runs) > 1 and sum(run.file_bytes for run in runs[1:]) > runs[0].file_bytes
