"""Finds the PostgreSQL for the tests of its sink, or installs it: `python -m checks.postgres`.

Without one, and without the rights to install it, the module prints the next step. The tests that
need it are then skipped, and fail in continuous integration (`CI` is set).
"""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from checks import debian

VARIABLE: Final = "TIDEWHEEL_POSTGRES"
HELP: Final = (
    "there is no PostgreSQL, which tests of its sink need: install it (Debian: apt-get install postgresql; "
    f"macOS: brew install postgresql), or set {VARIABLE} to the folder of initdb and postgres"
)
_FOLDERS: Final = (
    "usr/lib/postgresql/*/bin",
    "usr/pgsql-*/bin",
    "opt/homebrew/opt/postgresql*/bin",
    "usr/local/opt/postgresql*/bin",
)
_PROGRAMS: Final = ("initdb", "postgres")


def find_postgres() -> Path | None:
    """Return the folder of `initdb` and `postgres`, or None."""
    chosen = os.environ.get(VARIABLE)
    candidates = [] if chosen is None else [Path(chosen)]
    if on_path := shutil.which("initdb"):
        candidates.append(Path(on_path).resolve().parent)
    for pattern in _FOLDERS:
        candidates += sorted(Path("/").glob(pattern), reverse=True)
    return next(
        (folder for folder in candidates if all((folder / name).exists() for name in _PROGRAMS)),
        None,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    return debian.provide(
        "checks.postgres",
        arguments,
        find=find_postgres,
        packages=("postgresql",),
        size_mb=25,
        advice=HELP,
    )


if __name__ == "__main__":
    sys.exit(main())
