"""Leader takeover from the log alone (N4, H1, H4, H5)."""

import pytest

from tests.rebalance.leader.round_table import (
    APP,
    RoundTable,
    join,
    keys_of,
    stateful,
    with_settings,
)
from tidewheel.rebalance.protocol.group import replay, snapshot
from tidewheel.rebalance.protocol.messages import Beat, LeaderBeat, Suspect
from tidewheel.rebalance.protocol.orders import KeepCopy, TaskReleased
from tidewheel.rebalance.protocol.records import LeaderClaim, TaskRecord
from tidewheel.rebalance.protocol.task_status import TaskStatus


def settled_pair(**given: object) -> RoundTable:
    table = RoundTable(with_settings(**given))
    table.start("a")
    table.start("b")
    table.run(2_000)
    return table


def test_N4_a_new_leader_of_a_group_at_rest_changes_nothing() -> None:
    table = settled_pair(num_standby_replicas=1)
    told = {name: len(worker.told) for name, worker in table.workers.items()}
    table.lead("p1")
    records = len(table.log)
    table.run(10_000)
    assert len(table.log) == records
    assert told == {name: len(worker.told) for name, worker in table.workers.items()}


def test_N4_the_whole_log_and_its_newest_part_give_the_same_group() -> None:
    table = settled_pair(num_standby_replicas=1)
    table.lead("p1")
    table.start("c")
    table.run(10_000)
    newest = max(index for index, each in enumerate(table.log) if isinstance(each, LeaderClaim))
    assert replay(table.log) == replay(table.log[newest:]) == table.group
    again = [LeaderClaim(leader_epoch=9, leader="p9"), *snapshot(table.group, 9)]
    folded = replay(again)
    assert folded.states.keys() == table.group.states.keys()
    assert folded.step == table.group.step
    assert folded.target == table.group.target


def test_a_learner_continues_under_a_new_leader() -> None:
    table = RoundTable()
    table.start("a")
    table.run(1_000)
    b = table.start("b")
    table.run(3_000)
    planted = dict(b.copies)
    table.lead("p1")
    table.run(5_900)
    assert not b.running, "nobody knows for how long it has been here"
    table.run(600)
    assert sorted(b.running) == sorted(planted)
    keeps = [order for order in b.told if isinstance(order, KeepCopy)]
    assert len(keeps) == len(planted)


def test_H5_a_new_leader_ignores_readiness_reported_to_the_old_one() -> None:
    table = RoundTable()
    table.start("a")
    table.run(1_000)
    b = table.start("b")
    table.run(3_000)
    assert b.copies
    b.member._repeated.clear()
    table.lead("p1")
    table.run(10_000)
    assert not b.running


def test_L3_an_old_heartbeat_does_not_hide_the_state_of_a_task() -> None:
    table = RoundTable()
    a = table.start("a")
    table.run(1_000)
    b = table.start("b")
    b.catches_up = False
    table.run(8_000)
    assert sorted(a.running) == sorted(table.owners())
    table.lead("p1")
    rows = tuple(
        TaskStatus(task=task, role="active", epoch=epoch, state="RESTORING")
        for task, epoch in a.running.items()
    )
    table.receive(Beat(app=APP, member="a", incarnation="a-1", seq=0, full=True, tasks=rows))
    table.run(10_000)
    assert not b.running
    assert all(table.events(task) == ["GRANT", "GRANT"] for task in table.owners()), (
        "each is granted once, and restated by the claim"
    )


def test_a_new_leader_grants_the_tasks_of_a_dead_owner_to_standbys() -> None:
    table = settled_pair(num_standby_replicas=1)
    lost = [task for task, owner in table.owners().items() if owner == "a-1"]
    table.lead("p1")
    table.kill("a-1")
    table.run(1_000)
    for task in lost:
        assert table.owners()[task] == "b-1"
        granted = [each for each in table.log if isinstance(each, TaskRecord) and each.task == task]
        assert granted[-1].event == "GRANT"


def test_a_revocation_in_progress_ends_under_a_new_leader() -> None:
    table = RoundTable()
    a = table.start("a")
    table.run(1_000)
    b = table.start("b")
    a.mute.update({"0_0", "0_1", "0_2", "0_3"})
    table.run(7_000)
    revoking = sorted(task for task, phase in table.phases().items() if phase == "REVOKING")
    assert revoking
    for task in revoking:
        released = TaskReleased(
            task=task, task_epoch=1, input={}, changelog_end=dict.fromkeys(keys_of(task), 1_000)
        )
        a.member.report(released, table.now_ms)
        a.member._outgoing.clear()
    table.lead("p1")
    table.run(1_000)
    assert sorted(b.running) == revoking


def test_N3_a_new_leader_keeps_the_interval_between_moves() -> None:
    table = RoundTable(with_settings(task_move_interval_ms=4_000))
    table.start("a", tasks=stateful(8))
    table.run(1_000)
    b = table.start("b", tasks=stateful(8))
    table.run(6_500)
    assert len(b.running) == 1
    table.lead("p1")
    table.run(3_900)
    assert len(b.running) == 1
    table.run(700)
    assert len(b.running) == 2


# -- beats ------------------------------------------------------------------------------------------------------------


def test_a_suspected_leader_answers_immediately() -> None:
    """A lost beat deposes no leader (H2); doubts about an older leader are ignored."""
    table = settled_pair()
    table.run(260)
    beats = sum(isinstance(each, LeaderBeat) for each in table.said)
    table.receive(Suspect(app=APP, member="p2", incarnation="p2", leader_epoch=0))
    table.run()
    assert sum(isinstance(each, LeaderBeat) for each in table.said) == beats
    table.receive(Suspect(app=APP, member="p2", incarnation="p2", leader_epoch=1))
    table.run()
    assert sum(isinstance(each, LeaderBeat) for each in table.said) == beats + 1


def test_leader_heartbeats_list_seen_members_and_are_numbered() -> None:
    table = settled_pair()
    table.coordinator.state_offset = 77
    table.run(1_000)
    beats = [each for each in table.said if isinstance(each, LeaderBeat)]
    assert [each.seq for each in beats] == list(range(1, len(beats) + 1))
    assert beats[-1].seen.keys() == {"a-1", "b-1"}
    assert beats[-1].state_offset == 77
    assert beats[-1].leader_epoch == 1


def test_a_resigning_leader_sends_a_heartbeat() -> None:
    table = settled_pair()
    beat = table.coordinator.resign(table.now_ms)
    assert beat.resigns
    assert beat.leader_epoch == 1


@pytest.mark.parametrize("standbys", [0, 1])
def test_a_repeated_decision_without_changes_is_empty(standbys: int) -> None:
    table = settled_pair(num_standby_replicas=standbys)
    table.start("c")
    table.run(10_000)
    decision = table.coordinator.decide(table.now_ms)
    effects = (decision.records, decision.fences, decision.read_ends, decision.assign)
    assert not any(effects)
    assert decision.wake_ms > table.now_ms


def test_invariant_18_no_leader_accepts_a_late_join_of_an_ended_incarnation() -> None:
    table = settled_pair()
    table.kill("b-1")
    table.run(10_000)
    assert "b-1" not in table.group.members
    for leader in ("p1", "p2"):  # the second has it from the first one's snapshot
        table.lead(leader)
        table.run(1_000)
        before = len(table.log)
        table.receive(join("b"))
        table.run(2_000)
        assert len(table.log) == before
    assert set(table.group.members) == {"a-1"}
