"""The leader's observations: accepted and ignored messages (H13, H20)."""

import msgspec
import pytest

from tests.rebalance.leader.round_table import APP, join
from tidewheel.rebalance.leader.observations import (
    ENDED_MAX,
    FAILURE_BACK_OFF_MS,
    FAILURE_BACK_OFF_MS_MAX,
    TRANSACTIONAL_IDS_MAX,
    Observations,
)
from tidewheel.rebalance.model import TaskId, TaskShape
from tidewheel.rebalance.protocol.group import Group, replay
from tidewheel.rebalance.protocol.messages import (
    AnyMessage,
    Beat,
    DrainMember,
    GrantedOk,
    Leave,
    MemberDied,
    Ready,
    Revoked,
    TaskFailed,
    TransactionalIdWanted,
)
from tidewheel.rebalance.protocol.records import (
    Copy,
    LeaderClaim,
    MemberRecord,
    StepRecord,
    TaskRecord,
)
from tidewheel.rebalance.protocol.task_status import TaskStatus

TASK = TaskId(0, 1)
OF_A = {"app": APP, "member": "a", "incarnation": "a-1"}


def group(phase: str = "REVOKING") -> Group:
    """`a` owns 0_1 at epoch 3 and learns 0_2 at epoch 5."""
    return replay(
        [
            LeaderClaim(leader_epoch=1, leader="p0"),
            MemberRecord(leader_epoch=1, member="a", incarnation="a-1", phase="ACTIVE"),
            MemberRecord(leader_epoch=1, member="z", incarnation="z-1", phase="FENCING"),
            TaskRecord(leader_epoch=1, task="0_1", phase=phase, task_epoch=3, owner="a-1"),
            StepRecord(
                leader_epoch=1,
                group_epoch=1,
                step_epoch=5,
                learners={"0_2": Copy(incarnation="a-1", learn_epoch=5)},
            ),
        ]
    )


def fresh() -> Observations:
    return Observations(claimed_ms=0, ready_lag_max=10)


def beat(seq: int, *rows: TaskStatus, full: bool = False) -> Beat:
    return Beat(**OF_A, seq=seq, tasks=rows, full=full)  # type: ignore[arg-type]  # its sender


def row(task: str) -> TaskStatus:
    return TaskStatus(task=task, role="active", epoch=3, state="RUNNING")


READY = Ready(
    app=APP,
    member="a",
    incarnation="a-1",
    task="0_2",
    learn_epoch=5,
    store_uuid="u",
    positions={"c-2": 7},
    ends={},
)
REVOKED = Revoked(
    app=APP, member="a", incarnation="a-1", task="0_1", task_epoch=3, input={}, changelog_end={}
)
GRANTED = GrantedOk(app=APP, member="a", incarnation="a-1", task="0_1", task_epoch=3, input={})
FAILED = TaskFailed(
    app=APP, member="a", incarnation="a-1", task="0_1", epoch=3, role="active", detail="x"
)
FAILED_COPY = msgspec.structs.replace(FAILED, task="0_2", epoch=5, role="learner")


def test_heartbeat_rows_replace_older_ones_and_a_full_heartbeat_replaces_all() -> None:
    seen = fresh()
    seen.process(beat(1, row("0_1"), row("0_3"), row("nonsense")), group(), 100)
    seen.process(beat(2, row("0_1")), group(), 200)
    assert seen.of("a-1").rows.keys() == {TASK, TaskId(0, 3)}
    assert seen.of("a-1").heard_ms == 200
    seen.process(beat(3, row("0_1"), full=True), group(), 300)
    assert seen.of("a-1").rows.keys() == {TASK}
    seen.process(beat(3, row("0_9")), group(), 400)
    assert seen.of("a-1").heard_ms == 300


@pytest.mark.parametrize("message", [READY, REVOKED, GRANTED, FAILED, FAILED_COPY])
@pytest.mark.parametrize(
    "wrong",
    [
        {"task": "0_8"},
        {"task": "nonsense"},
        {"incarnation": "a-0"},
        {"incarnation": "z-1"},
        {"epoch": 2},
    ],
)
def test_H20_messages_that_contradict_the_log_are_not_recorded(
    message: AnyMessage, wrong: dict[str, object]
) -> None:
    fields = {
        name if name in message.__struct_fields__ else epoch: value
        for name, value in wrong.items()
        for epoch in ("learn_epoch", "task_epoch")
        if name in message.__struct_fields__ or epoch in message.__struct_fields__
    }
    seen = fresh()
    assert not seen.process(msgspec.structs.replace(message, **fields), group(), 100)
    assert not any((seen.announced.get(TaskId(0, 2)), seen.revoked, seen.running, seen.failures))
    assert seen.process(message, group(), 100)


def test_a_revocation_is_acknowledged_only_while_it_is_requested() -> None:
    seen = fresh()
    assert not seen.process(REVOKED, group("RUNNING"), 100)
    assert seen.process(REVOKED, group(), 100)


def test_a_repeated_message_changes_nothing() -> None:
    seen = fresh()
    leave = Leave(**OF_A, drain_ms=5)  # type: ignore[arg-type]  # its sender
    for message in (leave, GRANTED, FAILED, FAILED_COPY, READY):
        assert seen.process(message, group(), 100)
        assert not seen.process(message, group(), 200)


