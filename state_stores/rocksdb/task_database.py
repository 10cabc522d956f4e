"""RocksDB database of a task: a column family per store, and one for positions.

The WAL is off: a killed process loses unflushed data and positions, and replays them. Positions on
disk never refer to data that is not.

- All families flush together (`atomic_flush`), and positions are the last entry of every `write`.
- rocksdict flushes a family when its `Rdict` is closed *or garbage collected*. So an `Rdict` of the
  positions exists only in `make_durable`, after the stores' flush. `close` closes stores first.

Further facts of rocksdict 0.3.29:

- `write`, `open`, ingestion (four fsyncs) and checkpoints hold the GIL; list-`get`, `flush` and
  `close` don't.
- A stalled write raises "Write stall" (`no_slowdown`) instead of waiting with the GIL held.
- Batches, handles and iterators keep the database open and locked.
"""

import contextlib
import shutil
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from rocksdict import (
    AccessType,
    Checkpoint,
    ColumnFamily,
    DbClosedError,
    IngestExternalFileOptions,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from tidewheel.state_stores.errors import DiskFullError, InvalidStateStoreError, StateStoreError
from tidewheel.state_stores.rocksdb.changes import Piece, Rows, split_writes
from tidewheel.state_stores.rocksdb.failures import failure, is_stall
from tidewheel.state_stores.rocksdb.gate import Gate
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.scan import Scan, empty
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources

#: Column family of positions; store names start with a letter or digit, so none is equal.
_POSITIONS: Final = "_positions"

#: RocksDB opens no database without this family. It is empty unless a store has this name.
_DEFAULT: Final = "default"

#: Limit of open files while reading positions. RocksDB's default (no limit) would first open all
#: files of the two families above.
_FILES_FOR_POSITIONS: Final = 16

#: Properties that RocksDB knows without reading files, under Kafka Streams' names, and their texts.
FIGURES: Final = {
    "actual-delayed-write-rate": "Bytes per second to which RocksDB slows writes, 0 without a delay",
    "background-errors": "Errors of flushes and compactions since the database was opened",
    "block-cache-capacity": "Size of the block cache, which all stores share",
    "block-cache-usage": "Used part of the block cache",
    "compaction-pending": "1 for each task with a pending compaction",
    "cur-size-all-mem-tables": "Size of memtables that are not flushed yet",
    "estimate-num-keys": "Estimated number of keys",
    "estimate-pending-compaction-bytes": "Estimated size of data that compactions must rewrite",
    "estimate-table-readers-mem": "Estimated memory for sorted files, without the block cache",
    "is-write-stopped": "1 for each task whose writes RocksDB has stopped",
    "live-sst-files-size": "Size of the sorted files in use",
    "mem-table-flush-pending": "1 for each task with a pending flush of a memtable",
    "num-immutable-mem-table": "Memtables that wait for their flush",
    "num-live-versions": "Versions of the database that open readers keep",
    "num-running-compactions": "Compactions in progress",
    "num-running-flushes": "Flushes in progress",
    "size-all-mem-tables": "Size of all memtables, also of those that open readers keep",
    "total-sst-files-size": "Size of all sorted files, also of those that open readers keep",
}

#: Largest write batch: it holds the GIL for at most about 10 ms.
_WRITE_BYTES: Final = 1024 * 1024

_FIRST_STALL_SECONDS: Final = 0.002
_MOST_STALL_SECONDS: Final = 0.1


class TaskDatabase:
    """Persistent stores of one task.

    Any thread reads; only the owner's thread makes other calls.
    """

    def __init__(
        self,
        path: Path,
        native: Rdict,
        families: Sequence[str],
        positions: dict[str, bytes],
        *,
        stall_s: float,
    ) -> None:
        self.path = path
        self._stall_s = stall_s
        self._gate = Gate()
        self._scans: weakref.WeakSet[Scan] = weakref.WeakSet()
        self._scans_lock = threading.Lock()
        self._database: Rdict | None = native
        self._families = {name: native.get_column_family(name) for name in families}
        self._handles: dict[str, ColumnFamily] = {
            name: native.get_column_family_handle(name) for name in (*families, _POSITIONS)
        }
        self._positions = positions
        self._write_options = WriteOptions()
        self._write_options.disable_wal = True  # type: ignore[method-assign,assignment] # the stub is wrong
        self._write_options.no_slowdown = True

    @classmethod
    def open(
        cls,
        path: Path,
        families: Sequence[str],
        options: RocksDBOptions,
        resources: SharedResources,
    ) -> Self:
        """Open or create the database in a directory.

        Column families of stores that the topology no longer has are kept.

        Raises:
            StoreCorruptedError: Files are damaged or missing.
            StoreLockedError: It is already open, here or in another process.
        """
        with _Translated(path, "open the database"):
            existing = Rdict.list_cf(str(path), Options(raw_mode=True)) if _exists(path) else []
            all_families = {*existing, *families, _POSITIONS, _DEFAULT}
            native = Rdict(
                str(path),
                options=resources.database_options(options),
                column_families={
                    name: resources.database_options(
                        options, filtered=len(families) if name in families else 0
                    )
                    for name in all_families
                },
            )
            try:
                positions = _read_positions(native)
                stall_s = options.write_stall_timeout_ms / 1000
                return cls(path, native, families, positions, stall_s=stall_s)
            except BaseException:
                with contextlib.suppress(Exception):
                    native.close()
                raise
            finally:
                del (
                    native
                )  # an exception keeps this frame alive, which must not keep the database open

    @staticmethod
    def positions_in(path: Path) -> dict[str, bytes]:
        if not _exists(path):
            return {}
        with _Translated(path, "read the positions"):
            options = Options(raw_mode=True)
            options.set_max_open_files(_FILES_FOR_POSITIONS)
            native = Rdict(
                str(path),
                options=options,
                column_families=dict.fromkeys((_POSITIONS, _DEFAULT), options),
                access_type=AccessType.read_only(),
            )
            try:
                return _read_positions(native)
            finally:
                native.close()
                del native  # a traceback's frame must not keep the database open

    @staticmethod
    def destroy(path: Path) -> None:
        if not path.exists():
            return
        with _Translated(path, "delete the database"):
            if _exists(path):
                Rdict.destroy(str(path), Options(raw_mode=True))
            if path.exists():
                shutil.rmtree(path)

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        with _Access(self, "read store", family):
            # One call: RocksDB sorts the keys and reads each block once.
            values: list[bytes | None] = self._family(family).get(list(keys))  # type: ignore[assignment] # a list for a list
            return values

    def iterate(
        self, family: str, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        doing = f"scan store {family}"
        with self._access(doing):
            native = self._family(family)
            if upper is not None and upper <= (lower or b""):
                return empty()
            scan = Scan(native, lower, upper, reverse=reverse)
            with self._scans_lock:
                self._scans.add(scan)
        return self._rows(scan, doing)

    def _rows(self, scan: Scan, doing: str) -> Iterator[tuple[bytes, bytes]]:
        gate = self._gate
        while True:
            with self._access(doing):
                rows = scan.read()
            if not rows:
                return
            for row in rows:
                if gate.closed:
                    raise self._is_closed(doing)
                yield row

    def position(self, name: str) -> bytes | None:
        with self._access("read a position"):
            return self._positions.get(name)

    def approximate_num_entries(self, family: str) -> int:
        with self._access(f"count store {family}"):
            return self._family(family).property_int_value("rocksdb.estimate-num-keys") or 0

    def figures(self, family: str) -> dict[str, int]:
        """Return RocksDB's own figures of a store, by the property's name; none costs a read."""
        with self._access(f"measure store {family}"):
            native = self._family(family)
            values = {name: native.property_int_value(f"rocksdb.{name}") for name in FIGURES}
        return {name: value for name, value in values.items() if value is not None}

    def open_scans(self) -> int:
        with self._scans_lock:
            return sum(scan.is_open for scan in self._scans)

    def write(
        self,
        changes: Mapping[str, Rows],
        positions: Mapping[str, bytes],
        *,
        delete_ranges: Mapping[str, tuple[bytes, bytes]] | None = None,
    ) -> None:
        """Write changes, then positions; on `StateStoreError` only some changes may be written."""
        with self._access(f"write to {_stores(changes)}"):
            for family in (*changes, *(delete_ranges or ())):
                self._family(family)
            if delete_ranges:
                self._retried(partial(self._range_batch, delete_ranges), delete_ranges)
            pieces: list[Piece] = []
            for following in split_writes(changes, _WRITE_BYTES):
                if pieces:
                    self._apply(pieces, {})
                pieces = following
            if pieces or positions:
                self._apply(pieces, positions)
                self._positions.update(positions)

    def _apply(self, pieces: Sequence[Piece], positions: Mapping[str, bytes]) -> None:
        stores = {piece.family: () for piece in pieces}
        self._retried(partial(self._batch, pieces, positions), stores)

    def _retried(self, make_batch: Callable[[], WriteBatch], stores: Mapping[str, object]) -> None:
        deadline = time.monotonic() + self._stall_s
        pause = _FIRST_STALL_SECONDS
        while True:
            try:
                self._native().write(make_batch(), self._write_options)
            except Exception as error:
                if not is_stall(error):
                    raise
                if time.monotonic() >= deadline:
                    raise DiskFullError(
                        f"could not write to {_stores(stores)} in {self.path} for "
                        f"{self._stall_s:g} s, flushes don't keep up; is the disk full or slow? See the file LOG there, "
                        "or raise the rocksdb option family_write_buffers"
                    ) from error
            else:
                return
            time.sleep(pause)
            pause = min(pause * 2, _MOST_STALL_SECONDS)

    def _batch(self, pieces: Sequence[Piece], positions: Mapping[str, bytes]) -> WriteBatch:
        batch = WriteBatch(raw_mode=True)
        try:
            for family, rows in pieces:
                batch.set_default_column_family(self._handles[family])
                if rows.values.count(None):
                    for key, value in rows:
                        if value is None:
                            batch.delete(key)
                        else:
                            batch.put(key, value)
                else:
                    deque(map(batch.put, rows.keys, rows.values), maxlen=0)
            batch.set_default_column_family(self._handles[_POSITIONS])
            for name, position in positions.items():
                batch.put(name.encode(), position)
            return batch
        finally:
            del batch  # a traceback's frame must not keep the database open

    def clear(self, family: str) -> None:
        last = next(self.iterate(family, None, None, reverse=True), None)
        if last is None:
            return
        with self._access(f"clear store {family}"):
            ranges = {family: (b"", last[0] + b"\x00")}
            self._native().write(self._range_batch(ranges), self._write_options)

    def _range_batch(self, ranges: Mapping[str, tuple[bytes, bytes]]) -> WriteBatch:
        batch = WriteBatch(raw_mode=True)
        try:
            for family, (first, end) in ranges.items():
                batch.delete_range(first, end, self._handles[family])
            return batch
        finally:
            del batch

    def ingest(self, family: str, files: Sequence[Path]) -> None:
        """Ingest sorted files; rows of later ones win. The caller then writes the position."""
        with self._access(f"ingest files into store {family}"):
            ingestion = IngestExternalFileOptions()
            ingestion.set_move_files(True)
            native = self._family(family)
            for file in files:
                native.ingest_external_file([str(file)], ingestion)

    def checkpoint(self, path: Path) -> None:
        """Flush everything, and create a hard-linked copy in the new directory `path`.

        RocksDB's own flush is not enough: one copy in twenty lacked the last write.
        """
        self.make_durable()
        with self._access(f"make a checkpoint in {path}"):
            Checkpoint(self._native()).create_checkpoint(str(path))

    def make_durable(self) -> None:
        with self._access("make everything durable"):
            for family in self._families.values():
                family.flush()
            positions = self._native().get_column_family(_POSITIONS)
            try:
                positions.flush()
            finally:
                positions.close()
                del positions  # kept alive by a traceback's frame, it would flush positions later

    def close(self) -> None:
        """Wait for calls, end all scans, flush, release files and lock; idempotent.

        Raises:
            StateStoreError: The last writes could not be flushed; it is closed anyway.
        """
        if not self._gate.close():
            return
        with self._scans_lock:
            for scan in self._scans:
                scan.close()
        with contextlib.ExitStack() as closing:
            # The stack runs in reverse order: stores' families first, then the database.
            closing.enter_context(_Translated(self.path, "flush and close the database"))
            closing.callback(self._native().close)
            for family in self._families.values():
                closing.callback(family.close)
            self._handles.clear()
            self._families.clear()
            self._database = None

    def _access(self, doing: str) -> "_Access":
        return _Access(self, doing)

    def _native(self) -> Rdict:
        assert self._database is not None, "only used inside the gate"
        return self._database

    def _family(self, name: str) -> Rdict:
        family = self._families.get(name)
        if family is None:
            raise StateStoreError(
                f"database {self.path} was opened without store {name!r} "
                f"(it has {', '.join(sorted(self._families)) or 'none'}); connect the store to the processor that uses it"
            )
        return family

    def _is_closed(self, doing: str) -> InvalidStateStoreError:
        return InvalidStateStoreError(
            f"could not {doing}: the database {self.path} was closed, its task has stopped or moved to another "
            "process; ask for the store again"
        )


class _Translated:
    __slots__ = ("_action", "_path")

    def __init__(self, path: Path, *action: str) -> None:
        self._path = path
        self._action = action

    @property
    def _doing(self) -> str:
        return " ".join(self._action)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            return
        # RocksDB's errors are bare `Exception`; bugs in this package have other classes.
        if kind is Exception or isinstance(error, (DbClosedError, OSError)):
            raise failure(error, self._path, self._doing) from error


class _Access(_Translated):
    __slots__ = ("_database",)

    def __init__(self, database: TaskDatabase, *action: str) -> None:
        super().__init__(database.path, *action)
        self._database = database

    def __enter__(self) -> Self:
        if not self._database._gate.enter():  # noqa: SLF001 - one class in two parts, for `with`
            raise self._database._is_closed(self._doing)  # noqa: SLF001 - same
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._database._gate.leave()  # noqa: SLF001 - same
        super().__exit__(kind, error, traceback)


def _exists(path: Path) -> bool:
    return (path / "CURRENT").exists()


def _read_positions(native: Rdict) -> dict[str, bytes]:
    family = native.get_column_family(_POSITIONS)
    scan = Scan(family, None, None, reverse=False)
    try:
        positions: dict[str, bytes] = {}
        while rows := scan.read():
            positions.update((key.decode(), position) for key, position in rows)
        return positions
    finally:
        scan.close()
        family.close()


def _stores(names: Mapping[str, object]) -> str:
    return f"store {', '.join(sorted(names))}" if names else "the positions"
