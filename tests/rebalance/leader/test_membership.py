"""Joins, refusals, deaths and fences."""

from typing import Any

import pytest

from tests.rebalance.leader.round_table import (
    APP,
    RoundTable,
    join,
    stateful,
    status,
    with_settings,
)
from tidewheel.rebalance.leader.draft import Draft
from tidewheel.rebalance.leader.observations import Observations
from tidewheel.rebalance.model import MemberPhase, TaskId
from tidewheel.rebalance.protocol.group import Group, apply
from tidewheel.rebalance.protocol.messages import (
    Beat,
    JoinRefused,
    LeaderBeat,
    Leave,
    MemberDied,
    Suspect,
    TransactionalIdWanted,
)
from tidewheel.rebalance.protocol.orders import (
    EndIncarnation,
    ReleaseTask,
    RunTask,
    UseTransactionalId,
    Welcome,
    WorkerClosed,
    WorkerLeaves,
)
from tidewheel.rebalance.protocol.records import MemberRecord, TargetRecord, TaskRecord
from tidewheel.rebalance.protocol.task_status import TaskStatus
from tidewheel.rebalance.runtime.election import Election


def targets(table: RoundTable) -> list[TargetRecord]:
    return [record for record in table.log if isinstance(record, TargetRecord) and record.owners]


def phases(table: RoundTable, incarnation: str) -> list[str]:
    records = [record for record in table.log if isinstance(record, MemberRecord)]
    return [record.phase for record in records if record.incarnation == incarnation]


# -- joins ------------------------------------------------------------------------------------------------------------


def test_S4_members_that_start_together_make_one_target() -> None:
    table = RoundTable()
    for name in "abc":
        table.start(name)
        table.run(100)
    table.run(1_000)
    assert len(targets(table)) == 1
    assert set(table.owners().values()) == {"a-1", "b-1", "c-1"}
    assert all(table.events(task) == ["GRANT"] for task in table.owners())


def test_the_first_target_does_not_wait_for_endless_joins() -> None:
    table = RoundTable()
    for number in range(40):
        table.start(f"m{number:02}")
        table.run(100)
    assert targets(table)
    first = next(
        index
        for index, each in enumerate(table.log)
        if isinstance(each, TargetRecord) and each.owners
    )
    joined = [each for each in table.log[:first] if isinstance(each, MemberRecord)]
    assert 30 <= len(joined) <= 32  # 3,000 ms of waiting


def test_a_member_is_welcomed_after_its_join_is_logged() -> None:
    """The transactional id is logged before the worker may use it (H7)."""
    table = RoundTable()
    worker = table.start("a")
    table.run()
    assert table.group.members["a-1"].transactional_ids == (f"{APP}-a-1-0",)
    assert worker.told[0] == Welcome(transactional_id=f"{APP}-a-1-0")


@pytest.mark.parametrize(
    ("code", "given", "says"),
    [
        (
            "INCOMPATIBLE_TOPOLOGY",
            {"topology_hash": "other"},
            "runs another topology than host-a (a)",
        ),
        ("INCOMPATIBLE_TOPOLOGY", {"topology_epoch": 0}, "the group is at 1 already"),
        ("INCOMPATIBLE_ASSIGNOR", {"assignor": "round_robin"}, "have 'sticky'"),
        ("INCOMPATIBLE_VERSION", {"protocol": (2, 3)}, "speaks versions 2 to 3"),
    ],
)
def test_N6_an_incompatible_joiner_is_refused_without_a_record(
    code: str, given: dict[str, Any], says: str
) -> None:
    table = RoundTable()
    table.start("a", topology_epoch=1, topology_hash="t")
    table.run(1_000)
    records = len(table.log)
    fits: dict[str, Any] = {"topology_epoch": 1, "topology_hash": "t"}
    worker = table.start("b", **(fits | given))
    table.run(2_000)
    assert len(table.log) == records
    assert worker.ended is not None
    assert worker.ended.final
    assert worker.ended.code == code
    assert says in worker.ended.reason
    assert [each.incarnation for each in table.said if isinstance(each, JoinRefused)] == ["b-1"]


def test_an_empty_group_accepts_any_topology() -> None:
    table = RoundTable()
    table.start("a", topology_hash="t")
    table.run(1_000)
    table.kill("a-1")
    table.run(1_000)
    table.start("b", topology_hash="u", assignor="round_robin", tasks=stateful(2))
    table.run(1_000)
    assert table.group.about.topology_hash == "u"
    assert table.group.about.assignor == "round_robin"
    assert sorted(map(str, table.group.tasks)) == ["0_0", "0_1"]
    assert table.owners()["0_0"] == "b-1"


