"""The member alone: messages, orders, repetitions (N7, H7, H8, H20)."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from tests.rebalance.leader.round_table import APP, HEARTBEAT_MS, SESSION_MS, join, on_disk
from tidewheel.rebalance.member.member import JOIN_AGAIN_HEARTBEATS, Member, MemberDecision
from tidewheel.rebalance.protocol.group import Group, replay
from tidewheel.rebalance.protocol.inbox_limit import InboxLimit
from tidewheel.rebalance.protocol.messages import (
    AnyMessage,
    Beat,
    DiskCopy,
    EraseKey,
    GrantedOk,
    JoinGroup,
    JoinRefused,
    KeyErased,
    LeaderBeat,
    Leave,
    MemberDied,
    Ready,
    Revoked,
    SeenTask,
    TaskFailed,
    TransactionalIdWanted,
)
from tidewheel.rebalance.protocol.orders import (
    AnyReport,
    CopyNotReady,
    CopyReady,
    EndIncarnation,
    EraseRows,
    MayClose,
    RowsErased,
    RunTask,
    SetRest,
    TaskBroken,
    TaskReleased,
    TaskRunning,
    TasksSeen,
    UseTransactionalId,
    WantTransactionalId,
    Welcome,
    WorkerClosed,
    WorkerInCall,
    WorkerLeaves,
    WorkerStatus,
)
from tidewheel.rebalance.protocol.records import (
    AnyRecord,
    Copy,
    GroupRecord,
    LeaderClaim,
    MemberRecord,
    StepRecord,
    TaskRecord,
)
from tidewheel.rebalance.protocol.rest import Rest
from tidewheel.rebalance.protocol.task_status import RunningCall, TaskStatus

START_MS = 10_000


def new_member(**given: Any) -> Member:
    return Member(
        join("a", **given),
        heartbeat_interval_ms=HEARTBEAT_MS,
        session_timeout_ms=SESSION_MS,
        now_ms=START_MS,
    )


def me(phase: str = "ACTIVE", **given: Any) -> MemberRecord:
    plain = MemberRecord(
        leader_epoch=1,
        member="a",
        incarnation="a-1",
        phase=phase,
        transactional_ids=(f"{APP}-a-1-0",),
    )
    return msgspec.structs.replace(plain, **given)


def task(phase: str = "RUNNING", epoch: int = 3, **given: object) -> TaskRecord:
    plain = TaskRecord(
        leader_epoch=1, task="0_1", phase=phase, task_epoch=epoch, owner="a-1", member="a"
    )
    return msgspec.structs.replace(plain, **given)


def learner(epoch: int = 5) -> StepRecord:
    return StepRecord(
        leader_epoch=1,
        group_epoch=1,
        step_epoch=epoch,
        learners={"0_2": Copy(incarnation="a-1", learn_epoch=epoch)},
    )


def group(*records: AnyRecord) -> Group:
    return replay([LeaderClaim(leader_epoch=1, leader="p0"), *records])


def admitted(*records: AnyRecord, **given: Any) -> Member:
    member = new_member(**given)
    member.follow(group(me(), *records), 10, START_MS)
    member.decide(START_MS)
    return member


def said(decision: MemberDecision, kind: type[AnyMessage]) -> list[AnyMessage]:
    return [message for message in decision.messages if isinstance(message, kind)]


def test_a_member_joins_at_each_heartbeat_until_its_join_is_logged() -> None:
    member = new_member()
    assert member.decide(START_MS).messages == (join("a"),)
    assert member.decide(START_MS + 100).messages == ()
    assert member.decide(START_MS + 500).messages == (join("a"),)
    member.follow(group(me()), 10, START_MS + 600)
    decision = member.decide(START_MS + 600)
    assert decision.orders == (Welcome(transactional_id=f"{APP}-a-1-0"),)
    (beat,) = decision.messages
    assert isinstance(beat, Beat)
    assert (beat.leader_epoch, beat.state_offset) == (1, 10)
    assert member.decide(START_MS + 700).orders == ()


def test_a_rest_is_ordered_once_and_again_after_a_change() -> None:
    rest = Rest(epoch=1)
    about = GroupRecord(leader_epoch=1, rest=rest)
    member = admitted()
    for record, orders in (
        (about, (SetRest(rest=rest),)),
        (msgspec.structs.replace(about, assignor="other"), ()),
        (GroupRecord(leader_epoch=1), (SetRest(),)),
    ):
        member.follow(group(me(), record), 11, START_MS)
        assert member.decide(START_MS).orders == orders
    replaced = new_member()  # after a restart of the watchdog
    replaced.follow(group(me(), about, task()), 12, START_MS)
    welcome, run = replaced.decide(START_MS).orders
    assert welcome == Welcome(transactional_id=f"{APP}-a-1-0", rest=rest)
    assert isinstance(run, RunTask)


def test_a_repeated_join_has_no_start_positions() -> None:
    member = new_member(on_disk=(on_disk("0_1", 7),))
    (first,) = said(member.decide(START_MS), JoinGroup)
    assert first == join("a", on_disk=(on_disk("0_1", 7),))
    member.follow(group(me()), 10, START_MS)
    member.decide(START_MS)
    member.report(
        TasksSeen(tasks=(SeenTask(task="0_9", stateful=True),), partitions={"orders": 10}), START_MS
    )
    (again,) = said(member.decide(START_MS + 1), JoinGroup)
    assert isinstance(again, JoinGroup)
    assert again.on_disk == (DiskCopy(task="0_1"),)


def test_heartbeat_numbers_increase_over_a_new_watchdog() -> None:
    first = admitted()
    last = 0
    for now_ms in range(START_MS, START_MS + 20_000, HEARTBEAT_MS):
        for beat in said(first.decide(now_ms), Beat):
            assert isinstance(beat, Beat)
            assert beat.seq > last
            last = beat.seq
    later_ms = START_MS + 20_000
    second = Member(
        join("a"),
        heartbeat_interval_ms=HEARTBEAT_MS,
        session_timeout_ms=SESSION_MS,
        now_ms=later_ms,
    )
    second.follow(group(me()), 10, later_ms)
    (beat,) = said(second.decide(later_ms), Beat)
    assert isinstance(beat, Beat)
    assert beat.seq > last


def test_the_lease_starts_when_the_acknowledged_heartbeat_was_sent() -> None:
    member = new_member()
    member.follow(group(me()), 10, START_MS)
    (beat,) = said(member.decide(START_MS), Beat)
    assert isinstance(beat, Beat)
    assert member.decide(START_MS + 1).lease_until_ms is None
    ack = LeaderBeat(
        app=APP, member="p0", incarnation="p0", leader_epoch=1, seq=1, seen={"a-1": beat.seq}
    )
    for other in (
        {"leader_epoch": 0},
        {"app": "other"},
        {"seen": {"a-1": 1}},
        {"seen": {"b-1": beat.seq}},
    ):
        member.receive(msgspec.structs.replace(ack, **other), START_MS + 300)
        assert member.decide(START_MS + 300).lease_until_ms is None
    member.receive(ack, START_MS + 400)
    assert member.decide(START_MS + 400).lease_until_ms == START_MS + SESSION_MS - HEARTBEAT_MS


def test_the_lease_of_an_admitted_member_starts_at_its_first_join() -> None:
    member = new_member()
    for late_ms in (0, 2 * HEARTBEAT_MS):
        (joined,) = said(member.decide(START_MS + late_ms), JoinGroup)
        assert isinstance(joined, JoinGroup)
        assert member.decide(START_MS + late_ms + 1).lease_until_ms is None
    let_in_ms = START_MS + 3 * HEARTBEAT_MS
    member.follow(group(me(), task()), 10, let_in_ms)
    decision = member.decide(let_in_ms)
    assert decision.lease_until_ms == START_MS + SESSION_MS - HEARTBEAT_MS
    assert said(decision, Beat), "and asks for a longer one at once"


def test_a_watchdog_sends_no_heartbeat_for_a_hung_worker() -> None:
    member = admitted(task())
    member.set_health(False, START_MS + 500)
    member.report(TaskRunning(task="0_1", task_epoch=3, input={}), START_MS + 500)
    assert member.decide(START_MS + 600).messages == ()
    member.set_health(True, START_MS + 5_000)
    decision = member.decide(START_MS + 5_000)
    assert said(decision, Beat)
    assert said(decision, GrantedOk)


REPORTS: list[tuple[AnyReport, type[AnyMessage], tuple[AnyRecord, ...]]] = [
    (
        TaskReleased(task="0_1", task_epoch=3, input={"t-1": 7}, changelog_end={"c-1": 9}),
        Revoked,
        (task("RELEASED", owner=None),),
    ),
    (
        CopyReady(task="0_2", learn_epoch=5, store_uuid="u", positions={}, ends={}),
        Ready,
        (StepRecord(leader_epoch=1, group_epoch=1, step_epoch=6),),
    ),
    (
        TaskBroken(task="0_1", epoch=3, role="active", detail="x"),
        TaskFailed,
        (task("RELEASED", owner=None),),
    ),
    (TaskBroken(task="0_2", epoch=5, role="learner", detail="x"), TaskFailed, (learner(6),)),
]


@pytest.mark.parametrize(("report", "kind", "after"), REPORTS)
def test_announcements_are_repeated_until_they_are_logged(
    report: AnyReport, kind: type[AnyMessage], after: tuple[AnyRecord, ...]
) -> None:
    before = (task("REVOKING"), learner())
    member = admitted(*before)
    member.report(report, START_MS + 100)
    assert len(said(member.decide(START_MS + 100), kind)) == 1
    assert not said(member.decide(START_MS + 200), kind)
    assert len(said(member.decide(START_MS + 500), kind)) == 1
    assert len(said(member.decide(START_MS + 1_000), kind)) == 1
    member.follow(group(me(), *before, *after), 12, START_MS + 1_100)
    assert not said(member.decide(START_MS + 1_500), kind)


def test_the_heartbeat_repeats_the_newest_announcement_of_a_copy() -> None:
    member = admitted(learner())
    first = CopyReady(task="0_2", learn_epoch=5, store_uuid="u", positions={"c-2": 1}, ends={})
    member.report(first, START_MS + 100)
    assert said(member.decide(START_MS + 100), Ready)
    member.report(msgspec.structs.replace(first, positions={"c-2": 2}), START_MS + 200)
    assert not member.decide(START_MS + 200).messages
    (ready,) = said(member.decide(START_MS + 500), Ready)
    assert isinstance(ready, Ready)
    assert ready.positions == {"c-2": 2}
    member.report(CopyNotReady(task="0_2", learn_epoch=5, reason="behind"), START_MS + 600)
    assert [type(each).__name__ for each in member.decide(START_MS + 600).messages] == ["NotReady"]
    assert not said(member.decide(START_MS + 1_000), Ready)


def test_H8_a_transactional_id_is_used_only_after_it_is_logged() -> None:
    member = admitted()
    member.report(WantTransactionalId(number=1), START_MS + 100)
    (wanted,) = member.decide(START_MS + 100).messages
    assert isinstance(wanted, TransactionalIdWanted)
    assert wanted.transactional_id == f"{APP}-a-1-1"
    assert said(member.decide(START_MS + 500), TransactionalIdWanted)
    ids = (f"{APP}-a-1-0", f"{APP}-a-1-1")
    member.follow(group(me(transactional_ids=ids)), 11, START_MS + 600)
    decision = member.decide(START_MS + 1_000)
    assert decision.orders == (UseTransactionalId(number=1, transactional_id=ids[1]),)
    assert not said(decision, TransactionalIdWanted)


@pytest.mark.parametrize(
    ("records", "final", "code"),
    [
        ((me("FENCING", reason="no beat"),), False, "FENCED"),
        ((me("FENCED", reason="no beat"),), False, "FENCED"),
        ((me("GONE", reason="no beat", rejoin_ms=9),), False, "FENCED"),
        ((me("GONE"),), False, "FENCED"),
        (
            (me("ACTIVE", incarnation="a-2"), me("FENCING", reason="another")),
            True,
            "FENCED_INSTANCE",
        ),
    ],
)
def test_a_fenced_incarnation_ends(records: tuple[AnyRecord, ...], final: bool, code: str) -> None:
    member = admitted(task())
    member.follow(group(me(), task(), *records), 12, START_MS + 100)
    decision = member.decide(START_MS + 100)
    (end,) = decision.orders
    assert isinstance(end, EndIncarnation)
    assert (end.final, end.code) == (final, code)
    assert decision.over
    assert not decision.messages


def test_a_refused_joiner_ends_finally() -> None:
    refused = JoinRefused(
        app=APP, member="p0", incarnation="a-1", code="INCOMPATIBLE_TOPOLOGY", reason="other"
    )
    inside = admitted()
    inside.receive(refused, START_MS)
    assert not inside.decide(START_MS).over
    member = new_member()
    member.receive(msgspec.structs.replace(refused, incarnation="b-1"), START_MS)
    assert not member.decide(START_MS).over
    member.receive(refused, START_MS)
    decision = member.decide(START_MS + 1)
    assert decision.orders == (
        EndIncarnation(reason="other", final=True, code="INCOMPATIBLE_TOPOLOGY"),
    )
    assert decision.over


def test_a_member_that_missed_its_end_may_return_as_a_new_incarnation() -> None:
    member = new_member()
    member.decide(START_MS)
    ended = JoinRefused(app=APP, member="p0", incarnation="a-1", code="FENCED", reason="is over")
    member.receive(ended, START_MS + 100)
    decision = member.decide(START_MS + 100)
    assert decision.orders == (EndIncarnation(reason="is over", final=False, code="FENCED"),)
    member = new_member()
    for now_ms in range(START_MS, START_MS + 2_000, HEARTBEAT_MS):
        assert member.decide(now_ms).messages
    decision = member.decide(START_MS + 2_000 + SESSION_MS)
    assert not decision.messages
    assert decision.over
    (end,) = decision.orders
    assert isinstance(end, EndIncarnation)
    assert not end.final


def test_a_member_without_messages_does_not_wake_repeatedly() -> None:
    hangs, goes = admitted(task()), admitted()
    hangs.set_health(False, START_MS + 100)
    goes.report(WorkerLeaves(), START_MS + 100)
    goes.follow(group(me("GONE")), 12, START_MS + 100)
    assert goes.decide(START_MS + 100).orders == (MayClose(),)
    for member in (hangs, goes):
        now_ms = START_MS + 10 * HEARTBEAT_MS
        decision = member.decide(now_ms)
        assert not decision.messages
        assert not decision.over
        assert decision.wake_ms >= now_ms + HEARTBEAT_MS
    hangs.set_health(True, now_ms + 1)
    assert said(hangs.decide(now_ms + 1), Beat)


@pytest.mark.parametrize("copies", [100, 600])
def test_H23_many_announcements_are_repeated_in_turns(copies: int) -> None:
    standbys: dict[str, tuple[Copy, ...]] = {
        f"1_{n}": (Copy(incarnation="a-1", learn_epoch=5),) for n in range(copies)
    }
    step = StepRecord(leader_epoch=1, group_epoch=1, step_epoch=5, standbys=standbys)
    member = admitted(task("REVOKING"), step)
    for name in standbys:
        ready = CopyReady(task=name, learn_epoch=5, store_uuid="s", positions={}, ends={})
        member.report(ready, START_MS)
    member.report(TaskReleased(task="0_1", task_epoch=3, input={}, changelog_end={}), START_MS)
    member.decide(START_MS)  # all of it is sent once
    limit, heard, released = InboxLimit(), Counter[str](), 0
    for now_ms in range(START_MS + HEARTBEAT_MS, START_MS + 20_000, HEARTBEAT_MS):
        for message in member.decide(now_ms).messages:
            assert limit.admits("a-1", now_ms), f"dropped: {message}"
            heard.update([message.task] if isinstance(message, Ready) else [])
            released += isinstance(message, Revoked)
    assert heard.keys() == standbys.keys()
    assert max(heard.values()) - min(heard.values()) <= 1, "none more often than the others"
    assert released == 39


def test_a_death_is_reported_until_it_is_logged() -> None:
    member = admitted(task())
    member.died("killed by signal 9", START_MS + 10)
    decision = member.decide(START_MS + 10)
    assert decision.messages == (
        MemberDied(app=APP, member="a", incarnation="a-1", reason="killed by signal 9"),
    )
    assert not decision.over
    assert said(member.decide(START_MS + 510), MemberDied)
    member.follow(group(me("FENCING"), task("FENCE_WAIT")), 12, START_MS + 600)
    assert member.decide(START_MS + 600).over


def test_the_join_of_a_worker_that_dies_before_its_admission_is_withdrawn_once() -> None:
    member = new_member()
    member.decide(START_MS)
    member.died("killed", START_MS + 10)
    decision = member.decide(START_MS + 10)
    assert [type(each) for each in decision.messages] == [MemberDied]
    assert decision.over


def test_L4_a_member_repeats_its_leave_until_it_is_logged_and_closes_without_tasks() -> None:
    member = admitted(task())
    member.report(WorkerLeaves(drain_ms=9_000), START_MS + 100)
    (leave,) = said(member.decide(START_MS + 100), Leave)
    assert isinstance(leave, Leave)
    assert leave.drain_ms == 9_000
    assert said(member.decide(START_MS + 600), Leave)
    leaving = me("LEAVING", drain_ms=9_000)
    member.follow(group(leaving, task()), 12, START_MS + 700)
    decision = member.decide(START_MS + 1_100)
    assert not said(decision, Leave)
    assert said(decision, Beat)
    assert not decision.orders
    member.follow(group(leaving, task("RELEASED", owner=None)), 13, START_MS + 1_200)
    decision = member.decide(START_MS + 1_200)
    assert decision.orders == (MayClose(),)
    assert not decision.over
    member.report(WorkerClosed(), START_MS + 1_300)
    assert member.decide(START_MS + 1_300).over


def test_a_join_is_repeated_while_the_group_lacks_its_tasks() -> None:
    member = admitted()
    joins = [
        message
        for now_ms in range(START_MS + 500, START_MS + 6_000, 500)
        for message in member.decide(now_ms).messages
        if isinstance(message, JoinGroup)
    ]
    assert len(joins) == 12 // JOIN_AGAIN_HEARTBEATS


def test_B9_heartbeats_name_the_long_call_of_the_worker() -> None:
    member = admitted()
    call = RunningCall(text="enrich (app.py:3), in-0 offset 5", ms=2_000)
    said: list[RunningCall | None] = []
    for now_ms, told in ((500, call), (1_000, None)):
        member.report(WorkerInCall(call=told), START_MS + now_ms)
        said += [
            each.call
            for each in member.decide(START_MS + now_ms + 500).messages
            if isinstance(each, Beat)
        ]
    assert said == [call, None]


def test_copies_missing_in_the_log_are_dropped() -> None:
    member = admitted(task(), learner())
    rows = (
        TaskStatus(task="0_1", role="active", epoch=3, state="RUNNING"),
        TaskStatus(task="0_2", role="learner", epoch=5, state="RUNNING"),
        TaskStatus(task="0_3", role="standby", epoch=2, state="RUNNING"),
    )
    member.report(WorkerStatus(tasks=rows), START_MS + 100)
    orders = member.decide(START_MS + 100).orders
    assert [(type(each).__name__, getattr(each, "task", "")) for each in orders] == [
        ("DropCopy", "0_3")
    ]


def test_a_new_watchdog_repeats_all_orders() -> None:
    member = new_member()
    member.follow(group(me(), task(input={"t-1": 7}), learner()), 10, START_MS)
    kinds = [type(order).__name__ for order in member.decide(START_MS).orders]
    assert kinds == ["Welcome", "RunTask", "KeepCopy"]
    member.follow(group(me(), task(input={"t-1": 7}), learner()), 11, START_MS)
    assert not [each for each in member.decide(START_MS).orders if isinstance(each, RunTask)]


def erase_message(**given: Any) -> EraseKey:
    plain = EraseKey(
        app=APP,
        member="operator",
        incarnation="operator-1",
        request="r1",
        task="0_1",
        task_epoch=3,
        store="counts",
        key=b"alice",
        tail=8,
    )
    return msgspec.structs.replace(plain, **given)


def test_the_owner_of_a_task_orders_a_deletion() -> None:
    member = admitted(task())
    for _ in range(2):
        member.receive(erase_message(), START_MS + 10)
        assert member.decide(START_MS + 10).orders == (
            EraseRows(request="r1", task="0_1", task_epoch=3, store="counts", key=b"alice", tail=8),
        )


@pytest.mark.parametrize(
    "given",
    [{"task_epoch": 2}, {"task_epoch": 4}, {"task": "0_2"}, {"app": "other"}],
    ids=["former owner", "later owner", "another task", "another application"],
)
def test_a_deletion_for_another_owner_is_not_ordered(given: dict[str, Any]) -> None:
    member = admitted(task())
    member.receive(erase_message(**given), START_MS + 10)
    assert member.decide(START_MS + 10).orders == ()


def test_an_incarnation_without_tasks_orders_no_deletion() -> None:
    for member in (new_member(), admitted(), admitted(task("RELEASED", owner=None, member=None))):
        member.receive(erase_message(), START_MS + 10)
        orders = member.decide(START_MS + 10).orders
        assert not [each for each in orders if isinstance(each, EraseRows)]


def test_a_deletion_is_answered() -> None:
    member = admitted(task())
    member.report(
        RowsErased(request="r1", task="0_1", rows=2, first=7, last=8, problem=""), START_MS + 10
    )
    (answer,) = said(member.decide(START_MS + 10), KeyErased)
    assert answer == KeyErased(
        app=APP, member="a", incarnation="a-1", request="r1", task="0_1", rows=2, first=7, last=8
    )
    assert not said(member.decide(START_MS + 1_000), KeyErased)


def test_the_text_of_a_deletion_hides_its_key() -> None:
    order = EraseRows(request="r1", task="0_1", task_epoch=3, store="counts", key=b"alice")
    assert "alice" not in repr(erase_message()) + repr(order)
