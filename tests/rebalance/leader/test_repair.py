"""Repair of contradictory groups: any accepted record leaves a working group."""

import json
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rebalance.leader.attacked import Supervised
from tests.rebalance.leader.hostile import lies, settled_table
from tests.rebalance.leader.round_table import APP, SESSION_MS, RoundTable
from tidewheel.rebalance.leader.repair import repair_group
from tidewheel.rebalance.model import MemberPhase, TaskPhase
from tidewheel.rebalance.producer_ids import is_group_id
from tidewheel.rebalance.protocol.decoding import Rejection
from tidewheel.rebalance.protocol.field_types import counter_max
from tidewheel.rebalance.protocol.group import LIVE, Group, replay, snapshot
from tidewheel.rebalance.protocol.records import (
    LeaderClaim,
    TaskRecord,
    decode_record,
    encode_record,
    read_record,
)

TASKS = ("0_0", "0_1", "0_2")


def _encoded(table: RoundTable, row: dict[str, Any]) -> bytes:
    if row.get("basis") == "THE BASIS":
        row = row | {"basis": table.group.target.basis}
    return json.dumps(row | {"leader_epoch": table.group.leader_epoch}).encode()


def _table() -> Supervised:
    return settled_table(Supervised)


@given(
    st.lists(lies(("a", "b"), TASKS), min_size=1, max_size=3),
    st.integers(0, 2),
    st.sampled_from([None, "a-1", "b-1"]),
)
def test_a_new_leader_repairs_every_accepted_contradiction(
    rows: list[dict[str, Any]], turns: int, dies: str | None
) -> None:
    table = _table()
    for row in rows:
        table.forge(_encoded(table, row))
        table.turns(turns)
    start = len(table.log)
    if dies in table.workers:
        table.kill(dies or "", seen=False)
    table.lead("p1")
    table.until_settled()
    assert not any("left as it is" in each for each in table.alarms)
    written = table.log[start:]
    assert not [each for each in written if isinstance(read_record(encode_record(each)), Rejection)]
    granted = Counter(
        (each.task, each.task_epoch, each.owner)
        for each in written
        if isinstance(each, TaskRecord)
        and each.phase == TaskPhase.RUNNING
        and each.event == "GRANT"
    )
    owners = Counter((task, epoch, leader) for task, epoch, leader in granted)
    assert max(owners.values(), default=1) == 1


@given(st.lists(lies(("a", "b"), TASKS), min_size=1, max_size=4))
def test_a_repaired_group_has_no_contradictions(rows: list[dict[str, Any]]) -> None:
    table = _table()
    for row in rows:
        table.forge(_encoded(table, row))
    once = repair_group(table.group, app=APP).group
    assert not repair_group(once, app=APP).contradictions
    for state in once.states.values():
        if state.owner is not None:
            owner = once.members[state.owner]
            is_waiting = state.phase == TaskPhase.FENCE_WAIT
            assert owner.phase == MemberPhase.FENCING if is_waiting else owner.phase in LIVE
    names = Counter(record.member for record in once.live().values())
    assert max(names.values(), default=1) == 1
    for task, state in table.group.states.items():
        assert once.states[task].task_epoch == state.task_epoch
        assert once.states[task].owner == state.owner


@pytest.mark.parametrize("seconds", [0, 1, 5])
def test_repair_does_not_change_a_valid_group(seconds: int) -> None:
    table = _table()
    table.kill("b-1", seen=False)
    table.turns(2 * seconds)
    found = repair_group(table.group, app=APP)
    assert found.group is table.group
    assert not found.contradictions
    assert not repair_group(Group(), app=APP).contradictions


MEMBER = {"kind": "MEMBER", "member": "b", "incarnation": "b-9", "phase": "ACTIVE"}
TASK = {"kind": "TASK", "task": "0_0", "task_epoch": 1}


