"""Table of the suite `parallel`: a line per job, guarantee, kind of keys and system."""

from benchmarks.report.results import NONE, Row, SuiteResult

HEADINGS = (
    "job",
    "guarantee",
    "keys",
    "system",
    "factor",
    "records/s",
    "range",
    "runs",
    "× factor 1",  # noqa: RUF001 - the sign for times
    "÷ factor",
    "memory",
)
LEFT = frozenset(HEADINGS[:4])
#: Jobs in which calls wait, so a factor of n can give n times the rate.
SPED_UP = frozenset({"blocking_10ms", "awaitable_10ms", "awaitable_mapper_10ms", "sleep_0_5ms"})
_Place = tuple[str, str, float]


def parallel_lines(result: SuiteResult) -> list[tuple[str, ...]]:
    found: dict[_Place, dict[str, dict[str, Row]]] = {}
    for row in result.rows:
        place = (row.job, row.guarantee or NONE, float(row.parameters.get("zipf", 0.0)))
        found.setdefault(place, {}).setdefault(row.system, {})[row.metric] = row
    lines: list[tuple[str, ...]] = []
    for place, systems in found.items():
        ranked = sorted(systems.items(), key=lambda item: _rank(item[0], item[1]))
        lines += [
            _line(place, system, metrics, _alone(found, place))
            for system, metrics in ranked
            if "records_per_s" in metrics
        ]
    return lines


def _rank(system: str, metrics: dict[str, Row]) -> tuple[bool, int]:
    ours = system.startswith("tidewheel")
    row = next(iter(metrics.values()))
    return not ours, int(row.parameters["factor"]) if ours else 0


def _alone(found: dict[_Place, dict[str, dict[str, Row]]], place: _Place) -> float | None:
    """Return our rate at factor 1, which does not depend on the distribution of keys."""
    job, guarantee, _ = place
    row = found.get((job, guarantee, 0.0), {}).get("tidewheel-factor-1", {}).get("records_per_s")
    return row.value if row is not None and row.value else None


def _line(
    place: _Place, system: str, metrics: dict[str, Row], alone_per_s: float | None
) -> tuple[str, ...]:
    job, guarantee, zipf = place
    rate = metrics["records_per_s"]
    factor = int(rate.parameters["factor"])
    gain = None if alone_per_s is None else rate.value / alone_per_s
    is_share = gain is not None and job in SPED_UP and system.startswith("tidewheel")
    memory = metrics.get("rss_mib_max")
    return (
        job,
        guarantee.replace("_", " "),
        f"{rate.parameters['keys']:,}" + (f", Zipf {zipf:g}" if zipf else ""),
        "tidewheel" if system.startswith("tidewheel") else system,
        str(factor) if system.startswith("tidewheel") else NONE,
        f"{rate.value:,.0f}",
        f"{rate.range[0]:,.0f} … {rate.range[1]:,.0f}" if rate.runs > 1 else NONE,
        str(rate.runs),
        NONE if gain is None else f"{gain:.2f}",
        f"{gain / factor:.2f}" if is_share and gain is not None else NONE,
        f"{memory.value:,.0f} MiB" if memory else NONE,
    )
