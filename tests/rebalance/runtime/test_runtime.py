"""`GroupRuntime` with real members, candidates and coordinators on in-memory topics."""

import json
import logging
import threading
from typing import Any

import msgspec
import pytest

from tests.fakes.group_log import FakeGroupLog
from tests.rebalance.leader.groups import (
    APP,
    HEARTBEAT_MS,
    SESSION_MS,
    STEP_MS,
    Process,
    Worker,
    World,
    welcomed,
)
from tidewheel.rebalance.model import MemberPhase
from tidewheel.rebalance.protocol.decoding import Rejection
from tidewheel.rebalance.protocol.group import replay
from tidewheel.rebalance.protocol.messages import (
    Beat,
    EraseKey,
    LeaderBeat,
    MemberDied,
    Suspect,
    encode_message,
)
from tidewheel.rebalance.protocol.orders import (
    EndIncarnation,
    EraseRows,
    MayClose,
    WorkerClosed,
    WorkerLeaves,
    WorkerStatus,
)
from tidewheel.rebalance.protocol.records import (
    LeaderClaim,
    MemberRecord,
    TargetRecord,
    TaskRecord,
    encode_record,
    read_record,
    record_key,
)
from tidewheel.rebalance.runtime import leadership
from tidewheel.rebalance.runtime.leadership import AUDIT_EACH_MS
from tidewheel.rebalance.runtime.ports import GroupLogAwayError


def _claims(world: World) -> list[LeaderClaim]:
    return [each for each in world.topics.records() if isinstance(each, LeaderClaim)]


def _group_of_two() -> tuple[World, Process, Process, Worker, Worker]:
    world = World()
    one = world.start("p1")
    first = one.start_worker("a")
    world.run(1_000)
    two = world.start("p2")
    second = two.start_worker("b")
    world.run(3_000)
    assert world.leaders() == [one]
    return world, one, two, first, second


def _check_ends_immediately(process: Process) -> None:
    """The process ends without waiting: its clock is frozen."""
    process.runtime.finish(3_000)
    ending = threading.Thread(target=process.runtime.run, daemon=True)
    ending.start()
    ending.join(10)
    assert not ending.is_alive()


def test_a_lone_worker_is_welcomed_and_runs_every_task() -> None:
    world = World()
    process = world.start("p1")
    worker = process.start_worker("a")
    world.run(1_500)
    assert welcomed(worker)
    assert worker.running == {"0_0", "0_1", "0_2", "0_3"}
    assert worker.line.leases[-1] > world.clock.now_ms()
    assert [claim.leader_epoch for claim in _claims(world)] == [1]


def test_S4_workers_that_start_together_share_the_tasks_by_one_target() -> None:
    world = World()
    workers = [world.start(f"p{each}").start_worker(f"m{each}") for each in range(3)]
    world.run(2_000)
    assert sorted(task for worker in workers for task in worker.running) == [
        "0_0", "0_1", "0_2", "0_3",
    ]  # fmt: skip
    targets = [each for each in world.topics.records() if isinstance(each, TargetRecord)]
    assert len({target.group_epoch for target in targets if target.owners}) == 1


def test_H1_a_killed_leader_is_replaced_before_leases_end() -> None:
    world, one, two, _, second = _group_of_two()
    kept = set(second.running)
    world.kill(one)
    for _ in range(200):
        world.run(10)
        assert second.line.leases[-1] > world.clock.now_ms()
        assert kept <= second.running
    assert world.leaders() == [two]
    assert [claim.leader_epoch for claim in _claims(world)] == [1, 2]


def test_a_dead_process_is_fenced_before_its_tasks_move() -> None:
    world, one, two, first, second = _group_of_two()
    lost = set(first.running)
    assert lost
    two.fences.held = True
    world.kill(one)
    world.run(4_000)
    assert two.admin.fenced == []
    assert not lost & second.running
    phases = [
        each.phase
        for each in world.topics.records()
        if isinstance(each, MemberRecord) and each.incarnation == "a-1"
    ]
    assert phases[-1] == MemberPhase.FENCING
    two.fences.release()
    world.run(500)
    assert two.admin.fenced == [(f"{APP}-a-1-0",)]
    assert lost <= second.running


