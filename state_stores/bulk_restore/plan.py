"""From what a store is restored: its own position, a snapshot, or the changelog. Pure.

The cheapest that is valid, counted in records to replay. A valid snapshot always goes before the changelog from its
start, and the store's own position before a snapshot unless the gap behind it costs more than fetching the snapshot.
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
from tidewheel.state_stores.restore import StartFrom
from tidewheel.state_stores.spec import StoreSpec

#: A longer gap is built into runs by a process of its own; a shorter one is replayed before that has started.
RUNS_FROM_RECORDS: Final = 100_000

#: Fetching and ingesting so many rows costs about what replaying one record does (DESIGN §10: runs are ingested a
#: hundred times faster than records are replayed; a network may take most of that back).
_ROWS_PER_RECORD: Final = 10


class RestoreFrom(StrEnum):
    """What a restore begins with."""

    POSITION = "position"
    SNAPSHOT = "snapshot"
    CHANGELOG = "changelog"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """How one store of one task is restored.

    Attributes:
        kind: What it begins with. Except for POSITION the store is emptied first.
        from_offset: Where reading the changelog begins.
        in_runs: The records from there on are so many that they are built into runs.
        snapshot: SNAPSHOT: the runs to ingest first.
        reason: Why, in one sentence for people.
        refused: Why a snapshot that is there can't be used; None if it can, or if there is none.
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
    """Return the cheapest valid way to restore a store, with the reason.

    Args:
        position: The store's own position.
        snapshot: The newest snapshot of the store, if there is a location and a snapshot in it.
        spec: The store.
        facts: What the cluster says of its changelog partition.
        runs_from_records: From how many records on they are built into runs.
        slowest_ms: The store's time at its task's slowest key range (`SegmentLayout.first_restored`).
    """
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
    """Return the runs of a snapshot that a store may be restored from, or why there are none."""
    if snapshot is None:
        return None, None
    refused = validate(snapshot, spec, facts)
    if refused is not None:
        return None, refused
    runs = snapshot.partition(facts.partition)
    if runs is None:
        return None, f"it has nothing of partition {facts.partition}"
    refused = may_extend(runs, facts) or leaves_out_needed(runs, spec, slowest_ms)
    return (runs, None) if refused is None else (None, refused)


def _cost(runs: PartitionRuns, facts: ChangelogFacts) -> int:
    """Return what restoring from runs and the tail behind them costs, as records to replay."""
    return facts.log_end - runs.to_offset + runs.rows // _ROWS_PER_RECORD
