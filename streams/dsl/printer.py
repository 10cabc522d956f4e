"""Where `print()` writes: one line a record, to standard output or to the end of a file."""

import os
import sys
from pathlib import Path
from typing import Any

from tidewheel.streams.errors import TopologyError


def printed_file(to: str | os.PathLike[str], context: str) -> Path:
    """Return a file that can be appended to, made if it is not there; raises `TopologyError` otherwise."""
    try:
        path = Path(to)
        with path.open("a", encoding="utf-8"):
            return path
    except (OSError, TypeError, ValueError) as error:
        raise TopologyError(
            f"{context}: can't append to to={to!r}: {error}; give a file that can be written to"
        ) from error


class Printer:
    """Writes "[label]: key, value" for each record.

    A file is opened for each line, so that nothing is held open across a fork and several workers may share it; this
    is for looking at data, not for keeping it.
    """

    def __init__(self, label: str, path: Path | None) -> None:
        self._label = label
        self._path = path

    def __call__(self, key: Any, value: Any) -> None:
        """Write one record."""
        line = f"[{self._label}]: {key}, {value}\n"
        if self._path is None:
            sys.stdout.write(line)
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line)
