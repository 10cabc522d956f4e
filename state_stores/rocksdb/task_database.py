"""One RocksDB per task: a family per store, and one for positions that never speaks of data it doesn't have.

Nothing is written ahead (no WAL): a killed process loses what was in memory, data and positions alike, and replays it
from the changelog. Nothing can lose only one of the two, because

- all families are flushed together (`atomic_flush`), and the positions are the last thing of every `write`;
- no call here flushes the positions before the data. rocksdict flushes the family of every `Rdict` that is closed *or
  garbage collected*, by itself; so there is none of the positions but in `make_durable`, when the stores are flushed.
  They are read once at open, answered from memory, and written through a bare family handle. On `close` the stores'
  families go first.

Facts of rocksdict 0.3.29 this rests on, beside those told at `scan` and `shared_resources`: `write`, `open`, ingesting
(four fsyncs) and checkpoints hold the GIL, list-`get`, `flush` and `close` don't; list-`get` sorts the keys itself;
`write` uses its batch up even when it fails; a stalled write raises "Write stall" (`no_slowdown`) instead of waiting
with the GIL held; `WriteOptions.disable_wal` is an attribute, not a method as its type stub says; batches, handles and
iterators keep the database open and locked.
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

from tidewheel.state_stores.errors import InvalidStateStoreError, StateStoreError
from tidewheel.state_stores.rocksdb.changes import Piece, Rows, cut
from tidewheel.state_stores.rocksdb.failures import failure, is_stall
from tidewheel.state_stores.rocksdb.gate import Gate
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.scan import Scan, empty
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources

#: Family of the positions. No store can be called so: names start with a letter or a digit.
_POSITIONS: Final = "_positions"

#: RocksDB has this family whether one wants it or not; a store may be called so.
_DEFAULT: Final = "default"

#: Files that are held open to read the positions alone: a larger table would look into those of all stores.
_FILES_FOR_POSITIONS: Final = 16

#: One write holds the GIL for about 10 ms at most with this.
_WRITE_BYTES: Final = 1024 * 1024

_FIRST_STALL_SECONDS: Final = 0.002
_MOST_STALL_SECONDS: Final = 0.1


class TaskDatabase:
    """All persistent stores of one task; a `tidewheel.state_stores.ports.Database`. Made by `open`.

    Reads may come from any thread; `write`, `ingest`, `checkpoint`, `make_durable` and `close` from the
    owner's.
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
        """Open the database in a directory, or make one.

        A family is made for every store that has none. Families of stores that the topology no longer has are opened
        too (RocksDB insists) and kept: a store that comes back finds its data and position.

        Raises:
            StoreCorruptedError: Files are damaged or missing.
            StoreLockedError: It is open already, here or in another process.
            StateStoreError: It can't be opened for another reason.
        """
        with _Translated(path, "open the database"):
            known = Rdict.list_cf(str(path), Options(raw_mode=True)) if _exists(path) else []
            every = {*known, *families, _POSITIONS, _DEFAULT}
            native = Rdict(
                str(path),
                options=resources.database_options(options),
                column_families={
                    name: resources.database_options(
                        options, filtered=len(families) if name in families else 0
                    )
                    for name in every
                },
            )
            try:
                positions = _read_positions(native)
                stall_s = options.write_stall_timeout_ms / 1000
                return cls(path, native, families, positions, stall_s=stall_s)
            except BaseException:
                with contextlib.suppress(Exception):  # the first failure tells more
                    native.close()
                raise
            finally:
                del (
                    native
                )  # an exception keeps this frame alive, which must not keep the database open

    @staticmethod
    def positions_in(path: Path) -> dict[str, bytes]:
        """Return all positions that a closed database has; {} where there is none. No store is read or changed.

        Raises:
            StoreCorruptedError: Files are damaged or missing.
            StateStoreError: It can't be read for another reason.
        """
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
                del native  # as in `open`

    @staticmethod
    def destroy(path: Path) -> None:
        """Delete the database in a directory, and the directory; nothing happens if there is none.

        Raises:
            StoreLockedError: It is open.
        """
        if not path.exists():
            return
        with _Translated(path, "delete the database"):
            if _exists(path):
                Rdict.destroy(str(path), Options(raw_mode=True))
            if path.exists():  # what RocksDB didn't know
                shutil.rmtree(path)

    # -- reading ---------------------------------------------------------------------------------------------------

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys`, in their order; None where absent. Releases the GIL."""
        with _Access(self, "read store", family):
            # One call: RocksDB sorts the keys and reads each block once.
            values: list[bytes | None] = self._family(family).get(list(keys))  # type: ignore[assignment] # a list for a list
            return values

    def iterate(
        self, family: str, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) with lower <= key < upper, as of now, in key order or backwards."""
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
        """Return a stored position, or None if never written."""
        with self._access("read a position"):
            return self._positions.get(name)

    def approximate_num_entries(self, family: str) -> int:
        """Return RocksDB's estimate of the keys of a family; overwritten ones may count twice for a while."""
        with self._access(f"count store {family}"):
            return self._family(family).property_int_value("rocksdb.estimate-num-keys") or 0

    def open_scans(self) -> int:
        """Return how many scans have been begun and neither read to their end nor dropped."""
        with self._scans_lock:
            return sum(scan.is_open for scan in self._scans)

    # -- writing ---------------------------------------------------------------------------------------------------

    def write(
        self,
        changes: Mapping[str, Rows],
        positions: Mapping[str, bytes],
        *,
        delete_ranges: Mapping[str, tuple[bytes, bytes]] | None = None,
    ) -> None:
        """Delete ranges, apply puts and deletes (value None) of all families, then the positions.

        Raises:
            StateStoreError: It failed; the changes may be there in part, the positions are not.
        """
        with self._access(f"write to {_stores(changes)}"):
            for family in (*changes, *(delete_ranges or ())):
                self._family(family)
            if delete_ranges:
                self._retried(partial(self._range_batch, delete_ranges), delete_ranges)
            pieces: list[Piece] = []
            for following in cut(changes, _WRITE_BYTES):
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
        """Do one write, again and again while flushes are behind; other threads run meanwhile."""
        deadline = time.monotonic() + self._stall_s
        pause = _FIRST_STALL_SECONDS
        while True:
            try:
                self._native().write(make_batch(), self._write_options)
            except Exception as error:
                if not is_stall(error):
                    raise
                if time.monotonic() >= deadline:
                    raise StateStoreError(
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
            del batch  # an exception keeps this frame alive, which must not keep the database open

    def clear(self, family: str) -> None:
        """Delete everything in one family: one range delete, whatever its size."""
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
            del batch  # see _batch

    def ingest(self, family: str, files: Sequence[Path]) -> None:
        """Take sorted files (`SstFileWriter`) into a family, later ones over earlier ones; the files are moved.

        Write the position after it, never before. Holds the GIL for one file at a time: for the fsync of a file that is not
        durable yet, and for the few of RocksDB's own.
        """
        with self._access(f"ingest files into store {family}"):
            ingestion = IngestExternalFileOptions()
            ingestion.set_move_files(True)
            native = self._family(family)
            for file in files:
                native.ingest_external_file([str(file)], ingestion)

    def checkpoint(self, path: Path) -> None:
        """Flush everything, and make a copy in `path` (a new directory) that shares the files by hard links.

        Everything written before is durable when it returns, here and in the copy. RocksDB's own flush for a checkpoint does
        not see to that: under writes that fill small buffers, one copy in twenty lacked the last write, rows and position.
        """
        self.make_durable()
        with self._access(f"make a checkpoint in {path}"):
            Checkpoint(self._native()).create_checkpoint(str(path))

    def make_durable(self) -> None:
        """Make everything that was written durable: the stores, then the positions. Other threads run meanwhile."""
        with self._access("make everything durable"):
            for family in self._families.values():
                family.flush()
            positions = self._native().get_column_family(_POSITIONS)
            try:
                positions.flush()
            finally:
                positions.close()
                del positions  # an exception keeps this frame alive, which must not flush it later

    def close(self) -> None:
        """Wait for calls in progress, end all scans, make everything durable, release files and lock; idempotent.

        Raises:
            StateStoreError: The last writes could not be made durable (they will be replayed). It is closed anyway.
        """
        if not self._gate.close():
            return
        with self._scans_lock:
            for scan in self._scans:
                scan.close()
        with contextlib.ExitStack() as closing:
            # Run in reverse order, all of them whatever fails: handles, stores' families, database.
            closing.enter_context(_Translated(self.path, "flush and close the database"))
            closing.callback(self._native().close)
            for family in self._families.values():
                closing.callback(family.close)
            self._handles.clear()
            self._families.clear()
            self._database = None

    # -- inside ----------------------------------------------------------------------------------------------------

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
    """Turns rocksdict's exceptions into ours."""

    __slots__ = ("_path", "_what")

    def __init__(self, path: Path, *what: str) -> None:
        self._path = path
        self._what = what

    @property
    def _doing(self) -> str:
        return " ".join(self._what)

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
        # rocksdict has no class of its own for what RocksDB reports; a bug of ours has one.
        if kind is Exception or isinstance(error, (DbClosedError, OSError)):
            raise failure(error, self._path, self._doing) from error


class _Access(_Translated):
    """One call inside a database's gate."""

    __slots__ = ("_database",)

    def __init__(self, database: TaskDatabase, *what: str) -> None:
        super().__init__(database.path, *what)
        self._database = database

    def __enter__(self) -> Self:
        if not self._database._gate.enter():  # noqa: SLF001 - part of the same class, in two for `with`
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
    """Return whether there is a database, even an unreadable one."""
    return (path / "CURRENT").exists()


def _read_positions(native: Rdict) -> dict[str, bytes]:
    """Return all stored positions; called before anything is written."""
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
