"""Crashes of members and leaders at the steps of a move, a fencing and a snapshot."""

from collections.abc import Callable

import pytest

from tests.faults.conftest import MakeRun
from tests.faults.fault_run import FaultRun, eventually, is_stopped
from tidewheel.rebalance.protocol.records import LeaderClaim, MemberRecord, TaskRecord

pytestmark = pytest.mark.timeout(600)


def _stopped(run: FaultRun) -> list[str]:
    return [name for name, worker in run.workers.items() if is_stopped(worker)]


def _until_one_stops(run: FaultRun) -> str:
    eventually(lambda: _stopped(run), "a failpoint stops a worker or its watchdog")
    return _stopped(run)[0]


@pytest.mark.fault("7")
def test_learner_dies_after_ready(make_run: MakeRun, record_property: Callable[..., None]) -> None:
    run = make_run()
    run.begin()
    owners = run.owners()
    run.start("d", failpoints="sent_READY:1:stop")
    eventually(lambda: is_stopped(run.workers["d"]), "the learner stops after READY")
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
    run.begin(failpoints="sent_REVOKED:1:stop")
    run.start("d")
    name = _until_one_stops(run)
    run.kill(name)
    run.resumes = True
    record_property("recovery_s", run.until_owned())
    run.until_progress()
    run.start(name)
    run.until_shared()
    run.verify()


@pytest.mark.parametrize("point", ["appended_FENCING", "appended_FENCED", "appended_STEP"])
@pytest.mark.fault("9")
@pytest.mark.fault("10")
def test_leader_dies_while_it_replaces_a_member(
    make_run: MakeRun, point: str, record_property: Callable[..., None]
) -> None:
    """The next leader fences again, and grants once: the trace of the group shows it."""
    run = make_run()
    run.begin("a")  # it leads
    for name in ("b", "c"):
        run.start(name, failpoints=f"{point}:1:stop")
    run.until_shared()
    run.kill("a")
    leader = _until_one_stops(run)
    run.kill(leader)
    run.start("a")
    run.resumes = True
    record_property("recovery_s", run.until_owned())
    run.until_progress()
    trace = run.trace()
    assert len({each.leader for each in trace.records if isinstance(each, LeaderClaim)}) > 1
    assert any(isinstance(each, MemberRecord) and each.phase == "GONE" for each in trace.records)
    assert any(isinstance(each, TaskRecord) and each.event == "GRANT" for each in trace.records)
    run.verify()


@pytest.mark.fault("11")
def test_leader_dies_inside_its_snapshot(
    make_run: MakeRun, record_property: Callable[..., None]
) -> None:
    run = make_run()
    run.begin("a")
    for name in ("b", "c"):
        run.start(name, failpoints="appending_SNAP_BEGIN:1:stop")
    run.until_shared()
    run.kill("a")
    run.kill(_until_one_stops(run))
    (last,) = run.workers.values()
    eventually(lambda: is_stopped(last), "the next leader stops inside its snapshot too")
    run.resumes = True
    record_property("recovery_s", run.until_owned())
    run.start("d")
    run.until_shared()
    run.until_progress()
    run.verify()
