"""Ingestion of runs into a task's database, in an order that survives a kill at any moment.

    drop position → flush → clear store → ingest files → write time and position → flush

Ingested files are durable immediately, other writes only after a flush (no WAL). A kill before the
last step leaves a store without a position, which the next open restores from the beginning.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from tidewheel.state_stores.buffers.timed_buffer import encode_store_time, read_store_time
from tidewheel.state_stores.bulk_restore.run_files import RunFile
from tidewheel.state_stores.bulk_restore.runs import Row
from tidewheel.state_stores.failpoints import failpoint
from tidewheel.state_stores.layout.position import Position, store_time_name
from tidewheel.state_stores.layout.restore import StoreTime
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.rocksdb.sorted_files import read_sorted_file
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreSpec

_ROWS_PER_WRITE: Final = 20_000


@runtime_checkable
class BulkDatabase(Protocol):
    def ingest(self, family: str, files: Sequence[Path]) -> None:
        """Move sorted files into a store; later ones replace rows. Durable on return."""
        ...

    def make_durable(self) -> None: ...


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
    """Ingest runs (sorted files) into a store.

    The owner of a buffer on the store must call `buffer.discard()` afterwards. Files (at most
    `MOST_RUNS`, in offset order) are moved. Without `position`, the next open restores the store
    from the beginning. `from_nothing` clears the store first. `also_forget` names more stored
    values to delete with the old position.

    Raises:
        StateStoreError: Ingestion failed; the store has no position then.
    """
    before = StoreTime() if from_nothing else StoreTime(*read_store_time(database, spec.name))
    forgotten = [
        position_name,
        *also_forget,
        *((store_time_name(spec.name),) if from_nothing else ()),
    ]
    database.write({}, dict.fromkeys(forgotten, b""))
    bulk = database if isinstance(database, BulkDatabase) else None
    if bulk is not None:
        bulk.make_durable()
    if from_nothing:
        database.clear(spec.name)
    if bulk is None:
        _write_files(database, spec.name, files)
    elif files:
        failpoint("before_ingest")
        bulk.ingest(spec.name, [file.path for file in files])
        failpoint("after_ingest")
    metadata = _metadata_of(spec, before.later(time), position_name, position)
    _conclude(database, spec, before.later(time), slowest_ms, metadata)
    if bulk is not None:
        bulk.make_durable()


def _metadata_of(
    spec: StoreSpec, now: StoreTime, position_name: str, position: Position | None
) -> dict[str, bytes]:
    metadata: dict[str, bytes] = {}
    if now != StoreTime():
        metadata[store_time_name(spec.name)] = encode_store_time(now.observed_ms, now.seq)
    if position is not None:
        metadata[position_name] = position.encode()
    return metadata


def _conclude(
    database: Database,
    spec: StoreSpec,
    now: StoreTime,
    slowest_ms: int | None,
    metadata: Mapping[str, bytes],
) -> None:
    ranges: dict[str, tuple[bytes, bytes]] = {}
    if spec.kind in SEGMENTED_KINDS:
        layout = SegmentLayout.of(spec)
        dead = layout.prefix(layout.first_restored(now.observed_ms, slowest_ms))
        first = next(database.iterate(spec.name, None, dead), None)
        if first is not None:
            ranges[spec.name] = (first[0], dead)
    if metadata or ranges:
        database.write({}, metadata, delete_ranges=ranges)


def _write_files(database: Database, family: str, files: Sequence[RunFile]) -> None:
    for file in files:
        rows: Iterator[Row] = read_sorted_file(file.path)
        while batch := list(islice(rows, _ROWS_PER_WRITE)):
            database.write({family: batch}, {})
        file.path.unlink()
