"""Moves of tasks that are interrupted, late or meet damage; the end of an incarnation."""

import pytest

from tests.fakes.broker import CommitFate, Entry, Transaction, TransactionState
from tests.tasks.loop.group_bench import APP, GroupBench, granted
from tests.tasks.loop.test_moving_tasks import CHANGELOG, bench, fill, learn, processed
from tests.tasks.loop.test_stream_worker import counting
from tidewheel import FencedError, StreamsError
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.rebalance.protocol.orders import (
    CopyNotReady,
    CopyReady,
    DropCopy,
    EndIncarnation,
    KeepCopy,
    MayClose,
    ReleaseTask,
    RunTask,
    TaskBroken,
    TaskReleased,
    TaskRunning,
    WantTransactionalId,
    WorkerClosed,
)
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector

IN = TopicPartition("in", 0)


def progress_of(group: GroupBench) -> Progress:
    found = group.broker.groups[APP][IN]
    progress = Progress.decode(found.metadata, committed_offset=found.offset)
    assert progress is not None
    return progress


def abort_some(group: GroupBench, count: int = 3) -> None:
    aborted = Transaction(state=TransactionState.ABORTED)
    log = group.broker.topics[CHANGELOG].logs[0]
    for _ in range(count):
        group.broker.send(CHANGELOG, b"lost", b"a", partition=0)
        log.entries[-1].transaction = aborted
    log.entries.append(Entry(None, aborted))


def test_H29_a_learner_follows_past_aborted_transactions() -> None:
    with bench() as group:
        first, second = group.host("a"), group.host("b")
        first.run_task("0_0", 1)
        fill(group, "abc")
        processed(group, first)
        abort_some(group)
        learn(second)
        second.ready("0_0", 1, end=group.end(0, CHANGELOG))
        fill(group, "ab")
        processed(group, first)
        released = first.release("0_0", 1)
        abort_some(group)
        second.run_task("0_0", 2, released)
        assert set(second.read.values()) == {1}
        assert second.rows("counts", "0_0") == first.rows("counts", "0_0")


def test_a_learner_promoted_while_it_restores_continues_at_its_position() -> None:
    with bench() as group:
        first, second = group.host("a"), group.host("b")
        first.run_task("0_0", 1)
        for _ in range(30):
            fill(group, "abcdefghij")
            processed(group, first)
        released = first.release("0_0", 1)
        second.poll_records = 1
        learn(second)
        second.until(lambda: second.read)
        second.blocked.set()
        second.member.give(granted("0_0", 2, released))
        second.until(lambda: not second.member.orders)
        assert not second.member.all_of(TaskRunning)
        second.blocked.clear()
        second.said(TaskRunning, task_epoch=2)
        assert set(second.read.values()) == {1}
        assert second.rows("counts", "0_0") == first.rows("counts", "0_0")
        kinds = [event.kind for event in second.events]
        assert (kinds[0], kinds[-1]) == ("start", "end")


@pytest.mark.parametrize("keep", [0, 6])
def test_a_task_is_revoked_while_it_restores(keep: int) -> None:
    with bench() as group:
        first, second = group.host("a"), group.host("b")
        first.run_task("0_0", 1)
        fill(group, "abc")
        processed(group, first)
        released = first.release("0_0", 1)
        second.blocked.set()
        second.member.give(granted("0_0", 2, released))
        second.until(lambda: second.events)
        back = second.release("0_0", 2, keep)
        assert (back.input, back.changelog_end) == (released.input, released.changelog_end)
        assert not second.member.all_of(TaskRunning)
        second.blocked.clear()
        if keep:
            assert back.kept
            second.ready("0_0", keep)
            assert set(second.read.values()) == {1}
        else:
            second.until(lambda: not second.disk.open_now["0_0"], "closing")
        assert [event.kind for event in second.events][-1] == "suspended"
        first.run_task("0_0", 3, back)


def test_a_copy_is_dropped_while_it_restores() -> None:
    with bench() as group:
        first, second = group.host("a"), group.host("b", acceptable_recovery_lag=0)
        first.run_task("0_0", 1)
        fill(group, "abc")
        processed(group, first)
        second.blocked.set()
        learn(second)
        second.until(lambda: second.disk.open_now["0_0"])
        second.member.give(DropCopy(task="0_0"))
        learn(second, epoch=2)
        second.until(lambda: second.disk.opened["0_0"] == 2, "the next copy")
        second.blocked.clear()
        second.ready("0_0", 2)
        assert {each.learn_epoch for each in second.member.all_of(CopyReady)} == {2}
        assert second.disk.opened["0_0"] == 2


