"""Group status and alarms."""

import json
from dataclasses import asdict
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from tests.rebalance.leader.group_logs import LogBook, two_members
from tests.streams.group.fake_group import APP, beat
from tidewheel.rebalance.inspect.describe import LogEntry, fold_log
from tidewheel.rebalance.leader.log_steps import Claimant
from tidewheel.rebalance.leader.resting import hold_at_rest, order_rest
from tidewheel.rebalance.model import MemberPhase, TopicPartition
from tidewheel.rebalance.protocol.group import Group
from tidewheel.rebalance.protocol.messages import (
    JoinGroup,
    JoinRefused,
    LeaderBeat,
    Ready,
    TaskFailed,
)
from tidewheel.rebalance.protocol.records import LeaderClaim
from tidewheel.rebalance.protocol.task_status import RunningCall, TaskStatus
from tidewheel.streams.cli.group_view import body_lines
from tidewheel.streams.group.alarms import BrokerFacts, foreign_offsets
from tidewheel.streams.group.inbox import InboxFold
from tidewheel.streams.group.status import GroupStatus, group_status
from tidewheel.streams.group.topics import ReceivedMessage
from tidewheel.tasks.kafka.open_transactions import OpenTransaction
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector

LEADER = LeaderBeat(app=APP, member="p1", incarnation="p1", leader_epoch=1, seq=1)
JOIN = JoinGroup(
    app=APP,
    member="c",
    incarnation="c-1",
    transactional_ids=(),
    host="h-c",
    pid=1,
    process_id="p",
)

OPEN = OpenTransaction(
    partition=TopicPartition("orders", 3),
    start=5,
    end=9,
    servers="broker:9092",
    transactional_id="writer",
    producer_id=7,
    producer_epoch=2,
    state="CompleteAbort",
)


def _learning() -> LogBook:
    book = two_members().member("c")
    book.target({"0_0": "a", "0_1": "c", "0_2": "a", "0_3": "b"}, "c joined")
    return book.step({"0_1": ("c-1", 7)}, {"0_0": ("b-1", 8)}, parked=("0_3",)).after(1_000)


def _status(
    book: LogBook, *heard: tuple[int, object], around: BrokerFacts | None = None, later_ms: int = 0
) -> GroupStatus:
    """Return the status; each message is this many ms old."""
    inbox = InboxFold()
    for ago_ms, message in sorted(heard, key=lambda each: -each[0]):
        inbox.add(ReceivedMessage(book.now_ms - ago_ms, message))  # type: ignore[arg-type]  # tests say messages
    return group_status(
        APP, fold_log(book.entries), inbox, now_ms=book.now_ms + later_ms, around=around
    )


def _all_speak(book: LogBook) -> list[tuple[int, object]]:
    return [(100, LEADER), *((100, beat(record.member)) for record in book.group.live().values())]


def _names(status: GroupStatus) -> list[str]:
    return [alarm.name for alarm in status.alarms]


def test_N5_a_group_is_shown_without_a_request_to_a_member() -> None:
    book = _learning()
    told = TaskStatus(task="0_0", role="active", epoch=1, state="RUNNING", lag=40, rate=2_000.0)
    status = _status(book, (300, LEADER), (200, beat("a", told)), (200, beat("b")))
    assert (status.phase, status.leader, status.leader_epoch) == (
        "SYNC (RECONCILING)",
        "p1",
        1,
    )
    assert status.leader_heard_ms_ago == 300
    assert [(each.member, each.active, each.learner, each.standby) for each in status.members] == [
        ("a", ("0_0", "0_2"), (), ()),
        ("b", ("0_1", "0_3"), (), ("0_0",)),
        ("c", (), ("0_1",), ()),
    ]
    task = status.tasks[0]
    assert (task.task, task.member, task.phase, task.epoch, task.state) == (
        "0_0",
        "a",
        "RUNNING",
        1,
        "RUNNING",
    )
    assert (task.lag, task.rate, task.stale, task.since_ms) == (
        40,
        2_000.0,
        False,
        book.now_ms - 1_690,
    )
    assert (status.tasks[1].phase, status.tasks[1].target) == ("WARMING", "c")
    assert status.waiting == ("0_3",)