def test_N14_a_higher_topology_epoch_is_parked_until_the_older_have_left() -> None:
    table = RoundTable()
    table.start("a", topology_hash="t")
    table.run(1_000)
    table.start("b", topology_epoch=1, topology_hash="u", tasks=stateful(6))
    table.run(8_000)
    assert table.group.members["b-1"].phase == MemberPhase.PARKED
    assert set(table.owners().values()) == {"a-1"}
    table.lead("p1")  # a new leader has not heard b's join
    table.kill("a-1")
    table.run(4_000)
    assert table.group.members["b-1"].phase == MemberPhase.ACTIVE
    assert len(table.owners()) == 6
    assert set(table.owners().values()) == {"b-1"}


def test_N14_the_group_uses_the_newest_version_all_members_support() -> None:
    table = RoundTable()
    table.start("a", protocol=(1, 2))
    table.run(1_000)
    assert table.group.about.group_version == 2
    table.start("b", protocol=(1, 1))
    table.run(1_000)
    assert table.group.about.group_version == 1
    table.kill("b-1")
    table.run(1_000)
    assert table.group.about.group_version == 2


def test_a_late_join_of_an_ended_incarnation_changes_nothing() -> None:
    """FENCING is final (H20)."""
    table = RoundTable()
    table.start("a")
    table.run(1_000)
    table.kill("a-1")
    table.run(1_000)
    table.receive(join("a"))
    table.run(1_000)
    assert "a-1" not in table.group.members
    assert phases(table, "a-1") == ["ACTIVE", "FENCING", "FENCED", "GONE"]
    assert [each.code for each in table.said if isinstance(each, JoinRefused)] == ["FENCED"]


# -- deaths -----------------------------------------------------------------------------------------------------------


def test_a_killed_worker_is_fenced_immediately_and_its_tasks_move() -> None:
    table = RoundTable()
    table.start("a")
    table.start("b")
    table.run(1_000)
    before = table.now_ms
    table.kill("b-1")
    table.run()
    assert table.now_ms == before
    assert table.fenced == ["b-1"]
    assert set(table.owners().values()) == {"a-1"}
    lost = [
        task for task, events in ((t, table.events(t)) for t in table.owners()) if len(events) > 1
    ]
    assert len(lost) == 2
    assert all(table.events(task) == ["GRANT", "FENCE_WAIT", "RELEASED", "GRANT"] for task in lost)


@pytest.mark.parametrize("new_leader", [False, True])
def test_H15_a_fence_keeps_the_last_offsets_of_a_task(new_leader: bool) -> None:
    table = RoundTable()
    a = table.start("a")
    table.run(10_000)
    a.member.report(WorkerLeaves(), table.now_ms)
    table.run(1_000)
    a.member.report(WorkerClosed(), table.now_ms)
    table.run(2_000)
    tasks = set(table.owners())
    for life in (2, 3, 4):
        refusing = table.start("a", life)
        refusing.mute |= tasks
        table.run(2_000)
        orders = [each for each in refusing.told if isinstance(each, RunTask)]
        assert {each.task: each.input for each in orders} == {
            task: {"orders-0": 7} for task in tasks
        }
        assert life == 2 or all(not each.changelog_end for each in orders)
        table.kill(f"a-{life}")
        table.run(3_000)
        if new_leader:
            table.lead(f"p{life}")
    assert table.fenced == ["a-2", "a-3", "a-4"]


@pytest.mark.parametrize(
    ("epoch", "floor"), [(1, {"orders-0": 9}), (7, {})], ids=["current epoch", "another epoch"]
)
def test_H15_the_reported_commits_of_a_dead_owner_are_a_floor(
    epoch: int, floor: dict[str, int]
) -> None:
    table = RoundTable()
    a = table.start("a")
    table.run(10_000)
    row = TaskStatus(
        task="0_0", role="active", epoch=epoch, state="RUNNING", committed={"orders-0": 9}
    )
    a.member.report(status(a, row), table.now_ms)
    table.run(1_000)
    table.slow_fences.add("a-1")
    table.kill("a-1")
    table.run(100)
    table.slow_fences.clear()
    table.lead("p1")
    table.run(3_000)
    b = table.start("b")
    table.run(2_000)
    orders = {each.task: each.input for each in b.told if isinstance(each, RunTask)}
    assert orders == {"0_0": floor, "0_1": {}, "0_2": {}, "0_3": {}}


