"""Crashes of members and leaders at the steps of a move, a fencing and a snapshot."""

from collections.abc import Callable

import pytest

from tests.faults.conftest import MakeRun
from tests.faults.fault_run import FaultRun
from tests.integration.cluster import until

pytestmark = [pytest.mark.timeout(600), pytest.mark.broker, pytest.mark.slow]


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
    "point",
    [
        pytest.param("appended_FENCING", marks=pytest.mark.fault("9")),
        pytest.param("appended_FENCED", marks=pytest.mark.fault("10")),
        pytest.param("appended_STEP", marks=pytest.mark.fault("10")),
    ],
)
def test_leader_dies_while_it_replaces_a_member(
    make_run: MakeRun, point: str, record_property: Callable[..., None]
) -> None:
    """The next leader fences again, and grants once: `verify` reads it in the group's log."""
    run = make_run()
    _lose_leaders(run, point)
    run.start("a")
    record_property("recovery_s", run.until_owned())
    run.until_progress()
    run.verify()


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


def _lose_leaders(run: FaultRun, point: str) -> None:
    """Kill the leader, and its successor at this point; one worker of three is left."""
    run.begin("a")  # it leads
    for name in ("b", "c"):
        run.start(name, failpoints=f"{point}:1:stop")
    # On a busy machine one of them may lead already, and reach the point.
    until(lambda: run.stopped() or run.is_shared(), "three workers share the tasks")
    if not run.stopped():
        run.kill("a")
    run.kill(run.until_one_stops())
    if "a" in run.workers:
        run.kill("a")
    run.resumes = True  # the last one reaches the point, too
