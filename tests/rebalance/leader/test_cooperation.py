"""Tasks and silence of members while others join and leave."""

from tests.rebalance.leader.round_table import APP, RoundTable, stateful
from tidewheel.rebalance.model import MemberPhase
from tidewheel.rebalance.protocol.messages import LeaderBeat, Suspect
from tidewheel.rebalance.protocol.orders import ReleaseTask
from tidewheel.rebalance.runtime.election import Election


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
