"""Events of copies."""

from typing import Any

from tests.tasks.loop.group_bench import GroupBench, Host, granted
from tests.tasks.loop.test_moving_tasks import CHANGELOG, bench, fill, learn, processed
from tests.tasks.restore.test_copies_of_stores import table_of
from tidewheel.rebalance.protocol.orders import DropCopy, TaskBroken, TaskRunning
from tidewheel.state_stores.errors import StateStoreError
from tidewheel.tasks.restore.store_restore import StandbyUpdateEvent


def followed(group: GroupBench, first: Host, second: Host) -> None:
    """Run a task on one host, with a caught-up copy on another."""
    first.run_task("0_0", 1)
    fill(group, "abc")
    processed(group, first)
    learn(second, role="standby")
    second.ready("0_0", 1)


def kinds(updates: list[StandbyUpdateEvent]) -> list[str]:
    """Return the event kinds; consecutive batches count as one."""
    found = [each.kind for each in updates]
    return [kind for index, kind in enumerate(found) if index == 0 or found[index - 1] != kind]


def test_a_promoted_copy_is_reported_before_the_restore_starts() -> None:
    with bench() as group:
        first, second = group.host("a"), group.host("b")
        followed(group, first, second)
        fill(group, "ab")
        processed(group, first)
        second.ready("0_0", 1, end=group.end(0, CHANGELOG))
        second.blocked.set()
        fill(group, "c")
        processed(group, first)
        released = first.release("0_0", 1)
        assert second.events == []
        second.member.give(granted("0_0", 2, released))
        second.until(lambda: second.updates[-1].kind == "suspended", "the promotion")
        second.blocked.clear()
        second.said(TaskRunning, task="0_0", task_epoch=2)
        begin, *batches, end = second.updates
        assert kinds(second.updates) == ["start", "batch", "suspended"]
        assert (begin.start, begin.position, begin.restored, begin.reason) == (0, 0, 0, None)
        assert {each.store for each in second.updates} == {"counts"}
        assert {(each.topic, each.partition) for each in second.updates} == {(CHANGELOG, 0)}
        assert {(each.task_id, each.role) for each in second.updates} == {("0_0", "standby")}
        assert end.reason == "PROMOTED"
        assert end.restored == sum(each.batch for each in second.updates)
        assert begin.end <= end.end
        assert all(each.start <= each.position <= each.end for each in second.updates)
        assert [each.restored for each in batches] == sorted({each.restored for each in batches})
        assert all(each.start == end.position for each in second.events)


def test_a_dropped_copy_is_reported_as_migrated() -> None:
    with bench() as group:
        first, second = group.host("a"), group.host("b")
        followed(group, first, second)
        second.member.give(DropCopy(task="0_0"))
        second.until(lambda: second.updates[-1].kind == "suspended", "the end of the copy")
        end = second.updates[-1]
        assert (end.reason, end.restored, end.end) == ("MIGRATED", 3, end.position)
        assert not second.disk.open_now["0_0"]
        learn(second, epoch=2)
        second.ready("0_0", 2)
        assert second.updates[-1].start == end.position
        assert second.updates[-1].role == "learner"
        assert second.events == []


def test_a_released_task_is_followed_from_its_position() -> None:
    with bench() as group:
        first, second = group.host("a"), group.host("b")
        followed(group, first, second)
        released = first.release("0_0", 1, keep=7)
        second.run_task("0_0", 2, released)
        fill(group, "ab")
        processed(group, second)
        first.ready("0_0", 7, end=group.end(0, CHANGELOG))
        assert first.updates[0].kind == "start"
        assert first.updates[0].start == released.changelog_end[f"{CHANGELOG}-0"]
        first.worker.stop()
        first.join()
        assert first.updates[-1].reason == "MIGRATED"
        assert first.updates[-1].restored == 2


def test_a_damaged_copy_restarts() -> None:
    with bench() as group:
        first, second = group.host("a"), group.host("b")
        followed(group, first, second)
        second.disk.damaged.add("0_0")
        fill(group, "a")
        processed(group, first)
        second.until(
            lambda: (
                [each.kind for each in second.updates].count("start") == 2
                and second.updates[-1].restored == 4
            ),
            "beginning again",
        )
        assert [each.start for each in second.updates if each.kind == "start"] == [0, 0]


def test_a_copy_of_a_table_counts_committed_input_records() -> None:
    with GroupBench(table_of(), {"in": 1, "out": 1}) as group:
        first, second = group.host("a"), group.host("b")
        learn(second)
        second.ready("0_0", 1)
        first.run_task("0_0", 1)
        first.worker.paused = frozenset({0})
        group.send("a", "1")
        second.until(lambda: ("in", 0, 0) in second.read, "reading ahead")
        assert kinds(second.updates) == ["start"]
        first.worker.paused = frozenset()
        second.until(lambda: second.updates[-1].kind == "batch", "the commit of the input")
        assert (second.updates[-1].topic, second.updates[-1].restored) == ("in", 1)


def test_abandoned_copies_and_restores_are_reported() -> None:
    with bench() as group:
        first, second = group.host("a"), group.host("b")
        followed(group, first, second)
        third = group.host("c")

        def full(name: str, version: dict[str, dict[Any, bytes]]) -> None:
            raise StateStoreError(
                f"the disk of {name} is full: no room for {len(version)} families"
            )

        third.blocked.set()
        released = first.release("0_0", 1)
        third.member.give(granted("0_0", 2, released))
        third.until(lambda: third.events, "the begin of the restore")
        second.disk.write = third.disk.write = full  # type: ignore[method-assign]
        third.blocked.clear()
        third.said(TaskBroken, task="0_0")
        assert [each.kind for each in third.events] == ["start", "suspended"]
        first.run_task("0_0", 3, released)
        fill(group, "a")
        processed(group, first)
        second.said(TaskBroken, task="0_0")
        assert second.updates[-1].reason == "MIGRATED"
