"""Restore plan: own position, snapshot, or changelog. Pure.

The own position is better than a snapshot, unless its gap has more records to replay than the
snapshot costs.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidewheel.state_stores.bulk_restore.manifest import (
    ChangelogFacts,
    PartitionRuns,
    StoreSnapshot,
    leaves_out_needed,
    may_extend,
    validate,
)
from tidewheel.state_stores.layout.position import Position
from tidewheel.state_stores.layout.restore import StartFrom
from tidewheel.state_stores.spec import StoreSpec

#: A replay of fewer records finishes before a helper process has started.
RUNS_FROM_RECORDS: Final = 100_000

#: Fetching and ingesting this many rows costs as much as replaying one record.
_ROWS_PER_RECORD: Final = 10


class RestoreFrom(StrEnum):
    POSITION = "position"
    SNAPSHOT = "snapshot"
    CHANGELOG = "changelog"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """Restore plan of a task's store.

    Attributes:
        kind: Start of the restore. Except for POSITION the store is cleared first.
        in_runs: True if sorted runs are faster than a replay of the records to read.
        refused: Reason why an existing snapshot can't be used, or None.
    """

    kind: RestoreFrom
    from_offset: int
    in_runs: bool
    snapshot: PartitionRuns | None
    reason: str
    refused: str | None = None


def plan_restore(
    position: Position | None,
    snapshot: StoreSnapshot | None,
    spec: StoreSpec,
    facts: ChangelogFacts,
    *,
    runs_from_records: int = RUNS_FROM_RECORDS,
    slowest_ms: int | None = None,
) -> RestorePlan:
    start, why = facts.start_from(position)
    runs, refused = _usable(snapshot, spec, facts, slowest_ms)

    def plan(kind: RestoreFrom, offset: int, reason: str) -> RestorePlan:
        return RestorePlan(
            kind=kind,
            from_offset=offset,
            in_runs=facts.stable_end - offset > runs_from_records,
            snapshot=runs if kind is RestoreFrom.SNAPSHOT else None,
            reason=reason,
            refused=refused,
        )

    if start is StartFrom.POSITION and position is not None:
        gap = facts.log_end - position.offset
        if runs is None or gap <= _cost(runs, facts):
            return plan(RestoreFrom.POSITION, position.offset, f"its own position, {why}")
        why = f"its own position is {gap} offsets behind"
    if runs is not None:
        age_s = max(facts.now_ms - runs.caught_up_at_ms, 0) // 1000
        return plan(
            RestoreFrom.SNAPSHOT,
            runs.to_offset,
            f"the snapshot of {age_s} s ago ({runs.rows} rows), then {facts.log_end - runs.to_offset} offsets to read; "
            f"{why}",
        )
    without = "" if refused is None else f", and the snapshot can't be used: {refused}"
    return plan(
        RestoreFrom.CHANGELOG,
        facts.log_start,
        f"the changelog from its start, {facts.log_end - facts.log_start} offsets to read; {why}{without}",
    )


def _usable(
    snapshot: StoreSnapshot | None,
    spec: StoreSpec,
    facts: ChangelogFacts,
    slowest_ms: int | None,
) -> tuple[PartitionRuns | None, str | None]:
    if snapshot is None:
        return None, None
    refused = validate(snapshot, spec, facts)
    if refused is not None:
        return None, refused
    runs = snapshot.partition(facts.partition)
    if runs is None:
        return None, f"it has no runs of partition {facts.partition}"
    refused = may_extend(runs, facts) or leaves_out_needed(runs, spec, slowest_ms)
    return (runs, None) if refused is None else (None, refused)


def _cost(runs: PartitionRuns, facts: ChangelogFacts) -> int:
    return facts.log_end - runs.to_offset + runs.rows // _ROWS_PER_RECORD