def test_a_learner_shows_progress_and_when_it_will_be_ready() -> None:
    told = TaskStatus(
        task="0_1",
        role="learner",
        epoch=7,
        state="RESTORING",
        changelog={"shop-counts-changelog-1": 750},
        ends={"shop-counts-changelog-1": 1_000},
        lag=250,
        rate=50.0,
    )
    (learner,) = _status(_learning(), (100, beat("c", told))).learners
    assert (learner.member, learner.done, learner.end, learner.lag) == ("c", 750, 1_000, 250)
    assert (learner.eta_s, learner.phase) == (5.0, "FOLLOWING")


@pytest.mark.parametrize("rate", [5e-324, 1e-290, 1e-9])
def test_figures_of_a_learner_stay_within_64_bits(rate: float) -> None:
    positions = dict.fromkeys(("t-0", "t-1", "t-2"), 2**63 - 1)
    learner = TaskStatus(
        task="0_1",
        role="learner",
        epoch=7,
        state="RESTORING",
        changelog=positions,
        ends=positions,
        lag=2**63 - 1,
        rate=rate,
    )
    status = _status(_learning(), (100, beat("c", learner)))
    (shown,) = status.learners
    assert (shown.done, shown.end, shown.eta_s) == (2**63 - 1, 2**63 - 1, None)
    assert orjson.loads(orjson.dumps(status.to_dict()))["learners"][0]["end"] == 2**63 - 1
    assert max(line.cell_len for line in body_lines(status, 80)) <= 80


def test_a_learner_that_announced_itself_is_ready() -> None:
    def ready(epoch: int) -> Ready:
        return Ready(
            app=APP, member="c", incarnation="c-1", task="0_1", learn_epoch=epoch,
            store_uuid="u", positions={}, ends={},
        )  # fmt: skip

    assert _status(_learning(), (100, ready(6))).learners[0].phase == "FOLLOWING"
    assert _status(_learning(), (100, ready(7))).learners[0].phase == "READY"


def test_the_status_of_an_earlier_copy_is_not_shown() -> None:
    told = TaskStatus(task="0_1", role="learner", epoch=6, state="RESTORING", lag=250, rate=50.0)
    (learner,) = _status(_learning(), (100, beat("c", told))).learners
    assert (learner.lag, learner.eta_s) == (None, None)


def test_figures_older_than_the_session_timeout_are_stale() -> None:
    told = TaskStatus(task="0_0", role="active", epoch=1, state="RUNNING", lag=40)
    book = two_members()
    fresh = _status(book, (0, beat("a", told)), later_ms=3_000)
    assert (fresh.tasks[0].stale, fresh.members[0].stale) == (False, False)
    old = _status(book, (0, beat("a", told)), later_ms=3_001)
    assert (old.tasks[0].stale, old.members[0].stale, old.tasks[0].lag) == (True, True, 40)
    assert old.tasks[1].stale  # without a report


def test_a_beat_without_unchanged_statuses_keeps_them_fresh() -> None:
    told = TaskStatus(task="0_0", role="active", epoch=1, state="RUNNING", lag=0)
    book = two_members()
    status = _status(book, (4_000, beat("a", told)), (100, beat("a", full=False)))
    assert (status.tasks[0].lag, status.tasks[0].stale) == (0, False)
    assert _status(book, (4_000, beat("a", told)), (100, beat("a"))).tasks[0].lag is None


def test_an_unknown_lag_is_none() -> None:
    told = TaskStatus(task="0_0", role="active", epoch=1, state="RUNNING", lag=-1)
    assert _status(two_members(), (0, beat("a", told))).tasks[0].lag is None


