"""Table of the suite `coordinator`: a line per group size and event."""

from benchmarks.report.results import NONE, Row, SuiteResult

HEADINGS = (
    "members",
    "tasks",
    "what happens",
    "decision median",
    "decision p99",
    "applied p99",
    "log",
    "snapshot",
    "beat",
    "leader's beat",
    "leader at rest",
)
LEFT = frozenset(("what happens",))


def coordinator_lines(result: SuiteResult) -> list[tuple[str, ...]]:
    found: dict[tuple[int, int, str], dict[str, Row]] = {}
    for row in result.rows:
        place = (row.parameters["members"], row.parameters["tasks"], row.job)
        found.setdefault(place, {})[row.metric] = row
    places = sorted(found, key=lambda place: place[:2])
    return [_line(place, found[place]) for place in places]


def _line(place: tuple[int, int, str], metrics: dict[str, Row]) -> tuple[str, ...]:
    def ms(metric: str) -> str:
        return f"{metrics[metric].value:,.1f} ms" if metric in metrics else NONE

    def size(metric: str) -> str:
        if metric not in metrics:
            return NONE
        value = metrics[metric].value
        return f"{value / 1024:,.1f} KiB" if value >= 1024 else f"{value:.0f} B"

    return (
        str(place[0]),
        f"{place[1]:,}",
        place[2].replace("_", " "),
        ms("decide_ms_p50"),
        ms("decide_ms_p99"),
        ms("apply_ms_p99"),
        size("log_bytes"),
        size("snapshot_bytes"),
        size("beat_bytes"),
        size("leader_beat_bytes"),
        f"{metrics['leader_ms_per_s'].value:.1f} ms/s" if "leader_ms_per_s" in metrics else NONE,
    )
