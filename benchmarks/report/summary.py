"""Summary of the suite `throughput`: a line per setting, and a chart of all jobs (pure)."""

from collections.abc import Iterator, Mapping
from string import ascii_lowercase
from typing import Final
from xml.sax.saxutils import escape

from benchmarks.report.figures import (
    DIFFER,
    ONE,
    QUIX,
    SETTING_HEADINGS,
    TWO,
    SystemFigures,
    comparable,
    figures_by_setting,
    rate_text,
    ratio,
    ratio_text,
    setting_cells,
)
from benchmarks.report.results import BASELINE, NONE, SuiteResult

MARK: Final = "throughput-summary"
PICTURE: Final = "images/throughput.svg"
HEADINGS: Final = (
    *SETTING_HEADINGS,
    "Tidewheel, 1 worker",
    "2 workers",
    "Kafka Streams",
    "Quix Streams",
    "1 worker × Kafka Streams",  # noqa: RUF001 - the sign for times
    "2 workers × Kafka Streams",  # noqa: RUF001 - the same
    "machine",
)
LEFT: Final = frozenset({*SETTING_HEADINGS, "machine"})
NOTES: Final = (
    f"Records a second, medians; ratios are medians of the rounds' ratios. `{DIFFER}`: one system's cache let through over a tenth fewer"
    " outputs than the other's, so it had less to do, and no ratio is given."
)
#: The drawn setting: all jobs have it.
_DRAWN: Final = ("exactly once", "100 ms", "none")
_LOOKS: Final = {ONE: "#7dbfa3", TWO: "#0b6e4f", QUIX: "#888888"}
_NAMES: Final = {ONE: "Tidewheel, 1 worker", TWO: "Tidewheel, 2 workers", QUIX: "Quix Streams"}
_LEFT: Final = 150
_WIDTH: Final = 470
_TOP: Final = 44
_BAR: Final = 11
_GAP: Final = 14


def summary_lines(result: SuiteResult) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    letters = _letters(result)
    for figures in _compared(result):
        baseline = figures[BASELINE]
        rates = [rate_text(figures.get(system)) for system in (ONE, TWO, BASELINE, QUIX)]
        ratios = [
            ratio_text(figures[system], baseline) if system in figures else NONE
            for system in (ONE, TWO)
        ]
        letter = letters[result.machine_of(baseline.rate)]
        lines.append((*setting_cells(baseline.rate), *rates, *ratios, letter))
    return lines


def machines_text(result: SuiteResult) -> str:
    days: dict[str, set[str]] = {}
    for figures in _compared(result):
        rate = figures[BASELINE].rate
        date = rate.parameters.get("date", result.date)
        days.setdefault(result.machine_of(rate), set()).add(date)
    shown = [
        f"{letter}: {machine} shared with the broker, {' to '.join(sorted({min(days[machine]), max(days[machine])}))}"
        for machine, letter in _letters(result).items()
    ]
    return ". ".join(shown)


def _compared(result: SuiteResult) -> Iterator[Mapping[str, SystemFigures]]:
    for figures in figures_by_setting(result):
        if BASELINE in figures and {ONE, TWO} & figures.keys():
            yield figures


def _letters(result: SuiteResult) -> Mapping[str, str]:
    machines = dict.fromkeys(
        result.machine_of(figures[BASELINE].rate) for figures in _compared(result)
    )
    return dict(zip(machines, ascii_lowercase, strict=False))


def throughput_svg(result: SuiteResult) -> str | None:
    """Return the SVG: each system's ratio to Kafka Streams by job; None without a job."""
    jobs = _drawn(result)
    if not jobs:
        return None
    furthest = max(value for bars in jobs.values() for value in bars.values())
    ticks = range(int(furthest) + 2)
    scale = _WIDTH / ticks[-1]
    height = _TOP + sum(len(bars) * _BAR + _GAP for bars in jobs.values())
    legend = height + 36
    width = _LEFT + _WIDTH + 50
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {legend + 16}"'
    title = "Records a second, as multiples of what Kafka Streams does (exactly once, a commit every 100 ms, no cache)"
    parts = [
        f'{head} font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{legend + 16}" fill="white"/>',
        f'<text x="8" y="20" font-weight="bold" font-size="11">{title}</text>',
    ]
    for tick in ticks:
        x = _LEFT + tick * scale
        colour = "#c8553d" if tick == 1 else "#dddddd"
        parts += [
            f'<path d="M{x:.1f},{_TOP - 8}V{height}" stroke="{colour}"/>',
            f'<text x="{x:.1f}" y="{height + 14}" text-anchor="middle">{tick}</text>',
        ]
    y = _TOP
    for job, bars in jobs.items():
        middle = y + len(bars) * _BAR / 2 + 4
        parts.append(
            f'<text x="{_LEFT - 8}" y="{middle:.1f}" text-anchor="end">{escape(job)}</text>'
        )
        for system, value in bars.items():
            long = value * scale
            parts += [
                f'<rect x="{_LEFT}" y="{y}" width="{long:.1f}" height="{_BAR - 1}" fill="{_LOOKS[system]}"/>',
                f'<text x="{_LEFT + long + 4:.1f}" y="{y + _BAR - 2}" font-size="10">{value:.2f}</text>',
            ]
            y += _BAR
        y += _GAP
    x = _LEFT
    for system, name in _NAMES.items():
        parts += [
            f'<rect x="{x}" y="{legend - 9}" width="10" height="10" fill="{_LOOKS[system]}"/>',
            f'<text x="{x + 16}" y="{legend}">{name}</text>',
        ]
        x += 170
    return "\n".join([*parts, "</svg>", ""])


def _drawn(result: SuiteResult) -> Mapping[str, Mapping[str, float]]:
    jobs: dict[str, Mapping[str, float]] = {}
    for figures in _compared(result):
        baseline = figures[BASELINE]
        if setting_cells(baseline.rate)[1:] != _DRAWN:
            continue
        bars = {
            system: ratio(figures[system], baseline)
            for system in _LOOKS
            if system in figures
            and comparable(figures[system].outputs_per_record, baseline.outputs_per_record)
        }
        if bars:
            jobs[baseline.rate.job] = bars
    return jobs