def test_H15_a_release_without_offsets_keeps_the_known_offsets() -> None:
    before = TaskRecord(
        leader_epoch=0, task="0_0", phase="REVOKING", task_epoch=4, owner="a-1",
        input={"orders-0": 7, "users-0": 3}, changelog_end={"counts-0": 9},
    )  # fmt: skip
    group = apply(Group(), before)
    draft = Draft(
        group=group,
        observations=Observations(claimed_ms=0, ready_lag_max=0),
        settings=with_settings(),
        now_ms=0,
    )
    draft.release_by_ack(TaskId(0, 0), {"orders-0": 8}, {})
    released = draft.group.states[TaskId(0, 0)]
    assert (released.input, released.changelog_end) == ({"orders-0": 8, "users-0": 3}, {})


def test_H6_no_task_of_the_dead_is_granted_before_the_fence_is_done() -> None:
    table = RoundTable()
    table.start("a")
    table.start("b")
    table.run(1_000)
    table.slow_fences.add("b-1")
    table.kill("b-1")
    table.run(2_000)
    assert sorted(table.phases().values()) == ["FENCE_WAIT", "FENCE_WAIT", "RUNNING", "RUNNING"]
    table.coordinator.fenced("b-1", table.now_ms)
    table.run()
    assert set(table.phases().values()) == {"RUNNING"}


def test_H6_a_new_leader_repeats_fences_that_were_not_logged() -> None:
    table = RoundTable()
    table.start("a")
    table.start("b")
    table.run(1_000)
    table.slow_fences.add("b-1")
    table.kill("b-1")
    table.run(100)
    assert table.fenced == ["b-1"]
    table.slow_fences.clear()
    table.lead("p1")
    table.run()
    assert table.fenced == ["b-1", "b-1"]
    assert set(table.owners().values()) == {"a-1"}


def test_a_silent_member_expires_after_its_own_session_timeout() -> None:
    table = RoundTable()
    table.start("a")
    table.start("b", session_timeout_ms=6_000)
    table.run(1_000)
    silent_ms = table.now_ms
    table.kill("b-1", seen=False)
    table.run(5_400)
    assert table.group.members["b-1"].phase == MemberPhase.ACTIVE
    table.run(700)
    assert "b-1" not in table.group.members
    assert table.now_ms - silent_ms < 6_200
    dead = [
        each for each in table.log if isinstance(each, MemberRecord) and each.phase == "FENCING"
    ]
    assert dead[0].reason == "no beat for 6000 ms"


def test_H5_after_a_claim_every_member_gets_a_whole_session() -> None:
    table = RoundTable()
    table.start("a")
    table.start("b")
    table.run(1_000)
    table.kill("b-1", seen=False)
    table.run(2_500)
    table.lead("p1")
    table.run(2_900)
    assert table.group.members["b-1"].phase == MemberPhase.ACTIVE
    table.run(200)
    assert "b-1" not in table.group.members


def test_H20_late_or_duplicate_heartbeats_renew_no_session() -> None:
    table = RoundTable()
    table.start("a")
    table.start("b")
    table.run(1_000)
    late = [each for each in table.said if isinstance(each, Beat) and each.incarnation == "b-1"][-1]
    table.kill("b-1", seen=False)
    for _ in range(7):
        table.run(500)
        table.receive(late)
    assert "b-1" not in table.group.members


def test_H30_concurrent_fences_are_bounded_and_owners_come_first() -> None:
    table = RoundTable(with_settings(fences_at_once=2))
    for name in ("a", "b", "c", "d", "e"):
        table.start(name)
    table.run(1_000)
    owners = set(table.owners().values())
    assert len(owners) == 4
    idle = ({"a-1", "b-1", "c-1", "d-1", "e-1"} - owners).pop()
    dying = [idle, *sorted(owners)[:2]]
    table.slow_fences.update(dying)
    for incarnation in dying:
        table.kill(incarnation)
    table.run(100)
    assert table.fenced == sorted(owners)[:2]
    table.coordinator.fenced(table.fenced[0], table.now_ms)
    table.run()
    assert table.fenced[2:] == [idle]


def test_an_unanswered_fence_is_requested_again() -> None:
    table = RoundTable()
    table.start("a")
    table.start("b")
    table.run(1_000)
    table.slow_fences.add("b-1")
    table.kill("b-1")
    table.run(14_000)
    assert table.fenced == ["b-1"]
    table.run(2_000)
    assert table.fenced == ["b-1", "b-1"]