def test_a_standby_becomes_a_learner_without_reading_again() -> None:
    with bench() as group:
        first, second = group.host("a"), group.host("b")
        first.run_task("0_0", 1)
        fill(group, "abc")
        processed(group, first)
        learn(second, epoch=1, role="standby")
        uuid = second.ready("0_0", 1).store_uuid
        learn(second, epoch=2, role="learner")
        assert second.ready("0_0", 2).store_uuid == uuid
        assert second.disk.opened["0_0"] == 1
        assert set(second.read.values()) == {1}
        second.until(lambda: second.status("0_0").role == "learner")


# -- damage -----------------------------------------------------------------------------------------------------------


def test_a_damaged_copy_is_wiped_and_restored() -> None:
    with bench() as group:
        first, second = group.host("a"), group.host("b")
        first.run_task("0_0", 1)
        fill(group, "abc")
        processed(group, first)
        learn(second)
        before = second.ready("0_0", 1)
        second.disk.damaged.add("0_0")
        fill(group, "abc")
        processed(group, first)
        second.said(CopyNotReady, task="0_0", learn_epoch=1)
        second.until(
            lambda: any(
                each.store_uuid != before.store_uuid for each in second.member.all_of(CopyReady)
            )
        )
        released = first.release("0_0", 1)
        second.run_task("0_0", 2, released)
        assert second.rows("counts", "0_0") == first.rows("counts", "0_0")


def test_a_disk_that_fails_repeatedly_is_reported() -> None:
    with bench(partitions=2) as group:
        host = group.host("a")
        host.run_task("0_1", 1)
        host.disk.broken.add("0_0")
        learn(host, epoch=3)
        assert host.said(TaskBroken, task="0_0", role="learner").epoch == 3
        host.member.give(RunTask(task="0_0", task_epoch=4))
        assert host.said(TaskBroken, task="0_0", role="active").epoch == 4
        fill(group, "ab", 1)
        processed(group, host, 1)
        host.disk.broken.clear()
        host.run_task("0_0", 5)


def test_a_running_task_whose_disk_is_full_is_given_back() -> None:
    with bench(partitions=2) as group:
        host = group.host("a")
        host.run_task("0_0", 1)
        host.run_task("0_1", 1)
        fill(group, "ab")
        processed(group, host)
        host.disk.full.add("0_0")
        fill(group, "abc")
        assert host.said(TaskBroken, task="0_0", role="active").epoch == 1
        assert not host.worker.tasks.keys() - {TaskId(0, 1)}
        fill(group, "d", 1)
        processed(group, host, 1)
        released = host.release("0_0", 1)
        assert released.input == {"in-0": 5}, "its last transaction was committed"
        assert released.changelog_end == {f"{CHANGELOG}-0": group.end(0, CHANGELOG) - 1}, "a marker"
        host.disk.full.clear()
        host.run_task("0_0", 2, released)
        fill(group, "c")
        processed(group, host)
        assert group.outputs() == {"a": [1, 2], "b": [1, 2], "c": [1, 2], "d": [1]}


def test_a_task_of_another_program_is_refused() -> None:
    with bench() as group:
        host = group.host("a")
        host.member.give(RunTask(task="3_0", task_epoch=1))
        assert "no task 3_0" in host.said(TaskBroken, task="3_0").detail
        learn(host, "3_1", epoch=2)
        assert host.said(TaskBroken, task="3_1").role == "learner"


def test_a_copy_below_the_start_of_its_changelog_restarts() -> None:
    with bench() as group:
        first, second = group.host("a"), group.host("b")
        first.run_task("0_0", 1)
        fill(group, "abc")
        processed(group, first)
        learn(second)
        uuid = second.ready("0_0", 1, end=group.end(0, CHANGELOG)).store_uuid
        second.blocked.set()
        fill(group, "abcd")
        processed(group, first)
        end = group.end(0, CHANGELOG)
        first.worker._ports.admin.delete_records({TopicPartition(CHANGELOG, 0): end})
        second.blocked.clear()
        second.said(CopyNotReady)
        assert second.ready("0_0", 1, end=end).store_uuid != uuid


