"""The command line: `tidewheel`, also `python -m streams`.

Each command is a module of its own, imported when it is called, so that `tidewheel --help` answers at once.
"""

from streams.cli.app import main

__all__ = ["main"]
