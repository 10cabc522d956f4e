"""Golden cases of Kafka's CurrentAssignmentBuilder, run on our member machine."""

import json
from pathlib import Path
from typing import Any

import pytest

from tidewheel.rebalance.leader.reconcile import (
    FencedMemberEpochError,
    MemberAssignment,
    MemberState,
    reconcile,
)
from tidewheel.rebalance.model import TaskId

CASES: dict[str, dict[str, Any]] = {
    case["name"]: case
    for case in json.loads((Path(__file__).parent / "golden.json").read_text(encoding="utf-8"))
    if case["kind"] == "reconciler"
}


def tasks(written: dict[str, list[int]]) -> frozenset[TaskId]:
    return frozenset(
        TaskId(int(subtopology.removeprefix("s")), partition)
        for subtopology, partitions in written.items()
        for partition in partitions
    )


def member(written: dict[str, Any]) -> MemberAssignment:
    return MemberAssignment(
        state=MemberState(written["state"]),
        epoch=written["member_epoch"],
        assigned=tasks(written["assigned"]),
        pending_revocation=tasks(written["pending_revocation"]),
    )


def held_elsewhere(written: object, task: TaskId) -> bool:
    """By one name for all tasks, or by task."""
    if isinstance(written, dict):
        return written.get(f"s{task.subtopology}:{task.partition}") is not None
    return written is not None


def attempts(step: dict[str, Any]) -> list[frozenset[TaskId] | None]:
    """Owned tasks as reported per attempt; None: no report."""
    reported = step["owned_reported_in_heartbeat"]
    each = reported if isinstance(reported, list) else [reported]
    return [tasks(owned) if isinstance(owned, dict) else None for owned in each]


def step_once(step: dict[str, Any], owned: frozenset[TaskId] | None) -> MemberAssignment | None:
    """None: fenced."""
    try:
        return reconcile(
            member(step["member"]),
            target_epoch=step["target_epoch"],
            target=tasks(step["target"]),
            unreleased=lambda task: held_elsewhere(step["current_owner_of_unassigned"], task),
            owned=owned,
        )
    except FencedMemberEpochError:
        return None


@pytest.mark.parametrize("name", CASES)
def test_reconciler_case(name: str) -> None:
    case = CASES[name]
    (step,) = case["inputs"]
    outcomes = [step_once(step, owned) for owned in attempts(step)]
    for want in case["expected"]:
        found = [outcomes[want["attempt"]]] if "attempt" in want else outcomes
        expected = member(want["member"]) if "member" in want else None
        assert found == [expected] * len(found)


def test_every_case_exists() -> None:
    assert len(CASES) == 11
