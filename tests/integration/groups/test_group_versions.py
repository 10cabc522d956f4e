"""Protocol versions (N14): workers of this and the next version lead each other, up and down.

`programs.next_version` adds a field to beats and members, a kind of message and of record.
"""

import json
from typing import Any

import pytest

from tests.integration.cluster import PATIENCE_S, until
from tests.integration.groups.test_groups_basic import Group, group, topics
from tests.integration.processes import WORKER, WorkerProcess
from tests.integration.programs.next_version import NEXT, PROGRAM
from tidewheel.rebalance.protocol.messages import PROTOCOL_MAX
from tidewheel.streams.exit_codes import ExitCode

__all__ = ["group", "topics"]

#: Ten workers start one after another.
pytestmark = pytest.mark.timeout(300)

#: Version with which records of groups without shards are written.
_WHOLE = 1

#: A killed watchdog is replaced and may win again; then another is killed.
_TRIES = 5


def _rows(group: Group, topic: str) -> list[dict[str, Any]]:
    records = group.cluster.read(f"{group.config['application_id']}-group-{topic}")
    return [json.loads(record.value) for record in records if record.value is not None]


def _of(rows: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == kind]


def _version(row: dict[str, Any]) -> int:
    return int(row.get("v", 1))


def _check_versions(versions: list[int], own: int) -> None:
    assert (versions[0], NEXT in versions, versions[-1]) == (own, True, own), versions


def _leader(group: Group, workers: list[WorkerProcess]) -> WorkerProcess:
    rows = _rows(group, "state")
    program = _program_of(_of(rows, "LEADER_CLAIM")[-1]["leader"])
    hosted = {
        row["incarnation"]
        for row in _of(rows, "MEMBER")
        if _program_of(row["process_id"]) == program
    }
    return next(
        worker for worker in workers if any(incarnation in worker.log for incarnation in hosted)
    )


def _program_of(process_id: str) -> str:
    """Return the host program of a watchdog, whose id has an extra part at the end."""
    return process_id.rpartition("-")[0]


def _elect(group: Group, version: int, workers: list[WorkerProcess]) -> None:
    for _ in range(_TRIES):
        claim = _of(_rows(group, "state"), "LEADER_CLAIM")[-1]
        if _version(claim) == version:
            return
        epoch = claim["leader_epoch"]
        _leader(group, workers).kill_watchdog()
        until(
            lambda epoch=epoch: (  # type: ignore[misc] # mypy: cannot infer type of lambda
                _of(_rows(group, "state"), "LEADER_CLAIM")[-1]["leader_epoch"] > epoch
            ),
            "somebody else claims",
        )
    raise AssertionError(f"no watchdog of version {version} leads after {_TRIES} tries")


def test_N14_neighbouring_versions_work_in_one_group_and_lead_each_other(group: Group) -> None:
    old = group.start("old")
    old.wait_until_running()
    new = group.start("new", PROGRAM)
    group.until_shared(old, new)  # this version has led

    _elect(group, NEXT, [old, new])
    others = [group.start("old2"), group.start("new2", PROGRAM)]
    group.until_shared(old, new, *others, timeout_s=2 * PATIENCE_S)  # the next version has led

    workers = [old, new, *others]
    _elect(group, _WHOLE, workers)
    for leaving in (new, others[1]):
        assert leaving.stop() == ExitCode.OK, leaving.log[-4000:]
    group.until_shared(old, others[0])  # this version leads from the state of the next one
    group.check()

    log, inbox = _rows(group, "state"), _rows(group, "inbox")
    _check_versions([_version(claim) for claim in _of(log, "LEADER_CLAIM")], _WHOLE)
    assert _of(log, "GROUP")[-1].get("group_version", 1) == PROTOCOL_MAX
    assert {_version(row) for row in _of(log, "FORECAST")} == {NEXT}
    for row in log:
        assert ("mood" in row) == (row["kind"] == "MEMBER" and _version(row) == NEXT), row
    _check_inbox(inbox)
    for worker in (new, others[1]):
        assert "understood the mood of" in worker.log
        assert "understood gossip of" in worker.log
    assert "understood the forecast of epoch" in new.log


def _check_inbox(inbox: list[dict[str, Any]]) -> None:
    beats = _of(inbox, "BEAT")
    assert {_version(row) for row in beats if "mood" in row} == {NEXT}
    assert {_version(row) for row in beats if "mood" not in row} == {1}
    assert {_version(row) for row in _of(inbox, "GOSSIP")} == {NEXT}
    assert {tuple(row["protocol"]) for row in _of(inbox, "JOIN") if _version(row) == NEXT} == {
        (1, NEXT)
    }


def test_N14_a_group_rolls_to_the_next_version_and_back(group: Group) -> None:
    running = {name: group.start(name, group_instance_id=name) for name in ("first", "second")}
    group.until_shared(*running.values())
    for program, names in ((PROGRAM, ("first", "second")), (WORKER, ("second", "first"))):
        for name in names:
            assert running[name].stop() == ExitCode.OK, running[name].log[-4000:]
            number = 1 + sum(name in each for each in running)
            running[name] = group.start(
                f"{name}-{program.rpartition('.')[2]}-{number}", program, group_instance_id=name
            )
            group.until_shared(*running.values())
        wanted = NEXT if program == PROGRAM else PROTOCOL_MAX
        until(
            lambda wanted=wanted: (  # type: ignore[misc] # mypy: cannot infer type of lambda
                _of(_rows(group, "state"), "GROUP")[-1].get("group_version", 1) == wanted
            ),
            f"the group speaks version {wanted}",
        )
    group.check()

    log = _rows(group, "state")
    versions = [row.get("group_version", 1) for row in _of(log, "GROUP") if row.get("tasks")]
    # An empty group adopts its first program in version 1, and rises in the same transaction.
    assert versions[0] == 1
    _check_versions(versions[1:], PROTOCOL_MAX)
    _check_versions([_version(claim) for claim in _of(log, "LEADER_CLAIM")], _WHOLE)
    snapshots = _snapshots(log)
    assert {_version(snapshot[0]) for snapshot in snapshots} == {1, NEXT}
    assert [snapshot[-1]["count"] for snapshot in snapshots] == [
        len(snapshot) - 2 for snapshot in snapshots
    ]


def _snapshots(log: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    begins = [index for index, row in enumerate(log) if row["kind"] == "SNAP_BEGIN"]
    ends = [index for index, row in enumerate(log) if row["kind"] == "SNAP_END"]
    return [log[begin : end + 1] for begin, end in zip(begins, ends, strict=True)]