def test_a_settled_group_with_live_members_has_no_alarm() -> None:
    for book in (two_members(), _learning()):
        assert _status(book, *_all_speak(book)).alarms == ()


def test_a_group_is_json() -> None:
    status = _status(_learning())
    assert json.loads(json.dumps(status.to_dict())) == json.loads(json.dumps(asdict(status)))


def _dead(book: LogBook) -> LogBook:
    return book.member("b", MemberPhase.FENCING, reason="its process ended").after(11_000)


def _nobody(book: LogBook) -> LogBook:
    for name in "ab":
        book.member(name, MemberPhase.GONE)
    for task in ("0_0", "0_1", "0_2", "0_3"):
        book.released(task)
    return book


def _at_rest(book: LogBook) -> LogBook:
    return book.write(*hold_at_rest(book.group, "shop", Claimant(leader="rest-1")))


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        (
            lambda book: book.about("0_0", held="partitions: topic orders has 3"),
            "held",
            "decides nothing: partitions: topic orders has 3",
        ),
        (
            lambda book: book.write(*order_rest(book.group, {}, Claimant(leader="rest-1"))),
            "at-rest",
            "comes to rest: it takes no external input; `tidewheel group resume shop`",
        ),
        (_at_rest, "at-rest", "is at rest; `tidewheel group resume shop`"),
        (_dead, "fencing-takes-long", "h-b (b) is being fenced for 11.0 s"),
        (_nobody, "unowned-tasks", "no member runs 0_0, 0_1, 0_2, 0_3; start a member"),
        (
            lambda book: book.released("0_1").after(11_000),
            "unowned-tasks",
            "no member runs 0_1; check the members' logs",
        ),
        (
            lambda book: book.member("b", MemberPhase.PARKED, reason="its topology is newer"),
            "parked-member",
            "h-b (b) gets no tasks: its topology is newer",
        ),
    ],
)
def test_alarms_of_the_log(change: object, name: str, words: str) -> None:
    assert callable(change)
    book = two_members()
    change(book)
    status = _status(book, *_all_speak(book))
    assert _names(status) == [name]
    assert words in status.alarms[0].text


def test_a_fence_without_a_leader_is_no_slow_fence() -> None:
    book = two_members()
    for name in "ab":
        book.member(name, MemberPhase.FENCING, reason="its process ended")
    book.after(11_000)
    (alarm,) = _status(book, (11_000, LEADER)).alarms
    assert alarm.name == "no-leader"
    assert "must fence h-a (a), h-b (b) before their tasks continue" in alarm.text
    assert alarm.text.endswith("start a member")
    assert _names(_status(book, (100, LEADER))) == ["fencing-takes-long"] * 2


def test_N6_an_assignor_that_fails_is_an_alarm() -> None:
    book = two_members()
    told = LeaderBeat(
        app=APP, member="p1", incarnation="p1", leader_epoch=1, seq=2, alarms=("it gave no answer",)
    )
    status = _status(book, *_all_speak(book), (50, told))
    assert [alarm.text for alarm in status.alarms] == ["the leader reports: it gave no answer"]


def test_a_task_that_waits_for_a_restart_is_no_alarm() -> None:
    book = two_members().member("b", MemberPhase.GONE, rejoin_ms=60_000)
    book.released("0_1").released("0_3").after(20_000)
    assert _status(book, *_all_speak(book)).alarms == ()


