"""Refused or late starts of granted tasks affect only that task."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.tasks.loop.group_bench import APP, GroupBench, Host, granted
from tests.tasks.loop.test_moving_tasks import CHANGELOG, bench, fill, learn, processed
from tidewheel import StreamsError
from tidewheel.rebalance.model import TopicPartition
from tidewheel.rebalance.protocol.orders import (
    DropCopy,
    ReleaseTask,
    TaskBroken,
    TaskReleased,
    TaskRunning,
)
from tidewheel.tasks.kafka.ports import UnsettledOffsetsError

IN = TopicPartition("in", 0)


class Gate:
    def __init__(self, host: Host) -> None:
        self.asked, self.open = threading.Event(), threading.Event()
        admin: Any = host.worker._ports.admin
        inner = admin.committed

        def committed(*args: Any, stable: bool, **named: Any) -> Any:
            if stable:
                self.asked.set()
                assert self.open.wait(20)
            return inner(*args, stable=stable, **named)

        admin.committed = committed


@contextmanager
def asking(host: Host) -> Generator[Gate]:
    gate = Gate(host)
    try:
        yield gate
    finally:
        gate.open.set()


def left_at_three(group: GroupBench) -> TaskReleased:
    host = group.host("before")
    host.run_task("0_0", 6)
    fill(group, "abc")
    processed(group, host)
    return host.release("0_0", 6)


@pytest.mark.parametrize("keep", [0, 5])
def test_a_grant_revoked_during_its_offset_query_is_dropped_silently(
    keep: int,
) -> None:
    with bench(partitions=2) as group:
        first, second = group.host("a"), group.host("b")
        first.run_task("0_1", 1)
        left = left_at_three(group)
        with asking(first) as gate:
            first.member.give(granted("0_0", 7, left))
            assert gate.asked.wait(20)
            answer = first.release("0_0", 7, keep)
            assert answer.input == left.input
            second.run_task("0_0", 8, answer)
            fill(group, "abc")
            processed(group, second)
        if keep:
            first.ready("0_0", keep, end=group.end(0, CHANGELOG))
            first.member.give(DropCopy(task="0_0"))
        first.until(lambda: not first.disk.open_now["0_0"], "its database is closed")
        fill(group, "x", 1)
        processed(group, first, 1)
        assert not first.member.all_of(TaskBroken)
        # And it may have the task again.
        first.run_task("0_0", 9, second.release("0_0", 8))
        fill(group, "abc")
        processed(group, first)
        assert group.outputs() == {**{key: [1, 2, 3] for key in "abc"}, "x": [1]}


def test_a_promotion_revoked_during_its_offset_query_is_dropped_silently() -> None:
    with bench(partitions=2) as group:
        first, second = group.host("a"), group.host("b")
        first.run_task("0_1", 1)
        left = left_at_three(group)
        learn(first)
        first.ready("0_0", 1)
        with asking(first) as gate:
            first.member.give(granted("0_0", 7, left))
            assert gate.asked.wait(20)
            second.run_task("0_0", 8, first.release("0_0", 7, 2))
            fill(group, "abc")
            processed(group, second)
        first.ready("0_0", 2, end=group.end(0, CHANGELOG))
        assert first.rows("counts", "0_0") == second.rows("counts", "0_0")
        assert not first.member.all_of(TaskBroken)
        first.run_task("0_0", 9, second.release("0_0", 8))
        fill(group, "abc")
        processed(group, first)
        assert group.outputs() == {key: [1, 2, 3] for key in "abc"}


def test_a_grant_replaced_during_its_offset_query_starts_under_the_new_one() -> None:
    with bench(partitions=2) as group:
        first, second = group.host("a"), group.host("b")
        first.run_task("0_1", 1)
        left = left_at_three(group)
        with asking(first) as gate:
            first.member.give(granted("0_0", 7, left))
            assert gate.asked.wait(20)
            second.run_task("0_0", 8, left)
            fill(group, "abc")
            processed(group, second)
            after = second.release("0_0", 8)
            turns = first.member.turns
            first.member.give(granted("0_0", 9, after))
            first.until(lambda: not first.member.orders and first.member.turns > turns + 1)
        fill(group, "abc")
        processed(group, first)
        assert group.outputs() == {key: [1, 2, 3] for key in "abc"}
        assert not first.member.all_of(TaskBroken)


@contextmanager
def without_updater_results(host: Host) -> Generator[None]:
    updater: Any = host.worker._loop.manager._updater
    pop_results = updater.pop_results
    updater.pop_results = list
    try:
        yield
    finally:
        updater.pop_results = pop_results


def turned(host: Host) -> None:
    turns = host.member.turns
    host.until(lambda: not host.member.orders and host.member.turns > turns + 1)


def test_a_restore_result_after_the_next_grant_starts_the_task_once() -> None:
    with bench() as group:
        first = group.host("a")
        left = left_at_three(group)
        first.until(lambda: first.member.turns > 1)
        updater: Any = first.worker._loop.manager._updater
        with without_updater_results(first):
            first.member.give(granted("0_0", 7, left))
            first.until(lambda: not updater._results.empty(), "it is restored")
            answer = first.release("0_0", 7, 2)
            first.ready("0_0", 2, end=group.end(0, CHANGELOG))
            first.member.give(granted("0_0", 8, answer))
            turned(first)
        first.said(TaskRunning, task="0_0", task_epoch=8)
        fill(group, "abc")
        processed(group, first)
        assert not first.member.all_of(TaskBroken)
        assert group.outputs() == {key: [1, 2] for key in "abc"}


def test_a_later_grant_of_a_restored_task_restarts_it() -> None:
    with bench() as group:
        first = group.host("a")
        left = left_at_three(group)
        first.until(lambda: first.member.turns > 1)
        updater: Any = first.worker._loop.manager._updater
        with without_updater_results(first):
            first.member.give(granted("0_0", 7, left))
            first.until(lambda: not updater._results.empty(), "it is restored")
            first.member.give(granted("0_0", 8, left))
            turned(first)
        first.said(TaskRunning, task="0_0", task_epoch=8)
        fill(group, "abc")
        processed(group, first)
        assert group.outputs() == {key: [1, 2] for key in "abc"}


def test_a_refusal_after_the_next_grant_changes_nothing() -> None:
    with bench(partitions=2) as group:
        first, second = group.host("a"), group.host("b")
        first.run_task("0_1", 1)
        left = left_at_three(group)
        learn(first)
        first.ready("0_0", 1)
        with without_updater_results(first):
            with asking(first) as gate:
                first.member.give(granted("0_0", 7, left))
                assert gate.asked.wait(20)
                second.run_task("0_0", 8, first.release("0_0", 7, 2))
                fill(group, "abc")
                processed(group, second)
            first.ready("0_0", 2, end=group.end(0, CHANGELOG))
            first.member.give(granted("0_0", 9, second.release("0_0", 8)))
            turned(first)
        first.said(TaskRunning, task="0_0")
        fill(group, "abc")
        processed(group, first)
        assert not first.member.all_of(TaskBroken)
        assert group.outputs() == {key: [1, 2, 3] for key in "abc"}


@pytest.mark.parametrize("copy", [False, True])
def test_a_refused_start_leaves_the_other_tasks_running(copy: bool) -> None:
    with bench(partitions=3) as group:
        host = group.host("a")
        left = left_at_three(group)
        host.run_task("0_1", 1)
        if copy:
            learn(host)
            host.ready("0_0", 1)
        host.worker._ports.admin.alter_committed(APP, {IN: 1})
        host.member.give(granted("0_0", 7, left), granted("0_2", 1))
        broken = host.said(TaskBroken, task="0_0", epoch=7)
        assert broken.role == "active"
        assert "left it at offset 3, but offset 1 is committed" in broken.detail
        host.said(type(host.run_task("0_2", 1)), task="0_2")
        for partition in (1, 2):
            fill(group, "xy"[partition - 1], partition)
            processed(group, host, partition)
        host.until(lambda: not host.disk.open_now["0_0"], "its database is closed")
        host.worker._ports.admin.alter_committed(APP, {IN: 3})
        host.member.give(ReleaseTask(task="0_0", task_epoch=7))
        host.run_task("0_0", 8, left)
        fill(group, "abc")
        processed(group, host)
        assert group.outputs() == {**{key: [1, 2] for key in "abc"}, "x": [1], "y": [1]}


def test_offsets_are_queried_one_by_one_if_one_is_undecided() -> None:
    with bench(partitions=2) as group:
        host = group.host("a")
        admin: Any = host.worker._ports.admin
        inner = admin.committed

        def committed(group_id: str, partitions: Any, *, stable: bool) -> Any:
            if stable and partitions is not None and IN in partitions:
                raise UnsettledOffsetsError("undecided commits of in-0")
            return inner(group_id, partitions, stable=stable)

        admin.committed = committed
        host.member.give(granted("0_0", 1), granted("0_1", 1))
        broken = host.said(TaskBroken)
        assert (broken.task, broken.epoch) == ("0_0", 1)
        fill(group, "x", 1)
        processed(group, host, 1)


def test_a_worker_without_a_task_that_may_start_ends_with_the_reason() -> None:
    with bench(partitions=2) as group:
        left = left_at_three(group)
        host = group.host("a")
        host.worker._ports.admin.delete_group(APP)
        host.member.give(
            granted("0_0", 7, left),
            granted("0_1", 7, TaskReleased(task="0_1", task_epoch=6, input={"in-1": 2}, changelog_end={})),
        )  # fmt: skip
        host.join()
        assert isinstance(host.error, StreamsError)
        assert "nothing is committed" in str(host.error)
        assert {each.task for each in host.member.all_of(TaskBroken)} == {"0_0", "0_1"}
