"""Runs on this machine's disk, as values: what is passed on without the means to write or read one (RocksDB)."""

from dataclasses import dataclass
from pathlib import Path

from tidewheel.state_stores.bulk_restore.manifest import Run
from tidewheel.state_stores.restore import StoreTime


@dataclass(frozen=True, slots=True)
class RunFile:
    """A run that is on this machine's disk."""

    path: Path
    run: Run


@dataclass(frozen=True, slots=True)
class BuiltRuns:
    """What a builder made of its stretch: files in the order of their offsets (none without any row), and the time."""

    files: tuple[RunFile, ...]
    time: StoreTime
