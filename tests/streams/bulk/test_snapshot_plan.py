"""Tests of the snapshot plan."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.state_stores.bulk_restore.manifest import ChangelogFacts, PartitionRuns, Run
from tidewheel.state_stores.layout.restore import StoreTime
from tidewheel.streams.bulk.snapshot_plan import cut, plan_partition, to_merge

_NOW_MS = 10**12
_DAY_MS = 86_400_000

_FACTS = ChangelogFacts(
    topic="app-counts-changelog",
    topic_id=bytes(15) + b"1",
    partition_count=2,
    partition=1,
    log_start=0,
    log_end=1_000,
    stable_end=1_000,
    tombstone_retention_ms=_DAY_MS,
    now_ms=_NOW_MS,
)


def _run(from_offset: int, to_offset: int, file_bytes: int = 100) -> Run:
    return Run(
        partition=1,
        from_offset=from_offset,
        to_offset=to_offset,
        file="f",
        rows=1,
        deletes=0,
        file_bytes=file_bytes,
        sha256="0" * 64,
        first_key=b"a",
        last_key=b"b",
    )


def _runs(to_offset: int = 600, *, age_ms: int = 1_000, runs: int = 1) -> PartitionRuns:
    return PartitionRuns(
        partition=1,
        from_offset=0,
        to_offset=to_offset,
        log_start=0,
        caught_up_at_ms=_NOW_MS - age_ms,
        complete_from_zero=True,
        runs=tuple(_run(0, to_offset) for _ in range(runs)),
        time=StoreTime(),
    )


@given(
    first=st.integers(0, 10**6), size=st.integers(0, 10**7), records_per_task=st.integers(1, 10**6)
)
def test_parts_cover_the_range_once(first: int, size: int, records_per_task: int) -> None:
    parts = cut(first, first + size, records_per_task)
    bounds = [bound for part in parts for bound in part]
    assert all(begin < end for begin, end in parts)
    assert [end for _, end in parts[:-1]] == [begin for begin, _ in parts[1:]]
    assert (bounds[0], bounds[-1]) == (first, first + size) if size else not parts


def test_a_valid_snapshot_is_extended() -> None:
    plan = plan_partition(_FACTS, _runs(), None)
    assert plan.reused == _runs()
    assert plan.ranges == ((600, 1_000),)
    assert not plan.has_no_reused_runs
    assert "400 offsets more" in plan.reason


@pytest.mark.parametrize(
    ("kept_by_ms", "slowest_ms", "observed_ms", "expected"),
    [
        (None, None, 90, None),
        (None, 40, 90, 40),
        (None, 90, 90, None),
        (None, 99, 90, None),
        (None, -1, 90, -1),
        (60, 40, 90, 60),
        (30, 40, 90, 40),
        (30, None, 90, None),
    ],
)
def test_K3_runs_omit_rows_that_any_earlier_run_omits(
    kept_by_ms: int | None, slowest_ms: int | None, observed_ms: int, expected: int | None
) -> None:
    before = (
        None if kept_by_ms is None else msgspec.structs.replace(_runs(), expired_by_ms=kept_by_ms)
    )
    plan = plan_partition(_FACTS, before, None, slowest_ms=slowest_ms)
    assert plan.expired_by_ms(observed_ms) == expected


def test_a_snapshot_without_new_records_reads_no_offsets() -> None:
    plan = plan_partition(_FACTS, _runs(1_000, age_ms=10 * _DAY_MS), None)
    assert plan.reused is not None
    assert plan.ranges == ()
    assert plan.offsets == 0


def test_a_snapshot_older_than_tombstones_is_rebuilt() -> None:
    plan = plan_partition(_FACTS, _runs(age_ms=_DAY_MS), None)
    assert plan.reused is None
    assert plan.ranges == ((0, 1_000),)
    assert "tombstones" in plan.reason


def test_a_snapshot_that_ends_below_the_log_start_is_rebuilt() -> None:
    plan = plan_partition(replace(_FACTS, log_start=700), _runs(), None)
    assert plan.ranges == ((700, 1_000),)
    assert plan.from_offset == 700


def test_a_refused_snapshot_is_not_extended() -> None:
    plan = plan_partition(_FACTS, _runs(), "topic app-counts-changelog was recreated since")
    assert plan.reused is None
    assert plan.reason == "in full: topic app-counts-changelog was recreated since"


def test_runs_above_an_empty_range_have_no_earlier_run() -> None:
    assert plan_partition(_FACTS, _runs(runs=0), None).has_no_reused_runs


def test_runs_are_merged_once_they_outgrow_the_first() -> None:
    small = [_run(0, 1, 1_000), *(_run(1, 2, 10) for _ in range(7))]
    assert not to_merge(small)
    assert to_merge([*small, _run(2, 3, 10)])
    assert to_merge([_run(0, 1, 100), _run(1, 2, 101)])
    assert not to_merge([_run(0, 1, 100)])
    assert not to_merge([])


def test_F1_a_snapshot_ends_where_an_open_transaction_begins() -> None:
    facts = replace(_FACTS, stable_end=700)
    plan = plan_partition(facts, _runs(600), None)
    assert (plan.ranges, plan.to_offset) == (((600, 700),), 700)
    plan = plan_partition(facts, None, None)
    assert (plan.ranges, plan.to_offset) == (((0, 700),), 700)
    plan = plan_partition(replace(facts, stable_end=600), _runs(600), None)
    assert (plan.ranges, plan.to_offset) == ((), 600)
