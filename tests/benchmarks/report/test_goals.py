"""Goals against measured rows: the lowest setting decides, and a miss is reported."""

from typing import Any

import pytest

from benchmarks.report.figures import ONE, TWO
from benchmarks.report.goals import HEADINGS, goal_lines
from benchmarks.report.results import BASELINE, Row
from tests.benchmarks.throughput_result import rows, suite

ALL_KEYS = 64 << 20


def setting(
    rates: dict[str, float], *, outputs: dict[str, float] | None = None, **of: Any
) -> list[Row]:
    written = outputs or {}
    return [
        row
        for system, rate in rates.items()
        for row in rows(system, [rate], outputs=written.get(system, 1_000.0), **of)
    ]


def test_the_least_of_a_goals_settings_counts() -> None:
    result = suite(
        setting({ONE: 140.0, TWO: 300.0, BASELINE: 100.0}, guarantee="at_least_once"),
        setting({ONE: 200.0, TWO: 250.0, BASELINE: 100.0}),
    )
    assert goal_lines(result) == [
        (
            "count_by_key",
            "none",
            "at least once and exactly once; 100 ms",
            "Kafka Streams",
            "1.5",
            "1.40",
            "2.50",
            "2 workers",
        )
    ]


@pytest.mark.parametrize(
    ("one", "two", "reached"),
    [(90.0, 99.9, "neither"), (90.0, 100.0, "2 workers"), (100.0, 150.0, "1 worker and 2 workers")],
)
def test_reached_and_missed_goals_are_reported(one: float, two: float, reached: str) -> None:
    (line,) = goal_lines(suite(setting({ONE: one, TWO: two, BASELINE: 100.0}, job="word_count")))
    assert line[HEADINGS.index("reached with")] == reached
    assert line[HEADINGS.index("asked")] == "1 (wished: 1.5)"


def test_no_rounding_lifts_a_miss_over_its_goal() -> None:
    rates = {ONE: 149_600.0, TWO: 1e6, BASELINE: 1e5, "raw-client": 430_000.0, "raw-client-2": 2_874_000.0}  # fmt: skip
    beside_kafka, beside_clients = goal_lines(suite(setting(rates)))
    assert beside_kafka[-3:] == ("1.49", "10.00", "2 workers")
    assert beside_clients[-4:] == ("35%", "34%", "34%", "neither")


def test_with_a_cache_the_bare_rates_are_compared() -> None:
    rates = {ONE: 310.0, TWO: 400.0, BASELINE: 100.0, "quix": 10.0}
    result = suite(setting(rates, interval_ms=1_000, cache=ALL_KEYS, outputs={ONE: 100.0}))
    assert [line[3:6] for line in goal_lines(result)] == [
        ("Kafka Streams", "3", "3.10"),
        ("Quix Streams", "10", "31.00"),
    ]


def test_without_a_cache_systems_that_write_less_are_not_compared() -> None:
    rates = {ONE: 100.0, TWO: 200.0, "quix": 10.0}
    written = suite(setting(rates, job="session_count", outputs={"quix": 500.0}))
    assert goal_lines(written) == []
    assert len(goal_lines(suite(setting(rates, job="session_count")))) == 1


def test_workers_are_compared_with_as_many_clients() -> None:
    rates = {ONE: 60.0, TWO: 90.0, "raw-client": 100.0}
    assert goal_lines(suite(setting(rates, job="stateless_json"))) == []
    (line,) = goal_lines(suite(setting({**rates, "raw-client-2": 200.0}, job="stateless_json")))
    assert line[3:] == ("as many plain clients", "50%", "60%", "45%", "1 worker")


def test_a_default_commit_interval_has_no_goal() -> None:
    rates = {ONE: 10.0, TWO: 10.0, BASELINE: 100.0}
    assert goal_lines(suite(setting(rates, interval_ms=30_000, cache=ALL_KEYS))) == []
