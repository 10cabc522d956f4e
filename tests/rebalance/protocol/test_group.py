"""The group fold: accepted records, and compaction (H1, H4, invariants 5 and 6)."""

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rebalance.leader.group_logs import T, two_members
from tidewheel.rebalance.inspect.describe import LogEntry, describe_group, fold_log
from tidewheel.rebalance.inspect.history import Chronicle
from tidewheel.rebalance.model import TaskId, TaskPhase
from tidewheel.rebalance.protocol.group import Group, apply, refusal_of, replay, snapshot
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
from tidewheel.rebalance.protocol.table import Table


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
    assert group.pending == {0: task(1, 1)}
    assert apply(group, SnapshotBegin(leader_epoch=1)).pending == {}
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


# -- long logs -----------------------------------------------------------------------------------


def _member(number: int, phase: str = "ACTIVE") -> MemberRecord:
    return MemberRecord(
        leader_epoch=1, member=f"m{number}", incarnation=f"m{number}-1", phase=phase
    )


def _tasks(count: int) -> list[AnyRecord]:
    return [
        TaskRecord(leader_epoch=1, task=f"7_{number}", phase="UNOWNED", task_epoch=1)
        for number in range(count)
    ]


def _loads(count: int) -> list[AnyRecord]:
    return [
        BootstrapRecord(leader_epoch=1, store=f"s{number}", attempt="a", phase="WRITING")
        for number in range(count)
    ]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.one_of(st.none(), st.integers(0, 9))), max_size=200),
    st.integers(0, 40),
)
def test_a_table_equals_a_dict_after_any_changes(
    edits: list[tuple[int, int | None]], first: int
) -> None:
    expected: dict[int, int] = dict.fromkeys(range(first), -1)
    table, earlier = Table(dict(expected)), []
    for key, value in edits:
        earlier.append((table, dict(expected)))
        if value is None:
            expected.pop(key, None)
            table = table.without(key)
        else:
            expected[key] = value
            table = table.with_item(key, value)
        assert (len(table), table.get(key), key in table) == (
            len(expected),
            expected.get(key),
            key in expected,
        )
    for old, items in [*earlier, (table, expected)]:
        assert old == items == old
        assert dict(old.items()) == items
        assert (sorted(old), sorted(old.values())) == (sorted(items), sorted(items.values()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "flood",
    [
        [_member(number) for number in range(9_990)],
        [each for number in range(5_000) for each in (_member(number), _member(number, "GONE"))],
        [_member(number % 100, phase) for number in range(5_000) for phase in ("ACTIVE", "PARKED")],
        _tasks(10_000),
        _loads(10_000),
        [SnapshotBegin(leader_epoch=1), *_tasks(10_000)],
        [SnapshotBegin(leader_epoch=1), SnapshotEnd(leader_epoch=1, count=1, crc=0)] * 5_000,
    ],
    ids=["members", "visitors", "changes", "tasks", "loads", "pending", "snapshots"],
)
def test_the_cost_of_a_long_log_does_not_grow_with_its_square(flood: list[AnyRecord]) -> None:
    entries = list(two_members().entries)
    entries += [LogEntry(len(entries) + index, T, record) for index, record in enumerate(flood)]
    begun_s = time.process_time()
    fold = fold_log(entries)
    chronicle = Chronicle()
    for entry in entries:
        chronicle.add(entry)
    describe_group(fold.group, fold.phase)
    # A fold whose cost grows with the square takes 40 s or more, this one half a second.
    assert time.process_time() - begun_s < 15
    assert fold.rejected_count == 0


@pytest.mark.parametrize(
    ("limit", "records", "field"),
    [
        ("MEMBERS_MAX", [_member(number) for number in range(4)], "member"),
        ("TASKS_MAX", _tasks(4), "task"),
        ("BOOTSTRAPS_MAX", _loads(4), "store"),
        ("PENDING_MAX", [SnapshotBegin(leader_epoch=1), *_tasks(4)], "record"),
    ],
)
def test_records_beyond_the_maximum_are_rejected(
    limit: str, records: list[AnyRecord], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"tidewheel.rebalance.protocol.group.{limit}", 3)
    *accepted, excess = records
    fold = fold_log([LogEntry(index, T, each) for index, each in enumerate([claim(1), *accepted])])
    group = fold.group
    assert fold.rejected_count == 0
    refusal = refusal_of(group, excess)
    assert refusal is not None
    assert refusal.field == field
    assert apply(group, excess) is group
    assert not fold.add(LogEntry(len(records), T, excess))
    assert fold.rejected[-1].rejection == refusal
    # A record that adds nothing is accepted, as is a new leader.
    assert refusal_of(group, accepted[-1 if limit != "PENDING_MAX" else 0]) is None
    assert apply(group, claim(2)).leader_epoch == 2


def test_a_snapshot_beyond_the_maximum_leaves_records_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = replay([claim(1), *(_member(number) for number in range(5))])
    monkeypatch.setattr("tidewheel.rebalance.protocol.group.MEMBERS_MAX", 3)
    assert len(replay([claim(2), *snapshot(whole, 2)]).members) == 3


def test_members_leave_and_tasks_of_the_program_are_accepted_beyond_the_maximum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    about = GroupRecord(leader_epoch=1, tasks={"9_9": TaskRow(stateful=True)})
    group = replay([claim(1), about, _member(0), *_tasks(1)])
    monkeypatch.setattr("tidewheel.rebalance.protocol.group.MEMBERS_MAX", 1)
    monkeypatch.setattr("tidewheel.rebalance.protocol.group.TASKS_MAX", 1)
    own = TaskRecord(leader_epoch=1, task="9_9", phase="UNOWNED", task_epoch=1)
    assert TaskId(9, 9) in apply(group, own).states
    assert refusal_of(group, _member(1, "GONE")) is None
    assert not apply(group, _member(0, "GONE")).members
