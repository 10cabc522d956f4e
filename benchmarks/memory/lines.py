"""Table of the suite `memory`: a line per system."""

from benchmarks.report.results import NONE, Row, SuiteResult

HEADINGS = (
    "job",
    "guarantee",
    "system",
    "load",
    "keys at the end",
    "cache",
    "most",
    "median",
    "a minute",
    "flat",
)
LEFT = frozenset((*HEADINGS[:4], "flat"))


def memory_lines(result: SuiteResult) -> list[tuple[str, ...]]:
    return [_line(row) for row in result.rows if row.metric == "rss_mib_max"]


def _line(row: Row) -> tuple[str, ...]:
    given = row.parameters
    return (
        row.job.replace("_", " "),
        (row.guarantee or NONE).replace("_", " "),
        row.system,
        f"{given['records_per_s']:,} records/s, {given['seconds']} s",
        f"{given['keys']:,}",
        f"{given['cache_bytes'] // 2**20} MiB",
        f"{row.value:,.0f} MiB",
        f"{given['middle_mib']:,.0f} MiB",
        f"{given['slope_mib_per_minute']:+.1f} MiB",
        "yes" if given["flat"] else "no",
    )
