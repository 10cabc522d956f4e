"""The suite `coordinator`: simulated groups settle, and the table shows their cost."""

from rich.console import Console

from benchmarks.coordinator.lines import HEADINGS, coordinator_lines
from benchmarks.coordinator.simulation import SimulatedGroup
from benchmarks.coordinator.suite import FULL, JOBS, CoordinatorSize, CoordinatorSuite
from benchmarks.report.results import SuiteResult


def test_a_simulated_group_balances_tasks_and_replaces_a_killed_member() -> None:
    group = SimulatedGroup(tasks=12)
    for name in ("a", "b", "c"):
        group.start(name)
    group.come_to_rest()
    assert group.loads() == [4, 4, 4]
    group.start("d")
    group.come_to_rest()
    assert group.loads() == [3, 3, 3, 3]
    group.kill("a")
    group.come_to_rest()
    assert group.loads() == [4, 4, 4]


def test_costs_are_counted_since_the_last_reading() -> None:
    group = SimulatedGroup(tasks=4)
    group.start("a")
    group.come_to_rest()
    costs = group.take_costs()
    assert costs.decide_ms
    assert costs.log_bytes > 100
    group.run(5_000)
    costs = group.take_costs()
    assert (costs.decide_ms, costs.log_bytes) == ([], 0)
    assert len(costs.beat_bytes) == 10
    assert group.snapshot_bytes() > 100


def test_only_the_rows_of_the_chosen_jobs_remain() -> None:
    suite = CoordinatorSuite(
        size=CoordinatorSize(groups=((2, 4),), rounds=1),
        jobs=("kill",),
        console=Console(),
        date="today",
    )
    assert {row.job for found in suite.rows() for row in found} == {"kill"}


def test_every_size_has_a_line_for_every_event() -> None:
    suite = CoordinatorSuite(
        size=CoordinatorSize(groups=((4, 8), (2, 4)), rounds=2), console=Console(), date="today"
    )
    rows = tuple(row for found in suite.rows() for row in found)
    assert suite.failures == []
    result = SuiteResult(suite="coordinator", date="d", cpu="c", cores=2, versions={}, rows=rows)
    lines = coordinator_lines(result)
    assert [line[0] for line in lines] == ["2"] * len(JOBS) + ["4"] * len(JOBS)
    assert {len(line) for line in lines} == {len(HEADINGS)}
    assert (200, 1_000) in FULL.groups
