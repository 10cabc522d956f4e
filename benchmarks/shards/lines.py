"""Table of the suite `shards`: a line per job and variant."""

from collections.abc import Mapping

from benchmarks.report.results import NONE, Row, SuiteResult

HEADINGS = (
    "job",
    "guarantee",
    "workers",
    "shards",
    "records/s",
    "range",
    "runs",
    "× one worker",  # noqa: RUF001 - the sign for times
    "µs a record",
    "× by processor time",  # noqa: RUF001 - the sign for times
    "broker, µs a record",
)
LEFT = frozenset(HEADINGS[:2])


def shard_lines(result: SuiteResult) -> list[tuple[str, ...]]:
    found: dict[tuple[str, str], dict[str, dict[str, Row]]] = {}
    for row in result.rows:
        systems = found.setdefault((row.job, row.guarantee or NONE), {})
        systems.setdefault(row.system, {})[row.metric] = row
    lines: list[tuple[str, ...]] = []
    for (job, guarantee), systems in found.items():
        whole = next((rows for rows in systems.values() if _is_whole(rows)), None)
        lines += [_line(job, guarantee, rows, whole) for rows in systems.values()]
    return lines


def _is_whole(rows: Mapping[str, Row]) -> bool:
    return bool(rows["records_per_s"].parameters["shards"] == 1)


def _line(
    job: str, guarantee: str, rows: Mapping[str, Row], whole: Mapping[str, Row] | None
) -> tuple[str, ...]:
    rate = rows["records_per_s"]
    broker = rows.get("broker_us_per_record")
    return (
        job,
        guarantee.replace("_", " "),
        str(rate.parameters["workers"]),
        str(rate.parameters["shards"]),
        f"{rate.value:,.0f}",
        f"{rate.range[0]:,.0f} … {rate.range[1]:,.0f}" if rate.runs > 1 else NONE,
        str(rate.runs),
        NONE if whole is None else f"{rate.value / whole['records_per_s'].value:.2f}",
        f"{rows['workers_us_per_record'].value:,.1f}",
        NONE
        if whole is None
        # The busiest worker decides how fast workers with a processor each would be.
        else f"{whole['busiest_us_per_record'].value / rows['busiest_us_per_record'].value:.2f}",
        NONE if broker is None else f"{broker.value:,.1f}",
    )