# -- restarts within an incarnation -----------------------------------------------------------------------------------


def test_H8_a_producer_is_replaced_by_one_with_a_logged_id() -> None:
    with bench(partitions=2) as group:
        host, other = group.host("a"), group.host("b")
        other.run_task("0_1", 1)
        host.run_task("0_0", 3)
        learn(host, "0_1", epoch=2)
        host.ready("0_1", 2)
        fill(group, "ab")
        processed(group, host)
        other.until(lambda: other.worker.metrics.commits)  # before the one that goes wrong
        group.broker.commit_fates.append(CommitFate.UNKNOWN_OPEN)
        fill(group, "ab")
        host.said(WantTransactionalId, number=1)
        processed(group, host)
        assert (progress_of(group).transactional_id, progress_of(group).task_epoch) == (
            "app-a-1",
            3,
        )
        assert group.broker.fenced == ["app-a-0"]
        assert group.outputs() == {"a": [1, 2], "b": [1, 2]}
        assert len(host.sources) == 2
        host.member.forget()
        fill(group, "ab", 1)
        host.until(lambda: host.member.all_of(CopyReady))
        processed(group, other, 1)
        group.broker.commit_fates.append(CommitFate.UNKNOWN_COMMITTED)
        fill(group, "c")
        host.said(WantTransactionalId, number=2)
        fill(group, "c")
        processed(group, host)
        assert group.outputs()["c"] == [1, 2]
        assert progress_of(group).transactional_id == "app-a-2"


@pytest.mark.parametrize("store_type", ["rocksdb", "in_memory"])
def test_a_restarted_task_restores_beyond_the_granted_end(store_type: str) -> None:
    topology = counting(caching=False, store_type=store_type)
    with GroupBench(topology, {"in": 1, "out": 1}) as group:
        first, second = group.host("a"), group.host("b")
        first.run_task("0_0", 1)
        fill(group, "a")
        processed(group, first)
        second.run_task("0_0", 2, first.release("0_0", 1))
        fill(group, "aab")
        processed(group, second)
        second.poll_records = 1
        group.broker.commit_fates.append(CommitFate.UNKNOWN_OPEN)
        fill(group, "ab")
        second.said(WantTransactionalId, number=1)
        processed(group, second)
        assert group.outputs() == {"a": [1, 2, 3, 4], "b": [1, 2]}


def test_a_task_whose_commit_fails_during_its_release_is_released_later() -> None:
    with bench() as group:
        host = group.host("a", commit_interval_ms=60_000)
        host.run_task("0_0", 1)
        fill(group, "ab")
        host.until(
            lambda: host.worker.metrics.commits > 1
        )  # the start's and the first slice's, before the one that goes wrong
        fill(group, "c")
        host.until(lambda: host.worker.metrics.processed == 3)
        group.broker.commit_fates.append(CommitFate.UNKNOWN_OPEN)
        host.member.give(ReleaseTask(task="0_0", task_epoch=1))
        released = host.said(TaskReleased)
        assert released.input == {"in-0": group.committed()}
        assert "c" not in group.outputs()
        second = group.host("b")
        second.run_task("0_0", 2, released)
        processed(group, second)
        assert group.outputs() == {"a": [1], "b": [1], "c": [1]}


def test_an_incarnation_without_another_transactional_id_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidewheel.tasks.loop.group_producers._LIMIT_S", 0.05)
    with bench() as group:
        host = group.host("a")
        host.member.gives_ids = False
        host.run_task("0_0", 1)
        group.broker.commit_fates.append(CommitFate.UNKNOWN_OPEN)
        fill(group, "ab")
        host.join()
        assert isinstance(host.error, FencedError)
        assert not host.error.final


# -- the end ----------------------------------------------------------------------------------------------------------


def test_S3_an_incarnation_ends_immediately_and_discards_uncommitted_changes() -> None:
    with bench() as group:
        host = group.host("a", commit_interval_ms=60_000)
        host.run_task("0_0", 1)
        fill(group, "c")
        processed(group, host)
        fill(group, "ab")
        host.until(lambda: host.worker.metrics.processed == 3)
        host.member.give(
            EndIncarnation(reason="another has your name", final=True, code="FENCED_INSTANCE")
        )
        host.join()
        assert isinstance(host.error, FencedError)
        assert (host.error.final, host.error.code) == (True, "FENCED_INSTANCE")
        assert group.outputs() == {"c": [1]}
        assert not host.member.all_of(WorkerClosed)
        assert not host.disk.open_now["0_0"]


