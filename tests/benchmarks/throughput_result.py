"""Results of the suite `throughput` for tests."""

from typing import Any

from benchmarks.report.results import Row, SuiteResult, make_rows


def suite(*parts: list[Row]) -> SuiteResult:
    return SuiteResult(
        suite="throughput",
        date="2026-01-02",
        cpu="A processor",
        cores=2,
        versions={"python": "3.11", "kafka": "4.3.1"},
        rows=tuple(row for part in parts for row in part),
    )


def rows(
    system: str,
    rates: list[float],
    *,
    outputs: float = 1_000,
    job: str = "count_by_key",
    guarantee: str = "exactly_once",
    interval_ms: int = 100,
    cache: int = 0,
    **parameters: Any,
) -> list[Row]:
    return make_rows(
        {"records_per_s": rates, "outputs": [outputs]},
        system=system,
        job=job,
        guarantee=guarantee,
        parameters={
            "records": 1_000,
            "commit_interval_ms": interval_ms,
            "cache_bytes": cache,
            **parameters,
        },
    )
