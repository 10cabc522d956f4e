"""Demo output: bars and tables on a terminal, JSON lines elsewhere."""

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

#: Progress callback: number of completed units, and a note to show.
Advance = Callable[[int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    topic: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: int = 0


class DemoView(Protocol):
    def print_event(self, event: str, message: str, **figures: Any) -> None: ...

    @contextmanager
    def work(self, event: str, label: str, total: int | None) -> Generator[Advance]: ...

    def results(
        self, tables: list[ResultTable], values: Mapping[str, Mapping[str, Any]]
    ) -> None: ...

    def verdict(self, message: str, *, good: bool) -> None: ...


class TerminalView:
    def __init__(self, console: Console) -> None:
        self._console = console

    def print_event(self, event: str, message: str, **_figures: Any) -> None:
        del event
        self._console.print(f"• {message}", markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def work(self, event: str, label: str, total: int | None) -> Generator[Advance]:
        del event
        columns = [
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            *((BarColumn(), MofNCompleteColumn()) if total is not None else ()),
            TimeElapsedColumn(),
            *((TimeRemainingColumn(),) if total is not None else ()),
            TextColumn("{task.fields[note]}", style="dim", markup=False),
        ]
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task(label, total=total, note="")
            yield lambda done, note: progress.update(task, completed=done, note=note)
            if total is not None:
                progress.update(task, completed=total)

    def results(self, tables: list[ResultTable], values: Mapping[str, Mapping[str, Any]]) -> None:
        del values
        for result in tables:
            table = Table(title=result.title, title_justify="left")
            for index, column in enumerate(result.columns):
                table.add_column(column, justify="left" if index == 0 else "right")
            for row in result.rows:
                table.add_row(*row)
            self._console.print(table)
            if result.more:
                self._console.print(f"and {result.more} more in topic {result.topic}", style="dim")

    def verdict(self, message: str, *, good: bool) -> None:
        self._console.print(
            message, style="bold green" if good else "bold red", markup=False, soft_wrap=True
        )


class JsonView:
    """Output for programs: one JSON line per event."""

    def print_event(self, event: str, message: str, **figures: Any) -> None:
        sys.stdout.write(
            orjson.dumps({"event": event, "message": message, **figures}, default=str).decode()
            + "\n"
        )
        sys.stdout.flush()

    @contextmanager
    def work(self, event: str, label: str, total: int | None) -> Generator[Advance]:
        """Print a line per tenth of the work and one at the end."""
        shown = -1

        def advance(done: int, note: str) -> None:
            nonlocal shown
            tenth = 0 if not total else done * 10 // total
            if tenth > shown:
                shown = tenth
                self.print_event(event, label, done=done, total=total, note=note)

        yield advance
        self.print_event(event, f"{label}: done", done=total, total=total)

    def results(self, tables: list[ResultTable], values: Mapping[str, Mapping[str, Any]]) -> None:
        del tables
        for topic, entries in values.items():
            for key, value in sorted(entries.items()):
                self.print_event("result", topic, key=key, value=value)

    def verdict(self, message: str, *, good: bool) -> None:
        self.print_event("verdict", message, ok=good)
