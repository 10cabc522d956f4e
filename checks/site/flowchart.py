"""Mermaid's flowcharts, from left to right or from top to bottom, drawn as SVG.

GitHub draws them with a script of 3 MB. Here only `a["label"] --> b` and `-->|label|` are
known. Layers are enough: a link to the next layer is direct, any other one has a lane beside the
boxes.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

_HEADS: Final = ("flowchart LR", "flowchart TB")
_NODE: Final = re.compile(r'\s*(?P<id>\w+)(?:\["(?P<label>[^"]*)"\])?\s*')
_ARROW: Final = re.compile(r'--(?P<open>-)?>?(?:\|"?(?P<label>[^|"]*)"?\|)?')
_CHARACTER: Final = 7.3  # width of a letter in px
_LINE: Final = 18
_GAP: Final = 64
_GAP_DOWN: Final = 40
_LANE: Final = 16
_BETWEEN: Final = 22
_PADDING: Final = 12


@dataclass
class _Box:
    lines: list[str]
    layer: int = 0
    x: float = 0
    y: float = 0
    width: float = 0
    height: float = 0

    @property
    def middle(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2


@dataclass(frozen=True)
class _Link:
    first: str
    second: str
    label: str


@dataclass
class _Chart:
    is_down: bool
    boxes: dict[str, _Box] = field(default_factory=dict[str, _Box])
    links: list[_Link] = field(default_factory=list[_Link])


def draw_flowchart(lines: Sequence[str]) -> str:
    """Return the SVG on one line.

    Raises:
        ValueError: A line has another syntax.
    """
    chart = _parsed(lines)
    _set_layers(chart)
    width, height = _place_down(chart) if chart.is_down else _place(chart)
    if chart.is_down:
        lanes, left, right = _lanes(chart, width)
        for box in chart.boxes.values():
            box.x += left
        width += left + right
        links = [_link_down(chart, link, lanes, left) for link in chart.links]
    else:
        links = [_link(chart, link) for link in chart.links]
    # No line crosses a text: texts come last.
    body = "".join(line for line, _ in links) + "".join(text for _, text in links)
    body += "".join(map(_drawn, chart.boxes.values()))
    label = escape("; ".join(_sentence(chart, link) for link in chart.links), quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{label}">{body}</svg>'
    )


def _parsed(lines: Sequence[str]) -> _Chart:
    if not lines or lines[0].strip() not in _HEADS:
        raise ValueError(f"a picture must begin with {' or '.join(map(repr, _HEADS))}")
    chart = _Chart(is_down=lines[0].strip() == _HEADS[1])
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
                chart.links.append(_Link(last, name, label))
            last, position = name, node.end()
            if position == len(line):
                break
            arrow = _ARROW.match(line, position)
            if arrow is None:
                raise ValueError(f"the picture has an unknown line: {line.strip()}")
            label, position = arrow["label"] or "", arrow.end()
    for box in chart.boxes.values():
        box.width = max(map(len, box.lines)) * _CHARACTER + 2 * _PADDING
        box.height = len(box.lines) * _LINE + _PADDING
    return chart


def _set_layers(chart: _Chart) -> None:
    """Put each box behind all that lead to it; links that close a circle do not count."""
    forward = [link for link in chart.links if link not in set(_closing(chart))]
    for _ in chart.boxes:
        for link in forward:
            second = chart.boxes[link.second]
            second.layer = max(second.layer, chart.boxes[link.first].layer + 1)


def _closing(chart: _Chart) -> Iterator[_Link]:
    """Yield the links back to a box on the way from the first boxes."""
    on_the_way: list[str] = []
    done: set[str] = set()

    def visit(name: str) -> Iterator[_Link]:
        on_the_way.append(name)
        for link in chart.links:
            if link.first == name:
                if link.second in on_the_way:
                    yield link
                elif link.second not in done:
                    yield from visit(link.second)
        done.add(on_the_way.pop())

    for name in chart.boxes:
        if name not in done:
            yield from visit(name)


def _layers(chart: _Chart) -> list[list[_Box]]:
    boxes = chart.boxes.values()
    return [
        [box for box in boxes if box.layer == layer]
        for layer in range(max(box.layer for box in boxes) + 1)
    ]


def _place(chart: _Chart) -> tuple[float, float]:
    layers = _layers(chart)
    heights = [sum(box.height + _BETWEEN for box in boxes) - _BETWEEN for boxes in layers]
    height = max(heights)
    x = 1.0
    for number, boxes in enumerate(layers):
        y = 1 + (height - heights[number]) / 2
        for box in boxes:
            box.x, box.y = x, y
            y += box.height + _BETWEEN
        x += max(box.width for box in boxes)
        labels = [link.label for link in chart.links if chart.boxes[link.first] in boxes]
        x += max(_GAP, *(_width(label) + 2 * _PADDING for label in labels), 0)
    return max(box.x + box.width for box in chart.boxes.values()) + 1, height + 2


def _place_down(chart: _Chart) -> tuple[float, float]:
    layers = _layers(chart)
    # Boxes with lanes are on the right, where their lanes are.
    for boxes in layers:
        boxes.sort(key=lambda box: sum(box is end for end in _ends_of_lanes(chart)))
    widths = [sum(box.width + _BETWEEN for box in boxes) - _BETWEEN for boxes in layers]
    width = max(widths)
    y = 1.0
    for number, boxes in enumerate(layers):
        x = 1 + (width - widths[number]) / 2
        for box in boxes:
            box.x, box.y = x, y
            x += box.width + _BETWEEN
        y += max(box.height for box in boxes) + _GAP_DOWN
    return width + 2, y - _GAP_DOWN + 1


def _ends_of_lanes(chart: _Chart) -> list[_Box]:
    links = [link for link in chart.links if _span(chart, link) > 1]
    return [chart.boxes[name] for link in links for name in (link.first, link.second)]


def _lanes(chart: _Chart, width: float) -> tuple[dict[_Link, float], float, float]:
    """Return the x of each lane, seen from the boxes' left edge, and the room left and right."""
    lanes: dict[_Link, float] = {}
    left, right = 0.0, 0.0
    for link in chart.links:
        if _span(chart, link) == 1:
            right = max(right, chart.boxes[link.second].middle[0] + _width(link.label) - width)
    for link in sorted(chart.links, key=lambda link: abs(_span(chart, link))):
        if _span(chart, link) < 1:
            left += _LANE + _width(link.label)
            lanes[link] = -left + _width(link.label)
        elif _span(chart, link) > 1:
            right += _LANE
            lanes[link] = width + right
            right += _width(link.label)
    return lanes, left and left + 1, right and right + 1


