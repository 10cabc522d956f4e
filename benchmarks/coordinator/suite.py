"""Suite `coordinator`: groups start, idle, gain a member and lose one; measures the leader."""

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from benchmarks.coordinator.simulation import HEARTBEAT_MS, Costs, SimulatedGroup
from benchmarks.handoff.gaps import percentile
from benchmarks.report.results import Row, make_rows

#: Events of a group, in this order.
JOBS = ("assemble", "steady", "scale_out", "kill")
STEADY_MS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSize:
    groups: tuple[tuple[int, int], ...]
    rounds: int


FULL = CoordinatorSize(
    groups=((2, 12), (10, 60), (25, 125), (50, 250), (100, 500), (100, 1_000), (200, 1_000)),
    rounds=5,
)
QUICK = CoordinatorSize(groups=((2, 12), (50, 250), (200, 1_000)), rounds=1)


@dataclass(slots=True)
class CoordinatorSuite:
    size: CoordinatorSize
    console: Console
    date: str
    jobs: tuple[str, ...] = JOBS
    failures: list[str] = field(default_factory=list[str])

    def rows(self) -> Iterator[list[Row]]:
        for members, tasks in self.size.groups:
            label = f"{members} members, {tasks} tasks"
            try:
                rounds = [measured(members, tasks) for _ in range(self.size.rounds)]
            except (TimeoutError, ValueError) as failure:
                self.failures.append(f"{label}: {failure}")
                continue
            rows: list[Row] = []
            for job in JOBS:
                rows += self._rows(job, members, tasks, [round_[job] for round_ in rounds])
            self.console.print(f"{label}: {_run_text(rows)}", highlight=False, soft_wrap=True)
            yield [row for row in rows if row.job in self.jobs]

    def _rows(
        self, job: str, members: int, tasks: int, found: Sequence[dict[str, float]]
    ) -> list[Row]:
        parameters: dict[str, Any] = {
            "members": members,
            "tasks": tasks,
            "partitions": tasks,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "date": self.date,
        }
        return make_rows(
            {metric: [each[metric] for each in found] for metric in found[0]},
            system="tidewheel",
            job=job,
            guarantee=None,
            parameters=parameters,
        )


def measured(members: int, tasks: int) -> dict[str, dict[str, float]]:
    """Return the metrics of each job for one group size.

    Raises:
        TimeoutError: The group did not settle.
        ValueError: A message exceeds the inbox limit, or tasks are misplaced.
    """
    gc.collect()
    group = SimulatedGroup(tasks=tasks)
    found: dict[str, dict[str, float]] = {}
    for number in range(members):
        group.start(f"member-{number:03d}")
    group.come_to_rest()
    if sum(group.loads()) != tasks:
        raise ValueError(f"{sum(group.loads())} of {tasks} tasks run")
    found["assemble"] = _figures(group.take_costs())
    found["assemble"]["snapshot_bytes"] = float(group.snapshot_bytes())
    group.run(STEADY_MS)
    costs = group.take_costs()
    found["steady"] = {
        "beat_bytes": percentile(costs.beat_bytes, 0.5),
        "leader_beat_bytes": percentile(costs.leader_beat_bytes, 0.5),
        "leader_ms_per_s": costs.leader_ms / (STEADY_MS / 1000),
    }
    group.start("newcomer")
    group.come_to_rest()
    found["scale_out"] = _figures(group.take_costs())
    group.kill("member-000")
    group.come_to_rest()
    found["kill"] = _figures(group.take_costs())
    return found


def _figures(costs: Costs) -> dict[str, float]:
    return {
        "decide_ms_p50": percentile(costs.decide_ms, 0.5),
        "decide_ms_p99": percentile(costs.decide_ms, 0.99),
        "apply_ms_p99": percentile(costs.apply_ms, 0.99),
        "assign_ms_max": max(costs.assign_ms, default=0.0),
        "log_bytes": float(costs.log_bytes),
        "log_records": float(costs.log_records),
    }


def _run_text(rows: Sequence[Row]) -> str:
    slowest = max(row.value for row in rows if row.metric == "decide_ms_p99")
    busy = next(row.value for row in rows if row.metric == "leader_ms_per_s")
    beat = next(row.value for row in rows if row.metric == "beat_bytes")
    return f"decisions at most {slowest:.1f} ms, at rest {busy:.1f} ms a second, beats of {beat:,.0f} bytes"
