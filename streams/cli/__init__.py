"""The command line: `tidewheel`, also `python -m tidewheel`.

Each command is a module of its own, imported when it is called, so that `tidewheel --help` answers at once.
"""

from tidewheel.streams.cli.app import main

__all__ = ["main"]
