"""Leaving members: drains, restarts (L4, S1, S2)."""

from typing import Any

import pytest

from tests.rebalance.leader.round_table import APP, RoundTable, Worker
from tidewheel.rebalance.model import MemberPhase
from tidewheel.rebalance.protocol.messages import DrainMember
from tidewheel.rebalance.protocol.orders import MayClose, ReleaseTask, WorkerClosed, WorkerLeaves
from tidewheel.rebalance.protocol.records import MemberRecord, TargetRecord, TaskRecord


def leave(table: RoundTable, worker: Worker, **given: Any) -> None:
    worker.member.report(WorkerLeaves(**given), table.now_ms)


def close_when_allowed(table: RoundTable, worker: Worker) -> bool:
    told = any(isinstance(order, MayClose) for order in worker.told)
    if told:
        worker.member.report(WorkerClosed(), table.now_ms)
        table.run()
    return told


def moves(table: RoundTable) -> list[tuple[str, str]]:
    """Return (task, event), without first grants."""
    records = [record for record in table.log if isinstance(record, TaskRecord)]
    return [(record.task, record.event) for record in records if record.task_epoch > 1]


def test_L4_a_drained_member_keeps_running_until_learners_take_over() -> None:
    table = RoundTable()
    a = table.start("a")
    table.start("b")
    table.run(10_000)
    mine = set(a.running)
    table.workers["b-1"].catches_up = False
    leave(table, a, drain_ms=20_000)
    table.run(3_000)
    assert table.group.members["a-1"].phase == MemberPhase.LEAVING
    assert set(a.running) == mine, "nobody is ready: it runs them all"
    b = table.workers["b-1"]
    assert len(b.copies) == 2
    for task in sorted(b.copies):
        b.member.report(b.ready(task), table.now_ms)
    b.catches_up = True
    table.run(2_000)
    assert set(table.owners().values()) == {"b-1"}
    assert not a.running
    assert close_when_allowed(table, a)
    assert "a-1" not in table.group.members
    assert table.fenced == []
    assert "a-1" not in table.workers


def test_L4_after_the_drain_timeout_the_remaining_tasks_are_revoked_immediately() -> None:
    table = RoundTable()
    a = table.start("a")
    b = table.start("b")
    table.run(10_000)
    b.catches_up = False
    leave(table, a, drain_ms=5_000)
    table.run(4_900)
    assert len(a.running) == 2
    table.run(200)
    assert not a.running
    assert set(table.owners().values()) == {"b-1"}
    assert table.fenced == []
    released = [
        each for each in table.log if isinstance(each, TaskRecord) and each.event == "RELEASED"
    ]
    assert {each.source for each in released} == {"ack"}


def test_a_drain_applies_only_to_the_incarnation_it_was_requested_for() -> None:
    table = RoundTable()
    table.start("a")
    table.start("b")
    table.run(10_000)
    wish = DrainMember(app=APP, member="operator", incarnation="op", target="a", drain_ms=20_000)
    table.coordinator.observe(wish, table.now_ms)
    table.kill("a-1")
    table.run(1_000)
    table.start("a", 2)
    table.run(10_000)
    assert table.group.members["a-2"].phase == MemberPhase.ACTIVE
    assert "a-2" in table.owners().values()


def test_L4_the_last_member_releases_its_tasks_without_a_successor() -> None:
    table = RoundTable()
    a = table.start("a")
    table.run(1_000)
    leave(table, a, drain_ms=20_000)
    table.run()
    assert set(table.phases().values()) == {"RELEASED"}
    assert close_when_allowed(table, a)
    table.start("b")
    table.run(1_000)
    assert set(table.owners().values()) == {"b-1"}
    assert table.group.states[next(iter(table.group.states))].input == {"orders-0": 7}


def test_L4_a_drain_by_an_operator_moves_all_tasks() -> None:
    table = RoundTable()
    a = table.start("a")
    table.start("b")
    table.run(10_000)
    table.receive(DrainMember(app=APP, member="cli", incarnation="cli", target="a", drain_ms=9_000))
    table.run(2_000)
    assert set(table.owners().values()) == {"b-1"}
    assert close_when_allowed(table, a)
    assert "a-1" not in table.group.members


