"""Builds runs: sorted files of the last value per disk key of one stretch of a changelog partition, in bounded memory.

Where each row has the key of its record and needs no other, rows are made as records come: a dictionary of them is all
that is held, and it is sorted when a file is written. Of the other kinds, records are kept as they came, the last one
of each row, and `fold` makes rows of them then. What of a window or session store has expired by the time of the
stretch is left out of a file: whoever ingests it is at least as late. Where a key range is behind, its time counts.

How often a row is written, to one run or another, is what a long changelog costs beside reading it: memory is for as
many rows as can be.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, cast

from tidewheel.state_stores.bulk_restore.manifest import Run
from tidewheel.state_stores.bulk_restore.run_files import BuiltRuns, RunFile
from tidewheel.state_stores.layout.envelope import seal_batch
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.state_stores.restore import StoreTime, fold
from tidewheel.state_stores.rocksdb.sorted_files import write_sorted_file
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreKind, StoreSpec

#: Disk key and disk value; None is a delete.
Row = tuple[bytes, bytes | None]

#: Memory for one run, about: a million rows of 100 bytes.
RUN_BYTES: Final = 384 * 1024 * 1024

#: What a row costs in memory beside its bytes: a place in a dictionary that grows and in the list of keys that is
#: sorted, and the objects of key and value (tracemalloc on Python 3.11, rounded up).
_ROW_OVERHEAD_BYTES: Final = 220
#: The same of a record that is made into a row later: two dictionaries, more lists, and the objects of both.
_RECORD_OVERHEAD_BYTES: Final = 450

#: Kinds whose rows have their records' keys.
_KEY_VALUES: Final = frozenset({StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE})


class RunBuilder:
    """Folds the records of one stretch of one partition into runs.

    After an error in `add` or `finish` nothing of it may be used; call `abandon`.

    Args:
        spec: The store.
        directory: An existing directory for the files, this builder's own.
        partition: The partition.
        from_offset: Where the stretch begins.
        complete_from_zero: It begins at the start of the log: nothing lies below its first run, which has no deletes.
        max_bytes: Memory it may take; beyond it a run is closed and the next begins.
        slowest_ms: The store's time at its task's slowest key range (`SegmentLayout.first_restored`).
    """

    def __init__(
        self,
        spec: StoreSpec,
        directory: Path,
        *,
        partition: int,
        from_offset: int,
        complete_from_zero: bool,
        max_bytes: int = RUN_BYTES,
        slowest_ms: int | None = None,
    ) -> None:
        self._spec = spec
        self._slowest_ms = slowest_ms
        self._directory = directory
        self._partition = partition
        self._from = from_offset
        self._position = from_offset
        self._drop_deletes = complete_from_zero
        self._max_bytes = max_bytes
        self._last = _last_of(spec, slowest_ms)
        self._time = StoreTime()
        self._files: list[RunFile] = []

    def add(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Sequence[int],
        next_offset: int,
    ) -> None:
        """Take the next records, in the order of their offsets; `next_offset` is the one after the last of them."""
        assert next_offset >= self._position, "records come in the order of their offsets"
        self._position = next_offset
        if self._spec.ttl_ms is not None:  # whose time is not that of the last records alone
            self._time = self._time.later(StoreTime.of(self._spec, keys, timestamps))
        self._last.add(keys, values, timestamps)
        if self._last.bytes_at_most > self._max_bytes:
            self._last.count()
            if self._last.bytes_at_most > self._max_bytes * 3 // 4:
                self._close_run()

    def finish(self, to_offset: int) -> BuiltRuns:
        """Write what is left and return all files; `to_offset` is where the stretch ends (markers and gaps included)."""
        assert to_offset >= self._position, "the stretch ends behind its last record"
        self._position = to_offset
        self._close_run()
        return BuiltRuns(tuple(self._files), self._time)

    def abandon(self) -> None:
        """Delete the files made so far; for a stretch that could not be read to its end."""
        self._last = _last_of(self._spec, self._slowest_ms)
        for file in self._files:
            file.path.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        self._files.clear()

    @property
    def _path(self) -> Path:
        """Where the next file is written."""
        return self._directory / f"{self._partition}-{self._from}-{len(self._files)}.sst"

    def _close_run(self) -> None:
        last, self._last = self._last, _last_of(self._spec, self._slowest_ms)
        self._time = self._time.later(last.time())
        rows = self._kept(last.in_order())
        run = write_run(self._path, rows, self._partition, (self._from, self._position))
        if run is not None:
            self._files.append(RunFile(self._path, run))
            self._drop_deletes = False  # from now on something lies below
        self._from = self._position

    def _kept(self, rows: Iterable[Row]) -> Iterable[Row]:
        if self._drop_deletes:
            rows = (row for row in rows if row[1] is not None)
        if self._spec.kind in SEGMENTED_KINDS:
            layout = SegmentLayout.of(self._spec)
            first = layout.first_restored(self._time.observed_ms, self._slowest_ms)
            kept_from = layout.prefix(first)
            rows = (row for row in rows if row[0] >= kept_from)
        return rows


class _LastRows:
    """The last row of each key, of a kind whose rows have their records' keys and can be made without the others.

    Attributes:
        bytes_at_most: They don't take more memory than this, about; the bytes of keys that came again count again.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes | None, bytes | None] = {}
        self.bytes_at_most = 0

    def add(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Sequence[int],
    ) -> None:
        """Take the next records."""
        before = len(self._rows)
        # A value without headers is stored alike whether its store keeps them or not.
        sealed = seal_batch(values, timestamps)
        self._rows.update(zip(keys, sealed, strict=True))
        added = len(self._rows) - before
        self.bytes_at_most += _lengths(keys) + _lengths(sealed) + added * _ROW_OVERHEAD_BYTES

    def count(self) -> None:
        """Look how much memory they do take."""
        lengths = _lengths(self._rows) + _lengths(self._rows.values())
        self.bytes_at_most = lengths + len(self._rows) * _ROW_OVERHEAD_BYTES

    def time(self) -> StoreTime:
        """Return what they tell of the store's time: it has none."""
        return StoreTime()

    def in_order(self) -> Iterator[Row]:
        """Return those with a key, in the order of their keys."""
        self._rows.pop(None, None)
        keys = sorted(cast("dict[bytes, bytes | None]", self._rows))
        return zip(keys, map(self._rows.__getitem__, keys), strict=True)