@pytest.mark.parametrize(
    ("around", "name", "words"),
    [
        (
            BrokerFacts(subscribers=("'a' on h", "'b' on h")),
            "foreign-subscribers",
            "2 consumers are subscribed with group id shop ('a' on h, 'b' on h)",
        ),
        (
            BrokerFacts(foreign_offsets=(TopicPartition("orders", 3),)),
            "offsets-moved",
            "offsets of orders-3 were not written by this application",
        ),
        (
            BrokerFacts(topic_ids={"shop-group-state": "22"}),
            "control-topic-changed",
            "topic shop-group-state is another one than the group was led with",
        ),
        (
            BrokerFacts(topic_ids={}),
            "control-topic-changed",
            "topic shop-group-state is gone",
        ),
        (
            BrokerFacts(open_transactions=(OPEN,)),
            "open-transaction",
            "transactional id writer, producer id 7, epoch 2 in orders-3 holds back offsets 5 to 9",
        ),
        (BrokerFacts(problem="no rights"), "not-checked", "could not be checked: no rights"),
    ],
)
def test_alarms_from_reports_of_brokers(around: BrokerFacts, name: str, words: str) -> None:
    """H18, H19 and H24."""
    book = two_members()
    book.entries[0] = LogEntry(
        0,
        book.entries[0].timestamp_ms,
        LeaderClaim(leader_epoch=1, leader="p1", topic_ids={"shop-group-state": "11"}),
    )
    status = _status(book, *_all_speak(book), around=around)
    assert _names(status) == [name]
    assert words in status.alarms[0].text


def test_alarms_steer_no_terminal() -> None:
    around = BrokerFacts(open_transactions=(replace(OPEN, transactional_id="w\x1b[2J\nFAKE"),))
    (text,) = (
        each.text
        for each in _status(two_members(), around=around).alarms
        if each.name == "open-transaction"
    )
    assert "transactional id w [2J FAKE," in text


def test_alarms_of_the_inbox() -> None:
    book = two_members()
    assert _names(_status(book)) == ["no-leader", "silent-member", "silent-member"]
    status = _status(
        book,
        *_all_speak(book),
        (50, JOIN),
        (40, JoinRefused(app=APP, member="p1", incarnation="c-1", code="INCOMPATIBLE_ASSIGNOR", reason="no")),
        (
            30,
            TaskFailed(
                app=APP, member="b", incarnation="b-1", task="0_1", epoch=2, role="learner", detail="disk"
            ),
        ),
    )  # fmt: skip
    assert [alarm.text for alarm in status.alarms] == [
        "h-c (c) was refused (INCOMPATIBLE_ASSIGNOR): no",
        "0_1 could not be opened at h-b (b) as learner: disk",
    ]


def test_dropped_and_skipped_records_are_an_alarm() -> None:
    book = two_members()
    few = TaskStatus(task="0_0", role="active", epoch=1, state="RUNNING", dropped=1, drop="few")
    most = "249 records at AGGREGATE: late (first in-0 offset 1)"
    many = TaskStatus(
        task="0_1", role="active", epoch=1, state="RUNNING", dropped=249, drop=most, skipped=3
    )
    status = _status(book, (100, LEADER), (100, beat("a", few)), (100, beat("b", many)))
    assert _names(status) == ["dropped-records", "skipped-records"]
    assert "250 records" in status.alarms[0].text
    assert most in status.alarms[0].text
    assert "reset" in status.alarms[0].text  # the usual cause of late records
    other = _status(book, (100, LEADER), (100, beat("a", few)))
    (alarm,) = (alarm for alarm in other.alarms if alarm.name == "dropped-records")
    assert "reset" not in alarm.text
    assert "3 records of 0_1" in status.alarms[1].text
    assert {each.task: each.dropped for each in status.tasks if each.dropped} == {
        "0_0": 1,
        "0_1": 249,
    }


def test_N12_tasks_of_deleted_topics_are_shown_only_while_a_member_owns_them() -> None:
    book = two_members().about("0_0", "0_2").after(10)
    failed = TaskFailed(
        app=APP, member="b", incarnation="b-1", task="0_1", epoch=2, role="active", detail="no"
    )
    status = _status(book, *_all_speak(book), (30, failed))
    assert [each.task for each in status.tasks] == ["0_0", "0_1", "0_2", "0_3"]
    assert status.phase != "RUNNING"
    book.target({"0_0": "a", "0_2": "a"}).released("0_1").released("0_3").after(60_000)
    status = _status(book, *_all_speak(book), (30, failed))
    assert [each.task for each in status.tasks] == ["0_0", "0_2"]
    assert status.phase == "RUNNING"
    assert not status.alarms


