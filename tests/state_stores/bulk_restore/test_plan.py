"""A restore uses the cheapest valid source, and gives the reason."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state_stores.bulk_restore.logs import SPECS
from tests.state_stores.bulk_restore.snapshots import (
    NOW_MS,
    SPEC,
    TOPIC_ID,
    facts,
    partition_runs,
    run,
    snapshot,
)
from tidewheel.state_stores.bulk_restore.manifest import Layout, may_extend, validate
from tidewheel.state_stores.bulk_restore.plan import RestoreFrom, RestorePlan, plan_restore
from tidewheel.state_stores.layout.position import Position
from tidewheel.state_stores.layout.restore import StartFrom, StoreTime

POSITION = Position(offset=90, topic_id=TOPIC_ID, written_at_ms=NOW_MS - 1_000)


def plan(position: Position | None, made: Any, **about: Any) -> RestorePlan:
    return plan_restore(position, made, SPEC, facts(**about))


def test_a_valid_snapshot_is_better_than_the_changelog() -> None:
    found = plan(None, snapshot())
    assert (found.kind, found.from_offset, found.snapshot) == (
        RestoreFrom.SNAPSHOT,
        100,
        partition_runs(),
    )
    assert found.reason == (
        "the snapshot of 60 s ago (1000 rows), then 20 offsets to read; no position on disk"
    )
    assert found.refused is None


def test_its_own_position_comes_before_a_snapshot() -> None:
    found = plan(POSITION, snapshot())
    assert (found.kind, found.from_offset, found.snapshot) == (RestoreFrom.POSITION, 90, None)
    assert found.reason == "its own position, 30 offsets to read"


def test_a_snapshot_is_better_than_a_position_far_behind() -> None:
    found = plan(replace(POSITION, offset=1), snapshot(), log_end=150)
    assert found.kind is RestoreFrom.POSITION
    cheap = snapshot(partitions=(partition_runs(runs=(run(rows=50),)),))
    found = plan(replace(POSITION, offset=1), cheap, log_end=150)
    assert found.kind is RestoreFrom.SNAPSHOT
    assert found.reason.endswith("its own position is 149 offsets behind")


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (snapshot(topic_id=b"another topic id"), "recreated"),
        (snapshot(partitions=()), "no runs of partition 0"),
        (snapshot(partitions=(partition_runs(to_offset=121),)), "beyond the end of the log"),
    ],
)
def test_a_rejected_snapshot_is_reported(made: Any, reason: str) -> None:
    found = plan(None, made)
    assert (found.kind, found.from_offset, found.snapshot) == (RestoreFrom.CHANGELOG, 0, None)
    assert found.refused is not None
    assert reason in found.refused
    assert found.refused in found.reason


@pytest.mark.parametrize(
    ("expired_by_ms", "slowest_ms", "used"),
    [
        (None, None, True),
        (None, 900_000, True),
        # Rows live 100 s, stay on disk 70 s more, in segments of a minute: at 900 s, rows from 720
        # s on exist.
        (None, 830_000, True),
        (None, 500_000, False),
        (500_000, 500_000, True),
        (500_000, -1, False),
        (-1, -1, True),
    ],
)
def test_K3_a_snapshot_without_rows_for_a_slow_key_range_is_rejected(
    expired_by_ms: int | None, slowest_ms: int | None, used: bool
) -> None:
    spec = SPECS["timestamped window"]
    runs = partition_runs(time=StoreTime(900_000), expired_by_ms=expired_by_ms)
    made = snapshot(kind=spec.kind.value, layout=Layout.of(spec), partitions=(runs,))
    found = plan_restore(None, made, spec, facts(), slowest_ms=slowest_ms)
    assert (found.snapshot is not None) is used
    if not used:
        assert "lacks rows that the slowest key range" in str(found.refused)


def test_long_gaps_are_built_into_runs() -> None:
    for position, made in ((POSITION, None), (None, snapshot()), (None, None)):
        start = plan(position, made).from_offset
        assert not plan(position, made, log_end=start + 100_000).in_runs
        assert plan(position, made, log_end=start + 100_001).in_runs


PLANS = {
    "position": st.none()
    | st.builds(
        Position,
        offset=st.integers(0, 400),
        topic_id=st.sampled_from([TOPIC_ID, TOPIC_ID, b"another topic id"]),
        written_at_ms=st.integers(NOW_MS - 100_000_000, NOW_MS),
    ),
    "made": st.none()
    | st.builds(
        lambda to, age, complete, rows, topic: snapshot(
            topic_id=topic,
            partitions=(
                partition_runs(
                    to_offset=100 + to,
                    caught_up_at_ms=NOW_MS - age,
                    complete_from_zero=complete,
                    runs=(run(rows=rows),),
                ),
            ),
        ),
        st.integers(0, 300),
        st.integers(-5_000_000, 100_000_000),
        st.sampled_from([True, True, False]),
        st.integers(1, 5_000),
        st.sampled_from([TOPIC_ID, TOPIC_ID, b"another topic id"]),
    ),
    "log_start": st.integers(0, 200),
    "length": st.integers(0, 300),
}


@given(**PLANS)
def test_a_plan_is_valid_and_the_cheapest(
    position: Position | None, made: Any, log_start: int, length: int
) -> None:
    about = facts(log_start=log_start, log_end=log_start + length)
    found = plan_restore(position, made, SPEC, about, runs_from_records=50)
    assert found == plan_restore(position, made, SPEC, about, runs_from_records=50)
    may_follow = about.start_from(position)[0] is StartFrom.POSITION
    usable = (
        made is not None
        and validate(made, SPEC, about) is None
        and may_extend(made.partitions[0], about) is None
    )
    assert (found.refused is None) is (usable or made is None)
    assert found.in_runs is (about.log_end - found.from_offset > 50)
    assert found.from_offset <= about.log_end
    if found.kind is RestoreFrom.POSITION:
        assert may_follow
        assert position is not None
        assert found.from_offset == position.offset
        if usable:
            rest = about.log_end - made.partitions[0].to_offset
            assert about.log_end - position.offset <= rest + made.partitions[0].rows // 10
    elif found.kind is RestoreFrom.SNAPSHOT:
        assert usable
        assert found.snapshot == made.partitions[0]
        assert found.from_offset == made.partitions[0].to_offset
    else:
        assert not usable
        assert not may_follow
        assert found.from_offset == about.log_start


def test_F1_a_position_behind_an_open_transaction_is_followed() -> None:
    found = plan(replace(POSITION, offset=110), None, log_end=1_000, stable_end=50)
    assert (found.kind, found.from_offset, found.in_runs) == (RestoreFrom.POSITION, 110, False)