class _LastRecords:
    """The last record of each row, of some changelog records in the order of their offsets.

    A versioned store has a row for each timestamp of a key; in every other kind, rows have changelog keys of their own.

    Attributes:
        bytes_at_most: They don't take more memory than this, about; keys that came again were counted again.
    """

    def __init__(self, spec: StoreSpec, slowest_ms: int | None) -> None:
        self._spec = spec
        self._slowest_ms = slowest_ms
        self._by_time = spec.kind is StoreKind.VERSIONED
        # Two dictionaries hold no object that the garbage collector would visit again and again.
        self._values: dict[Any, bytes | None] = {}
        self._timestamps: dict[Any, int] = {}
        self.bytes_at_most = 0

    def add(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Sequence[int],
    ) -> None:
        """Take the next records."""
        names = list(zip(keys, timestamps, strict=True)) if self._by_time else keys
        self._values.update(zip(names, values, strict=True))
        self._timestamps.update(zip(names, timestamps, strict=True))
        self.bytes_at_most += _bytes_of(keys, values)

    def count(self) -> None:
        """Look how much memory they do take."""
        keys, values, _ = self._columns()
        self.bytes_at_most = _bytes_of(keys, values)

    def time(self) -> StoreTime:
        """Return what they tell of the store's time."""
        keys, _, timestamps = self._columns()
        return StoreTime.of(self._spec, keys, timestamps)

    def in_order(self) -> Sequence[Row]:
        """Return the rows they make, in the order of their keys."""
        return sorted(fold(self._spec, *self._columns(), slowest_ms=self._slowest_ms))

    def _columns(self) -> tuple[list[bytes | None], list[bytes | None], list[int]]:
        keys = [key for key, _ in self._values] if self._by_time else list(self._values)
        return keys, list(self._values.values()), list(self._timestamps.values())


def _last_of(spec: StoreSpec, slowest_ms: int | None) -> _LastRows | _LastRecords:
    """Return what keeps the last records of a store; with a ttl, what has ended depends on all of them."""
    if spec.kind in _KEY_VALUES and spec.ttl_ms is None:
        return _LastRows()
    return _LastRecords(spec, slowest_ms)


def _bytes_of(keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> int:
    """Return about how much memory records take when they are made into rows; a row has a copy of the value."""
    return _lengths(keys) + 2 * _lengths(values) + len(keys) * _RECORD_OVERHEAD_BYTES


def _lengths(texts: Iterable[bytes | None]) -> int:
    return sum(map(len, filter(None, texts)))


def write_run(
    path: Path, rows: Iterable[Row], partition: int, offsets: tuple[int, int]
) -> Run | None:
    """Write rows in key order, made of offsets (first, end), and return the run; None, and no file, without any row."""
    remaining = iter(rows)
    first = next(remaining, None)
    if first is None:
        return None
    last, deletes = first[0], 0

    def watched() -> Iterator[Row]:
        nonlocal last, deletes
        for row in chain((first,), remaining):
            last = row[0]
            deletes += row[1] is None
            yield row

    count = write_sorted_file(path, watched())
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return Run(
        partition=partition,
        from_offset=offsets[0],
        to_offset=offsets[1],
        file="",
        rows=count,
        deletes=deletes,
        file_bytes=path.stat().st_size,
        sha256=sha256,
        first_key=first[0],
        last_key=last,
    )