def _committed(transactional_id: str, offset: int = 5) -> CommittedOffset:
    progress = Progress(
        task_epoch=3,
        transactional_id=transactional_id,
        topic_id=bytes(16),
        topology_hash=bytes(8),
        vector=Vector.at(offset),
    )
    return CommittedOffset(offset, progress.encode())


def test_foreign_offsets_are_distinguished_from_our_own() -> None:
    """H18: offsets of Kafka Streams raise no alarm."""
    partitions = [TopicPartition("orders", number) for number in range(4)]
    committed = dict(
        zip(
            partitions,
            [
                _committed("shop-a-1-0"),
                CommittedOffset(7, ""),
                _committed("bank-a-1-0"),
                CommittedOffset(7, "AgAAAAAAAAPo"),
            ],
            strict=True,
        )
    )
    assert foreign_offsets(APP, committed) == (partitions[1], partitions[2])


def test_live_members_are_listed_by_name() -> None:
    book = two_members()
    inbox = InboxFold()
    inbox.add(ReceivedMessage(book.now_ms, beat("a")))
    inbox.add(ReceivedMessage(book.now_ms - 6_001, beat("b")))
    inbox.add(ReceivedMessage(book.now_ms, beat("gone")))
    inbox.add(ReceivedMessage(book.now_ms, JOIN))
    assert inbox.live_members(book.group, book.now_ms) == ("a", "c")
    assert inbox.live_members(Group(), book.now_ms) == ("a", "c", "gone")


def test_a_flood_of_senders_is_forgotten_and_live_members_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidewheel.streams.group.inbox._SENDERS_MAX", 5)
    book, inbox = two_members(), InboxFold()
    status = TaskStatus(task="0_0", role="active", epoch=1, state="RUNNING")
    for number in range(50):
        stranger: dict[str, Any] = {"member": f"x{number}", "incarnation": f"x{number}-1"}
        for message in (
            replace(beat("b", status), **stranger),
            replace(JOIN, **stranger),
            JoinRefused(app=APP, code="X", reason="no", **stranger),
            Ready(
                app=APP, task="0_0", learn_epoch=1, store_uuid="", positions={}, ends={}, **stranger
            ),
        ):
            inbox.add(ReceivedMessage(book.now_ms, message))
        inbox.add(ReceivedMessage(book.now_ms, replace(beat("a", status), seq=number + 2)))
    for entries in (inbox.names, inbox.heard_ms, inbox.calls, inbox.tasks, inbox.joins,
                    inbox.refused, inbox.ready):  # fmt: skip
        assert len(entries) <= 5
    assert inbox.heard_ms.keys() <= inbox.names.keys()
    assert inbox.live_members(book.group, book.now_ms)[0] == "a"


def test_a_long_running_observer_removes_members_that_left() -> None:
    inbox = InboxFold()
    inbox.add(ReceivedMessage(0, JOIN))
    inbox.add(
        ReceivedMessage(
            0, JoinRefused(app=APP, member="p1", incarnation="d-1", code="X", reason="no")
        )
    )
    inbox.add(
        ReceivedMessage(
            0, beat("a", TaskStatus(task="0_0", role="active", epoch=1, state="RUNNING"))
        )
    )
    for now_ms in range(0, 5_000_000, 500_000):
        inbox.add(ReceivedMessage(now_ms, replace(beat("a", full=False), seq=now_ms + 2)))
        inbox.forget_old()
    assert inbox.heard_ms.keys() == inbox.names.keys() == inbox.tasks.keys() == {"a-1"}
    assert inbox.tasks["a-1"]
    assert not inbox.joins
    assert not inbox.refused


