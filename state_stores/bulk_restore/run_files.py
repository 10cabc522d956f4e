"""Runs on the local disk, as values; needs no RocksDB."""

from dataclasses import dataclass
from pathlib import Path

from tidewheel.state_stores.bulk_restore.manifest import Run
from tidewheel.state_stores.layout.restore import StoreTime


@dataclass(frozen=True, slots=True)
class RunFile:
    path: Path
    run: Run


@dataclass(frozen=True, slots=True)
class BuiltRuns:
    files: tuple[RunFile, ...]
    time: StoreTime
