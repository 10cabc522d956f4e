"""Shared parts of the bulk commands: their program and their progress display."""

import contextlib
import logging
import signal
import time
from collections.abc import Generator, Sequence
from types import FrameType
from typing import Annotated, Any, Final

from cyclopts import Parameter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tidewheel.streams.bulk.driver import BulkProgress, OnProgress
from tidewheel.streams.bulk.loading import BulkStep, OnStep
from tidewheel.streams.cli.application import application_of
from tidewheel.streams.cli.arguments import SettingsOptions
from tidewheel.streams.cli.output import print_json, text_console
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.processes.signals import signals_handled
from tidewheel.streams.topology.topology import Topology

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]

#: These signals end a job as Ctrl-C does: its Spark session stops, and its temporary files with
#: secrets are deleted.
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)

#: Part of py4j's messages about calls to a Spark that a signal has ended.
_INTERRUPTION: Final = "while sending command"

#: Minimum time between two JSON lines of progress.
_LINE_S: Final = 2.0


def program_of(
    target: str | None, settings: SettingsOptions | None, **overrides: Any
) -> tuple[Topology, StreamsConfig]:
    """Return an application's topology and settings; `overrides` of None are ignored."""
    config, program = application_of(target, settings or SettingsOptions(), whole=True)
    if program is None:
        raise ConfigError(
            f"{target or config.application_id!r} names no program; write MODULE:TOPOLOGY, which declares the application's stores"
        )
    options = {option: value for option, value in overrides.items() if value is not None}
    config = config.replace(**options) if options else config
    return program.topology(config), config


def target_and(names: Sequence[str], *wanted: str) -> tuple[Any, ...]:
    """Return a program or None, and the other positional words of a command.

    >>> target_and(("app.py:topology", "counts", "oak"), "STORE", "KEY")
    ('app.py:topology', 'counts', 'oak')
    >>> target_and(("counts", "oak"), "STORE", "KEY")
    (None, 'counts', 'oak')

    Raises:
        ConfigError: There are too few or too many words.
    """
    if len(names) not in (len(wanted), len(wanted) + 1):
        raise ConfigError(
            f"{len(names)} words are given; write [MODULE:TOPOLOGY] {' '.join(wanted)}"
        )
    return (*[None] * (len(wanted) + 1 - len(names)), *names)


def names_of(text: str | None, option: str = "--stores") -> list[str] | None:
    """Parse a list of names; None stays None. Raise `ConfigError` for an empty list.

    >>> names_of("counts, totals"), names_of(None)
    (['counts', 'totals'], None)
    """
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError(
            f"{option} {text!r} names nothing; leave it out, or write names separated by commas"
        )
    return names


@contextlib.contextmanager
def shown_progress(*, as_json: bool, continues: bool = False) -> Generator[OnProgress]:
    """Yield a progress callback for the job in the block; stop signals end the job as Ctrl-C.

    Args:
        continues: The same command continues an interrupted job; it says so then.
    """
    root = logging.getLogger()
    root.addFilter(_is_no_interruption)
    try:
        with signals_handled(_STOP_SIGNALS, _interrupt), _shown(as_json=as_json) as on_progress:
            yield on_progress
    except KeyboardInterrupt:
        if continues:
            text_console(stderr=True).print("run the same command again to continue")
        raise
    finally:
        root.removeFilter(_is_no_interruption)


def _is_no_interruption(record: logging.LogRecord) -> bool:
    """Return false for py4j's tracebacks of calls that a signal has ended."""
    return _INTERRUPTION not in record.getMessage()


def step_printer(*, as_json: bool) -> OnStep:
    """Return a callback that prints steps: JSON lines, or text on stderr."""

    def print_step(step: BulkStep) -> None:
        if as_json:
            print_json({"step": step.phase, "text": step.text})
        else:
            text_console(stderr=True).print(f"• {step.text}", markup=False, highlight=False)

    return print_step


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler's signature
    raise KeyboardInterrupt


@contextlib.contextmanager
def _shown(*, as_json: bool) -> Generator[OnProgress]:
    if as_json:
        yield _lines()
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=text_console(stderr=True),
        transient=True,
    ) as progress:
        yield _bars(progress)


def _bars(progress: Progress) -> OnProgress:
    bars: dict[str, Any] = {}

    def show(progress_report: BulkProgress) -> None:
        if progress_report.step not in bars:
            bars[progress_report.step] = progress.add_task(
                progress_report.step, total=progress_report.total, rate=""
            )
        progress.update(
            bars[progress_report.step],
            completed=progress_report.done,
            total=progress_report.total,
            rate=f"{progress_report.per_second:,.0f}/s",
        )

    return show


def _lines() -> OnProgress:
    last: dict[str, float] = {}

    def show(progress: BulkProgress) -> None:
        now_s = time.monotonic()
        if (progress.total is None or progress.done < progress.total) and now_s - last.get(
            progress.step, 0.0
        ) < _LINE_S:
            return
        last[progress.step] = now_s
        print_json(
            {
                "step": progress.step,
                "done": progress.done,
                "total": progress.total,
                "per_second": round(progress.per_second),
                "remaining_s": None
                if progress.remaining_s is None
                else round(progress.remaining_s, 1),
            }
        )

    return show
