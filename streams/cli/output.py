"""Output of commands: text, JSON with --json, errors on stderr.

Colours follow NO_COLOR and FORCE_COLOR, else the terminal.
"""

import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import orjson

from tidewheel.rebalance.protocol.plain_text import plain_lines
from tidewheel.streams.errors import StreamsError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from rich.console import Console

#: Columns of output that goes to a pipe or file, unless COLUMNS is set: no cell is folded.
_PIPE_COLUMNS: Final = 240


class OutputError(StreamsError):
    """Standard output can't be written: its disk is full, or its descriptor closed."""


class _StandardOutput(io.FileIO):
    def write(self, data: "ReadableBuffer", /) -> int:
        """Write as `FileIO` does; raise `OutputError`, so that no caller takes it for its own error."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise  # `tidewheel … | head` ends normally
        except OSError as error:
            raise OutputError(
                f"standard output can't be written: {error.strerror}; write it somewhere else"
            ) from None


def prepare_streams() -> None:
    """Make the process's standard streams usable, whatever state they are in.

    Descriptors that the caller has closed are occupied, so that no file or socket gets their
    numbers: reads and writes fail, and only a closed standard error discards its text. Characters
    that the terminal's encoding lacks are printed as escapes.
    """
    for number, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, mode), True)  # gets the lowest free number
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - stays open
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - likewise
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_StandardOutput(1, "w", closefd=False)),
        encoding=sys.stdout.encoding if sys.stdout else "utf-8",
        errors="backslashreplace",
        line_buffering=os.isatty(1),
    )


def discard_output(descriptor: int = 1) -> None:
    """Discard the buffered rest of standard output (1) or error (2), which can't be written.

    Flushing it at exit would raise again. From Python 3.13 on, dropping the stream prints that, and
    from 3.14 on, the process ends with code 120 also for standard error.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def text_console(*, stderr: bool = False, folds: bool = False) -> "Console":
    """Return a console for text, also in a pipe, where it folds no cells unless `folds`."""
    from rich.console import Console  # noqa: PLC0415 - costs 40 ms, and JSON needs none

    class TextConsole(Console):
        def on_broken_pipe(self) -> None:
            """Raise the `BrokenPipeError` that ends a command normally, instead of exit code 1."""
            raise  # noqa: PLE0704 - rich calls it where it has caught the error

    out = sys.stderr if stderr else sys.stdout
    is_wide = not folds and not out.isatty() and not os.environ.get("COLUMNS")
    return TextConsole(stderr=stderr, width=_PIPE_COLUMNS if is_wide else None)


def print_json(value: object) -> None:
    sys.stdout.write(orjson.dumps(value, default=str).decode() + "\n")
    sys.stdout.flush()


def print_error(message: str) -> None:
    out = text_console(stderr=True)
    try:
        out.print("error:", style="bold red", end=" ")
        # No markup or wrapping: messages contain brackets and long paths. They quote clients and brokers.
        out.print(plain_lines(message), markup=False, emoji=False, highlight=False, soft_wrap=True)
    except OSError:
        discard_output(2)  # a full disk must not change the exit code


def print_table(title: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table(title=title, title_justify="left", expand=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        # Escape brackets: cells are data, not markup.
        table.add_row(*(cell.replace("[", r"\[") for cell in row))
    text_console().print(table)
