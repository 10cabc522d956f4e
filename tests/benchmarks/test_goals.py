"""What was asked and what the rows have: the least of a goal's settings counts, and a miss is told as one."""

from benchmarks.goals import goal_lines
from benchmarks.results import BASELINE, NONE, Row, make_row
from tests.benchmarks.throughput_result import suite

ALL_KEYS = 64 << 20


def rows(
    job: str, rates: dict[str, list[float]], *, guarantee: str = "exactly_once", interval_ms: int = 100,
    cache: int = 0,
) -> list[Row]:  # fmt: skip
    parameters = {"records": 1_000, "commit_interval_ms": interval_ms, "cache_bytes": cache}
    return [
        make_row(
            values,
            system=system,
            job=job,
            guarantee=guarantee,
            metric="records_per_s",
            parameters=parameters,
        )
        for system, values in rates.items()
    ]


def test_the_least_of_a_goals_settings_counts() -> None:
    """Exactly once is slower here: that is what the line has."""
    result = suite(
        rows("count_by_key", {"tidewheel": [200.0], "tidewheel-workers-2": [300.0], BASELINE: [100.0]}, guarantee="at_least_once"),
        rows("count_by_key", {"tidewheel": [140.0], "tidewheel-workers-2": [250.0], BASELINE: [100.0]}),
    )  # fmt: skip
    assert goal_lines(result) == [
        ("count_by_key", "no cache", "Kafka Streams", "1.5", "1.40", "2.50", "2 workers")
    ]


def test_a_goal_that_nobody_reaches_says_so() -> None:
    """As one that both reach."""
    missed = suite(rows("word_count", {"tidewheel": [90.0], BASELINE: [100.0]}))
    assert [line[-3:] for line in goal_lines(missed)] == [("0.90", NONE, "neither")]
    reached = suite(
        rows(
            "word_count", {"tidewheel": [100.0], "tidewheel-workers-2": [150.0], BASELINE: [100.0]}
        )
    )
    assert [line[-1] for line in goal_lines(reached)] == ["1 worker and 2 workers"]


def test_with_a_cache_the_bare_rates_are_compared() -> None:
    """So it was asked, whatever was written."""
    result = suite(
        rows("count_by_key", {"tidewheel": [310.0], BASELINE: [100.0], "quix": [10.0]}, interval_ms=1_000, cache=ALL_KEYS)
    )  # fmt: skip
    assert [(line[2], line[3], line[4]) for line in goal_lines(result)] == [
        ("Kafka Streams", "3", "3.10"),
        ("Quix Streams", "10", "31.00"),
    ]


def test_as_many_workers_are_held_against_as_many_clients() -> None:
    """Two workers against one client would be two processes against one."""
    rates = {"tidewheel": [60.0], "tidewheel-workers-2": [90.0], "raw-client": [100.0], "raw-client-2": [150.0]}  # fmt: skip
    assert goal_lines(suite(rows("stateless_json", {name: [rate] for name, (rate,) in rates.items()}))) == [
        ("stateless_json", "no cache", "the plain client", "50%", "60%", "60%", "1 worker and 2 workers")
    ]  # fmt: skip


def test_jobs_that_share_a_goal_have_one_line() -> None:
    """The slowest of them beside Quix Streams."""
    result = suite(
        rows("tumbling_count", {"tidewheel": [200.0], "quix": [10.0]}),
        rows("word_count", {"tidewheel": [70.0], "quix": [10.0]}),
    )
    assert goal_lines(result) == [
        ("all others", "no cache", "Quix Streams", "8", "7.00", NONE, "neither")
    ]
