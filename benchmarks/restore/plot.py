"""Chart of the job `growth`: seconds over changelog length and over number of keys, as SVG.

Written by hand: a document's chart needs no further package. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from benchmarks.report.results import Row, SuiteResult
from benchmarks.restore.growth import LENGTH, STATE, growth_rows

_WIDTH: Final = 380
_HEIGHT: Final = 260
_LEFT: Final = 52
_TOP: Final = 34
_BETWEEN: Final = 70
_LEGEND: Final = 24
#: Fixed colour and dash of each system, distinguishable without colours.
_LOOKS: Final = {
    "tidewheel": ("#0b6e4f", ""),
    "tidewheel-snapshot": ("#08a045", "2 3"),
    "tidewheel-spark-2": ("#7a4fbf", ""),
    "tidewheel-spark-1": ("#7a4fbf", "6 4"),
    "kafka-streams": ("#c8553d", ""),
}
_OTHER: Final = ("#555555", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """One pair of axes: the variable along x, and its rows."""

    title: str
    parameter: str
    rows: Sequence[Row]

    def lines(self) -> dict[str, list[tuple[float, float]]]:
        found: dict[str, list[tuple[float, float]]] = {}
        for row in self.rows:
            found.setdefault(row.system, []).append((row.parameters[self.parameter], row.value))
        return {system: sorted(points) for system, points in found.items()}


def growth_svg(result: SuiteResult) -> str | None:
    rows = growth_rows(result)
    if not rows:
        return None
    panels = (
        _Panel(
            title="seconds over records in the changelog",
            parameter="records",
            rows=[row for row in rows if LENGTH in row.parameters["varied"]],
        ),
        _Panel(
            title="seconds over keys in the store",
            parameter="keys",
            rows=[row for row in rows if STATE in row.parameters["varied"]],
        ),
    )
    systems = list(dict.fromkeys(row.system for row in rows))
    highest = nice_end(max(row.value for row in rows))
    width = 2 * (_LEFT + _WIDTH) + _BETWEEN
    height = _TOP + _HEIGHT + 40 + _LEGEND * len(systems)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
    parts = [
        f'{head} font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        parts += _axes(panel, _LEFT + number * (_LEFT + _WIDTH + _BETWEEN // 2), highest)
    for number, system in enumerate(systems):
        parts += _legend(system, _TOP + _HEIGHT + 52 + number * _LEGEND)
    return "\n".join([*parts, "</svg>", ""])


def nice_end(largest: float) -> float:
    """Return the end of an axis: the next of 1, 2, 4, 5, 8 or 10 times a power of ten.

    >>> nice_end(0.3), nice_end(37), nice_end(8_000_000)
    (0.4, 40.0, 8000000.0)
    """
    power = 1.0
    while power * 10 < largest:
        power *= 10
    while power > largest:
        power /= 10
    return next(part * power for part in (1, 2, 4, 5, 8, 10) if part * power >= largest)


def _axes(panel: _Panel, left: float, highest: float) -> list[str]:
    lines = panel.lines()
    furthest = nice_end(max(x for points in lines.values() for x, _ in points))
    bottom = _TOP + _HEIGHT

    def place(x: float, y: float) -> str:
        return f"{left + _WIDTH * x / furthest:.1f},{bottom - _HEIGHT * y / highest:.1f}"

    parts = [f'<text x="{left}" y="{_TOP - 14}" font-weight="bold">{escape(panel.title)}</text>']
    for step in range(5):
        y = bottom - _HEIGHT * step / 4
        x = left + _WIDTH * step / 4
        parts += [
            f'<path d="M{left},{y:.1f}H{left + _WIDTH}" stroke="#dddddd"/>',
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{highest * step / 4:g}</text>',
            f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{short(furthest * step / 4)}</text>',
        ]
    for system, points in lines.items():
        colour, dashes = _LOOKS.get(system, _OTHER)
        places = [place(x, y) for x, y in points]
        parts.append(
            f'<polyline points="{" ".join(places)}" fill="none" stroke="{colour}" '
            f'stroke-width="2" stroke-dasharray="{dashes}"/>'
        )
        for each in places:
            across, down = each.split(",")
            parts.append(f'<circle cx="{across}" cy="{down}" r="3" fill="{colour}"/>')
    return parts


def short(number: float) -> str:
    """Return a number for an axis.

    >>> short(0), short(250_000), short(1_500_000)
    ('0', '250 k', '1.5 M')
    """
    if number >= 1e6:
        return f"{number / 1e6:g} M"
    return f"{number / 1e3:g} k" if number >= 1e3 else f"{number:g}"


def _legend(system: str, y: float) -> list[str]:
    colour, dashes = _LOOKS.get(system, _OTHER)
    return [
        f'<path d="M{_LEFT},{y - 4}h34" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>',
        f'<text x="{_LEFT + 42}" y="{y}">{escape(_MEANING.get(system, system))}</text>',
    ]


_MEANING: Final = {
    "tidewheel": "Tidewheel, from the changelog",
    "tidewheel-snapshot": "Tidewheel, from a snapshot",
    "tidewheel-spark-2": "Tidewheel, by Spark with 2 cores (without Spark's own start)",
    "tidewheel-spark-1": "Tidewheel, by Spark with 1 core (without Spark's own start)",
    "kafka-streams": "Kafka Streams, replay with 2 threads",
}