def test_H5_members_that_died_with_the_leader_get_no_second_session() -> None:
    world, one, _, first, second = _group_of_two()
    lost = set(first.running)
    assert lost
    world.kill(one)
    world.run(SESSION_MS + 2 * HEARTBEAT_MS)
    assert lost <= second.running


def test_H5_a_leader_behind_on_the_inbox_gives_every_member_a_session() -> None:
    world, one, two, first, second = _group_of_two()
    world.kill(one)
    world.clock.advance(5_000)
    silent = first.incarnation
    claimed_ms = None
    for _ in range(400):
        world.run(STEP_MS)
        if claimed_ms is None and world.leaders() == [two]:
            claimed_ms = world.clock.now_ms()
        fenced = [each for each in two.admin.fenced if silent in each[0]]
        if fenced:
            break
    assert claimed_ms is not None
    assert world.clock.now_ms() - claimed_ms >= SESSION_MS - STEP_MS
    assert second.ended == ""


def test_the_death_of_a_worker_is_reported_immediately() -> None:
    world, _, two, first, second = _group_of_two()
    lost = set(second.running)
    two.workers.remove(second)
    two.runtime.died(second.incarnation, "its process has ended")
    two.run_once()
    assert [each.incarnation for each in world.messages(MemberDied)] == ["b-1"]
    world.run(SESSION_MS // 3)
    assert lost <= first.running


def test_a_leader_that_died_with_a_worker_does_not_hide_its_death() -> None:
    world, one, two, _, second = _group_of_two()
    two.workers.remove(second)
    third = world.start("p3").start_worker("c")
    world.run(2_000)
    world.kill(one)
    world.run(20)
    two.runtime.died(second.incarnation, "its process has ended")
    world.run(1_000)
    assert world.leaders() != []
    fenced = [ids for process in world.processes for ids in process.admin.fenced]
    assert (f"{APP}-b-1-0",) in fenced
    assert third.running


def test_H21_a_hung_worker_gets_no_heartbeats() -> None:
    world, _, _, first, second = _group_of_two()
    lost = set(second.running)
    second.line.hangs = True
    second.answers = False
    world.run(300)
    assert any(
        isinstance(each, Beat) and each.incarnation == "b-1"
        for each in world.topics.messages()[-12:]
    )
    world.run(400 + 2 * SESSION_MS)
    assert lost <= first.running


def test_a_worker_in_a_long_call_gets_heartbeats_up_to_its_limit() -> None:
    world = World()
    first = world.start("p1").start_worker("a")
    world.run(1_000)
    second = world.start("p2").start_worker("b", max_call_ms=5_000)
    world.run(3_000)
    kept = set(second.running)
    assert kept
    second.line.hangs, second.line.call_ms = True, world.clock.now_ms()
    second.answers = False
    world.run(4_500)
    assert second.running == kept
    assert not first.running & kept
    world.run(1_000 + 2 * SESSION_MS)
    assert kept <= first.running


def test_a_lone_worker_is_fenced_only_when_another_member_joins() -> None:
    world = World()
    process = world.start("p1")
    lone = process.start_worker("a", max_call_ms=1_000)
    world.run(1_500)
    lone.line.hangs, lone.line.call_ms = True, world.clock.now_ms()
    world.run(20_000)
    assert lone.running == {"0_0", "0_1", "0_2", "0_3"}
    assert [ids for each in world.processes for ids in each.admin.fenced] == []
    newcomer = world.start("p2").start_worker("b")
    world.run(3_000 + 2 * SESSION_MS)
    assert newcomer.running == {"0_0", "0_1", "0_2", "0_3"}


def test_an_unknown_outcome_ends_a_term_and_no_decision_is_repeated() -> None:
    world = World()
    process = world.start("p1")
    process.start_worker("a")
    world.run(1_000)
    world.topics.lose_outcome = True
    worker = process.start_worker("b")
    world.run(3_000)
    claims = [claim.leader_epoch for claim in _claims(world)]
    assert claims == sorted(set(claims))
    assert len(claims) == 2
    assert worker.running
    grants = [
        (each.task, each.task_epoch, each.owner)
        for each in world.topics.records()
        if isinstance(each, TaskRecord) and each.event == "GRANT"
    ]
    assert len({(task, epoch) for task, epoch, _ in grants}) == len(set(grants))


def test_H1_a_fenced_leader_steps_down() -> None:
    world, *_ = _group_of_two()
    stranger = world.topics.log()
    stranger.open(create=False, inbox_back_ms=0)
    stranger.claim()
    stranger.append([LeaderClaim(leader_epoch=2, leader="stranger")])
    world.run(20)
    assert world.leaders() == []
    world.run(3_000)
    assert len(world.leaders()) == 1
    assert [claim.leader_epoch for claim in _claims(world)] == [1, 2, 3]


def test_members_send_heartbeats_during_a_transaction() -> None:
    world, one, *_ = _group_of_two()
    one.leader.held = True
    world.start("p3").start_worker("c")  # gives the leader a record to write
    before = len([each for each in world.messages(Beat) if each.incarnation == "a-1"])
    world.run(10 * HEARTBEAT_MS)
    beats = len([each for each in world.messages(Beat) if each.incarnation == "a-1"]) - before
    assert beats >= 9
    assert one.leader.waiting


def test_an_unreachable_cluster_ends_no_member() -> None:
    world, _, _, first, second = _group_of_two()
    kept = (set(first.running), set(second.running))
    world.topics.away = True
    world.run(5_000)
    assert first.line.leases[-1] < world.clock.now_ms()
    world.topics.away = False
    world.run(8_000)
    assert len(world.leaders()) == 1
    for worker in (first, second):
        assert worker.line.leases[-1] > world.clock.now_ms()
        assert not worker.ended
    assert (first.running, second.running) == kept


def test_H5_an_unreachable_cluster_keeps_its_leader_who_gives_every_member_a_session() -> None:
    world, one, two, first, second = _group_of_two()
    kept = (set(first.running), set(second.running))
    world.topics.away = True
    world.run(20 * HEARTBEAT_MS)
    assert world.leaders() == [one]
    world.topics.away = False
    second.line.hangs, second.answers = True, False
    world.run(SESSION_MS - 2 * HEARTBEAT_MS)
    assert [*one.admin.fenced, *two.admin.fenced] == []
    assert (first.running, second.running) == kept
    world.run(3 * SESSION_MS)
    assert world.leaders() == [one]
    assert [claim.leader_epoch for claim in _claims(world)] == [1]
    assert one.admin.fenced == [(f"{APP}-b-1-0",)]
    assert kept[1] <= first.running


def test_a_leader_that_reads_none_of_its_beats_resigns_after_a_while() -> None:
    world, one, *_ = _group_of_two()
    world.topics.away = True
    world.run(60_000)
    assert one not in world.leaders()
    world.topics.away = False
    world.run(20_000)
    assert len(world.leaders()) == 1


def test_a_leader_keeps_leases_alive_during_a_long_transaction() -> None:
    world, one, _, _, second = _group_of_two()
    one.leader.held = True
    world.start("p3").start_worker("c")  # gives the leader a record to write
    for _ in range(100):
        world.run(100)
        assert second.line.leases[-1] > world.clock.now_ms()
    assert one.leader.waiting
    assert world.leaders() == [one]


def test_H5_a_resumed_watchdog_fences_no_member() -> None:
    world = World()
    process = world.start("p1")
    workers = [process.start_worker(name) for name in ("a", "b")]
    world.run(2_000)
    world.clock.advance(20_000)
    world.run(3_000)
    assert world.leaders() == [process]
    assert [worker.ended for worker in workers] == ["", ""]
    assert process.admin.fenced == []
    assert all(worker.line.leases[-1] > world.clock.now_ms() for worker in workers)


def test_the_start_waits_for_an_unreachable_cluster() -> None:
    world = World()
    world.topics.away = True
    worker = world.start("p1").start_worker("a")
    world.run(3_000)
    world.topics.away = False
    world.run(8_000)
    assert len(worker.running) == 4


def test_H24_a_failed_check_of_the_control_topics_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.start("p1").start_worker("a")
    world.run(1_000)
    times_ms: list[int] = []

    def fail(_: FakeGroupLog) -> dict[str, str]:
        times_ms.append(world.clock.now_ms())
        raise GroupLogAwayError("the cluster is away")

    monkeypatch.setattr(FakeGroupLog, "topic_ids", fail)
    world.run(12_000)
    assert len(times_ms) >= 2


def test_H24_deleted_control_topics_hold_the_group(caplog: pytest.LogCaptureFixture) -> None:
    world, _, _, first, second = _group_of_two()
    with caplog.at_level(logging.ERROR, "tidewheel.group"):
        world.topics.delete()
        world.run(100)
    assert "tidewheel group recover" in caplog.text
    leases = (first.line.leases[-1], second.line.leases[-1])
    world.topics.create()
    world.run(10_000)
    assert world.topics.messages() == []
    assert world.topics.state == []
    assert (first.line.leases[-1], second.line.leases[-1]) == leases
    assert world.leaders() == []


def test_H24_a_recovered_group_continues_with_new_incarnations() -> None:
    world, one, _, first, second = _group_of_two()
    world.topics.delete()
    world.run(100)
    world.topics.create()
    recovering = world.topics.log()
    ids = dict(recovering.open(create=False, inbox_back_ms=0))
    recovering.claim()
    recovering.append([LeaderClaim(leader_epoch=50, leader="recover", topic_ids=ids)])
    world.run(5_000)
    assert first.ended
    assert second.ended
    again = one.start_worker("a", incarnation="a-2")
    world.run(5_000)
    assert len(again.running) == 4
    assert [claim.leader_epoch for claim in _claims(world)][:2] == [50, 51]


def test_H24_a_worker_of_a_held_group_leaves_immediately() -> None:
    world, _, two, first, second = _group_of_two()
    world.topics.delete()
    world.run(100)
    two.runtime.report(second.incarnation, WorkerLeaves(drain_ms=25_000))
    two.run_once()
    assert second.line.orders[-1] == MayClose()
    assert MayClose() not in first.line.orders
    two.runtime.report(second.incarnation, WorkerClosed())
    _check_ends_immediately(two)


def test_H24_a_worker_leaving_before_the_hold_may_close() -> None:
    world, _, two, _, second = _group_of_two()
    dying = two.start_worker("c")
    world.run(1_000)
    second.answers = False
    two.runtime.report(second.incarnation, WorkerLeaves(drain_ms=25_000))
    world.run(50)
    assert MayClose() not in second.line.orders
    world.topics.delete()
    world.run(1_000)
    assert second.line.orders.count(MayClose()) == 1
    two.runtime.died(dying.incarnation, "its process has ended")
    two.runtime.report(second.incarnation, WorkerClosed())
    _check_ends_immediately(two)


def test_H24_an_empty_log_of_an_application_that_has_committed_is_not_claimed() -> None:
    world = World()
    process = world.start("p1")
    process.admin.used = True
    worker = process.start_worker("a")
    world.run(3_000)
    assert not welcomed(worker)
    assert _claims(world) == []


def test_the_successor_of_a_watchdog_repeats_its_orders() -> None:
    world, _, two, _, second = _group_of_two()
    grants = len(world.topics.records())
    world.kill(two)
    world.run(50)
    successor = world.start("p2-again")
    again = successor.start_worker("b", welcomed=True)
    world.run(500)
    assert again.running == second.running
    assert welcomed(again)
    assert again.line.leases[-1] > world.clock.now_ms()
    assert not [each for each in world.topics.records()[grants:] if isinstance(each, TaskRecord)]


def test_an_incarnation_missing_in_the_group_ends() -> None:
    world, _, two, *_ = _group_of_two()
    zombie = two.start_worker("z", welcomed=True)
    world.run(1_000)
    assert zombie.ended
    assert not welcomed(zombie)


def test_a_new_watchdog_keeps_worker_reports_from_before_it_read_the_log() -> None:
    world, _, two, first, second = _group_of_two()
    world.kill(two)
    successor = world.start("p2-again")
    again = successor.start_worker("b", welcomed=True)
    successor.runtime.report(second.incarnation, WorkerLeaves(drain_ms=25_000))
    world.run(1_000)
    assert again.line.orders.count(MayClose()) == 1
    assert first.running == {"0_0", "0_1", "0_2", "0_3"}


def test_a_death_before_the_new_watchdog_has_read_the_log_is_reported() -> None:
    world, _, two, first, second = _group_of_two()
    world.kill(two)
    successor = world.start("p2-again")
    successor.start_worker("b", welcomed=True)
    successor.runtime.died(second.incarnation, "its process has ended")
    world.run(SESSION_MS // 2)
    assert world.messages(MemberDied)
    assert first.running == {"0_0", "0_1", "0_2", "0_3"}


def test_a_report_does_not_revive_a_forgotten_incarnation() -> None:
    world, *_ = _group_of_two()
    successor = world.start("p3")
    zombie = successor.start_worker("z", welcomed=True)
    successor.run_once()  # the log is open but not read
    successor.runtime.report(zombie.incarnation, WorkerStatus())
    world.run(1_000)
    assert zombie.ended
    assert not welcomed(zombie)


def test_a_leader_that_closes_resigns_and_is_replaced_immediately() -> None:
    world, one, two, *_ = _group_of_two()
    one.workers.clear()
    one.runtime.stop()
    one.run_once()
    one.runtime._close()
    world.kill(one)
    assert any(isinstance(each, LeaderBeat) and each.resigns for each in world.topics.messages())
    world.run(3 * HEARTBEAT_MS)
    assert world.leaders() == [two]
    assert not world.messages(Suspect)


def test_H4_deleting_records_of_earlier_leaders_keeps_the_group() -> None:
    world, one, two, _, second = _group_of_two()
    world.kill(one)
    world.run(30_000)
    world.topics.compact()
    epochs = {row[0].split(b"/")[0] for row in world.topics.state if row is not None}
    assert epochs == {b"2"}
    late = world.start("p9")
    world.run(500)
    assert late.runtime.group == two.runtime.group
    assert second.running == {"0_0", "0_1", "0_2", "0_3"}


def test_H23_a_flood_of_one_sender_does_not_block_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, *_, first, second = _group_of_two()
    flood = encode_message(Suspect(app=APP, member="x", incarnation="x-1", leader_epoch=1))
    with caplog.at_level(logging.WARNING, "tidewheel.group"):
        for _ in range(20):
            world.topics.inbox += [flood] * 1_000
            world.run(50)
    assert "dropped" in caplog.text
    assert not first.ended
    assert not second.ended
    assert first.line.leases[-1] > world.clock.now_ms()


def test_H18_a_leader_detects_foreign_offsets(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leadership, "OFFSETS_CHECK_FIRST_MS", 100)
    monkeypatch.setattr(leadership, "OFFSETS_CHECK_AGAIN_MS", 200)
    world = World()
    process = world.start("p1")
    process.admin.foreign = ("orders-3",)
    process.start_worker("a")
    world.run(1_500)
    assert "orders-3 were not written by this application" in caplog.text
    assert caplog.text.count("orders-3") == 1
    beats = [each for each in world.topics.messages() if isinstance(each, LeaderBeat)]
    assert "orders-3 were not written by this application" in beats[-1].alarms[0]
    process.admin.foreign = ()
    world.run(500)
    beats = [each for each in world.topics.messages() if isinstance(each, LeaderBeat)]
    assert beats[-1].alarms == ()


def test_messages_of_other_applications_are_ignored() -> None:
    world, one, *_ = _group_of_two()
    world.topics.inbox.append(
        encode_message(LeaderBeat(app="other", member="x", incarnation="x", leader_epoch=9, seq=1))
    )
    world.run(1_000)
    assert world.leaders() == [one]


def test_an_unknown_kind_of_order_raises_an_alarm_and_ends_no_member(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, one, two, first, second = _group_of_two()
    data = msgspec.json.decode(encode_message(_deletion(one)))
    world.topics.inbox.append(msgspec.json.encode({**data, "kind": "ERASE_LATER"}))
    world.run(1_000)
    assert "is not known to this version" in caplog.text
    assert world.leaders() == [one]
    assert not first.ended
    assert not second.ended
    assert two.runtime.group == one.runtime.group
    beats = [each for each in world.topics.messages() if isinstance(each, LeaderBeat)]
    assert any("is not known to this version" in alarm for alarm in beats[-1].alarms)


def _deletion(process: Process) -> EraseKey:
    (task_epoch,) = {
        state.task_epoch
        for task, state in process.runtime.group.states.items()
        if str(task) == "0_0"
    }
    return EraseKey(
        app=APP,
        member="operator",
        incarnation="operator-1",
        request="r1",
        task="0_0",
        task_epoch=task_epoch,
        store="counts",
        key=b"alice",
    )


def test_the_owner_alone_is_ordered_to_delete_a_key() -> None:
    world, one, _, first, second = _group_of_two()
    world.topics.inbox.append(encode_message(_deletion(one)))
    world.run(1_000)
    owner, other = (first, second) if "0_0" in first.running else (second, first)
    assert not [each for each in other.line.orders if isinstance(each, EraseRows)]
    (order,) = [each for each in owner.line.orders if isinstance(each, EraseRows)]
    assert (order.store, order.key) == ("counts", b"alice")


def test_records_without_a_valid_author_are_ignored() -> None:
    world, one, *_ = _group_of_two()
    target = TargetRecord(leader_epoch=0, group_epoch=99, owners={})
    world.topics.state += [
        (b"nonsense", b"{}"),
        (b"", b"\xff"),
        (record_key(target), encode_record(target)),
    ]
    world.run(1_000)
    assert world.leaders() == [one]
    assert one.runtime.group.target.group_epoch < 99


def test_a_leader_restates_the_group_after_foreign_writes_to_its_log() -> None:
    world, one, two, first, second = _group_of_two()
    shares = (set(first.running), set(second.running))
    decided = one.runtime.group
    epoch = decided.leader_epoch
    world.topics.state.append((f"{epoch}/target".encode(), b"noise"))
    world.run(2 * AUDIT_EACH_MS)
    lie = TargetRecord(leader_epoch=epoch, group_epoch=99, owners={"0_0": "nobody"})
    world.topics.state.append((f"{epoch}/target".encode(), encode_record(lie)))
    world.run(4 * AUDIT_EACH_MS)
    world.topics.compact()
    assert replay(world.topics.records()).target.owners == decided.target.owners
    assert (
        one.runtime.group.target.owners == two.runtime.group.target.owners == decided.target.owners
    )
    assert (set(first.running), set(second.running)) == shares
    assert [claim.leader_epoch for claim in _claims(world)] == [1]


@pytest.mark.parametrize(
    "row",
    [
        {"kind": "MEMBER", "member": "b", "incarnation": "b-9", "phase": "ACTIVE"},
        {"kind": "MEMBER", "member": "b", "incarnation": "b-1", "phase": "FENCING"},
        {"kind": "TASK", "task": "0_0", "phase": "FENCE_WAIT", "task_epoch": 1, "owner": "a-1"},
        {"kind": "TASK", "task": "0_0", "phase": "RUNNING", "task_epoch": 5, "owner": "ghost"},
    ],
)
def test_a_group_works_after_one_forged_record_and_the_death_of_its_leader(
    row: dict[str, Any],
) -> None:
    world, one, two, _, second = _group_of_two()
    record = read_record(json.dumps({**row, "leader_epoch": 1}).encode())
    assert record is not None
    assert not isinstance(record, Rejection)
    world.topics.state.append((record_key(record), encode_record(record)))
    world.run(200)
    world.kill(one)
    world.run(1_000)
    if any(isinstance(order, EndIncarnation) for order in second.line.orders):
        second = two.start_worker("b", incarnation="b-2")
    world.run(8_000)
    assert second.running == {"0_0", "0_1", "0_2", "0_3"}
    group = two.runtime.group
    assert group.members.keys() == {second.incarnation}
    assert {state.owner for state in group.states.values()} == {second.incarnation}
    beats = [each for each in world.messages(LeaderBeat) if isinstance(each, LeaderBeat)]
    assert any("contradicted itself" in text for text in beats[-1].alarms)