def test_H13_an_announcement_is_checked_with_ends_requested_after_it() -> None:
    seen = fresh()
    tasks = {TaskId(0, 2): TaskShape(stateful=True, changelogs=("c",))}
    seen.process(READY, group(), 100)
    seen.record_ends({"c-2": 30}, 99, tasks)
    assert seen.announced[TaskId(0, 2)]["a-1"].checked_ms is None
    seen.record_ends({"c-9": 30}, 150, tasks)
    assert seen.announced[TaskId(0, 2)]["a-1"].checked_ms is None
    seen.record_ends({"c-2": 30}, 150, tasks)
    assert seen.announced[TaskId(0, 2)]["a-1"].lag == 23
    onward = msgspec.structs.replace(READY, positions={"c-2": 29})
    assert seen.process(onward, group(), 200), "it was too far behind: it is worth another look"
    found = seen.announced[TaskId(0, 2)]["a-1"]
    assert (found.lag, found.checked_ms, found.since_ms, found.heard_ms) == (23, 150, 100, 200)
    for other in ({"store_uuid": "v"}, {"positions": {"c-2": 28}}):
        seen.process(onward, group(), 300)
        seen.process(msgspec.structs.replace(onward, **other), group(), 400)
        found = seen.announced[TaskId(0, 2)]["a-1"]
        assert (found.lag, found.checked_ms, found.since_ms) == (-1, None, 400)


def test_H13_ends_are_compared_with_the_announcement_before_their_request() -> None:
    seen = fresh()
    tasks = {TaskId(0, 2): TaskShape(stateful=True, changelogs=("c",))}
    seen.process(READY, group(), 100)
    seen.process(msgspec.structs.replace(READY, positions={"c-2": 30}), group(), 160)
    seen.record_ends({"c-2": 30}, 150, tasks)
    assert seen.announced[TaskId(0, 2)]["a-1"].lag == 23, "by then the end may be further, too"
    seen.record_ends({"c-2": 31}, 161, tasks)
    assert seen.announced[TaskId(0, 2)]["a-1"].lag == 1


def test_older_ends_do_not_replace_newer_ones() -> None:
    seen = fresh()
    seen.record_ends({"c-2": 30}, 150, {})
    seen.record_ends({"c-2": 20}, 140, {})
    assert seen.ends["c-2"].offset == 30


def test_repeated_failures_back_off_longer() -> None:
    seen = fresh()
    pauses: list[int] = []
    for number in range(8):
        seen.failed_copies.clear()
        seen.process(FAILED_COPY, group(), 1_000 * number)
        pauses.append(seen.failures[TaskId(0, 2), "a"].until_ms - 1_000 * number)
    assert pauses[:3] == [FAILURE_BACK_OFF_MS, 2 * FAILURE_BACK_OFF_MS, 4 * FAILURE_BACK_OFF_MS]
    assert pauses[-1] == FAILURE_BACK_OFF_MS_MAX
    seen.process(READY, group(), 9_000)
    seen.failed_copies.clear()
    seen.process(FAILED_COPY, group(), 70_000)
    failure = seen.failures[TaskId(0, 2), "a"]
    assert failure.until_ms == 70_000 + FAILURE_BACK_OFF_MS_MAX, "it was ready for a moment only"
    late_ms = failure.until_ms + FAILURE_BACK_OFF_MS_MAX
    seen.failed_copies.clear()
    seen.process(FAILED_COPY, group(), late_ms)
    assert seen.failures[TaskId(0, 2), "a"].until_ms == late_ms + FAILURE_BACK_OFF_MS


def test_a_withdrawn_join_is_forgotten() -> None:
    seen = fresh()
    seen.process(join("b"), group(), 100)
    assert [each.incarnation for each in seen.pending(group())] == ["b-1"]
    seen.process(MemberDied(app=APP, member="b", incarnation="b-1"), group(), 200)
    assert not seen.pending(group())
    assert seen.process(join("b"), group(), 300), "it is to be told"
    assert seen.returned == ["b-1"]
    assert not seen.pending(group())


def test_an_operator_drains_only_active_members() -> None:
    wish = DrainMember(app=APP, member="cli", incarnation="cli", target="a", drain_ms=5)
    leaving = replay(
        [MemberRecord(leader_epoch=1, member="a", incarnation="a-1", phase="LEAVING")], group()
    )
    assert not fresh().process(wish, leaving, 100)
    assert not fresh().process(msgspec.structs.replace(wish, target="z"), group(), 100)
    assert fresh().process(wish, group(), 100)


def test_H23_the_number_of_transactional_ids_is_bounded() -> None:
    ids = tuple(f"{APP}-a-1-{number}" for number in range(TRANSACTIONAL_IDS_MAX))
    full = MemberRecord(
        leader_epoch=1, member="a", incarnation="a-1", phase="ACTIVE", transactional_ids=ids
    )
    wanted = TransactionalIdWanted(**OF_A, number=1, transactional_id="more")  # type: ignore[arg-type]  # its sender
    assert fresh().process(wanted, group(), 100)
    assert not fresh().process(wanted, replay([full], group()), 100)


def test_ended_incarnations_are_remembered_up_to_a_limit() -> None:
    seen = fresh()
    for number in range(ENDED_MAX + 5):
        seen.forget(f"x-{number}")
    assert len(seen.ended) == ENDED_MAX


def test_failures_are_forgotten_with_their_incarnation() -> None:
    seen = fresh()
    failed = TaskFailed(**OF_A, task="0_2", epoch=5, role="learner", detail="no space")  # type: ignore[arg-type]  # its sender
    assert seen.process(failed, group(), 100)
    assert seen.failed_copies
    seen.forget("a-1")
    assert not seen.failed_copies
