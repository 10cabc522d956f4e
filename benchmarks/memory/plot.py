"""Chart of the suite `memory`: resident MiB over minutes, a line per system, as SVG (pure)."""

from typing import Final
from xml.sax.saxutils import escape

from benchmarks.report.results import SuiteResult
from benchmarks.restore.plot import nice_end

_WIDTH: Final = 620
_HEIGHT: Final = 260
_LEFT: Final = 60
_TOP: Final = 34
_LEGEND: Final = 24
_LOOKS: Final = {"tidewheel": ("#0b6e4f", ""), "kafka-streams": ("#c8553d", "6 4")}
_OTHER: Final = ("#555555", "2 3")


def memory_svg(result: SuiteResult) -> str | None:
    series: dict[str, list[tuple[float, float]]] = {
        row.system: [(at_s / 60, mib) for at_s, mib in row.parameters["series"]]
        for row in result.rows
        if row.metric == "rss_mib_max" and row.parameters.get("series")
    }
    if not series:
        return None
    furthest = max(minutes for points in series.values() for minutes, _ in points) or 1.0
    highest = nice_end(max(mib for points in series.values() for _, mib in points))
    bottom = _TOP + _HEIGHT
    width, height = _LEFT + _WIDTH + 40, bottom + 52 + _LEGEND * len(series)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
    parts = [
        f'{head} font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="{_TOP - 14}" font-weight="bold">MiB resident over minutes</text>',
    ]
    for step in range(5):
        x, y = _LEFT + _WIDTH * step / 4, bottom - _HEIGHT * step / 4
        parts += [
            f'<path d="M{_LEFT},{y:.1f}H{_LEFT + _WIDTH}" stroke="#dddddd"/>',
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{highest * step / 4:g}</text>',
            f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{furthest * step / 4:.1f}</text>',
        ]
    for number, (system, points) in enumerate(series.items()):
        colour, dashes = _LOOKS.get(system, _OTHER)
        places = " ".join(
            f"{_LEFT + _WIDTH * minutes / furthest:.1f},{bottom - _HEIGHT * mib / highest:.1f}"
            for minutes, mib in points
        )
        stroke = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"'
        y = bottom + 48 + number * _LEGEND
        parts += [
            f'<polyline points="{places}" fill="none" {stroke}/>',
            f'<path d="M{_LEFT},{y - 4}h34" {stroke}/>',
            f'<text x="{_LEFT + 42}" y="{y}">{escape(system)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
