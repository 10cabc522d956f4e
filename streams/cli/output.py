"""Output of commands: tables on a terminal, JSON elsewhere and with --json, errors on stderr."""

import sys
from collections.abc import Sequence

import orjson
from rich.console import Console
from rich.table import Table

from tidewheel.rebalance.protocol.plain_text import plain_lines


def wants_json(*, asked: bool) -> bool:
    return asked or not sys.stdout.isatty()


def print_json(value: object) -> None:
    sys.stdout.write(orjson.dumps(value, default=str).decode() + "\n")
    sys.stdout.flush()


def print_error(message: str) -> None:
    console = Console(stderr=True)
    console.print("error:", style="bold red", end=" ")
    # No markup or wrapping: messages contain brackets and long paths. They quote clients and brokers.
    console.print(plain_lines(message), markup=False, emoji=False, highlight=False, soft_wrap=True)


def print_table(title: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    table = Table(title=title, title_justify="left", expand=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        # Escape brackets: cells are data, not markup.
        table.add_row(*(cell.replace("[", r"\[") for cell in row))
    Console().print(table)
