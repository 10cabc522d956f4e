"""What was asked and what the rows have: the least of a goal's settings counts, and a miss is told as one."""

import pytest

from benchmarks.goals import HEADINGS, goal_lines
from benchmarks.results import BASELINE, Row, make_row
from tests.benchmarks.throughput_result import suite

ALL_KEYS = 64 << 20
ONE, TWO = "tidewheel", "tidewheel-workers-2"


def rows(
    rates: dict[str, float],
    *,
    job: str = "count_by_key",
    guarantee: str = "exactly_once",
    interval_ms: int = 100,
    cache: int = 0,
    outputs: dict[str, float] | None = None,
) -> list[Row]:
    parameters = {"records": 1_000, "commit_interval_ms": interval_ms, "cache_bytes": cache}
    return [
        make_row(
            [value],
            system=system,
            job=job,
            guarantee=guarantee,
            metric=metric,
            parameters=parameters,
        )
        for system, rate in rates.items()
        for metric, value in (
            ("records_per_s", rate),
            ("outputs", (outputs or {}).get(system, 1_000.0)),
        )
    ]


def test_the_least_of_a_goals_settings_counts() -> None:
    """For each number of workers by itself: here one is slowest at least once, two exactly once."""
    result = suite(
        rows({ONE: 140.0, TWO: 300.0, BASELINE: 100.0}, guarantee="at_least_once"),
        rows({ONE: 200.0, TWO: 250.0, BASELINE: 100.0}),
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
def test_who_reaches_a_goal_is_told(one: float, two: float, reached: str) -> None:
    """Exactly what was asked is enough; what was wished for stands beside it."""
    (line,) = goal_lines(suite(rows({ONE: one, TWO: two, BASELINE: 100.0}, job="word_count")))
    assert line[HEADINGS.index("reached with")] == reached
    assert line[HEADINGS.index("asked")] == "1 (wished: 1.5)"


def test_no_rounding_lifts_a_miss_over_what_was_asked() -> None:
    """1.496 is not shown as 1.50, nor 34.8 % as 35 %."""
    rates = {ONE: 149_600.0, TWO: 1e6, BASELINE: 1e5, "raw-client": 430_000.0, "raw-client-2": 2_874_000.0}  # fmt: skip
    beside_kafka, beside_clients = goal_lines(suite(rows(rates)))
    assert beside_kafka[-3:] == ("1.49", "10.00", "2 workers")
    assert beside_clients[-4:] == ("35%", "34%", "34%", "neither")


def test_with_a_cache_the_bare_rates_are_compared() -> None:
    """So it was asked, whatever was written."""
    rates = {ONE: 310.0, TWO: 400.0, BASELINE: 100.0, "quix": 10.0}
    result = suite(rows(rates, interval_ms=1_000, cache=ALL_KEYS, outputs={ONE: 100.0}))
    assert [line[3:6] for line in goal_lines(result)] == [
        ("Kafka Streams", "3", "3.10"),
        ("Quix Streams", "10", "31.00"),
    ]


def test_without_a_cache_who_writes_less_is_not_compared() -> None:
    """As Quix Streams, which writes no deletions of sessions."""
    rates = {ONE: 100.0, TWO: 200.0, "quix": 10.0}
    written = suite(rows(rates, job="session_count", outputs={"quix": 500.0}))
    assert goal_lines(written) == []
    assert len(goal_lines(suite(rows(rates, job="session_count")))) == 1


def test_as_many_workers_are_held_against_as_many_clients() -> None:
    """Two workers against one client would be two processes against one; without two clients there is no line."""
    rates = {ONE: 60.0, TWO: 90.0, "raw-client": 100.0}
    assert goal_lines(suite(rows(rates, job="stateless_json"))) == []
    (line,) = goal_lines(suite(rows({**rates, "raw-client-2": 200.0}, job="stateless_json")))
    assert line[3:] == ("as many plain clients", "50%", "60%", "45%", "1 worker")


def test_an_interval_of_its_own_default_is_nobodys_goal() -> None:
    """It is compared with nothing."""
    rates = {ONE: 10.0, TWO: 10.0, BASELINE: 100.0}
    assert goal_lines(suite(rows(rates, interval_ms=30_000, cache=ALL_KEYS))) == []
