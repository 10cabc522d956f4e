"""Offset floors (H15): no later owner starts before a position that an earlier owner committed."""

from collections.abc import Callable

import pytest

from tests.tasks.loop.group_bench import APP, GroupBench, Host, granted
from tests.tasks.loop.test_moving_tasks import bench, fill, processed
from tidewheel import FencedError, StreamsError
from tidewheel.rebalance.leader.decision import CoordinatorSettings
from tidewheel.rebalance.leader.draft import Draft
from tidewheel.rebalance.leader.observations import Observations
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.rebalance.protocol.group import Group, apply
from tidewheel.rebalance.protocol.orders import RunTask, TaskReleased, TaskRunning
from tidewheel.rebalance.protocol.records import MemberRecord, TaskRecord

IN = TopicPartition("in", 0)
TASK = TaskId(0, 0)


def granted_after_fence(order: RunTask) -> RunTask:
    owned = TaskRecord(
        leader_epoch=0, task=order.task, phase="RUNNING", task_epoch=order.task_epoch, owner="a-1",
        input=order.input, changelog_end=order.changelog_end,
    )  # fmt: skip
    draft = Draft(
        group=apply(Group(), owned),
        observations=Observations(claimed_ms=0, ready_lag_max=0),
        settings=CoordinatorSettings(),
        now_ms=0,
    )
    draft.await_fence(TASK, "died", {})
    draft.release_by_fence(TASK)
    draft.grant(
        TASK, MemberRecord(leader_epoch=0, member="b", incarnation="b-1", phase="ACTIVE"), ""
    )
    state = draft.group.states[TASK]
    return RunTask(
        task=state.task,
        task_epoch=state.task_epoch,
        input=state.input,
        changelog_end=state.changelog_end,
    )


def left_at_three(group: GroupBench) -> TaskReleased:
    first = group.host("a")
    first.run_task("0_0", 1)
    fill(group, "abc")
    processed(group, first)
    return first.release("0_0", 1)


def fenced_above_its_floor(group: GroupBench) -> tuple[RunTask, Host]:
    """Fence an owner after its commit; return its order, and a host without tasks."""
    order = granted("0_0", 2, left_at_three(group))
    second, third = group.host("b"), group.host("c")
    second.member.give(order)
    fill(group, "abc")
    processed(group, second)
    third.worker._ports.admin.fence([f"{APP}-b-0"])
    fill(group, "abc")
    second.join()
    assert isinstance(second.error, FencedError)
    return order, third


def refused(host: Host, order: RunTask) -> str:
    host.member.give(order)
    host.join()
    assert isinstance(host.error, StreamsError), host.error
    return str(host.error)


def move_back(group: GroupBench, host: Host) -> str:
    host.worker._ports.admin.alter_committed(APP, {IN: 1})
    return "offset 1 is committed"


def delete_group(group: GroupBench, host: Host) -> str:
    host.worker._ports.admin.delete_group(APP)
    return "nothing is committed"


def recreate_topic(group: GroupBench, host: Host) -> str:
    """Brokers forget the offsets of a topic with it."""
    group.broker.delete_topic("in")
    group.broker.create_topic("in", 1)
    del group.broker.groups[APP][IN]
    fill(group, "abcdef")
    return "nothing is committed"


def recreate_topic_with_offsets(group: GroupBench, host: Host) -> str:
    group.broker.delete_topic("in")
    group.broker.create_topic("in", 1)
    fill(group, "abcdef")
    return "topic in was deleted and created again since offset 3"


@pytest.mark.parametrize(
    "harm", [move_back, delete_group, recreate_topic, recreate_topic_with_offsets]
)
def test_H15_a_restart_after_a_refusal_is_refused_too(
    harm: Callable[[GroupBench, Host], str],
) -> None:
    with bench() as group:
        left = left_at_three(group)
        hosts = [group.host(name) for name in "bcd"]
        said = harm(group, hosts[0])
        order = granted("0_0", 2, left)
        for host in hosts:
            error = refused(host, order)
            assert said in error
            assert "tidewheel reset" in error
            order = granted_after_fence(order)
        assert group.outputs() == {"a": [1], "b": [1], "c": [1]}


@pytest.mark.parametrize("fenced", [False, True])
def test_H15_corrected_offsets_end_the_refusals(fenced: bool) -> None:
    """After a fence they must be accepted by the operator: the log may not know them."""
    with bench() as group:
        left = left_at_three(group)
        second, third = group.host("b"), group.host("c", accept_offsets=fenced)
        move_back(group, second)
        order = granted("0_0", 2, left)
        refused(second, order)
        third.worker._ports.admin.alter_committed(APP, {IN: 3})
        third.member.give(granted_after_fence(order) if fenced else granted("0_0", 3, left))
        fill(group, "abc")
        processed(group, third)
        assert group.outputs() == {"a": [1, 2], "b": [1, 2], "c": [1, 2]}


def test_H18_offsets_set_back_to_the_floor_of_a_dead_owner_are_refused() -> None:
    """The log has the offset at which that owner began, and not the one that it committed."""
    with bench() as group:
        order, third = fenced_above_its_floor(group)
        third.worker._ports.admin.alter_committed(APP, {IN: 3})
        error = refused(third, granted_after_fence(order))
        assert "offset 3 of in-0 was not committed by application app" in error
        assert group.outputs() == {"a": [1, 2], "b": [1, 2], "c": [1, 2]}


def test_commits_of_a_fenced_owner_above_its_floor_are_accepted() -> None:
    with bench() as group:
        order, third = fenced_above_its_floor(group)
        third.member.give(granted_after_fence(order))
        processed(group, third)
        assert group.outputs() == {"a": [1, 2, 3], "b": [1, 2, 3], "c": [1, 2, 3]}


def test_H18_offsets_that_were_set_forward_are_refused() -> None:
    with bench() as group:
        order = granted("0_0", 2, left_at_three(group))
        fill(group, "abc")
        group.host("b").worker._ports.admin.alter_committed(APP, {IN: 5})
        error = refused(group.hosts[-1], order)
        assert "offset 5 of in-0 was not committed by application app" in error
        assert "the last owner left it at offset 3" in error
        third = group.host("c", accept_offsets=True)
        third.member.give(order)
        processed(group, third)
        assert group.outputs() == {"a": [1], "b": [1], "c": [1, 2]}


def test_H15_offsets_set_back_on_purpose_are_accepted() -> None:
    with bench() as group:
        order = granted("0_0", 2, left_at_three(group))
        second = group.host("b", accept_offsets=True, commit_interval_ms=60_000)
        move_back(group, second)
        second.member.give(order)
        second.said(TaskRunning)
        second.until(lambda: second.worker.metrics.commits)
        second.worker._ports.admin.fence([f"{APP}-b-0"])
        third = group.host("c")
        third.member.give(granted_after_fence(order))
        processed(group, third)
        assert third.error is None
        group.hosts.remove(second)
        second.worker.stop()
        second.join()


def test_offsets_of_removed_inputs_are_not_queried() -> None:
    with bench() as group:
        left = left_at_three(group)
        second = group.host("b")
        order = granted("0_0", 2, left)
        second.member.give(
            RunTask(
                task="0_0",
                task_epoch=2,
                input={**order.input, "former-0": 90},
                changelog_end=order.changelog_end,
            )
        )
        fill(group, "a")
        processed(group, second)
        assert group.outputs()["a"] == [1, 2]
