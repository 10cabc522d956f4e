"""Loading a store: no member owns a task meanwhile, under any leader."""

import msgspec
import pytest

from tests.rebalance.leader.round_table import RoundTable
from tidewheel.rebalance.inspect.describe import GroupPhase, phase_of
from tidewheel.rebalance.leader.bootstrapping import (
    BOOTSTRAP_HOLD,
    Claimant,
    begin_load,
    close_load,
    finish_load,
    may_write,
    objections,
    pending_in,
)
from tidewheel.rebalance.model import TaskId
from tidewheel.rebalance.protocol.group import Group, replay
from tidewheel.rebalance.protocol.orders import RunTask
from tidewheel.rebalance.protocol.records import (
    AnyRecord,
    BootstrappedRecord,
    BootstrapRecord,
    GroupRecord,
    LeaderClaim,
)

CLAIMANT = Claimant(leader="bootstrap-1", topic_ids={"shop-group-state": "1f"})


def load(attempt: str = "b1", **given: object) -> BootstrapRecord:
    plain = BootstrapRecord(leader_epoch=0, store="counts", attempt=attempt, phase="WRITING")
    return msgspec.structs.replace(plain, **given)


def done(attempt: str = "b1") -> BootstrappedRecord:
    return BootstrappedRecord(leader_epoch=0, store="counts", attempt=attempt, rows=3)


def write(table: RoundTable, records: list[AnyRecord], leads_next: str = "p1") -> None:
    """Write a step of the command; then a process of the group leads again."""
    for record in records:
        table._append(record)
    table.lead(leads_next)


def running_pair() -> RoundTable:
    table = RoundTable()
    table.start("a")
    table.start("b")
    table.run(2_000)
    assert all(table.owners().values())
    return table


def test_members_that_start_during_a_bootstrap_own_no_task_and_log_the_reason() -> None:
    table = RoundTable()
    write(table, begin_load(table.group, load(), CLAIMANT))
    a = table.start("a")
    table.run(20_000)
    table.lead("p2")
    table.run(20_000)
    assert "a-1" in table.group.live()
    assert not [order for order in a.told if isinstance(order, RunTask)]
    assert phase_of(table.group) is GroupPhase.NOT_READY
    assert "store counts is being loaded" in table.group.about.held
    write(table, close_load(table.group, "counts", "b1", CLAIMANT))
    table.run(20_000)
    assert not a.running
    write(table, finish_load(table.group, done(), CLAIMANT))
    table.run(2_000)
    assert sorted(a.running) == ["0_0", "0_1", "0_2", "0_3"]


def test_a_bootstrap_removes_former_members_and_their_offsets() -> None:
    table = running_pair()
    before = table.group
    group = replay(begin_load(before, load(), CLAIMANT), before)
    assert not group.members
    assert {"a-1", "b-1"} <= set(group.ended)
    for task, state in group.states.items():
        assert (state.phase, state.owner, state.input, state.changelog_end) == (
            "RELEASED",
            None,
            {},
            {},
        )
        assert state.task_epoch == before.states[task].task_epoch


def test_a_second_bootstrap_attempt_keeps_waiting_members_and_ends_the_first() -> None:
    table = RoundTable()
    write(table, begin_load(table.group, load(), CLAIMANT))
    table.start("a")
    table.run(1_000)
    assert objections(table.group, "counts", ["a"]) == []
    write(table, begin_load(table.group, load("b2"), CLAIMANT))
    assert "a-1" in table.group.live()
    assert not may_write(table.group, "counts", "b1")
    assert may_write(table.group, "counts", "b2")
    with pytest.raises(ValueError, match="another run"):
        close_load(table.group, "counts", "b1", CLAIMANT)
    with pytest.raises(ValueError, match="another run"):
        finish_load(table.group, done("b1"), CLAIMANT)


def test_a_bootstrap_may_write_only_while_it_is_open() -> None:
    groups = [Group()]
    groups.append(replay(begin_load(groups[-1], load(), CLAIMANT), groups[-1]))
    groups.append(replay(close_load(groups[-1], "counts", "b1", CLAIMANT), groups[-1]))
    groups.append(replay(finish_load(groups[-1], done(), CLAIMANT), groups[-1]))
    seen = [may_write(group, "counts", "b1") for group in groups]
    assert seen == [False, True, False, False]
    assert pending_in(groups[-1], "counts") is None


def test_a_leader_without_the_bootstrap_records_grants_no_task() -> None:
    group = replay(begin_load(Group(), load(), CLAIMANT))
    forgetful = Group(leader_epoch=group.leader_epoch, about=group.about)
    table = RoundTable()
    table.group = forgetful
    table.lead("p9")
    a = table.start("a")
    table.run(10_000)
    assert not a.running
    assert not may_write(table.group, "counts", "b1")


def test_objections_to_a_bootstrap_name_their_cause() -> None:
    group = running_pair().group
    assert objections(group, "counts", []) == []
    assert objections(group, "counts", ["b", "a"]) == [
        "members of the group are alive: a, b; stop them first"
    ]
    other = replay(begin_load(Group(), load(store="totals"), CLAIMANT))
    assert "store totals" in objections(other, "counts", [])[0]
    held = Group(about=GroupRecord(leader_epoch=1, held="partitions: topic orders has 3"))
    assert "partitions: topic orders" in objections(held, "counts", [])[0]


def test_a_new_leader_restates_a_pending_bootstrap() -> None:
    table = RoundTable()
    write(table, begin_load(table.group, load(), CLAIMANT))
    table.lead("p2")
    newest = max(index for index, each in enumerate(table.log) if isinstance(each, LeaderClaim))
    group = replay(table.log[newest:])
    record = pending_in(group, "counts")
    assert record is not None
    assert (record.attempt, record.leader_epoch) == ("b1", group.leader_epoch)
    assert group.about.held.startswith(BOOTSTRAP_HOLD)
    assert group.tasks.get(TaskId(0, 0)) is None
