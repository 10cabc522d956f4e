"""Output of commands: text, JSON with --json, errors on stderr.

Colours follow NO_COLOR and FORCE_COLOR, else the terminal.
"""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import orjson

from tidewheel.rebalance.protocol.plain_text import plain_lines

if TYPE_CHECKING:
    from rich.console import Console

#: Columns of output that goes to a pipe or file, unless COLUMNS is set: no cell is folded.
_PIPE_COLUMNS: Final = 240


def text_console(*, stderr: bool = False) -> "Console":
    """Return a console for text, also in a pipe."""
    from rich.console import Console  # noqa: PLC0415 - costs 40 ms, and JSON needs none

    out = sys.stderr if stderr else sys.stdout
    is_wide = not out.isatty() and not os.environ.get("COLUMNS")
    return Console(stderr=stderr, width=_PIPE_COLUMNS if is_wide else None)


def print_json(value: object) -> None:
    sys.stdout.write(orjson.dumps(value, default=str).decode() + "\n")
    sys.stdout.flush()


def print_error(message: str) -> None:
    out = text_console(stderr=True)
    out.print("error:", style="bold red", end=" ")
    # No markup or wrapping: messages contain brackets and long paths. They quote clients and brokers.
    out.print(plain_lines(message), markup=False, emoji=False, highlight=False, soft_wrap=True)


def print_table(title: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table(title=title, title_justify="left", expand=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        # Escape brackets: cells are data, not markup.
        table.add_row(*(cell.replace("[", r"\[") for cell in row))
    text_console().print(table)
