"""Lists of records that a notebook shows as a table."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final, TypeVar

T = TypeVar("T")

#: Rows that a table shows at most.
_ROWS_MAX: Final = 100
#: Characters of a cell that a table shows at most.
_CELL_MAX: Final = 200
_FIELDS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


class RecordTable(list[T]):
    """A list of records, or of (key, value), with an HTML table for notebooks.

    >>> table = RecordTable([("a", "<b>")])
    >>> table == [("a", "<b>")], "&lt;b&gt;" in table._repr_html_()
    (True, True)
    """

    def _repr_html_(self) -> str:
        return html_table(self)


def html_table(records: Sequence[Any]) -> str:
    """Return an HTML table of the first records."""
    if not records:
        return "<p>no records</p>"
    first = records[0]
    if isinstance(first, tuple):
        names: tuple[str, ...] = ("key", "value")
        rows: Iterable[Sequence[Any]] = records[:_ROWS_MAX]
    else:
        names = tuple(name for name in _FIELDS if hasattr(first, name))
        if not any(record.headers for record in records[:_ROWS_MAX]):
            names = tuple(name for name in names if name != "headers")
        rows = [[getattr(record, name) for name in names] for record in records[:_ROWS_MAX]]
    head = _row(names, "th")
    body = "".join(
        _row([_shown(name, cell) for name, cell in zip(names, row, strict=True)], "td")
        for row in rows
    )
    more = len(records) - _ROWS_MAX
    rest = f"<p>and {more:,} more</p>" if more > 0 else ""
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>{rest}"


def _row(cells: Iterable[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _shown(name: str, cell: Any) -> str:
    if name == "timestamp":
        try:
            return datetime.fromtimestamp(cell / 1_000, UTC).isoformat(" ", "milliseconds")
        except (ValueError, OverflowError, OSError):  # beyond the years of datetime
            return str(cell)
    text = cell if isinstance(cell, str) else repr(cell)
    return text if len(text) <= _CELL_MAX else f"{text[: _CELL_MAX - 1]}…"
