"""Golden cases of Kafka Streams' HighAvailabilityTaskAssignor and TaskMovement, run on ours."""

import json
from pathlib import Path
from typing import Any

import pytest

from tidewheel.rebalance.assignors.high_availability import HighAvailabilityAssignor
from tidewheel.rebalance.assignors.movement import Freshness, Plan, move_actives
from tidewheel.rebalance.assignors.task_assignor import AssignmentMember, AssignmentRequest
from tidewheel.rebalance.model import TaskId, TaskShape

CASES: dict[str, dict[str, Any]] = {
    case["name"]: case
    for case in json.loads((Path(__file__).parent / "golden.json").read_text(encoding="utf-8"))
    if case["kind"] == "assignor"
}
MOVEMENT = {name for name in CASES if name.startswith("task_movement_")}
#: Marks a client without state of a task.
NO_STATE = 2**63 - 1
STATEFUL = TaskShape(stateful=True, changelogs=("changelog",))


def parsed(tasks: list[str]) -> set[TaskId]:
    return set(map(TaskId.parse, tasks))


def outcome(
    active: dict[str, set[TaskId]], standby: dict[str, set[TaskId]], client: str
) -> dict[str, Any]:
    """A client's tasks in all notations of the cases."""
    return {
        "client": client,
        "active": sorted(map(str, active[client])),
        "standby": sorted(map(str, standby[client])),
        "standby_count": len(standby[client]),
        "assigned_count": len(active[client]) + len(standby[client]),
    }


def assert_expected(
    case: dict[str, Any],
    active: dict[str, set[TaskId]],
    standby: dict[str, set[TaskId]],
    movements: int,
) -> None:
    for want in case["expected"]:
        if "client" in want:
            found = outcome(active, standby, want["client"])
        else:
            found = {"movements": movements, "probing_rebalance_needed": movements > 0}
        assert want.items() <= found.items()


def member(row: dict[str, Any], tasks: set[TaskId]) -> AssignmentMember:
    """One `lag` applies to all its tasks."""
    lags = dict.fromkeys(tasks, row["lag"]) if "lag" in row else {}
    lags |= {TaskId.parse(task): lag for task, lag in row.get("lags", {}).items()}
    return AssignmentMember(
        name=row["client"],
        threads=row["capacity"],
        owned=frozenset(parsed(row.get("prev_active", []))),
        copies=frozenset(parsed(row.get("prev_standby", []))),
        lags={task: lag for task, lag in lags.items() if lag != NO_STATE},
    )


@pytest.mark.parametrize("name", sorted(CASES.keys() - MOVEMENT))
def test_high_availability_case(name: str) -> None:
    """Includes warm-up tasks."""
    case = CASES[name]
    params = case["params"]
    tasks = set().union(*(parsed(row.get("prev_active", [])) for row in case["inputs"]))
    request = AssignmentRequest(
        number=1,
        members=tuple(member(row, tasks) for row in case["inputs"]),
        tasks=dict.fromkeys(tasks, STATEFUL),
        num_standby_replicas=params["num_standby_replicas"],
        acceptable_recovery_lag=params["acceptable_recovery_lag"],
    )
    moved = HighAvailabilityAssignor().moved(
        request, tasks, max_warmup_replicas=params["max_warmup_replicas"]
    )
    names = [row["client"] for row in case["inputs"]]
    owners, standbys = moved.assignment.owners, moved.assignment.standbys
    active = {name: {task for task in tasks if owners[task] == name} for name in names}
    standby = {name: {task for task in tasks if name in standbys.get(task, ())} for name in names}
    assert_expected(case, active, standby, moved.movements)


@pytest.mark.parametrize("name", sorted(MOVEMENT))
def test_task_movement_case(name: str) -> None:
    case = CASES[name]
    rows = {row["client"]: row for row in case["inputs"]}
    caught_up = {
        TaskId.parse(task): frozenset(names) for task, names in case["params"]["caught_up"].items()
    }
    plan = Plan(
        threads={client: row["capacity"] for client, row in rows.items()},
        active={client: parsed(row.get("desired_active", [])) for client, row in rows.items()},
        standby={client: parsed(row.get("standby", [])) for client, row in rows.items()},
        warmups_left=case["params"]["max_warmup_replicas"],
    )
    lags = {
        task: {client: float(row["lags"][str(task)]) for client, row in rows.items()}
        for task in caught_up
    }
    movements = move_actives(plan, Freshness(lags, caught_up), caught_up)
    assert_expected(case, plan.active, plan.standby, movements)


def test_every_case_has_expected_results() -> None:
    assert len(CASES) == 9
    assert all(len(case["expected"]) >= 2 for case in CASES.values())