def test_L4_a_draining_worker_works_until_it_may_leave() -> None:
    with bench() as group:
        host = group.host("a")
        host.run_task("0_0", 1)
        fill(group, "ab")
        processed(group, host)
        host.release("0_0", 1)
        host.member.give(MayClose())
        host.join()
        assert isinstance(host.member.reports[-1], WorkerClosed)
        assert host.error is None


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_H9_a_worker_without_a_lease_processes_no_records(guarantee: str) -> None:
    with bench(partitions=2, guarantee=guarantee) as group:
        host = group.host("a")
        host.run_task("0_0", 1)
        host.run_task("0_1", 1)
        fill(group, "a")
        processed(group, host)
        host.member.lease_s = -1.0
        turns = host.member.turns
        host.until(lambda: host.member.turns > turns + 3)
        count = host.worker.metrics.processed
        fill(group, "bbb")
        host.release("0_1", 1)
        turns = host.member.turns
        host.until(lambda: host.member.turns > turns + 3)
        assert host.worker.metrics.processed == count
        host.member.lease_s = 5.0
        processed(group, host)
        assert group.outputs() == {"a": [1], "b": [1, 2, 3]}


# -- positions --------------------------------------------------------------------------------------------------------


def test_H15_a_new_owner_refuses_an_offset_set_back() -> None:
    with bench() as group:
        first, second = group.host("a"), group.host("b")
        first.run_task("0_0", 1)
        fill(group, "abc")
        processed(group, first)
        released = first.release("0_0", 1)
        first.worker._ports.admin.alter_committed(APP, {IN: 1})
        second.member.give(granted("0_0", 2, released))
        second.join()
        assert isinstance(second.error, StreamsError)
        assert "the last owner left it at offset 3, but offset 1 is committed" in str(second.error)


def test_H18_a_commit_under_a_later_epoch_is_not_followed() -> None:
    with bench() as group:
        first, second = group.host("a"), group.host("b")
        first.run_task("0_0", 9)
        fill(group, "abc")
        processed(group, first)
        assert progress_of(group).task_epoch == 9
        released = first.release("0_0", 9)
        second.member.give(granted("0_0", 2, released))
        broken = second.said(TaskBroken, task="0_0", epoch=2)
        assert "was committed under epoch 9" in broken.detail
        assert second.error is None


def test_producers_of_fixed_assignment_are_fenced() -> None:
    with bench() as group:
        first, second = group.host("a"), group.host("b")
        fill(group, "abc")
        fixed = Progress(
            task_epoch=0,
            transactional_id="app-fixed-0",
            topic_id=group.broker.topics["in"].topic_id,
            topology_hash=bytes(8),
            vector=Vector.at(1),
        )
        group.broker.groups[APP][IN] = CommittedOffset(1, fixed.encode())
        first.run_task("0_0", 1)
        processed(group, first)
        assert group.broker.fenced == ["app-fixed-0"]
        released = first.release("0_0", 1)
        second.run_task("0_0", 2, released)
        assert group.broker.fenced == ["app-fixed-0"]


def test_a_worker_reports_the_progress_of_its_tasks() -> None:
    with bench(partitions=2) as group:
        first, second = group.host("a"), group.host("b")
        first.run_task("0_0", 4)
        second.run_task("0_1", 1)
        first.member.give(KeepCopy(task="0_1", role="standby", learn_epoch=2))
        fill(group, "abc")
        fill(group, "abc", 1)
        processed(group, first)
        processed(group, second, 1)
        first.ready("0_1", 2, end=group.end(1, CHANGELOG))
        first.until(lambda: first.status("0_0").lag == 0)
        row, copy = first.status("0_0"), first.status("0_1")
        assert (row.role, row.epoch, row.state) == ("active", 4, "RUNNING")
        assert row.input == row.committed == {"in-0": 3}
        first.until(lambda: first.status("0_1").lag == 0)
        assert (copy.role, copy.epoch) == ("standby", 2)
