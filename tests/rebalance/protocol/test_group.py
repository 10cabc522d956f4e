"""The group fold: accepted records, and compaction (H1, H4, invariants 5 and 6)."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.rebalance.model import TaskId, TaskPhase
from tidewheel.rebalance.protocol.group import Group, apply, replay, snapshot
from tidewheel.rebalance.protocol.records import (
    AnyRecord,
    BootstrappedRecord,
    BootstrapRecord,
    Copy,
    GroupRecord,
    LeaderClaim,
    MemberRecord,
    SnapshotBegin,
    SnapshotEnd,
    StepRecord,
    TargetRecord,
    TaskRecord,
    TaskRow,
    decode_record,
    encode_record,
    record_keys,
)


def claim(epoch: int) -> LeaderClaim:
    return LeaderClaim(leader_epoch=epoch, leader=f"p{epoch}", previous_epoch=epoch - 1)


def task(epoch: int, number: int, phase: str = "RUNNING", owner: str | None = "a-1") -> TaskRecord:
    return TaskRecord(
        leader_epoch=epoch, task=f"0_{number}", phase=phase, task_epoch=number + 1, owner=owner
    )


@st.composite
def changes(draw: st.DrawFn, epoch: int) -> AnyRecord:
    name = draw(st.sampled_from("ab"))
    incarnation = f"{name}-{draw(st.integers(min_value=1, max_value=2))}"
    number = draw(st.integers(min_value=0, max_value=2))
    copy = Copy(incarnation=incarnation, learn_epoch=number)
    phase = draw(st.sampled_from([*TaskPhase]))
    is_owned = phase not in (TaskPhase.UNOWNED, TaskPhase.RELEASED)
    records: list[AnyRecord] = [
        task(epoch, number, phase.value, incarnation if is_owned else None),
        MemberRecord(
            leader_epoch=epoch,
            member=name,
            incarnation=incarnation,
            phase=draw(st.sampled_from(["ACTIVE", "FENCING", "GONE"])),
            rejoin_ms=draw(st.sampled_from([0, 5])),
        ),
        TargetRecord(leader_epoch=epoch, group_epoch=number, owners={f"0_{number}": name}),
        StepRecord(leader_epoch=epoch, group_epoch=1, step_epoch=number, learners={"0_1": copy}),
        GroupRecord(leader_epoch=epoch, tasks={f"0_{number}": TaskRow(stateful=True)}),
        BootstrapRecord(leader_epoch=epoch, store=name, attempt=incarnation, phase="WRITING"),
        BootstrappedRecord(leader_epoch=epoch, store=name, attempt=incarnation, rows=number),
    ]
    return draw(st.sampled_from(records))


@st.composite
def logs(draw: st.DrawFn) -> list[list[AnyRecord]]:
    """Draw transactions: claims with snapshots, changes, some records of deposed leaders."""
    transactions: list[list[AnyRecord]] = []
    group = Group()
    for epoch in range(1, draw(st.integers(min_value=1, max_value=3)) + 1):
        opening: list[AnyRecord] = [claim(epoch), *snapshot(group, epoch)]
        transactions.append(opening)
        for _ in range(draw(st.integers(min_value=0, max_value=6))):
            speaker = draw(st.sampled_from([epoch, epoch, epoch, max(epoch - 1, 1)]))
            transactions.append([draw(changes(speaker))])
            if (
                draw(st.integers(min_value=0, max_value=5)) == 0
            ):  # the leader writes its snapshot again
                known = replay(record for each in transactions for record in each)
                transactions.append(snapshot(known, epoch))
        group = replay(record for each in transactions for record in each)
    return transactions


def compacted(transactions: list[list[AnyRecord]]) -> list[AnyRecord]:
    """Keep the last record of each key."""
    last: dict[bytes, tuple[int, AnyRecord]] = {}
    offset = 0
    for records in transactions:
        for key, record in zip(record_keys(records), records, strict=True):
            last[key] = (offset, record)
            offset += 1
    return [record for _, record in sorted(last.values(), key=lambda item: item[0])]


@given(logs())
def test_H4_compaction_and_snapshots_leave_the_same_group(
    transactions: list[list[AnyRecord]],
) -> None:
    whole = [record for each in transactions for record in each]
    newest = max(index for index, each in enumerate(whole) if isinstance(each, LeaderClaim))
    group = replay(whole)
    assert replay(compacted(transactions)) == group
    assert replay(whole[newest:]) == group


@given(logs())
def test_a_record_survives_its_wire_form(transactions: list[list[AnyRecord]]) -> None:
    for records in transactions:
        for record in records:
            assert decode_record(encode_record(record)) == record


@given(logs(), st.data())
def test_H1_a_deposed_leader_changes_nothing(
    transactions: list[list[AnyRecord]], data: st.DataObject
) -> None:
    group = replay(record for each in transactions for record in each)
    assert apply(group, data.draw(changes(group.leader_epoch - 1))) is group
    assert apply(group, data.draw(changes(group.leader_epoch + 1))) is group
    assert apply(group, claim(group.leader_epoch)) is group


@pytest.mark.parametrize("wrong", ["count", "crc", "missing", "end"])
def test_H4_an_incomplete_snapshot_is_ignored(wrong: str) -> None:
    before = replay([claim(1), task(1, 0), task(1, 1)])
    items = snapshot(before, 2)
    end = items[-1]
    assert isinstance(end, SnapshotEnd)
    match wrong:
        case "count":
            items[-1] = msgspec.structs.replace(end, count=end.count + 1)
        case "crc":
            items[-1] = msgspec.structs.replace(end, crc=end.crc ^ 1)
        case "missing":
            del items[2]
        case _:
            items[-1] = claim(3)
    after = replay([claim(2), *items], before)
    assert after.states == before.states
    assert after.pending is None
    again = replay([claim(4), *snapshot(before, 4)], after)
    assert again.states.keys() == before.states.keys()


def test_records_after_a_snapshot_begin_wait_for_its_end() -> None:
    group = replay([claim(1), task(1, 0), SnapshotBegin(leader_epoch=1), task(1, 1)])
    assert list(group.states) == [TaskId(0, 0)]
    assert group.pending == (task(1, 1),)
    assert apply(group, SnapshotBegin(leader_epoch=1)).pending == ()
    lone = replay([claim(1), task(1, 0), SnapshotEnd(leader_epoch=1, count=0, crc=0)])
    assert list(lone.states) == [TaskId(0, 0)]


def test_a_group_answers_queries_about_members_and_tasks() -> None:
    group = replay(
        [
            claim(1),
            MemberRecord(leader_epoch=1, member="b", incarnation="b-1", phase="ACTIVE"),
            MemberRecord(leader_epoch=1, member="a", incarnation="a-1", phase="FENCING"),
            MemberRecord(leader_epoch=1, member="a", incarnation="a-2", phase="LEAVING"),
            task(1, 1, owner="b-1"),
            task(1, 0, owner="b-1"),
        ]
    )
    assert list(group.live()) == ["a-2", "b-1"]
    assert group.incarnation_of("a") == "a-2"
    assert group.incarnation_of("z") is None
    assert list(group.owned("b-1")) == [TaskId(0, 0), TaskId(0, 1)]
    assert group.phase_of(TaskId(0, 9)) == TaskPhase.UNOWNED
