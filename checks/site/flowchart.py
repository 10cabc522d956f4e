"""Mermaid's flowcharts from left to right, drawn as SVG.

GitHub draws them with a script of 3 MB. Here only `a["label"] --> b` and `-->|label|` are
known, and columns are enough.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

_HEAD: Final = "flowchart LR"
_NODE: Final = re.compile(r'\s*(?P<id>\w+)(?:\["(?P<label>[^"]*)"\])?\s*')
_ARROW: Final = re.compile(r'--(?P<open>-)?>?(?:\|"?(?P<label>[^|"]*)"?\|)?')
_CHARACTER: Final = 7.3  # width of a letter in px
_LINE: Final = 18
_GAP: Final = 64
_BETWEEN: Final = 22
_PADDING: Final = 12


@dataclass
class _Box:
    lines: list[str]
    column: int = 0
    x: float = 0
    y: float = 0
    width: float = 0
    height: float = 0


@dataclass
class _Chart:
    boxes: dict[str, _Box] = field(default_factory=dict[str, _Box])
    links: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])


def draw_flowchart(lines: Sequence[str]) -> str:
    """Return the SVG on one line.

    Raises:
        ValueError: A line has another syntax.
    """
    chart = _parsed(lines)
    for _ in chart.boxes:
        for first, second, _ in chart.links:
            after = chart.boxes[first].column + 1
            if first != second and after < len(chart.boxes):
                chart.boxes[second].column = max(chart.boxes[second].column, after)
    width, height = _place(chart)
    body = "".join(_link(chart, link) for link in chart.links)
    body += "".join(map(_drawn, chart.boxes.values()))
    label = escape("; ".join(_sentence(chart, link) for link in chart.links), quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{label}">{body}</svg>'
    )


def _parsed(lines: Sequence[str]) -> _Chart:
    if not lines or lines[0].strip() != _HEAD:
        raise ValueError(f"a picture must begin with {_HEAD!r}")
    chart = _Chart()
    for line in filter(str.strip, lines[1:]):
        position, last, label = 0, None, ""
        while True:
            node = _NODE.match(line, position)
            if node is None:
                raise ValueError(f"the picture has an unknown line: {line.strip()}")
            name = node["id"]
            box = chart.boxes.setdefault(name, _Box([name]))
            if node["label"] is not None:
                box.lines = node["label"].split("<br>")
            if last is not None:
                chart.links.append((last, name, label))
            last, position = name, node.end()
            if position == len(line):
                break
            arrow = _ARROW.match(line, position)
            if arrow is None:
                raise ValueError(f"the picture has an unknown line: {line.strip()}")
            label, position = arrow["label"] or "", arrow.end()
    return chart


def _place(chart: _Chart) -> tuple[float, float]:
    columns: dict[int, list[_Box]] = {}
    for box in chart.boxes.values():
        box.width = max(map(len, box.lines)) * _CHARACTER + 2 * _PADDING
        box.height = len(box.lines) * _LINE + _PADDING
        columns.setdefault(box.column, []).append(box)
    heights = {
        number: sum(box.height + _BETWEEN for box in boxes) - _BETWEEN
        for number, boxes in columns.items()
    }
    height = max(heights.values())
    x = 1.0
    for number in sorted(columns):
        y = 1 + (height - heights[number]) / 2
        for box in columns[number]:
            box.x, box.y = x, y
            y += box.height + _BETWEEN
        x += max(box.width for box in columns[number])
        leaving = [label for first, _, label in chart.links if chart.boxes[first].column == number]
        x += max(_GAP, *(len(label) * _CHARACTER + 2 * _PADDING for label in leaving), 0)
    return max(box.x + box.width for box in chart.boxes.values()) + 1, height + 2


def _link(chart: _Chart, link: tuple[str, str, str]) -> str:
    first, second = chart.boxes[link[0]], chart.boxes[link[1]]
    x1, y1 = first.x + first.width, first.y + first.height / 2
    x2, y2 = second.x - 2, second.y + second.height / 2
    half = (x1 + x2) / 2
    path = f"M{x1:.0f} {y1:.0f}C{half:.0f} {y1:.0f} {half:.0f} {y2:.0f} {x2 - 6:.0f} {y2:.0f}"
    head = f"M{x2 - 7:.0f} {y2 - 4:.0f}L{x2:.0f} {y2:.0f}L{x2 - 7:.0f} {y2 + 4:.0f}z"
    text = (
        f'<text x="{half:.0f}" y="{(y1 + y2) / 2 - 6:.0f}" text-anchor="middle">{escape(link[2])}</text>'
        if link[2]
        else ""
    )
    return f'<path class="line" d="{path}"/><path class="head" d="{head}"/>{text}'


def _drawn(box: _Box) -> str:
    middle = box.x + box.width / 2
    texts = "".join(
        f'<text x="{middle:.0f}" y="{box.y + _PADDING / 2 + _LINE * number + 13:.0f}" '
        f'text-anchor="middle">{escape(line)}</text>'
        for number, line in enumerate(box.lines)
    )
    return (
        f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" '
        f'height="{box.height:.0f}" rx="6"/>{texts}'
    )


def _sentence(chart: _Chart, link: tuple[str, str, str]) -> str:
    first, second = (", ".join(chart.boxes[name].lines) for name in link[:2])
    return f"{first} to {second}"
