"""Table of the suite `restore`: a line per job and system, with Kafka Streams' replay."""

from statistics import median

from benchmarks.report.figures import row_ratio
from benchmarks.report.results import BASELINE, NONE, Row, SuiteResult
from benchmarks.restore.growth import JOB as GROWTH

HEADINGS = (
    "job",
    "system",
    "how",
    "seconds",
    "records/s",
    "range",
    "runs",
    "longest pause",
    "memory",
    "× Kafka Streams",  # noqa: RUF001 - the sign for times
)
LEFT = frozenset(HEADINGS[:3])


def restore_lines(result: SuiteResult) -> list[tuple[str, ...]]:
    found: dict[str, dict[str, dict[str, Row]]] = {}
    for row in result.rows:
        found.setdefault(row.job, {}).setdefault(row.system, {})[row.metric] = row
    return [
        _line(job, system, metrics, systems.get(BASELINE, {}).get("records_per_s"))
        for job, systems in found.items()
        for system, metrics in systems.items()
        if job != GROWTH and "records_per_s" in metrics
    ]


def _line(job: str, system: str, metrics: dict[str, Row], baseline: Row | None) -> tuple[str, ...]:
    rate = metrics["records_per_s"]
    seconds, pause = metrics.get("seconds"), metrics.get("gap_ms_unmoved_max")
    memory = metrics.get("rss_mib_max")
    return (
        job.replace("_", " "),
        "tidewheel" if system.startswith("tidewheel") else system,
        _how(rate),
        NONE if seconds is None else f"{seconds.value:.1f}",
        f"{rate.value:,.0f}",
        f"{rate.range[0]:,.0f} … {rate.range[1]:,.0f}" if rate.runs > 1 else NONE,
        str(rate.runs),
        NONE if pause is None else f"{pause.value:,.0f} ms",
        NONE if memory is None else f"{memory.value:,.0f} MiB",
        NONE if baseline is None else f"{row_ratio(rate, baseline):.2f}",
    )


def _how(rate: Row) -> str:
    """Return the method of restoring; the seconds exclude Spark's own start."""
    parameters = rate.parameters
    how = str(parameters.get("how") or f"beside {parameters['beside']}").replace("_", " ")
    starts: list[float] | None = parameters.get("spark_start_s")
    return how if starts is None else f"{how}, started in {median(starts):.1f} s"
