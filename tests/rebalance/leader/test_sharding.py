"""Admission of shards: one number of shards in a group, and version 2 for it."""

from typing import cast

import msgspec
import pytest

from tests.rebalance.leader.round_table import RoundTable, join, stateful
from tidewheel.rebalance.leader.compatibility import join_refusal
from tidewheel.rebalance.leader.sharding import waits_for_release
from tidewheel.rebalance.model import Shard, TaskId, TaskPhase
from tidewheel.rebalance.protocol.field_types import ShardCount
from tidewheel.rebalance.protocol.group import Group
from tidewheel.rebalance.protocol.messages import JoinRefused, SeenTask
from tidewheel.rebalance.protocol.records import (
    GroupRecord,
    MemberRecord,
    ShardRecord,
    StepRecord,
    TargetRecord,
    TaskRecord,
    task_record,
)

NEW, OLD = (1, 2), (1, 1)


def sharded(partitions: int, shards: int) -> tuple[SeenTask, ...]:
    count = cast("ShardCount", shards)
    return tuple(msgspec.structs.replace(row, shards=count) for row in stateful(partitions))


def start(table: RoundTable, name: str, shards: int, partitions: int = 1) -> None:
    table.start(name, protocol=(2, 2), shards=shards, tasks=sharded(partitions, shards))


@pytest.mark.parametrize(
    ("group", "shards", "protocol", "next_step"),
    [
        ((), 1, OLD, ""),
        ((), 1, NEW, ""),
        ((), 4, NEW, ""),
        ((), 4, OLD, "upgrade its program"),
        (((1, OLD),), 1, OLD, ""),
        (((1, OLD),), 1, NEW, ""),
        (((1, OLD),), 4, NEW, "Stop all members, upgrade their program"),
        (((1, NEW),), 4, NEW, "start it with partition_shards=1"),
        (((4, NEW),), 4, NEW, ""),
        (((4, NEW),), 2, NEW, "start it with partition_shards=4"),
        (((4, NEW),), 1, NEW, "start it with partition_shards=4"),
        (((4, NEW),), 1, OLD, "upgrade its program, and start it with partition_shards=4"),
        (((4, NEW), (4, NEW)), 1, OLD, "upgrade its program, and start it with partition_shards=4"),
    ],
)
def test_K8_members_share_partitions_in_one_way(
    group: tuple[tuple[int, tuple[int, int]], ...],
    shards: int,
    protocol: tuple[int, int],
    next_step: str,
) -> None:
    members = {
        f"m{index}": MemberRecord(
            leader_epoch=1,
            member=f"m{index}",
            incarnation=f"m{index}",
            phase="ACTIVE",
            protocol=spoken,
            shards=cast("ShardCount", count),
        )
        for index, (count, spoken) in enumerate(group)
    }
    found = join_refusal(join("a", shards=shards, protocol=protocol), Group(members=members))
    assert bool(found) is bool(next_step)
    if found is not None:
        assert (found.code, next_step in found.reason) == ("INCOMPATIBLE_SHARDS", True)


def test_a_recovered_group_with_shards_waits_for_members_with_them() -> None:
    group = Group(about=GroupRecord(leader_epoch=1, group_version=2, shards=4, pinned=True))
    found = join_refusal(join("a", protocol=NEW, assignor=""), group)
    assert found is not None
    assert "set up again for 4" in found.reason
    assert join_refusal(join("a", protocol=NEW, assignor="", shards=4), group) is None


@pytest.mark.parametrize("phase", list(TaskPhase))
def test_another_tiling_waits_until_no_former_owner_can_commit(phase: TaskPhase) -> None:
    has_owner = phase in (TaskPhase.RUNNING, TaskPhase.REVOKING, TaskPhase.FENCE_WAIT)
    task = TaskId(0, 0, Shard(1, 2))
    record = task_record(task, leader_epoch=1, phase=phase, task_epoch=1)
    record = msgspec.structs.replace(record, owner="b-1" if has_owner else None)
    group = Group(about=GroupRecord(leader_epoch=1, shards=2), states={task: record})
    assert waits_for_release(join("a", shards=4), group) is has_owner
    assert not waits_for_release(join("a", shards=2), group)


def test_K8_shards_of_one_partition_are_spread_and_move_with_the_members() -> None:
    table = RoundTable()
    names = [f"0_0/{number}of4" for number in range(4)]
    start(table, "a", 4)
    table.run(2_000)
    assert table.owners() == dict.fromkeys(names, "a-1")
    assert table.group.about.group_version == 2
    for count, more in ((2, "b"), (3, "c"), (4, "d")):
        before = table.owners()
        start(table, more, 4)
        table.run(30_000)
        owners = table.owners()
        counts = [list(owners.values()).count(owner) for owner in set(owners.values())]
        assert len(counts) == count
        assert max(counts) - min(counts) <= 1
        moved = {task for task in names if owners[task] != before[task]}
        assert {owners[task] for task in moved} == {f"{more}-1"}, "only the new member gets shards"
    table.lead("p1")
    table.run(1_000)
    assert table.owners() == owners, "a new leader knows the shards from the snapshot"
    for name in ("b-1", "c-1", "d-1"):
        table.kill(name)
    table.run(10_000)
    assert table.owners() == dict.fromkeys(names, "a-1")
    kinds = {type(record) for record in table.log}
    assert {ShardRecord, TargetRecord, StepRecord} <= kinds
    assert TaskRecord not in kinds
    assert not any(record.owners for record in table.log if isinstance(record, TargetRecord))


def test_K8_members_of_version_1_are_refused_and_the_owners_continue() -> None:
    table = RoundTable()
    start(table, "a", 2)
    table.run(2_000)
    records = len(table.log)
    old = table.start("b", protocol=OLD, tasks=stateful(1))
    table.run(2_000)
    assert len(table.log) == records
    assert old.ended is not None
    assert "upgrade its program, and start it with partition_shards=2" in old.ended.reason
    assert [each.code for each in table.said if isinstance(each, JoinRefused)] == [
        "INCOMPATIBLE_SHARDS"
    ]


def test_another_number_of_shards_starts_once_the_former_owner_is_fenced() -> None:
    table = RoundTable()
    start(table, "a", 2)
    table.run(2_000)
    table.slow_fences.add("a-1")
    table.kill("a-1")
    table.run(500)
    start(table, "b", 4)
    table.run(5_000)
    assert set(table.owners().values()) <= {"a-1"}, "b waits for the fence"
    table.coordinator.fenced("a-1", table.now_ms)
    table.run(5_000)
    owners = table.owners()
    assert {task: owner for task, owner in owners.items() if owner} == {
        f"0_0/{number}of4": "b-1" for number in range(4)
    }


def test_H15_new_partitions_do_not_forget_where_released_shards_were_left() -> None:
    table = RoundTable()
    start(table, "a", 2)
    table.run(2_000)
    start(table, "b", 2)
    table.run(20_000)
    left = {task: dict(state.input) for task, state in table.group.states.items() if state.input}
    assert len(left) == 1, "one shard was released by its owner"
    for name in ("a-1", "b-1"):
        table.kill(name)
    table.run(2_000)
    assert set(table.phases().values()) == {"RELEASED"}
    start(table, "c", 2, partitions=2)
    table.run(10_000)
    assert len(table.group.tasks) == 4
    assert {task: dict(table.group.states[task].input) for task in left} == left
