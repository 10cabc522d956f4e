"""Table of the suite `handoff`: a line per job, guarantee and system."""

from benchmarks.report.results import NONE, Row, SuiteResult

HEADINGS = (
    "job",
    "guarantee",
    "system",
    "moves",
    "moved, p95",
    "moved, longest",
    "not moved, longest",
    "quiet, median",
    "quiet, longest",
    "balanced after",
    "lost",
    "repeated",
)
LEFT = frozenset(HEADINGS[:3])


def handoff_lines(result: SuiteResult) -> list[tuple[str, ...]]:
    found: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in result.rows:
        found.setdefault((row.job, row.guarantee or NONE, row.system), {})[row.metric] = row
    return [_line(place, metrics) for place, metrics in found.items()]


def _line(place: tuple[str, str, str], metrics: dict[str, Row]) -> tuple[str, ...]:
    parameters = next(iter(metrics.values())).parameters

    def ms(metric: str) -> str:
        return f"{metrics[metric].value:,.0f} ms" if metric in metrics else NONE

    def count(metric: str) -> str:
        return f"{metrics[metric].value:,.0f}" if metric in metrics else NONE

    return (
        place[0],
        place[1].replace("_", " "),
        place[2],
        str(parameters["moves"]),
        ms("gap_ms_moved_p95"),
        ms("gap_ms_moved_max"),
        ms("gap_ms_unmoved_max"),
        f"{parameters['quiet_median_ms']:,.0f} ms",
        f"{parameters['quiet_longest_ms']:,.0f} ms",
        f"{metrics['balance_s'].value:.1f} s" if "balance_s" in metrics else NONE,
        count("lost"),
        count("repeated"),
    )