def test_an_owner_that_does_not_release_is_fenced_after_the_revoke_timeout() -> None:
    table = RoundTable(with_settings(revoke_timeout_ms=10_000))
    table.start("b")
    table.run(1_000)
    table.workers["b-1"].mute.update(table.owners())
    table.start("a")
    table.run(6_500)
    assert "REVOKING" in table.phases().values()
    table.run(10_000)
    assert table.fenced == ["b-1"]
    assert set(table.owners().values()) == {"a-1"}


def test_an_owner_in_a_long_call_is_not_fenced_for_a_late_release() -> None:
    table = RoundTable(with_settings(revoke_timeout_ms=10_000))
    table.start("b")
    table.run(1_000)
    slow = table.workers["b-1"]
    slow.mute.update(table.owners())
    slow.in_call = True
    table.start("a")
    table.run(60_000)
    assert table.fenced == []
    slow.in_call = False
    table.run(9_000)
    assert table.fenced == []
    table.run(3_000)
    assert table.fenced == ["b-1"]


# -- one name, two lives ----------------------------------------------------------------------------------------------


def test_S3_the_older_of_two_members_with_one_id_is_fenced() -> None:
    table = RoundTable()
    older = table.start("a", static=True)
    table.run(1_000)
    table.start("a", 2, static=True)
    table.run(1_000)
    assert table.fenced == ["a-1"]
    assert older.ended == EndIncarnation(
        reason="another process with group_instance_id a has joined",
        final=True,
        code="FENCED_INSTANCE",
    )
    assert set(table.owners().values()) == {"a-2"}
    assert len(targets(table)) == 1, "a restart is no reason for another target"


def test_S1_a_static_member_that_dies_and_returns_gets_its_tasks_back() -> None:
    table = RoundTable()
    for name in "ab":
        table.start(name, static=True)
    table.run(1_000)
    before = table.owners()
    table.kill("b-1")
    table.run(5_000)
    assert table.group.members["b-1"].phase == MemberPhase.GONE
    assert sorted(table.phases().values()) == ["RELEASED", "RELEASED", "RUNNING", "RUNNING"]
    table.start("b", 2, static=True)
    table.run(1_000)
    assert table.owners() == {
        task: "b-2" if owner == "b-1" else owner for task, owner in before.items()
    }
    assert len(targets(table)) == 1
    assert all(len(table.events(task)) == 1 for task, owner in before.items() if owner == "a-1")


def test_S1_tasks_move_after_the_rejoin_timeout_of_a_static_member() -> None:
    table = RoundTable()
    for name in "ab":
        table.start(name, static=True, rejoin_timeout_ms=10_000)
    table.run(1_000)
    table.kill("b-1")
    table.run(9_800)
    assert "RELEASED" in table.phases().values()
    table.run(400)
    assert set(table.owners().values()) == {"a-1"}
    assert "b-1" not in table.group.members


def test_S1_a_caught_up_standby_takes_over_immediately_and_the_task_returns_behind_a_learner() -> (
    None
):
    table = RoundTable(with_settings(num_standby_replicas=1))
    for name in "ab":
        table.start(name, static=True)
    table.run(2_000)
    theirs = sorted(task for task, owner in table.owners().items() if owner == "b-1")
    table.kill("b-1")
    table.run()
    assert set(table.owners().values()) == {"a-1"}
    table.start("b", 2, static=True)
    table.run(3_000)
    assert sorted(task for task, owner in table.owners().items() if owner == "b-2") == theirs
    for task in theirs:
        assert table.events(task)[-3:] == ["REVOKE", "RELEASED", "GRANT"]


# -- transactional ids ------------------------------------------------------------------------------------------------


def test_H8_another_transactional_id_is_logged_before_it_is_used() -> None:
    table = RoundTable()
    worker = table.start("a")
    table.run(1_000)
    name = f"{APP}-a-1-1"
    table.receive(
        TransactionalIdWanted(
            app=APP, member="a", incarnation="a-1", number=1, transactional_id=name
        )
    )
    table.run()
    assert table.group.members["a-1"].transactional_ids == (f"{APP}-a-1-0", name)
    assert not any(isinstance(order, UseTransactionalId) for order in worker.told), "it did not ask"


def test_H20_messages_of_strangers_change_nothing() -> None:
    table = RoundTable()
    table.start("a")
    table.run(1_000)
    records = len(table.log)
    for message in (
        MemberDied(app=APP, member="a", incarnation="a-0"),
        MemberDied(app="other", member="a", incarnation="a-1"),
        Leave(app=APP, member="z", incarnation="z-1"),
        Beat(app=APP, member="z", incarnation="z-1", seq=10**12),
    ):
        table.receive(message)
        table.run()
    assert len(table.log) == records


