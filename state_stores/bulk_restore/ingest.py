"""Takes runs into a task's database, in an order in which a kill at any moment does no harm.

    position forgotten → made durable → store emptied → files ingested → time and position written → made durable

Nothing is written ahead, so a kill loses what is not durable; ingested files are durable at once. Were the old position
still on disk by then, it would speak of rows that are gone, or newer than it says. As it is, a kill before the last step
leaves a store without a position, which the next open empties and restores from the beginning.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from tidewheel.state_stores.buffers.timed_buffer import encode_note, note_name, read_note
from tidewheel.state_stores.bulk_restore.run_files import RunFile
from tidewheel.state_stores.bulk_restore.runs import Row
from tidewheel.state_stores.layout.position import Position
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.restore import StoreTime
from tidewheel.state_stores.rocksdb.sorted_files import read_sorted_file
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreSpec

#: Rows of one write to a database that takes no files.
_ROWS_PER_WRITE: Final = 20_000


@runtime_checkable
class BulkDatabase(Protocol):
    """A database that takes sorted files; `TaskDatabase` is one, the in-memory one is not."""

    def ingest(self, family: str, files: Sequence[Path]) -> None:
        """Take sorted files into a family, later ones over earlier ones; the files are moved. Durable on return."""
        ...

    def make_durable(self) -> None:
        """Make everything that was written durable: rows first, then positions, so that a kill leaves these behind."""
        ...


def ingest_runs(
    database: Database,
    spec: StoreSpec,
    files: Sequence[RunFile],
    *,
    time: StoreTime,
    position_name: str,
    position: Position | None,
    from_nothing: bool,
    also_forget: Sequence[str] = (),
    slowest_ms: int | None = None,
) -> None:
    """Take runs into a store: its position is forgotten, the files go in, the new position is written.

    After it, whoever has a buffer over the store calls `buffer.discard()`, so that it reads disk and time anew.

    Args:
        database: The task's.
        spec: The store.
        files: Runs in the order of their offsets, at most `MOST_RUNS` (see `limit_runs`); the files are moved. There may
            be none, where a stretch had no row.
        time: The store's time after the records of the runs (`BuiltRuns.time`, `PartitionRuns.time`).
        position_name: See `tidewheel.state_stores.restore.position_name`.
        position: What holds afterwards: `offset` the end of the runs, `written_at_ms` when that was the end of the log
            (`PartitionRuns.caught_up_at_ms`). None if it never was the end: no position is kept then.
        from_nothing: The runs begin at the start of the log: the store is emptied first. Otherwise they go on where the
            store stands.
        also_forget: Names of other notes that are emptied along with the position.
        slowest_ms: The store's time at its task's slowest key range (`SegmentLayout.first_restored`).

    Raises:
        StateStoreError: It failed; the store has no position then.
    """
    before = StoreTime() if from_nothing else StoreTime(*read_note(database, spec.name))
    forgotten = [position_name, *also_forget, *((note_name(spec.name),) if from_nothing else ())]
    database.write({}, dict.fromkeys(forgotten, b""))
    bulk = database if isinstance(database, BulkDatabase) else None
    if bulk is not None:
        bulk.make_durable()
    if from_nothing:
        database.clear(spec.name)
    if bulk is None:
        _write_files(database, spec.name, files)
    elif files:
        bulk.ingest(spec.name, [file.path for file in files])
    notes = _notes(spec, before.later(time), position_name, position)
    _conclude(database, spec, before.later(time), slowest_ms, notes)
    if bulk is not None:
        bulk.make_durable()


def _notes(
    spec: StoreSpec, now: StoreTime, position_name: str, position: Position | None
) -> dict[str, bytes]:
    """Return the time and the position as they are written."""
    notes: dict[str, bytes] = {}
    if now != StoreTime():
        notes[note_name(spec.name)] = encode_note(now.observed_ms, now.seq)
    if position is not None:
        notes[position_name] = position.encode()
    return notes


def _conclude(
    database: Database,
    spec: StoreSpec,
    now: StoreTime,
    slowest_ms: int | None,
    notes: Mapping[str, bytes],
) -> None:
    """Write the time and the position, and delete what has expired by that time."""
    ranges: dict[str, tuple[bytes, bytes]] = {}
    if spec.kind in SEGMENTED_KINDS:
        layout = SegmentLayout.of(spec)
        dead = layout.prefix(layout.first_restored(now.observed_ms, slowest_ms))
        first = next(database.iterate(spec.name, None, dead), None)
        if first is not None:
            ranges[spec.name] = (first[0], dead)
    if notes or ranges:
        database.write({}, notes, delete_ranges=ranges)


def _write_files(database: Database, family: str, files: Sequence[RunFile]) -> None:
    """Write what is in some files to a database that doesn't take files, and delete them."""
    for file in files:
        rows: Iterator[Row] = read_sorted_file(file.path)
        while batch := list(islice(rows, _ROWS_PER_WRITE)):
            database.write({family: batch}, {})
        file.path.unlink()
