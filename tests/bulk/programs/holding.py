"""Bootstrap writer that pauses in the middle of the last partition until a file appears."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidewheel.streams.bulk.bootstrap import spark_job as bootstrap_job
from tidewheel.streams.bulk.bootstrap.writer import PartitionReport, WriteOrder

if TYPE_CHECKING:
    from tidewheel.state_stores.bulk_restore.spark.frames import PlacedRow

#: More than one batch of the producer: its transaction is open.
ROWS_BEFORE: Final = 1_500

_write_place = bootstrap_job.write_place


def hold_writers(folder: str) -> None:
    """Pause this process's writers until the test creates a file."""
    bootstrap_job.write_place = partial(_held_place, folder)


def _held_place(
    folder: str,
    order: WriteOrder,
    settings: Any,
    keep_last: bool,
    partition: int,
    rows: "Iterator[PlacedRow]",
    count: Any,
) -> PartitionReport:
    if partition == order.target.partitions - 1:
        rows = _held(Path(folder), rows)
    return _write_place(order, settings, keep_last, partition, rows, count)


def _held(folder: Path, rows: "Iterator[PlacedRow]") -> "Iterator[PlacedRow]":
    for number, row in enumerate(rows):
        if number == ROWS_BEFORE:
            (folder / "held").touch()
            while not (folder / "go on").exists():
                time.sleep(0.05)
        yield row
