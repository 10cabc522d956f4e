"""Copies restored from sorted runs: ready only after ingesting them."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.fakes.run_maker import LocalRunMaker
from tests.tasks.loop.group_bench import APP, GroupBench, RealClock, granted
from tests.tasks.loop.test_moving_tasks import bench, fill, learn, processed
from tidewheel.rebalance.protocol.orders import CopyReady, DropCopy, TaskRunning
from tidewheel.tasks.restore.run_ports import RunSettings


@pytest.fixture
def group() -> Iterator[GroupBench]:
    with TemporaryDirectory() as folder, bench(acceptable_recovery_lag=0) as made:
        maker = LocalRunMaker(made.broker, RealClock(), APP)
        made.runs = RunSettings(maker=maker, directory=lambda: Path(folder), from_records=0)
        yield made


def maker_of(group: GroupBench) -> LocalRunMaker:
    assert group.runs is not None
    maker = group.runs.maker
    assert isinstance(maker, LocalRunMaker)
    return maker


def test_L1_a_learner_is_ready_when_its_runs_are_in(group: GroupBench) -> None:
    first, second = group.host("a"), group.host("b")
    first.run_task("0_0", 1)
    fill(group, "abcabc")
    processed(group, first)
    maker = maker_of(group)
    maker.held = []
    learn(second)
    second.until(lambda: maker.held, "runs are ordered")
    ((order, tell),) = maker.held
    assert not order.urgent
    fill(group, "aab")
    processed(group, first)
    assert second.status("0_0").state == "RESTORING"
    assert second.member.all_of(CopyReady) == []
    maker.carry_out(order, tell)
    second.ready("0_0", 1)
    assert second.rows("counts", "0_0") == first.rows("counts", "0_0")
    assert not maker.open
    released = first.release("0_0", 1)
    second.run_task("0_0", 2, released)
    fill(group, "abc")
    processed(group, second)
    assert group.outputs() == {"a": [1, 2, 3, 4, 5], "b": [1, 2, 3, 4], "c": [1, 2, 3]}


def test_a_copy_dropped_while_its_runs_are_built_leaves_no_files(group: GroupBench) -> None:
    first, second = group.host("a"), group.host("b")
    first.run_task("0_0", 1)
    fill(group, "abcabc")
    processed(group, first)
    maker = maker_of(group)
    maker.held = []
    learn(second)
    second.until(lambda: maker.held, "runs are ordered")
    ((order, tell),) = maker.held
    second.member.give(DropCopy(task="0_0"))
    second.until(lambda: not maker.open, "they are forgotten")
    maker.carry_out(order, tell)
    maker.held = None
    learn(second, epoch=2)
    second.ready("0_0", 2)
    assert second.rows("counts", "0_0") == first.rows("counts", "0_0")


def test_a_copy_promoted_while_its_runs_are_built_is_handed_over_after_them(
    group: GroupBench,
) -> None:
    first, second = group.host("a"), group.host("b")
    first.run_task("0_0", 1)
    fill(group, "abcabc")
    processed(group, first)
    maker = maker_of(group)
    maker.held = []
    learn(second)
    second.until(lambda: maker.held, "runs are ordered")
    ((order, tell),) = maker.held
    released = first.release("0_0", 1)
    second.member.give(granted("0_0", 2, released))
    maker.carry_out(order, tell)
    second.said(TaskRunning, task="0_0", task_epoch=2)
    fill(group, "abc")
    processed(group, second)
    assert group.outputs() == {"a": [1, 2, 3], "b": [1, 2, 3], "c": [1, 2, 3]}
