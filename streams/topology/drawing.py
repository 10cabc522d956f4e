"""SVG drawing of a topology, for places that do not render Mermaid."""

from collections.abc import Iterable, Iterator
from html import escape
from typing import Final

from tidewheel.streams.topology.layout import Box, DrawnPart, Frame, laid_out

#: Opaque colours, readable on light and dark pages; black on white has the best contrast in print.
_STYLE: Final = (
    "<defs>"
    '<marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto"><path d="M0 0 8 4 0 8z" fill="#5b6b7b"/></marker></defs>'
)
_FILLS: Final = {"topic": "#dcebfb", "source": "#fff", "processor": "#fff", "sink": "#fff"}
_LINE: Final = 17


def draw(parts: Iterable[DrawnPart]) -> str:
    """Return an SVG: frame = sub-topology, rounded box = topic, box = node with its stores."""
    layout = laid_out(parts)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{layout.width}" height="{layout.height}" '
        f'viewBox="0 0 {layout.width} {layout.height}" font-size="12" fill="#16202b" '
        """font-family="ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace">"""
    )
    lines = [
        head,
        _STYLE,
        f'<rect width="{layout.width}" height="{layout.height}" rx="8" fill="#fff"/>',
        *(_outline(frame) for frame in layout.frames),
        *(
            f'<path d="{path}" fill="none" stroke="#5b6b7b" stroke-width="1.25" marker-end="url(#end)"/>'
            for path in layout.links
        ),
        *(part for frame in layout.frames for part in _header(frame)),
        *(part for box in layout.boxes for part in _shape(box)),
        "</svg>",
    ]
    return "\n".join(lines)


def _outline(frame: Frame) -> str:
    return (
        f'<rect class="frame" x="{frame.x}" y="{frame.y}" width="{frame.width}" '
        f'height="{frame.height}" rx="8" fill="#f3f5f8" stroke="#aab4bf"/>'
    )


def _header(frame: Frame) -> Iterator[str]:
    """Yield the title on a strip that links pass behind."""
    yield (
        f'<rect class="strip" x="{frame.x + 1}" y="{frame.y + 4}" width="{frame.width - 2}" '
        f'height="{frame.header - 4}" fill="#f3f5f8"/>'
    )
    yield (
        f'<text x="{frame.x + 12}" y="{frame.y + _LINE + 2}" font-weight="bold">'
        f"{escape(frame.title)}</text>"
    )


def _shape(box: Box) -> Iterator[str]:
    corner = box.height // 2 if box.kind == "topic" else 4
    dashes = ' stroke-dasharray="4 3"' if box.is_repeated else ""
    yield (
        f'<rect class="{box.kind}" x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" '
        f'rx="{corner}" fill="{_FILLS[box.kind]}" stroke="#5b6b7b"{dashes}><title>{escape(box.name)}'
        "</title></rect>"
    )
    middle = box.x + box.width // 2
    for number, line in enumerate((box.label, *box.stores)):
        y = box.y + _LINE * (number + 1)
        if number:
            half = round(len(line) * 7.25 / 2)
            yield _cylinder(middle - half - 8, y - 10)
            middle_of_line, colour = middle + 5, ' fill="#7c4a00"'
        else:
            middle_of_line, colour = middle, ""
        yield f'<text x="{middle_of_line}" y="{y}" text-anchor="middle"{colour}>{escape(line)}</text>'


def _cylinder(x: int, y: int) -> str:
    return (
        f'<path d="M{x} {y + 2}v7a4 2 0 0 0 8 0v-7a4 2 0 0 0 -8 0a4 2 0 0 0 8 0" fill="none" '
        'stroke="#7c4a00"/>'
    )