def test_a_leave_without_drain_ends_a_drain() -> None:
    table = RoundTable()
    a = table.start("a")
    table.start("b")
    table.run(10_000)
    table.workers["b-1"].catches_up = False
    leave(table, a, drain_ms=60_000)
    table.run(1_000)
    assert len(a.running) == 2
    leave(table, a)
    table.run()
    assert not a.running
    assert set(table.owners().values()) == {"b-1"}


def test_a_leaving_member_is_removed_with_its_last_task() -> None:
    table = RoundTable()
    a = table.start("a")
    table.start("b")
    table.run(1_000)
    leave(table, a)
    table.run()
    assert set(table.owners().values()) == {"b-1"}
    assert "a-1" not in table.group.members
    assert close_when_allowed(table, a)


@pytest.mark.parametrize("static", [True, False])
def test_S1_a_clean_restart_gets_its_tasks_back(static: bool) -> None:
    table = RoundTable()
    a = table.start("a", static=static)
    table.start("b", static=static)
    table.run(1_000)
    before = table.owners()
    events = {task: table.events(task) for task, owner in before.items() if owner == "b-1"}
    leave(table, a, rejoin=True)
    table.run()
    assert close_when_allowed(table, a)
    table.run(20_000)
    assert sorted(table.phases().values()) == ["RELEASED", "RELEASED", "RUNNING", "RUNNING"]
    table.start("a", 2, static=static)
    table.run(1_000)
    after = {task: "a-1" if owner == "a-2" else owner for task, owner in table.owners().items()}
    assert after == before
    assert events == {task: table.events(task) for task in events}
    assert sum(isinstance(each, TargetRecord) and bool(each.owners) for each in table.log) == 1


def test_S2_a_rolling_bounce_of_every_member_changes_nothing() -> None:
    table = RoundTable()
    for name in "abc":
        table.start(name, static=True)
    table.run(10_000)
    before = {task: owner[0] for task, owner in table.owners().items()}
    for name in "abc":
        leave(table, table.workers[f"{name}-1"], rejoin=True)
        table.run()
        assert close_when_allowed(table, table.workers.get(f"{name}-1") or a_ghost())
        table.run(2_000)
        table.start(name, 2, static=True)
        table.run(2_000)
    assert {task: owner[0] for task, owner in table.owners().items()} == before
    assert sum(isinstance(each, TargetRecord) and bool(each.owners) for each in table.log) == 1
    assert all(
        table.events(task) == ["GRANT", "REVOKE", "RELEASED", "GRANT"] for task in table.owners()
    )
    assert table.fenced == []


def a_ghost() -> Worker:
    raise AssertionError("the worker is not at the table any more")


def test_a_leave_survives_its_leader() -> None:
    table = RoundTable()
    a = table.start("a")
    table.start("b")
    table.run(10_000)
    table.workers["b-1"].catches_up = False
    leave(table, a, drain_ms=5_000)
    table.run(3_000)
    table.lead("p1")
    table.run(4_000)
    assert len(a.running) == 2
    table.run(1_200)
    assert set(table.owners().values()) == {"b-1"}
    assert sum(isinstance(order, ReleaseTask) for order in a.told) == 2


def test_a_worker_that_closes_with_tasks_is_fenced() -> None:
    table = RoundTable()
    a = table.start("a")
    table.start("b")
    table.run(1_000)
    a.member.report(WorkerClosed(), table.now_ms)
    table.run(1_000)
    assert table.fenced == ["a-1"]
    assert set(table.owners().values()) == {"b-1"}
    gone = [
        each for each in table.log if isinstance(each, MemberRecord) and each.phase == "FENCING"
    ]
    assert gone[0].reason == "closed without releasing its tasks"


def test_S1_the_next_target_names_no_restart_that_needed_no_target() -> None:
    table = RoundTable()
    a = table.start("a", static=True)
    table.start("b")
    table.run(10_000)
    leave(table, a, rejoin=True)
    table.run(100)
    assert close_when_allowed(table, a)
    table.start("a", 2, static=True)
    table.run(4_000)
    table.start("c")
    table.run(100)
    table.start("d")
    table.run(2_000)
    targets = [record for record in table.log if isinstance(record, TargetRecord)]
    assert [each.reason for each in targets][-2:] == [
        "host-a (a) joined; host-b (b) joined",
        "host-c (c) joined; host-d (d) joined",
    ]
