"""Crashes of members and leaders at the steps of a move, a fencing and a snapshot."""

from collections.abc import Callable

import pytest

from tests.faults.conftest import MakeRun
from tests.faults.fault_run import FaultRun
from tests.integration.cluster import until
from tidewheel.rebalance.protocol.records import (
    AnyRecord,
    MemberRecord,
    StepRecord,
    TargetRecord,
    TaskRecord,
)

pytestmark = [pytest.mark.timeout(600), pytest.mark.broker, pytest.mark.slow]

#: Steps before and after the point where the leader dies.
_AROUND = {
    "appended_FENCING": ("FENCING", "FENCED"),
    "appending_FENCED": ("FENCING", "FENCED"),
    "appended_FENCED": ("FENCED", "GRANT"),
    "appending_TARGET": ("FENCING", "TARGET"),
}


@pytest.mark.fault("7")
def test_learner_dies_after_ready(make_run: MakeRun, record_property: Callable[..., None]) -> None:
    # On a busy machine the others may be late with a heartbeat; their tasks must not move.
    run = make_run(config={"session_timeout_ms": 15_000})
    run.begin()
    owners = run.owners()
    run.start("d", failpoints="sent_READY:1:stop")
    assert run.until_one_stops() == "d"
    run.kill("d")
    record_property("recovery_s", run.until_owned())
    run.until_progress()
    moved = [partition for partition, names in run.owners().items() if names != owners[partition]]
    assert len(moved) <= 1, "only the learner's task may have moved"
    run.start("e")
    run.until_shared()
    run.verify()


@pytest.mark.fault("8")
def test_owner_dies_after_revoked(make_run: MakeRun, record_property: Callable[..., None]) -> None:
    run = make_run()
    run.begin("a")
    run.start("b", failpoints="sent_REVOKED:1:stop")
    run.until_shared()  # two tasks each
    for name in ("c", "d"):
        run.start(name)
    assert run.until_one_stops() == "b", "it gives up one of its tasks"
    run.kill("b")
    record_property("recovery_s", run.until_owned())
    run.until_progress()
    run.start("b")
    run.until_shared()
    run.verify()


@pytest.mark.parametrize(
    ("point", "is_static"),
    [
        pytest.param("appended_FENCING", False, marks=pytest.mark.fault("9")),
        pytest.param("appending_FENCED", False, marks=pytest.mark.fault("10")),
        # Tasks of a static member wait for its return: their grant is a later transaction.
        pytest.param("appended_FENCED", True, marks=pytest.mark.fault("10")),
        pytest.param("appending_TARGET", False, marks=pytest.mark.fault("10")),
        pytest.param("appended_TARGET", False, marks=pytest.mark.fault("10")),
    ],
)
def test_leader_dies_while_it_replaces_a_member(
    make_run: MakeRun, point: str, is_static: bool, record_property: Callable[..., None]
) -> None:
    """`verify` finds a second grant, or one before the fence, in the group's log."""
    run = make_run(is_static=is_static)
    lost = _lose_leaders(run, point)
    for name in lost if is_static else "a":
        run.start(name)
    record_property("recovery_s", run.until_owned())
    run.until_progress()
    run.verify()
    _assert_died_at(point, run.trace().decisions())


def _assert_died_at(point: str, decisions: list[AnyRecord]) -> None:
    """Check in which leader epochs the steps after the first loss of a member were decided."""
    loss = next(index for index, each in enumerate(decisions) if _step(each) == "FENCING")
    epochs: dict[str, int] = {}
    for record in decisions[loss:]:
        epochs.setdefault(_step(record), record.leader_epoch)
    if point == "appended_TARGET":
        term = [each for each in decisions if each.leader_epoch == epochs["TARGET"]]
        assert _step(term[-1]) == "STEP", "a target and its step are one transaction"
        assert epochs["TARGET"] < decisions[-1].leader_epoch
    else:
        before, after = _AROUND[point]
        assert epochs[before] < epochs[after]


def _step(record: AnyRecord) -> str:
    match record:
        case MemberRecord():
            return record.phase
        case TaskRecord():
            return record.event
        case TargetRecord():
            return "TARGET"
        case StepRecord():
            return "STEP"
        case _:
            return ""


@pytest.mark.fault("11")
def test_leader_dies_inside_its_snapshot(
    make_run: MakeRun, record_property: Callable[..., None]
) -> None:
    run = make_run()
    _lose_leaders(run, "appending_SNAP_BEGIN")
    record_property("recovery_s", run.until_owned())
    run.start("d")
    run.until_shared()
    run.until_progress()
    run.verify()


def _lose_leaders(run: FaultRun, point: str) -> list[str]:
    """Kill the leader, and its successor at this point; return both. One worker is left."""
    run.begin("a")  # it leads
    for name in ("b", "c"):
        run.start(name, failpoints=f"{point}:1:stop")
    # On a busy machine one of them may lead already, and reach the point.
    until(lambda: run.stopped() or run.is_shared(), "three workers share the tasks")
    if not run.stopped():
        run.kill("a")
    successor = run.until_one_stops()
    run.kill(successor)
    if "a" in run.workers:
        run.kill("a")
    run.resumes = True  # the last one reaches the point, too
    return ["a", successor]
