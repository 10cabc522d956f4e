"""Steps of commands: no leader grants a task while a store is loaded, or the group is at rest."""

import msgspec
import pytest

from tests.rebalance.leader.round_table import APP, RoundTable
from tidewheel.rebalance.inspect.describe import GroupPhase, phase_of
from tidewheel.rebalance.leader.bootstrapping import (
    BOOTSTRAP_HOLD,
    begin_load,
    close_load,
    finish_load,
    may_write,
    objections,
    pending_in,
)
from tidewheel.rebalance.leader.log_steps import Claimant
from tidewheel.rebalance.leader.repair import repair_group
from tidewheel.rebalance.leader.resting import end_rest, hold_at_rest, is_held_at_rest, order_rest
from tidewheel.rebalance.model import TaskId
from tidewheel.rebalance.protocol.group import Group, replay
from tidewheel.rebalance.protocol.orders import RunTask, SetRest, Welcome
from tidewheel.rebalance.protocol.records import (
    AnyRecord,
    BootstrappedRecord,
    BootstrapRecord,
    GroupRecord,
    LeaderClaim,
)
from tidewheel.rebalance.protocol.rest import Rest

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


# -- rest ------------------------------------------------------------------------------------------


def resting_pair() -> tuple[RoundTable, Rest]:
    table = RoundTable()
    table.start("a")
    table.start("b")
    table.run(2_000)
    write(table, order_rest(table.group, {}, CLAIMANT))
    table.run(2_000)
    rest = table.group.about.rest
    assert rest is not None
    return table, rest


def test_members_hear_of_a_rest_before_they_run_further_tasks() -> None:
    table, rest = resting_pair()
    for name in ("a", "b"):
        assert table.workers[f"{name}-1"].told[-1] == SetRest(rest=rest)
    late = table.start("c")
    table.kill("a-1")
    table.run(20_000)
    assert isinstance(late.told[0], Welcome)
    assert late.told[0].rest == rest
    assert any(isinstance(order, RunTask) for order in late.told[1:])
    assert table.group.about.rest == rest, "leaders change, the rest stays"


def test_a_rest_with_other_offsets_is_another_order() -> None:
    table, first = resting_pair()
    write(table, order_rest(table.group, {"orders-0": 7}, CLAIMANT))
    table.run(2_000)
    second = table.workers["a-1"].told[-1]
    assert isinstance(second, SetRest)
    assert second.rest is not None
    assert second.rest.until == {"orders-0": 7}
    assert second.rest.epoch > first.epoch


def test_held_at_rest_members_own_no_task_until_the_end_of_the_rest() -> None:
    table, _ = resting_pair()
    before = table.workers["a-1"], table.workers["b-1"]
    write(table, hold_at_rest(table.group, APP, CLAIMANT))
    assert (table.group.about.rest, is_held_at_rest(table.group)) == (None, True)
    table.run(2_000)
    assert all(worker.ended is not None for worker in before)
    late = table.start("c")
    table.run(20_000)
    table.lead("p2")
    table.run(20_000)
    assert phase_of(table.group) is GroupPhase.NOT_READY
    assert not late.running
    write(table, end_rest(table.group, CLAIMANT))
    table.run(2_000)
    assert sorted(late.running) == ["0_0", "0_1", "0_2", "0_3"]


def test_a_rest_ends_before_its_hold() -> None:
    table, _ = resting_pair()
    write(table, end_rest(table.group, CLAIMANT))
    table.run(2_000)
    for name in ("a", "b"):
        worker = table.workers[f"{name}-1"]
        assert worker.told[-1] == SetRest()
        assert len(worker.running) == 2


def test_another_program_keeps_the_rest() -> None:
    table, rest = resting_pair()
    for name in ("a", "b"):
        table.kill(f"{name}-1")
    table.run(20_000)
    late = table.start("c", topology_hash="other", topology_epoch=1)
    table.run(20_000)
    assert table.group.about.topology_hash == "other"
    assert table.group.about.rest == rest
    assert late.running


def test_a_hold_at_rest_outlasts_a_repair() -> None:
    table, _ = resting_pair()
    write(table, hold_at_rest(table.group, APP, CLAIMANT))
    repaired = repair_group(table.group, app=APP)
    assert repaired.contradictions == ()
    assert is_held_at_rest(repaired.group)


def test_steps_that_do_not_apply_are_refused() -> None:
    other = Group(about=GroupRecord(leader_epoch=1, held="partitions: topic orders has 3"))
    with pytest.raises(ValueError, match="decides nothing: partitions"):
        order_rest(other, {}, CLAIMANT)
    with pytest.raises(ValueError, match="held for another reason: partitions"):
        end_rest(other, CLAIMANT)
    with pytest.raises(ValueError, match="not at rest"):
        end_rest(Group(), CLAIMANT)
