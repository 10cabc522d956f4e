"""The table of the suite `latency`: a line for each guarantee and system."""

from benchmarks.results import BASELINE, NONE, Row, SuiteResult

HEADINGS = (
    "job",
    "guarantee",
    "system",
    "commit every",
    "p50",
    "range",
    "p99",
    "range of p99",
    "longest",
    "runs",
    "p99 ÷ Kafka Streams",
)
LEFT = frozenset(HEADINGS[:3])


def latency_lines(result: SuiteResult) -> list[tuple[str, ...]]:
    """Return the lines, a text for each of `HEADINGS`, in the order they were run."""
    found: dict[tuple[str, str], dict[str, dict[str, Row]]] = {}
    for row in result.rows:
        place = (row.job, row.guarantee or NONE)
        found.setdefault(place, {}).setdefault(row.system, {})[row.metric] = row
    return [
        _line(place, system, metrics, systems.get(BASELINE))
        for place, systems in found.items()
        for system, metrics in systems.items()
    ]


def _line(
    place: tuple[str, str], system: str, metrics: dict[str, Row], baseline: dict[str, Row] | None
) -> tuple[str, ...]:
    middle, late = metrics["latency_ms_p50"], metrics["latency_ms_p99"]
    parameters = late.parameters
    threads = parameters.get("threads")
    other = baseline["latency_ms_p99"].value if baseline else 0.0
    return (
        place[0],
        place[1].replace("_", " "),
        system + (f" ({threads} thread{'s' if threads > 1 else ''})" if threads else ""),
        f"{parameters['commit_interval_ms']} ms",
        f"{middle.value:,.0f} ms",
        _range(middle),
        f"{late.value:,.0f} ms",
        _range(late),
        f"{max(parameters['longest_ms']):,.0f} ms",
        str(late.runs),
        f"{late.value / other:.2f}" if other else NONE,
    )


def _range(row: Row) -> str:
    return f"{row.range[0]:,.0f} … {row.range[1]:,.0f}" if row.runs > 1 else NONE
