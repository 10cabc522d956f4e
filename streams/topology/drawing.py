"""SVG drawing of a topology, for places that do not render Mermaid."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final, Protocol

import msgspec

#: Pixels of a character, of a box's height, and between boxes.
_CHARACTER: Final = 7
_HEIGHT: Final = 40
_GAP: Final = 24
_ROW: Final = _HEIGHT + 36
_MARGIN: Final = 12
_WIDTH_MIN: Final = 60

_ARROW: Final = (
    '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto"><path d="M0 0 8 4 0 8z" fill="#666"/></marker></defs>'
)


class DrawnNode(Protocol):
    """A node as `NodeDescription` has it."""

    @property
    def type(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def topics(self) -> Sequence[str]: ...
    @property
    def pattern(self) -> str | None: ...
    @property
    def topic(self) -> str | None: ...
    @property
    def extractor(self) -> str | None: ...
    @property
    def stores(self) -> Sequence[str]: ...
    @property
    def successors(self) -> Sequence[str]: ...


#: Nodes of each sub-topology and global store, by its number.
Groups = Sequence[tuple[int, Sequence[DrawnNode]]]


class _Box(msgspec.Struct):
    """A topic or node; `x` is its middle."""

    lines: tuple[str, ...]
    is_topic: bool
    rank: int = 0
    x: float = 0.0

    @property
    def width(self) -> int:
        return max(_WIDTH_MIN, max(map(len, self.lines)) * _CHARACTER + 2 * _MARGIN)

    @property
    def top(self) -> int:
        return _MARGIN + self.rank * _ROW


def draw(groups: Groups) -> str:
    """Return an SVG: rounded boxes are topics, others nodes with the stores they use."""
    boxes, links = _graph(groups)
    _set_ranks(boxes, links)
    width = _place(boxes, links)
    height = max((box.top for box in boxes.values()), default=0) + _HEIGHT + _MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" font-family="sans-serif" font-size="12">'
    )
    parts = [
        head,
        _ARROW,
        *(_line(boxes[start], boxes[end]) for start, end in links),
        *(part for box in boxes.values() for part in _shape(box)),
        "</svg>",
    ]
    return "\n".join(parts)


def _graph(groups: Groups) -> tuple[dict[str, _Box], list[tuple[str, str]]]:
    boxes: dict[str, _Box] = {}
    links: list[tuple[str, str]] = []
    for number, nodes in groups:
        for node in nodes:
            name = f"node {number} {node.name}"
            stores = f"stores: {', '.join(node.stores)}" if node.stores else ""
            boxes[name] = _Box(tuple(filter(None, (node.name, stores))), is_topic=False)
            links += [(name, f"node {number} {child}") for child in node.successors]
            for topic in node.topics if node.pattern is None else (f"/{node.pattern}/",):
                links.append((_topic(boxes, topic), name))
            if node.type == "sink":
                written = f"{node.extractor}(…)" if node.topic is None else node.topic
                links.append((name, _topic(boxes, written)))
    return boxes, links


def _topic(boxes: dict[str, _Box], topic: str) -> str:
    name = f"topic {topic}"
    boxes.setdefault(name, _Box((topic,), is_topic=True))
    return name


def _set_ranks(boxes: Mapping[str, _Box], links: Sequence[tuple[str, str]]) -> None:
    """Put each box below those that lead to it, except where links make a circle."""
    for _ in range(len(boxes)):
        is_done = True
        for start, end in links:
            rank = boxes[start].rank + 1
            if boxes[end].rank < rank < len(boxes):
                boxes[end].rank = rank
                is_done = False
        if is_done:
            return


def _place(boxes: Mapping[str, _Box], links: Sequence[tuple[str, str]]) -> float:
    """Set the boxes' places in their rows, near those above; return the drawing's width."""
    rows: dict[int, list[str]] = {}
    for name, box in boxes.items():
        rows.setdefault(box.rank, []).append(name)
    widths = {
        rank: sum(boxes[name].width + _GAP for name in names) - _GAP for rank, names in rows.items()
    }
    width = max(widths.values(), default=0) + 2 * _MARGIN
    for rank, names in sorted(rows.items()):
        names.sort(key=lambda name: _wanted(name, boxes, links))
        x = (width - widths[rank]) / 2
        for name in names:
            boxes[name].x = x + boxes[name].width / 2
            x += boxes[name].width + _GAP
    return width


def _wanted(name: str, boxes: Mapping[str, _Box], links: Sequence[tuple[str, str]]) -> float:
    above = [boxes[start].x for start, end in links if end == name and boxes[start].x]
    return sum(above) / len(above) if above else 0.0


def _line(start: _Box, end: _Box) -> str:
    return (
        f'<line x1="{start.x:.0f}" y1="{start.top + _HEIGHT}" x2="{end.x:.0f}" y2="{end.top}" '
        'stroke="#666" marker-end="url(#end)"/>'
    )


def _shape(box: _Box) -> Iterator[str]:
    corner, fill = (_HEIGHT // 2, "#e8f1fb") if box.is_topic else (4, "#f7f7f7")
    yield (
        f'<rect x="{box.x - box.width / 2:.0f}" y="{box.top}" width="{box.width}" '
        f'height="{_HEIGHT}" rx="{corner}" fill="{fill}" stroke="#666"/>'
    )
    first = box.top + _HEIGHT / 2 + 4 - 7 * (len(box.lines) - 1)
    for number, line in enumerate(box.lines):
        yield (
            f'<text x="{box.x:.0f}" y="{first + 14 * number:.0f}" text-anchor="middle" '
            f'fill="#222">{escape(line)}</text>'
        )
