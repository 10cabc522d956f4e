"""A result of the suite `throughput` for tests of what is made of it."""

from benchmarks.results import Row, SuiteResult


def suite(*parts: list[Row]) -> SuiteResult:
    """Return a result with these rows."""
    return SuiteResult(
        suite="throughput",
        date="2026-01-02",
        cpu="A processor",
        cores=2,
        versions={"python": "3.11", "kafka": "4.3.1"},
        rows=tuple(row for part in parts for row in part),
    )