def _span(chart: _Chart, link: _Link) -> int:
    return chart.boxes[link.second].layer - chart.boxes[link.first].layer


def _width(label: str) -> float:
    return len(label) * _CHARACTER + 4 if label else 0


def _link(chart: _Chart, link: _Link) -> tuple[str, str]:
    first, second = chart.boxes[link.first], chart.boxes[link.second]
    x1, y1 = first.x + first.width, first.middle[1]
    x2, y2 = second.x - 2, second.middle[1]
    half = (x1 + x2) / 2
    path = f"M{x1:.0f} {y1:.0f}C{half:.0f} {y1:.0f} {half:.0f} {y2:.0f} {x2 - 6:.0f} {y2:.0f}"
    head = f"M{x2 - 7:.0f} {y2 - 4:.0f}L{x2:.0f} {y2:.0f}L{x2 - 7:.0f} {y2 + 4:.0f}z"
    return _line(path, head), _text(link.label, half, (y1 + y2) / 2 - 6, "middle", "label")


def _link_down(
    chart: _Chart, link: _Link, lanes: dict[_Link, float], left: float
) -> tuple[str, str]:
    first, second = chart.boxes[link.first], chart.boxes[link.second]
    (x1, y1), (x2, y2) = first.middle, second.middle
    if link not in lanes:
        y1, y2 = y1 + first.height / 2, second.y - 2
        half = (y1 + y2) / 2
        path = f"M{x1:.0f} {y1:.0f}C{x1:.0f} {half:.0f} {x2:.0f} {half:.0f} {x2:.0f} {y2 - 6:.0f}"
        head = f"M{x2 - 4:.0f} {y2 - 7:.0f}L{x2:.0f} {y2:.0f}L{x2 + 4:.0f} {y2 - 7:.0f}z"
        y = half + 4 if x1 == x2 else y2 - 12
        return _line(path, head), _text(link.label, x2 + 6, y, "start", "label")
    x = lanes[link] + left
    side = 1 if lanes[link] > 0 else -1
    x1, x2 = x1 + side * first.width / 2, x2 + side * (second.width / 2 + 2)
    path = f"M{x1:.0f} {y1:.0f}H{x:.0f}V{y2:.0f}H{x2 + side * 6:.0f}"
    back = x2 + side * 7
    head = f"M{back:.0f} {y2 - 4:.0f}L{x2:.0f} {y2:.0f}L{back:.0f} {y2 + 4:.0f}z"
    anchor = "start" if side > 0 else "end"
    return _line(path, head), _text(link.label, x + side * 4, (y1 + y2) / 2 + 4, anchor, "label")


def _line(path: str, head: str) -> str:
    return f'<path class="line" d="{path}"/><path class="head" d="{head}"/>'


def _text(label: str, x: float, y: float, anchor: str, kind: str = "") -> str:
    if not label:
        return ""
    attribute = f' class="{kind}"' if kind else ""
    return f'<text{attribute} x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(label)}</text>'


def _drawn(box: _Box) -> str:
    texts = "".join(
        _text(line, box.middle[0], box.y + _PADDING / 2 + _LINE * number + 13, "middle")
        for number, line in enumerate(box.lines)
    )
    return (
        f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" '
        f'height="{box.height:.0f}" rx="6"/>{texts}'
    )


def _sentence(chart: _Chart, link: _Link) -> str:
    first, second = (", ".join(chart.boxes[name].lines) for name in (link.first, link.second))
    return f"{first} to {second}"
