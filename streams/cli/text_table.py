"""Tables of plain columns for a terminal: no line is wider than it, and no cell is folded."""

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.text import Text

_GAP: Final = "  "
_SHORTEST: Final = 8
_CUT: Final = "…"


class Column(NamedTuple):
    """A column; `can_shrink`: its cells are cut in the middle where the terminal is too narrow."""

    title: str
    align: Literal["left", "right"] = "left"
    can_shrink: bool = False


class Row(NamedTuple):
    cells: Sequence[str]
    style: str = ""


def table_lines(
    title: str, columns: Sequence[Column], rows: Sequence[Row], width: int
) -> list[Text]:
    """Return a title, a heading and a line per row, each at most `width` cells wide.

    >>> [line.plain for line in table_lines("tasks", [Column("task"), Column("lag", "right")], [Row(["0_1", "7"])], 80)]
    ['tasks', 'task  lag', '0_1     7']
    """
    widths = _widths(columns, rows, width)
    head = Row([column.title for column in columns], "dim")
    return [
        Text(title, style="bold"),
        *(_line(columns, widths, row, width) for row in (head, *rows)),
    ]


def shortened(text: str, width: int) -> str:
    """Cut a text in the middle: a name's end tells its kind from others.

    >>> shortened("order-totals-7d9c6b5f4-abcde/0 (7e65c5)", 24)
    'order-total…e/0 (7e65c5)'
    >>> shortened("order-totals-7d9c6b5f4-abcde/0 (7e65c5) *", 18)
    'orde…/0 (7e65c5) *'
    """
    if cell_len(text) <= width:
        return text
    # A member's slot and id stay whole: host names of one kind differ little.
    slot = len(text) - text.rfind("/") if "/" in text else 0
    tail = min(max(width // 2, slot), max(width - _SHORTEST // 2, width // 2))
    return f"{text[: width - tail - 1]}{_CUT}{text[-tail:]}"


def _widths(columns: Sequence[Column], rows: Iterable[Row], width: int) -> list[int]:
    widths = [cell_len(column.title) for column in columns]
    for row in rows:
        widths = [max(old, cell_len(cell)) for old, cell in zip(widths, row.cells, strict=True)]
    excess = sum(widths) + len(_GAP) * (len(columns) - 1) - width
    while excess > 0:
        # Take from the widest, so that names of one kind stay equally wide.
        room = [
            (size, index)
            for index, size in enumerate(widths)
            if columns[index].can_shrink and size > _SHORTEST
        ]
        if not room:
            break
        widths[max(room)[1]] -= 1
        excess -= 1
    return widths


def _line(columns: Sequence[Column], widths: Sequence[int], row: Row, width: int) -> Text:
    cells = [
        _cell(column, size, cell)
        for column, size, cell in zip(columns, widths, row.cells, strict=True)
    ]
    line = Text(_GAP.join(cells).rstrip(), style=row.style, no_wrap=True)
    line.truncate(width, overflow="ellipsis")
    return line


def _cell(column: Column, size: int, cell: str) -> str:
    text = shortened(cell, size) if column.can_shrink else cell
    missing = max(size - cell_len(text), 0)
    return (
        f"{' ' * missing}{text}"
        if column.align == "right"
        else set_cell_size(text, max(size, cell_len(text)))
    )
