"""Moves of tasks between workers: nothing is lost, doubled or read twice, other tasks continue."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.fakes.clients import FakeTransactionalProducer
from tests.tasks.loop.group_bench import GroupBench, Host, IdleReader, granted
from tests.tasks.loop.test_stream_worker import counting
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.rebalance.protocol.orders import (
    CopyReady,
    DropCopy,
    KeepCopy,
    ReleaseTask,
    TaskReleased,
    WorkerStatus,
)
from tidewheel.tasks.loop import task_manager
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

CHANGELOG = "app-counts-changelog"


def bench(partitions: int = 1, **settings: Any) -> GroupBench:
    return GroupBench(counting(caching=False), {"in": partitions, "out": partitions}, **settings)


def fill(group: GroupBench, keys: str, partition: int = 0) -> None:
    for key in keys:
        group.send(key, partition=partition)


def processed(group: GroupBench, host: Host, partition: int = 0) -> None:
    host.until(lambda: group.committed(partition) >= group.end(partition), "processing")
    # Brokers know a commit before the stores do; the worker's next report comes after both.
    said = len(host.member.all_of(WorkerStatus))
    host.until(lambda: len(host.member.all_of(WorkerStatus)) > said, "the commit's end")


def learn(host: Host, task: str = "0_0", epoch: int = 1, role: str = "learner") -> None:
    host.member.give(KeepCopy(task=task, role=role, learn_epoch=epoch))


def test_L1_a_task_is_granted_run_and_released() -> None:
    with bench() as group:
        first = group.host("a")
        answer = first.run_task("0_0", 1)
        assert (answer.input, answer.restored) == ({"in-0": 0}, 0)
        fill(group, "aab")
        processed(group, first)
        released = first.release("0_0", 1)
        assert released.input == {"in-0": 3}
        assert released.changelog_end[f"{CHANGELOG}-0"] > 0
        assert not released.kept
        assert group.outputs() == {"a": [1, 2], "b": [1]}


@pytest.mark.parametrize("patience_s", [600.0, 0.0])
def test_a_new_workers_state_changes_once(
    patience_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_manager, "_FIRST_TASKS_S", patience_s)
    with bench() as group:
        host = group.host("a")
        if patience_s:
            host.until(lambda: host.member.all_of(WorkerStatus), "the loop works")
            assert host.running == []
            host.run_task("0_0", 1)
            host.until(lambda: host.running == [False, True], "the first task runs")
        else:
            host.until(lambda: host.running == [True], "without a task for it, it runs")


def test_L1_a_learner_is_promoted_in_place_and_reads_no_record_twice() -> None:
    with bench() as group:
        first, second = group.host("a"), group.host("b")
        first.run_task("0_0", 1)
        fill(group, "abcabc")
        processed(group, first)
        learn(second)
        second.ready("0_0", 1)
        fill(group, "aab")
        processed(group, first)
        opened = second.disk.opened["0_0"]
        released = first.release("0_0", 1)
        running = second.run_task("0_0", 2, released)
        assert running.input == released.input
        assert second.disk.opened["0_0"] == opened == 1
        assert set(second.read.values()) == {1}
        assert second.rows("counts", "0_0") == first.rows("counts", "0_0")
        fill(group, "ab")
        processed(group, second)
        assert group.outputs() == {
            "a": [1, 2, 3, 4, 5],
            "b": [1, 2, 3, 4],
            "c": [1, 2],
        }


def test_L2_a_copy_announces_readiness_and_its_progress() -> None:
    with bench() as group:
        first, second = group.host("a"), group.host("b")
        first.run_task("0_0", 1)
        fill(group, "abc")
        processed(group, first)
        learn(second, epoch=7)
        ready = second.ready("0_0", 7)
        assert ready.store_uuid
        assert ready.ends.keys() == ready.positions.keys() == {f"{CHANGELOG}-0"}
        fill(group, "abc")
        processed(group, first)
        later = second.ready("0_0", 7, end=group.end(0, CHANGELOG))
        assert later.store_uuid == ready.store_uuid
        assert later.positions[f"{CHANGELOG}-0"] > ready.positions[f"{CHANGELOG}-0"]


def test_N1_a_release_does_not_stop_the_other_tasks() -> None:
    with bench(partitions=3) as group:
        host = group.host("a")
        for number in range(3):
            host.run_task(f"0_{number}", 1)
        (source,) = host.sources
        assigned: list[set[int]] = []
        inner = source.assign
        source.assign = lambda positions: (assigned.append(set()), inner(positions))[1]  # type: ignore[method-assign,func-returns-value]
        for _ in range(50):
            for number in range(3):
                fill(group, "ab", number)
        released = host.release("0_1", 1)
        for number in (0, 2):
            fill(group, "ab", number)
            processed(group, host, number)
        assert not assigned
        assert not source.paused
        assert {each.partition for each in source.positions()} == {0, 2}
        assert group.committed(1) == released.input["in-1"]
        assert sorted(host.worker.tasks) == [TaskId(0, 0), TaskId(0, 2)]


def test_a_released_task_is_kept_as_a_copy_and_returns() -> None:
    with bench() as group:
        first, second = group.host("a"), group.host("b")
        first.run_task("0_0", 1)
        fill(group, "abc")
        processed(group, first)
        released = first.release("0_0", 1, keep=5)
        assert released.kept
        first.ready("0_0", 5)
        second.run_task("0_0", 2, released)
        fill(group, "aab")
        processed(group, second)
        again = second.release("0_0", 2)
        back = first.run_task("0_0", 3, again)
        assert back.input == again.input
        assert first.disk.opened["0_0"] == 1
        assert set(first.read.values()) == {1}
        assert min(offset for _, _, offset in first.read) >= sum(released.changelog_end.values())
        fill(group, "a")
        processed(group, first)
        assert group.outputs()["a"] == [1, 2, 3, 4]


def test_a_dropped_copy_is_closed_and_sends_no_reports() -> None:
    with bench() as group:
        first, second = group.host("a"), group.host("b")
        first.run_task("0_0", 1)
        fill(group, "abc")
        processed(group, first)
        learn(second)
        second.ready("0_0", 1)
        second.member.give(DropCopy(task="0_0"))
        second.until(lambda: not second.disk.open_now["0_0"], "closing")
        second.member.forget()
        fill(group, "abc")
        processed(group, first)
        assert not second.member.all_of(CopyReady)
        learn(second, epoch=2)
        second.ready("0_0", 2)


def test_repeated_orders_are_answered_again() -> None:
    with bench() as group:
        host = group.host("a")
        host.run_task("0_0", 1)
        fill(group, "ab")
        processed(group, host)
        host.member.forget()
        assert host.run_task("0_0", 1).input == {"in-0": 2}
        released = host.release("0_0", 1)
        host.member.forget()
        assert host.release("0_0", 1) == released
        assert host.disk.opened["0_0"] == 1
        host.member.forget()
        assert host.release("0_0", 9) == TaskReleased(
            task="0_0", task_epoch=9, input={}, changelog_end={}
        )
        host.member.forget()
        host.member.give(granted("0_0", 1))
        assert host.said(TaskReleased) == released
        assert not host.worker.tasks
        host.run_task("0_0", 10, released)


def test_N1_tasks_that_are_released_together_share_one_commit() -> None:
    with bench(partitions=3, commit_interval_ms=60_000) as group:
        host = group.host("a")
        for number in range(3):
            host.run_task(f"0_{number}", 1)
            fill(group, "ab" * (number + 1), number)
            processed(group, host, number)
        for number in range(3):
            fill(group, "a", number)
        host.until(lambda: host.worker.metrics.processed == 15)
        commits = host.worker.metrics.commits
        orders = [ReleaseTask(task=f"0_{number}", task_epoch=1) for number in range(2)]
        host.member.give(*orders)
        assert host.said(TaskReleased, task="0_0").input == {"in-0": 3}
        assert host.said(TaskReleased, task="0_1").input == {"in-1": 5}
        assert host.worker.metrics.commits == commits + 1
        assert group.outputs()["a"] == [1, 1, 2, 1, 2, 3, 2, 3, 4]


def test_N1_a_changed_release_order_replaces_the_one_before_it() -> None:
    """Both arrive in one poll if a member that should get a copy changes during the release."""
    with bench() as group:
        host = group.host("a")
        host.run_task("0_0", 1)
        fill(group, "aab")
        processed(group, host)
        host.member.give(
            ReleaseTask(task="0_0", task_epoch=1), ReleaseTask(task="0_0", task_epoch=1, keep=8)
        )
        assert host.said(TaskReleased).kept
        assert host.ready("0_0", 8).learn_epoch == 8
        assert len(host.member.all_of(TaskReleased)) == 1


def test_N1_a_changed_copy_order_replaces_the_one_before_it() -> None:
    with bench() as group:
        host = group.host("a")
        host.member.give(
            KeepCopy(task="0_0", role="standby", learn_epoch=1),
            KeepCopy(task="0_0", role="standby", learn_epoch=2),
        )
        assert host.ready("0_0", 2).learn_epoch == 2


def test_L1_the_first_results_of_a_granted_task_do_not_wait_for_the_commit_interval() -> None:
    with bench(commit_interval_ms=3_600_000) as group:
        first = group.host("a")
        first.run_task("0_0", 1)
        turns = first.member.turns
        first.until(lambda: first.member.turns > turns + 20, "turning with nothing to do")
        fill(group, "aab")
        processed(group, first)
        assert group.outputs() == {"a": [1, 2], "b": [1]}


def test_L3_a_cold_restore_reports_its_progress() -> None:
    with bench() as group:
        first = group.host("a")
        first.run_task("0_0", 1)
        fill(group, "abc")
        processed(group, first)
        released = first.release("0_0", 1)
        written = released.changelog_end[f"{CHANGELOG}-0"]
        unreachable = replace(released, changelog_end={f"{CHANGELOG}-0": written + 100})
        second = group.host("b")
        second.member.give(granted("0_0", 2, unreachable))
        place = f"{CHANGELOG}-0"
        second.until(lambda: second.status("0_0").changelog.get(place, 0) >= written, "restoring")
        row = second.status("0_0")
        assert (row.role, row.state) == ("active", "RESTORING")


def test_F1_an_unknown_position_is_no_end_for_the_next_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit = FakeTransactionalProducer.commit

    def commit_without_positions(
        self: FakeTransactionalProducer, *arguments: Any
    ) -> dict[TopicPartition, int]:
        commit(self, *arguments)
        return {}

    with bench() as group:
        first = group.host("a")
        first.run_task("0_0", 1)
        fill(group, "a")
        processed(group, first)
        monkeypatch.setattr(FakeTransactionalProducer, "commit", commit_without_positions)
        fill(group, "abc")
        processed(group, first)
        released = first.release("0_0", 1)
        monkeypatch.undo()
        assert released.changelog_end == {}
        second = group.host("b")
        second.run_task("0_0", 2, released)
        fill(group, "c")
        processed(group, second)
        assert group.outputs() == {"a": [1, 2], "b": [1], "c": [1, 2]}


def test_a_worker_without_tasks_polls_its_consumer_whose_events_pile_up_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    polls: list[float] = []

    def poll(_: IdleReader, _most: int, timeout_s: float) -> list[SourceRecords]:
        polls.append(timeout_s)
        return []

    monkeypatch.setattr(IdleReader, "poll", poll)
    with bench() as group:
        host = group.host("a")
        host.until(lambda: len(polls) > 1, "polls of the idle consumer")
        assert not host.worker.tasks
    assert set(polls) == {0.0}
