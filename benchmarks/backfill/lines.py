"""Tables of the suite `backfill`: figures of each run, and the cost of large histories."""

from collections.abc import Mapping
from statistics import median
from typing import Final

from benchmarks.backfill.plan import PASSES, TENTH, WORKERS, Variant
from benchmarks.report.figures import row_ratio
from benchmarks.report.results import NONE, Row, SuiteResult

HEADINGS: Final = (
    "job",
    "system",
    "records",
    "records/s",
    "range",
    "runs",
    "× two workers",  # noqa: RUF001 - the sign for times
    "µs a record",
    "seconds",
    "of these, passes",
    "writing",
    "Spark's start",
    "memory",
)
LEFT: Final = frozenset(HEADINGS[:2])

#: Marker of the table of costs in a document.
COSTS_MARK: Final = "backfill-costs"
COSTS_HEADINGS: Final = (
    "job",
    "passes",
    "seconds of any job",
    "µs a record",
    "1 billion records",
    "on 16 cores",
    "1 trillion records",
    "on 1,000 cores",
)
COSTS_LEFT: Final = frozenset(COSTS_HEADINGS[:1])
_WHOLE: Final = Variant(cores=2).name
_BILLION: Final = 10**9
_TRILLION: Final = 10**12
_HOUR_S: Final = 3_600


def backfill_lines(result: SuiteResult) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for job, systems in _by_job(result).items():
        baseline = systems.get(WORKERS, {}).get("records_per_s")
        for system, rows in systems.items():
            same_input = system != TENTH.name
            lines.append(_line(job, system, rows, baseline if same_input else None))
    return lines


def cost_lines(result: SuiteResult) -> list[tuple[str, ...]]:
    """Return a line per job that ran over the input and over its tenth on the same cores.

    Two sizes tell a record's processor time and a job's fixed seconds apart. Larger inputs need
    the former on any number of cores, and the latter once.
    """
    lines: list[tuple[str, ...]] = []
    for job, systems in _by_job(result).items():
        if {_WHOLE, TENTH.name} <= systems.keys():
            lines.append(_cost_line(job, systems[_WHOLE], systems[TENTH.name]))
    return lines


def _by_job(result: SuiteResult) -> Mapping[str, Mapping[str, Mapping[str, Row]]]:
    found: dict[str, dict[str, dict[str, Row]]] = {}
    for row in result.rows:
        found.setdefault(row.job, {}).setdefault(row.system, {})[row.metric] = row
    return found


def _line(job: str, system: str, rows: Mapping[str, Row], baseline: Row | None) -> tuple[str, ...]:
    rate = rows["records_per_s"]
    parameters = rate.parameters
    phases: list[dict[str, float]] = parameters.get("phases_s", [])
    return (
        job,
        system,
        f"{parameters['records']:,}",
        f"{rate.value:,.0f}",
        f"{rate.range[0]:,.0f} … {rate.range[1]:,.0f}" if rate.runs > 1 else NONE,
        str(rate.runs),
        NONE if baseline is None else f"{row_ratio(rate, baseline):.2f}",
        f"{rows['processor_us_per_record'].value:,.2f}",
        _seconds(parameters.get("seconds", [])),
        _seconds([_sum_of(each, "pass") for each in phases]),
        _seconds([_sum_of(each, "writ") for each in phases]),
        _seconds(parameters.get("spark_start_s", [])),
        f"{rows['rss_mib_max'].value:,.0f} MiB",
    )


def _sum_of(phases: Mapping[str, float], prefix: str) -> float:
    return sum(seconds for name, seconds in phases.items() if name.startswith(prefix))


def _seconds(values: list[float]) -> str:
    return f"{median(values):.1f}" if values else NONE


def _cost_line(job: str, whole: Mapping[str, Row], tenth: Mapping[str, Row]) -> tuple[str, ...]:
    records, fewer = (_records(rows) for rows in (whole, tenth))
    record_s = (_used_s(whole) - _used_s(tenth)) / (records - fewer)
    slope_s = (_whole_s(whole) - _whole_s(tenth)) / (records - fewer)
    fixed_s = max(_whole_s(tenth) - slope_s * fewer, 0.0)
    return (
        job,
        str(PASSES[job]),
        f"{fixed_s:.1f}",
        f"{record_s * 1e6:.2f}",
        _core_hours(record_s * _BILLION),
        _duration(fixed_s + record_s * _BILLION / 16),
        _core_hours(record_s * _TRILLION),
        _duration(fixed_s + record_s * _TRILLION / 1_000),
    )


def _records(rows: Mapping[str, Row]) -> int:
    records: int = rows["records_per_s"].parameters["records"]
    return records


def _used_s(rows: Mapping[str, Row]) -> float:
    return rows["processor_us_per_record"].value * _records(rows) / 1e6


def _whole_s(rows: Mapping[str, Row]) -> float:
    return _records(rows) / rows["records_per_s"].value


def _core_hours(seconds: float) -> str:
    """Return processor time as text.

    >>> _core_hours(9_000.0), _core_hours(7_200_000.0)
    ('2.5 core hours', '2,000 core hours')
    """
    hours = seconds / _HOUR_S
    return f"{hours:,.1f} core hours" if hours < 100 else f"{hours:,.0f} core hours"


def _duration(seconds: float) -> str:
    """Return a duration as text.

    >>> _duration(90.0), _duration(5_400.0)
    ('1.5 min', '1.5 h')
    """
    return f"{seconds / 60:.1f} min" if seconds < _HOUR_S else f"{seconds / _HOUR_S:.1f} h"