@pytest.mark.parametrize(
    "row",
    [
        MEMBER,
        MEMBER | {"phase": "PARKED", "session_timeout_ms": 86_400_000},
        MEMBER | {"incarnation": "b-1", "phase": "FENCING"},
        MEMBER | {"incarnation": "b-1", "phase": "FENCED"},
        MEMBER | {"incarnation": "b-1", "phase": "GONE"},
        MEMBER | {"incarnation": "b-1", "phase": "GONE", "rejoin_ms": 2**53},
        MEMBER | {"incarnation": "b-1", "phase": "JOINING"},
        MEMBER | {"incarnation": "b-1", "threads": 65_536, "topology_epoch": 2**53},
        MEMBER | {"member": "ghost", "phase": "GONE", "rejoin_ms": 2**53},
        MEMBER | {"member": "ghost", "topology_hash": "other", "session_timeout_ms": 86_400_000},
        TASK | {"phase": "FENCE_WAIT", "owner": "a-1"},
        TASK | {"phase": "RUNNING", "owner": "ghost"},
        TASK | {"phase": "REVOKING", "owner": "ghost", "deadline_ms": 2**53},
        TASK | {"phase": "REVOKING", "owner": "b-1", "task_epoch": 77, "deadline_ms": 2**53},
        TASK | {"phase": "FENCE_WAIT", "owner": "ghost"},
        TASK | {"phase": "UNOWNED", "task_epoch": 2**53},
        TASK | {"phase": "UNOWNED", "task_epoch": counter_max(1)},
        {"kind": "STEP", "group_epoch": counter_max(1), "step_epoch": counter_max(1)},
        {"kind": "TARGET", "group_epoch": counter_max(1), "owners": {"0_0": "ghost"}},
        {"kind": "TARGET", "group_epoch": 5, "owners": {"0_0": "ghost"}, "basis": "THE BASIS"},
        {"kind": "TARGET", "group_epoch": 5, "owners": {}, "basis": "THE BASIS"},
        {"kind": "TARGET", "group_epoch": 0, "owners": {}, "basis": "THE BASIS"},
        {"kind": "GROUP", "held": "evil"},
        {"kind": "GROUP", "ended": ["a-1", "b-1"]},
        {"kind": "GROUP", "topology_epoch": 2**53, "topology_hash": "other", "pinned": True},
    ],
)
@pytest.mark.parametrize("dies", ["a-1", None])
def test_one_record_does_not_end_a_group_whose_leader_dies(
    row: dict[str, Any], dies: str | None
) -> None:
    table = _table()
    table.forge(_encoded(table, row))
    if dies is not None:
        table.kill(dies, seen=False)
    table.lead("p1")
    table.until_settled()


@pytest.mark.parametrize("field", ["task_epoch", "step_epoch", "group_epoch"])
@pytest.mark.parametrize("leader_epoch", [1, 7, 1_000_000])
def test_a_leader_continues_from_the_greatest_accepted_counter(
    field: str, leader_epoch: int
) -> None:
    def row(epoch: int, counter: int) -> bytes:
        rows: dict[str, dict[str, Any]] = {
            "task_epoch": {"kind": "TASK", "task": "0_0", "phase": "UNOWNED"},
            "step_epoch": {"kind": "STEP", "group_epoch": 1},
            "group_epoch": {"kind": "TARGET", "owners": {}},
        }
        return json.dumps(rows[field] | {"leader_epoch": epoch, field: counter}).encode()

    most = counter_max(leader_epoch)
    forged = decode_record(row(leader_epoch, most))
    assert forged is not None
    rejected = read_record(row(leader_epoch, most + 1))
    assert isinstance(rejected, Rejection)
    assert rejected.field == field
    assert decode_record(row(leader_epoch + 1, most + 100_000)) is not None


def test_an_incarnation_without_a_record_is_fenced_by_derived_ids() -> None:
    table = _table()
    table.forge(_encoded(table, MEMBER | {"incarnation": "b-1", "phase": "GONE"}))
    record = repair_group(table.group, app=APP).group.members["b-1"]
    assert record.phase == MemberPhase.FENCING
    assert record.transactional_ids
    assert all(is_group_id(each, APP, "b-1") for each in record.transactional_ids)


def test_of_two_live_incarnations_of_a_member_the_reporting_one_stays() -> None:
    table = _table()
    table.forge(_encoded(table, MEMBER))
    kept = repair_group(table.group, app=APP, heard=["b-1", "a-1"]).group
    assert (kept.members["b-1"].phase, kept.members["b-9"].phase) == ("ACTIVE", "FENCING")
    unsure = repair_group(table.group, app=APP).group
    assert {unsure.members[each].phase for each in ("b-1", "b-9")} == {"FENCING"}


def test_a_joiner_waits_for_silent_members_before_it_is_refused() -> None:
    table = _table()
    for each in list(table.workers):
        table.kill(each, seen=False)
    table.lead("p1")
    new = table.start("d", tasks=table.tasks, topology_hash="other", partitions={"orders": 3})
    table.turns(4)
    assert new.ended is None
    assert "d-1" not in table.group.members
    table.turns(2 * SESSION_MS // 500)
    assert table.group.live().keys() == {"d-1"}
    assert sorted(new.running) == list(TASKS)


def test_a_joiner_of_another_topology_is_refused_after_a_member_reported() -> None:
    table = _table()
    table.lead("p1")
    table.turns(2)
    new = table.start("d", tasks=table.tasks, topology_hash="other", partitions={"orders": 3})
    table.turns(2)
    assert new.ended is not None
    assert new.ended.code == "INCOMPATIBLE_TOPOLOGY"


def test_every_log_reader_sees_the_repaired_group() -> None:
    table = _table()
    table.forge(_encoded(table, TASK | {"phase": "RUNNING", "owner": "ghost"}))
    table.lead("p1")
    claim = max(at for at, each in enumerate(table.log) if isinstance(each, LeaderClaim))
    assert replay(table.log) == replay(table.log[claim:]) == table.coordinator.group
    assert msgspec.structs.astuple(replay(snapshot(table.group, 1)))