def test_F3_restores_without_progress_are_alarms_while_they_last() -> None:
    book = _learning()
    stuck = TaskStatus(
        task="0_0", role="active", epoch=1, state="RESTORING", waits="no progress: x"
    )
    gone = TaskStatus(task="0_1", role="active", epoch=1, state="RESTORING", waits="no progress: y")
    copy = TaskStatus(
        task="0_0", role="standby", epoch=8, state="RESTORING", waits="no progress: z"
    )
    status = _status(
        book, (300, LEADER), (200, beat("a", stuck, gone)), (200, beat("b", copy)), (200, beat("c"))
    )
    assert [each.text for each in status.alarms if each.name == "restore-waits"] == [
        "0_0 at h-a (a): restoring has made no progress: x",
        "0_0 at h-b (b): the standby has made no progress: z",
    ]
    again = replace(stuck, waits="")
    status = _status(book, (300, LEADER), (200, beat("a", again)), (200, beat("b")))
    assert "restore-waits" not in _names(status)


def test_sink_that_fails_is_an_alarm_while_it_lasts() -> None:
    book = _learning()
    failing = TaskStatus(task="0_0", role="active", epoch=1, state="RUNNING", sink="no flush: away")
    former = TaskStatus(task="0_0", role="active", epoch=1, state="RUNNING", sink="no flush: old")
    status = _status(book, (300, LEADER), (200, beat("a", failing)), (200, beat("b", former)))
    assert [each.text for each in status.alarms if each.name == "sink-fails"] == [
        "0_0 at h-a (a): its sink has made no flush: away; its rows wait in Kafka"
    ]
    status = _status(book, (300, LEADER), (200, beat("a", replace(failing, sink=""))))
    assert "sink-fails" not in _names(status)


def test_B9_a_long_call_is_an_alarm_while_its_worker_sends_beats() -> None:
    book = _learning()
    call = RunningCall(text="enrich (app.py:3) at map (task 0_0), orders-0 offset 5", ms=151_000)
    for is_long in (False, True):
        said = replace(beat("a"), call=replace(call, is_long=is_long))
        status = _status(book, (300, LEADER), (200, said), (200, beat("b")), (200, beat("c")))
        (member,) = [each for each in status.members if each.member == "a"]
        assert (member.call, member.call_ms) == (call.text, 151_000)
        texts = [each.text for each in status.alarms if each.name == "long-call"]
        assert [call.text in each for each in texts] == [True] * is_long
    status = _status(book, (300, LEADER), (200, said), (100, beat("a")))
    assert "long-call" not in _names(status)


@pytest.mark.parametrize(("lives", "is_alarm"), [(3, False), (4, True)])
def test_F3_a_member_that_restarts_repeatedly_is_an_alarm(lives: int, is_alarm: bool) -> None:
    book = two_members()
    for number in range(2, lives + 1):
        book.member("b", MemberPhase.GONE, life=number - 1)
        book.after(20_000).member("b", life=number)
    status = _status(book)
    assert ("restarting-member" in _names(status)) is is_alarm
    assert "restarting-member" not in _names(_status(book, later_ms=700_000))


def test_F3_repeated_claims_of_the_leadership_are_an_alarm() -> None:
    book = two_members()
    for epoch in range(2, 8):
        book.after(1_000).leader(f"p{epoch}")
    assert "restarting-leader" in _names(_status(book))
    assert "restarting-leader" not in _names(_status(book, later_ms=700_000))


def test_claims_of_commands_and_those_after_them_are_no_alarm() -> None:
    book = two_members()
    for number, command in enumerate(("rest", "rest", "backfill", "bootstrap", "resume")):
        book.after(1_000).leader(f"{command}-4f0c{number}")
        book.after(1_000).leader("p1")
    assert "restarting-leader" not in _names(_status(book))