def test_releases_and_grants_of_a_death_are_one_transaction() -> None:
    table = RoundTable()
    table.start("a")
    table.run(1_000)
    table.start("b")
    table.run(8_000)
    table.slow_fences.add("b-1")
    table.kill("b-1")
    table.run(1_000)
    table.coordinator.fenced("b-1", table.now_ms)
    decision = table.coordinator.decide(table.now_ms)
    kinds = [
        record.event if isinstance(record, TaskRecord) else record.phase
        for record in decision.records
        if isinstance(record, TaskRecord | MemberRecord)
    ]
    assert kinds == ["FENCED", "RELEASED", "RELEASED", "GONE", "GRANT", "GRANT"]


def test_the_rejoin_timeout_does_not_restart_for_a_static_member_that_returns_during_its_fence() -> (
    None
):
    table = RoundTable()
    table.start("a", static=True)
    table.run(1_000)
    table.slow_fences.add("a-1")
    table.kill("a-1")
    table.run(100)
    table.start("a", 2, static=True)
    table.run(1_000)
    assert set(table.phases().values()) == {"FENCE_WAIT"}
    table.coordinator.fenced("a-1", table.now_ms)
    table.run(100)
    assert set(table.owners().values()) == {"a-2"}
    assert list(table.group.members) == ["a-2"]


def test_an_awaited_static_member_is_forgotten_with_its_topology() -> None:
    table = RoundTable()
    table.start("a", static=True, topology_hash="t")
    table.run(1_000)
    table.kill("a-1")
    table.run(100)
    assert "a-1" in table.group.members
    table.start("b", topology_hash="u")
    table.run(1_000)
    assert list(table.group.members) == ["b-1"]
    assert set(table.owners().values()) == {"b-1"}


def test_a_join_waits_while_the_group_has_its_maximum_of_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("leader.membership", "protocol.group"):
        monkeypatch.setattr(f"tidewheel.rebalance.{module}.MEMBERS_MAX", 2)
    table = RoundTable()
    for name in "abc":
        table.start(name)
    table.run(2_000)
    assert sorted(table.group.members) == ["a-1", "b-1"]
    table.kill("b-1")
    table.run(8_000)
    assert sorted(table.group.members) == ["a-1", "c-1"]


def test_L6_members_keep_tasks_that_do_not_move() -> None:
    table = RoundTable()
    tasks = stateful(12)
    workers = [table.start(name, tasks=tasks) for name in ("a", "b")]
    table.run(1_000)
    before = {
        str(task): (state.owner, state.task_epoch) for task, state in table.group.states.items()
    }
    table.start("c", tasks=tasks)
    table.run(20_000)
    after = {
        str(task): (state.owner, state.task_epoch) for task, state in table.group.states.items()
    }
    moved = {task for task, now in after.items() if now != before[task]}
    assert {after[task][0] for task in moved} == {"c-1"}
    assert len(moved) == 4
    released = [
        order.task for worker in workers for order in worker.told if isinstance(order, ReleaseTask)
    ]
    assert sorted(released) == sorted(moved)


def test_N7_each_member_expires_by_its_own_session_timeout() -> None:
    table = RoundTable()
    table.start("short", session_timeout_ms=3_000)
    table.start("long", session_timeout_ms=9_000)
    table.start("alive")
    table.run(1_000)
    for name in ("short", "long"):
        table.kill(f"{name}-1", seen=False)
    table.run(5_000)
    assert table.fenced == ["short-1"]
    assert table.group.members["long-1"].phase == MemberPhase.ACTIVE
    table.run(5_000)
    assert table.fenced == ["short-1", "long-1"]


def test_N7_leader_heartbeats_renew_leases() -> None:
    table = RoundTable()
    worker = table.start("a", session_timeout_ms=3_000)
    table.run(2_000)
    lease_ms = worker.member.decide(table.now_ms).lease_until_ms
    assert lease_ms is not None
    assert table.now_ms < lease_ms <= table.now_ms + 2_500


def test_N7_a_silent_leader_is_considered_failed() -> None:
    candidate = Election("p1", app=APP, jitter_seed=1, heartbeat_interval_ms=500, now_ms=0)
    beat = LeaderBeat(app=APP, member="p0", incarnation="p0", leader_epoch=3, seq=1)
    candidate.receive(beat, 100)
    assert candidate.decide(1_000).messages == ()
    suspected = candidate.decide(1_700)
    assert [type(message) for message in suspected.messages] == [Suspect]
    assert not suspected.claim
    candidate.receive(suspected.messages[0], 1_700)
    assert candidate.decide(2_200).claim
