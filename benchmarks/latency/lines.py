"""Table of the suite `latency`: a line per guarantee, cache and system."""

from benchmarks.jobs import plan
from benchmarks.report.figures import row_ratio
from benchmarks.report.results import BASELINE, NONE, Row, SuiteResult

HEADINGS = (
    "job",
    "guarantee",
    "cache",
    "system",
    "commit every",
    "p50",
    "range",
    "p99",
    "range of p99",
    "longest",
    "runs",
    "p50 ÷ Kafka Streams",
    "p99 ÷ Kafka Streams",
)
LEFT = frozenset(HEADINGS[:4])


def latency_lines(result: SuiteResult) -> list[tuple[str, ...]]:
    found: dict[tuple[str, ...], dict[str, dict[str, Row]]] = {}
    rows = sorted(result.rows, key=lambda row: (row.guarantee or "", _cache_bytes(row)))
    for row in rows:
        cache = plan.cache_text(_cache_bytes(row))
        place = (row.job, (row.guarantee or NONE).replace("_", " "), cache)
        found.setdefault(place, {}).setdefault(row.system, {})[row.metric] = row
    return [
        _line(place, system, metrics, systems.get(BASELINE, {}))
        for place, systems in found.items()
        for system, metrics in systems.items()
    ]


def _cache_bytes(row: Row) -> int:
    cache_bytes: int = row.parameters.get("cache_bytes", 0)
    return cache_bytes


def _line(
    place: tuple[str, ...], system: str, metrics: dict[str, Row], baseline: dict[str, Row]
) -> tuple[str, ...]:
    middle, late = metrics["latency_ms_p50"], metrics["latency_ms_p99"]
    parameters = late.parameters
    threads = parameters.get("threads")
    return (
        *place,
        system + (f" ({threads} thread{'s' if threads > 1 else ''})" if threads else ""),
        f"{parameters['commit_interval_ms']} ms",
        f"{middle.value:,.0f} ms",
        _range(middle),
        f"{late.value:,.0f} ms",
        _range(late),
        f"{max(parameters['longest_ms']):,.0f} ms",
        str(late.runs),
        *(_ratio(row, baseline.get(row.metric)) for row in (middle, late)),
    )


def _range(row: Row) -> str:
    return f"{row.range[0]:,.0f} … {row.range[1]:,.0f}" if row.runs > 1 else NONE


def _ratio(row: Row, baseline: Row | None) -> str:
    return f"{row_ratio(row, baseline):.2f}" if baseline else NONE
