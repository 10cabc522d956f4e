"""Application shutdown requested by a member (N14)."""

import msgspec

from tests.rebalance.leader.round_table import APP, HEARTBEAT_MS, RoundTable, Worker, join
from tidewheel.rebalance.member.member import Member
from tidewheel.rebalance.protocol.group import replay, snapshot
from tidewheel.rebalance.protocol.messages import AnyMessage, JoinGroup, ShutDown
from tidewheel.rebalance.protocol.orders import (
    EndApplication,
    WantShutdown,
    WorkerClosed,
    WorkerLeaves,
)
from tidewheel.rebalance.protocol.records import LeaderClaim, MemberRecord

REASON = "ValueError: no such city"


def request_shutdown(table: RoundTable, worker: Worker) -> None:
    worker.member.report(WantShutdown(reason=REASON), table.now_ms)


def reasons(worker: Worker) -> list[str]:
    return [each.reason for each in worker.told if isinstance(each, EndApplication)]


def said(table: RoundTable) -> list[ShutDown]:
    return [each for each in table.said if isinstance(each, ShutDown)]


def test_a_shutdown_reaches_every_member_once_including_the_requester() -> None:
    table = RoundTable()
    workers = [table.start(name) for name in "abc"]
    table.run(10_000)
    running = [set(each.running) for each in workers]

    request_shutdown(table, workers[1])
    table.run(5_000)

    assert [reasons(each) for each in workers] == [[f"b: {REASON}"]] * 3
    assert len(said(table)) == 1
    assert [set(each.running) for each in workers] == running
    assert table.fenced == []


def test_a_shutdown_does_not_apply_to_later_joiners() -> None:
    table = RoundTable()
    a, b = table.start("a"), table.start("b")
    table.run(10_000)
    request_shutdown(table, a)
    table.run(1_000)
    late = table.start("c")
    table.run(2_000)
    for worker in (a, b):
        worker.member.report(WorkerLeaves(), table.now_ms)
        table.run(1_000)
        worker.member.report(WorkerClosed(), table.now_ms)
    table.run(5_000)
    again = table.start("a", 2)
    table.run(5_000)

    assert (reasons(late), reasons(again)) == ([], [])
    assert set(late.running) | set(again.running) == set(table.owners())


def test_two_concurrent_shutdown_requests_end_the_application_once() -> None:
    table = RoundTable()
    a, b = table.start("a"), table.start("b")
    table.run(10_000)
    request_shutdown(table, a)
    request_shutdown(table, b)
    table.run(5_000)
    assert len(reasons(a)) == len(reasons(b)) == 1
    assert reasons(a) == reasons(b)


def test_a_shutdown_request_is_repeated_until_it_is_logged() -> None:
    hello = join("a")
    member = Member(
        hello, heartbeat_interval_ms=HEARTBEAT_MS, session_timeout_ms=3_000, now_ms=10_000
    )
    claim = LeaderClaim(leader_epoch=1, leader="p0")
    record = MemberRecord(leader_epoch=1, member="a", incarnation="a-1", phase="ACTIVE")
    member.follow(replay([claim, record]), 1, 10_000)
    member.decide(10_000)
    member.report(WantShutdown(reason=REASON), 10_100)
    times = [10_100, 10_100 + HEARTBEAT_MS, 10_100 + 2 * HEARTBEAT_MS]
    wish = ShutDown(app=APP, member="a", incarnation="a-1", reason=REASON)
    assert all(wish in member.decide(now_ms).messages for now_ms in times)

    ended = msgspec.structs.replace(record, shutdown=f"a: {REASON}")
    member.follow(replay([claim, ended]), 2, 12_000)
    decision = member.decide(12_000)
    assert EndApplication(reason=f"a: {REASON}") in decision.orders
    assert wish not in decision.messages


def test_a_stranger_cannot_request_a_shutdown() -> None:
    table = RoundTable()
    a = table.start("a")
    table.run(10_000)
    table.receive(ShutDown(app=APP, member="a", incarnation="a-0", reason=REASON))
    table.receive(ShutDown(app="other", member="a", incarnation="a-1", reason=REASON))
    table.run(2_000)
    assert reasons(a) == []


def test_the_next_leader_restates_a_shutdown_without_repeating_it_to_members() -> None:
    table = RoundTable()
    workers = [table.start(name) for name in "ab"]
    table.run(10_000)
    request_shutdown(table, workers[0])
    table.run(1_000)
    restated = replay([LeaderClaim(leader_epoch=9, leader="p1"), *snapshot(table.group, 9)])
    assert {each.shutdown for each in restated.live().values()} == {f"a: {REASON}"}
    table.lead("p1")
    table.run(2_000)
    assert [len(reasons(each)) for each in workers] == [1, 1]


def test_N14_a_leader_without_shutdown_support_ends_no_member() -> None:
    table = RoundTable()
    a = table.start("a")
    b = table.start("b")
    table.run(10_000)
    observe = table.coordinator.observe

    def older(message: AnyMessage, now_ms: int) -> None:
        if not isinstance(message, ShutDown):
            observe(message, now_ms)

    table.coordinator.observe = older  # type: ignore[method-assign]  # what it would do without that kind
    request_shutdown(table, a)
    table.run(5_000)
    assert reasons(a) == reasons(b) == []
    assert len(said(table)) > 1, "it is asked for again"
    assert set(table.owners().values()) == {"a-1", "b-1"}
    assert not any(isinstance(each, JoinGroup) for each in table.said[-3:])
