"""Run builder: the last value per disk key of an offset range, sorted, in bounded memory.

If each row depends on its record alone, records become rows immediately. Other kinds keep the last
record of each row until `fold` makes rows of them.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, cast

from tidewheel.state_stores.bulk_restore.manifest import Run
from tidewheel.state_stores.bulk_restore.run_files import BuiltRuns, RunFile
from tidewheel.state_stores.layout.envelope import wrap_batch
from tidewheel.state_stores.layout.restore import StoreTime, fold
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.state_stores.rocksdb.sorted_files import write_sorted_file
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreKind, StoreSpec

Row = tuple[bytes, bytes | None]

#: Memory of one run, about a million rows of 100 bytes.
RUN_BYTES: Final = 384 * 1024 * 1024

#: Memory of a row besides its bytes (measured).
_ROW_OVERHEAD_BYTES: Final = 220
#: The same for a record that `fold` turns into a row only when the run ends.
_RECORD_OVERHEAD_BYTES: Final = 450

_KEY_VALUES: Final = frozenset({StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE})


class RunBuilder:
    """Folds an offset range of one partition into runs (sorted files).

    After an error in `add` or `finish`, call `abandon` and use no result. `complete_from_zero`
    means that the range begins at the log's start, so its first run has no deletes.
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
        assert next_offset >= self._position, "records come in the order of their offsets"
        self._position = next_offset
        if self._spec.ttl_ms is not None:  # overwritten records count for the store's time, too
            self._time = self._time.later(StoreTime.of(self._spec, keys, timestamps))
        self._last.add(keys, values, timestamps)
        if self._last.bytes_at_most > self._max_bytes:
            self._last.count()
            if self._last.bytes_at_most > self._max_bytes * 3 // 4:
                self._close_run()

    def finish(self, to_offset: int) -> BuiltRuns:
        assert to_offset >= self._position, "the stretch ends behind its last record"
        self._position = to_offset
        self._close_run()
        return BuiltRuns(tuple(self._files), self._time)

    def abandon(self) -> None:
        self._last = _last_of(self._spec, self._slowest_ms)
        for file in self._files:
            file.path.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        self._files.clear()

    @property
    def _path(self) -> Path:
        return self._directory / f"{self._partition}-{self._from}-{len(self._files)}.sst"

    def _close_run(self) -> None:
        last, self._last = self._last, _last_of(self._spec, self._slowest_ms)
        self._time = self._time.later(last.time())
        rows = self._live_rows(last.in_order())
        run = write_run(self._path, rows, self._partition, (self._from, self._position))
        if run is not None:
            self._files.append(RunFile(self._path, run))
            self._drop_deletes = False
        self._from = self._position

    def _live_rows(self, rows: Iterable[Row]) -> Iterable[Row]:
        if self._drop_deletes:
            rows = (row for row in rows if row[1] is not None)
        if self._spec.kind in SEGMENTED_KINDS:
            layout = SegmentLayout.of(self._spec)
            first = layout.first_restored(self._time.observed_ms, self._slowest_ms)
            first_key = layout.prefix(first)
            rows = (row for row in rows if row[0] >= first_key)
        return rows


class _LastRows:
    def __init__(self) -> None:
        self._rows: dict[bytes | None, bytes | None] = {}
        self.bytes_at_most = 0

    def add(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Sequence[int],
    ) -> None:
        before = len(self._rows)
        # Runs have no record headers. A value without headers has the same bytes in stores that
        # keep headers and in others, so `wrap_batch` suits both.
        wrapped = wrap_batch(values, timestamps)
        self._rows.update(zip(keys, wrapped, strict=True))
        added = len(self._rows) - before
        self.bytes_at_most += _lengths(keys) + _lengths(wrapped) + added * _ROW_OVERHEAD_BYTES

    def count(self) -> None:
        lengths = _lengths(self._rows) + _lengths(self._rows.values())
        self.bytes_at_most = lengths + len(self._rows) * _ROW_OVERHEAD_BYTES

    def time(self) -> StoreTime:
        return StoreTime()

    def in_order(self) -> Iterator[Row]:
        self._rows.pop(None, None)
        keys = sorted(cast("dict[bytes, bytes | None]", self._rows))
        return zip(keys, map(self._rows.__getitem__, keys), strict=True)


class _LastRecords:
    """Last record of each row.

    Versioned stores have a row per key and timestamp; other kinds a row per changelog key.
    """

    def __init__(self, spec: StoreSpec, slowest_ms: int | None) -> None:
        self._spec = spec
        self._slowest_ms = slowest_ms
        self._by_time = spec.kind is StoreKind.VERSIONED
        # Two dictionaries, not one of tuples, which the garbage collector would visit repeatedly.
        self._values: dict[Any, bytes | None] = {}
        self._timestamps: dict[Any, int] = {}
        self.bytes_at_most = 0

    def add(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Sequence[int],
    ) -> None:
        names = list(zip(keys, timestamps, strict=True)) if self._by_time else keys
        self._values.update(zip(names, values, strict=True))
        self._timestamps.update(zip(names, timestamps, strict=True))
        self.bytes_at_most += _bytes_of(keys, values)

    def count(self) -> None:
        keys, values, _ = self._columns()
        self.bytes_at_most = _bytes_of(keys, values)

    def time(self) -> StoreTime:
        keys, _, timestamps = self._columns()
        return StoreTime.of(self._spec, keys, timestamps)

    def in_order(self) -> Sequence[Row]:
        return sorted(fold(self._spec, *self._columns(), slowest_ms=self._slowest_ms))

    def _columns(self) -> tuple[list[bytes | None], list[bytes | None], list[int]]:
        keys = [key for key, _ in self._values] if self._by_time else list(self._values)
        return keys, list(self._values.values()), list(self._timestamps.values())


def _last_of(spec: StoreSpec, slowest_ms: int | None) -> _LastRows | _LastRecords:
    if spec.kind in _KEY_VALUES and spec.ttl_ms is None:
        return _LastRows()
    return _LastRecords(spec, slowest_ms)


def _bytes_of(keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> int:
    return _lengths(keys) + 2 * _lengths(values) + len(keys) * _RECORD_OVERHEAD_BYTES


def _lengths(texts: Iterable[bytes | None]) -> int:
    return sum(map(len, filter(None, texts)))


def write_run(
    path: Path, rows: Iterable[Row], partition: int, offsets: tuple[int, int]
) -> Run | None:
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
