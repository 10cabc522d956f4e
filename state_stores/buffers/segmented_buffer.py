"""Commit buffer of a window or session store: rows in time segments, which expire as a whole.

Keys are disk keys (see `segments`).
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import merge
from operator import itemgetter
from typing import Any, TypeVar

from tidewheel.state_stores.buffers.commit_buffer import Drained, RestoreExtras
from tidewheel.state_stores.buffers.query_sources import (
    Page,
    QueryScan,
    QuerySource,
    RowReader,
    clipped,
)
from tidewheel.state_stores.buffers.row_index import DirtyIndex, RowIndex
from tidewheel.state_stores.buffers.rows import SortedRows
from tidewheel.state_stores.buffers.timed_buffer import TimedBuffer
from tidewheel.state_stores.layout.envelope import unwrap_value
from tidewheel.state_stores.layout.segments import SEGMENT_BYTES, TIME_MAX, SegmentLayout
from tidewheel.state_stores.layout.stored_values import read_row
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.spec import StoreSpec

#: (disk key, value, timestamp)
SegmentRow = tuple[bytes, Any, int]

R = TypeVar("R", bound=tuple[Any, ...])

_disk_key = itemgetter(0)


class SegmentedBuffer(TimedBuffer):
    def __init__(
        self,
        spec: StoreSpec,
        database: Database,
        *,
        topic: str,
        read_cache_bytes: int,
        in_range: bool = False,
    ) -> None:
        super().__init__(
            spec, database, topic=topic, read_cache_bytes=read_cache_bytes, in_range=in_range
        )
        self.layout = SegmentLayout.of(spec)
        self._index = DirtyIndex(slice(SEGMENT_BYTES, -self.layout.tail), self._dirty_since)
        self._on_disk: list[int] | None = None
        self._rows: RowIndex | None = None
        self._indexed_dirty = 0

    @property
    def live_from_ms(self) -> int:
        return self.layout.live_from_ms(self.observed_stream_time_ms)

    def _record_key(self, key: bytes) -> bytes:
        return self.layout.key_of(key)

    def scan_key(
        self, key: bytes, low: int, high: int, *, reverse: bool = False, expired: bool = False
    ) -> Iterator[SegmentRow]:
        """Return a key's rows in time order; with `expired`, also expired ones."""
        low, high = max(low, 0 if expired else self.live_from_ms), min(high, TIME_MAX)
        if high < low:
            return iter(())
        disk_keys = self.indexed_rows(key, low, high)
        if disk_keys is not None:
            self.fetch(disk_keys)
            rows = [
                (disk_key, value, self.timestamps[disk_key])
                for disk_key in disk_keys
                if (value := self.peek(disk_key)) is not None
            ]
            return reversed(rows) if reverse else iter(rows)
        return self._scanned(key, low, high, reverse=reverse)

    def _scanned(self, key: bytes, low: int, high: int, *, reverse: bool) -> Iterator[SegmentRow]:
        changed = self._changed_of(key, low, high)
        length = self.layout.row_bytes(key)
        disk: list[Iterator[SegmentRow]] = []
        for segment in self._segments_between(low, high, reverse=reverse):
            lower, upper = self.layout.key_bounds(segment, key, low, high)
            disk.append(self._disk_rows(lower, upper, changed, reverse=reverse, length=length))
        return self._merged(changed, disk, reverse=reverse)

    def indexed_rows(self, key: bytes, low: int, high: int) -> list[bytes] | None:
        """Return a key's disk keys in order, even expired ones; None if it is not indexed."""
        return self._row_index().of(key, low, high)

    def _row_index(self) -> RowIndex:
        rows = self._rows
        if rows is None:
            budget = self._read_cache_bytes // 2
            rows = RowIndex(self.layout, budget, self._segments_on_disk(), self._look_up)
            self._rows, self._indexed_dirty = rows, 0
        if len(self.dirty) > self._indexed_dirty or rows.is_full:
            self._update_index(rows)
        return rows

    def rows_of(self, key: bytes, low: int, high: int) -> list[bytes]:
        """Return a key's disk keys, even expired ones; some may be deleted already."""
        high = min(high, TIME_MAX)
        if high < low:
            return []
        disk_keys = self.indexed_rows(key, low, high)
        if disk_keys is not None:
            return disk_keys
        return [row[0] for row in self._scanned(key, low, high, reverse=False)]

    def rows_of_each(
        self, keys: Sequence[bytes], lows: Sequence[int], highs: Sequence[int]
    ) -> list[list[bytes]]:
        if not keys:
            return []
        return [
            self.rows_of(keys[index], lows[index], highs[index]) if disk_keys is None else disk_keys
            for index, disk_keys in enumerate(self._row_index().of_each(keys, lows, highs))
        ]

    def _update_index(self, rows: RowIndex) -> None:
        fresh = self._dirty_since(self._indexed_dirty)
        fresh.reverse()
        rows.add(self._with_values(fresh))
        self._indexed_dirty = len(self.dirty)

    def _with_values(self, disk_keys: list[bytes]) -> list[bytes]:
        deleted = self._deleted
        return (
            [disk_key for disk_key in disk_keys if disk_key not in deleted]
            if deleted
            else disk_keys
        )

    def _look_up(self, segment: int, key: bytes, limit: int) -> list[bytes]:
        layout = self.layout
        low = segment * layout.interval_ms
        high = low + layout.interval_ms - 1
        changed_keys = self._changed_of(key, low, high)
        changed = frozenset(changed_keys)
        length = layout.row_bytes(key)
        read: dict[bytes, bytes] = {}
        for disk_key, data in self._database.iterate(
            self._family, *layout.key_bounds(segment, key, low, high)
        ):
            if len(disk_key) == length and disk_key not in changed:
                read[disk_key] = data
                if len(read) >= limit:
                    break
        fresh = [disk_key for disk_key in read if not self._knows(disk_key)]
        self._load(fresh, [read[disk_key] for disk_key in fresh])
        return sorted((*self._with_values(changed_keys), *read))

    def scan_range(
        self, lo: bytes | None, hi: bytes | None, low: int, high: int, *, reverse: bool = False
    ) -> Iterator[SegmentRow]:
        low, high = max(low, self.live_from_ms), min(high, TIME_MAX)
        if high < low:
            return iter(())
        first = self.layout.prefix(self.layout.segment(low))
        end = self.layout.prefix(self.layout.segment(high) + 1)
        changed = self.dirty_between(first, end)
        disk: list[Iterator[SegmentRow]] = []
        for segment in self._segments_between(low, high, reverse=reverse):
            lower, upper = self.layout.range_bounds(segment, lo, hi)
            disk.append(self._disk_rows(lower, upper, changed, reverse=reverse))
        rows = self._merged(changed, disk, reverse=reverse)
        return rows_within(rows, self.layout, (lo, hi), low, high)

    def _merged(
        self, changed: list[bytes], disk: list[Iterator[SegmentRow]], *, reverse: bool
    ) -> Iterator[SegmentRow]:
        buffered = [
            (disk_key, value, self.timestamps[disk_key])
            for disk_key in (reversed(changed) if reverse else changed)
            if (value := self.peek(disk_key)) is not None
        ]
        if not disk:
            return iter(buffered)
        return merge(buffered, *disk, key=_disk_key, reverse=reverse)

    def _disk_rows(
        self,
        lower: bytes,
        upper: bytes,
        changed: Sequence[bytes],
        *,
        reverse: bool,
        length: int | None = None,
    ) -> Iterator[SegmentRow]:
        hidden = frozenset(changed)
        # Opened now, not at the first row, to show the current rows.
        rows = self._database.iterate(self._family, lower, upper, reverse=reverse)
        return (
            (disk_key, *self._decode(disk_key, data))
            for disk_key, data in rows
            if disk_key not in hidden and (length is None or len(disk_key) == length)
        )

    def _changed_of(self, key: bytes, low: int, high: int) -> list[bytes]:
        disk_keys = self._index.of(key, len(self.dirty))
        if disk_keys is None:
            return []
        first, end = self.layout.key_span(key, low, high)
        return disk_keys[bisect_left(disk_keys, first) : bisect_left(disk_keys, end)]

    def _segments_between(self, low: int, high: int, *, reverse: bool) -> Sequence[int]:
        return self.layout.segments_of(self._segments_on_disk(), low, high, reverse=reverse)

    def _segments_on_disk(self) -> list[int]:
        if self._on_disk is None:
            self._on_disk = list(segments_on_disk(self._database, self._family, self.layout))
        return self._on_disk

    def _forget_disk(self) -> None:
        self._on_disk = self._rows = None

    def put(self, key: bytes, value: Any, timestamp: int) -> None:
        rows = self._rows
        if rows is None:
            super().put(key, value, timestamp)
            return
        in_step = self._indexed_dirty == len(self.dirty)
        super().put(key, value, timestamp)
        if key in self._deleted:
            rows.remove(key)
        else:
            rows.put(key)
        if in_step:
            self._indexed_dirty = len(self.dirty)

    def _mark_all_dirty(self, rows: Mapping[bytes, Any], timestamps: Sequence[int]) -> None:
        index = self._rows
        in_step = self._indexed_dirty == len(self.dirty)
        super()._mark_all_dirty(rows, timestamps)
        if index is not None:
            index.change(rows)
            if in_step:
                self._indexed_dirty = len(self.dirty)

    def mark_changed(
        self, keys: Collection[bytes], latest: int, fresh: Collection[bytes] | None = None
    ) -> None:
        if self._rows is not None and self._deleted:
            self._rows.add(self._deleted.intersection(keys))
        super().mark_changed(keys, latest, fresh)

    @property
    def _first_live_key(self) -> bytes:
        return self.layout.prefix(self.layout.first_live_segment(self.observed_stream_time_ms))

    def _drained(
        self, keys: list[bytes], values: list[bytes | None], timestamps: list[int]
    ) -> Drained:
        layout = self.layout
        if keys:
            # Operators that know disk keys write them without calling `observe`.
            self.observe(layout.latest_time(keys))
        dead = self._first_live_key
        live = bisect_left(keys, dead)
        return Drained(
            [key[SEGMENT_BYTES:] for key in keys],
            values,
            timestamps,
            disk_rows=SortedRows(keys[live:], self._wrap_batch(values[live:], timestamps[live:])),
            delete_range=None if self.in_range else self._delete_range(dead),
            metadata=self._time_to_store(),
        )

    def _delete_range(self, dead: bytes) -> tuple[bytes, bytes] | None:
        on_disk = self._segments_on_disk()
        if not on_disk or self.layout.prefix(on_disk[0]) >= dead:
            return None
        return self.layout.prefix(on_disk[0]), dead

    def _observe_rows(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        layout = self.layout
        self.observe(max((layout.time_of(key) for key, _ in rows), default=-1))
        if self.spec.retain_duplicates:
            self.seq = max(self.seq, *(layout.seq_of(key) for key, _ in rows), 0)

    def restored(
        self, rows: Sequence[tuple[bytes, bytes | None]], *, slowest_ms: int | None = None
    ) -> RestoreExtras:
        restored = super().restored(rows, slowest_ms=slowest_ms)
        self._forget_disk()
        first = self.layout.first_restored(self.observed_stream_time_ms, slowest_ms)
        delete_range = self._delete_range(self.layout.prefix(first))
        # `_delete_range` cached the list of segments on disk; the restored rows will change it.
        self._forget_disk()
        return RestoreExtras(delete_range=delete_range, metadata=restored.metadata)

    def applied(self) -> None:
        if self._rows is not None:
            self._update_index(self._rows)
            self._rows.expire(self.layout.first_live_segment(self.observed_stream_time_ms))
        # Without dirty keys this store was not in the commit: its segments on disk are the same.
        if self._on_disk is not None and self.dirty:
            dead = self.layout.first_live_segment(self.observed_stream_time_ms)
            segments = self.layout.segments_in(self.dirty).union(self._on_disk)
            self._on_disk = sorted(segment for segment in segments if segment >= dead)
            if min(segments, default=dead) < dead:
                self._evict_before(self.layout.prefix(dead))
        super().applied()

    def _evict_before(self, dead: bytes) -> None:
        for disk_key in [key for key in self.timestamps if key < dead]:
            self.evict(disk_key)
        for disk_key in [key for key in self._old.timestamps if key < dead]:
            self.evict(disk_key)

    def discard(self) -> None:
        super().discard()
        self._forget_disk()

    def _clean(self) -> None:
        super()._clean()
        self._index.clear()
        self._indexed_dirty = 0


class QuerySegments:
    def __init__(self, spec: StoreSpec, topic: str, source: QuerySource) -> None:
        self.layout = SegmentLayout.of(spec)
        self._spec = spec
        self._topic = topic
        self._source = source

    def scan_key(
        self, key: bytes, low: int, high: int, *, reverse: bool = False
    ) -> Iterator[SegmentRow]:
        layout = self.layout
        length = layout.row_bytes(key)

        def rows(
            reader: RowReader, past: bytes | None, observed_ms: int
        ) -> Iterator[tuple[bytes, bytes | None]]:
            first, last = self._live(low, high, observed_ms)
            for segment in self._segments(reader, first, last, reverse=reverse):
                bounds = layout.key_bounds(segment, key, first, last)
                for row in self._between(reader, bounds, past, reverse=reverse):
                    if len(row[0]) == length:
                        yield row

        return self._decoded(self._source.pages(QueryScan(rows, reverse)))

    def scan_range(
        self, lo: bytes | None, hi: bytes | None, low: int, high: int, *, reverse: bool = False
    ) -> Iterator[SegmentRow]:
        layout = self.layout

        def rows(
            reader: RowReader, past: bytes | None, observed_ms: int
        ) -> Iterator[tuple[bytes, bytes | None]]:
            first, last = self._live(low, high, observed_ms)
            for segment in self._segments(reader, first, last, reverse=reverse):
                bounds = layout.range_bounds(segment, lo, hi)
                rows_between = self._between(reader, bounds, past, reverse=reverse)
                yield from rows_within(rows_between, layout, (lo, hi), first, last)

        yield from self._decoded(self._source.pages(QueryScan(rows, reverse)))

    def _live(self, low: int, high: int, observed_ms: int) -> tuple[int, int]:
        return max(low, self.layout.live_from_ms(observed_ms)), min(high, TIME_MAX)

    def _segments(self, reader: RowReader, low: int, high: int, *, reverse: bool) -> Sequence[int]:
        segments = list(segments_on_disk(reader, self._spec.name, self.layout))
        return self.layout.segments_of(segments, low, high, reverse=reverse)

    def _between(
        self,
        reader: RowReader,
        bounds: tuple[bytes, bytes],
        past: bytes | None,
        *,
        reverse: bool,
    ) -> Iterator[tuple[bytes, bytes | None]]:
        lower, upper = clipped(*bounds, past, reverse=reverse)
        if lower is not None and upper is not None and lower >= upper:
            return iter(())
        return reader.iterate(self._spec.name, lower, upper, reverse=reverse)

    def _decoded(self, pages: Iterator[Page]) -> Iterator[SegmentRow]:
        return (
            (disk_key, *self._decode(disk_key, data))
            for page in pages
            for disk_key, data in page.rows
        )

    def _decode(self, disk_key: bytes, data: bytes) -> tuple[Any, int]:
        payload, timestamp = unwrap_value(data)
        decode, key = self._spec.value_serde.deserialize, self.layout.key_of(disk_key)
        return read_row(self._spec.name, decode, self._topic, payload, key), timestamp


def rows_within(
    rows: Iterator[R],
    layout: SegmentLayout,
    keys: tuple[bytes | None, bytes | None],
    low: int,
    high: int,
) -> Iterator[R]:
    lo, hi = keys
    for row in rows:
        key = layout.key_of(row[0])
        if (
            low <= layout.time_of(row[0]) <= high
            and (lo is None or key >= lo)
            and (hi is None or key <= hi)
        ):
            yield row


def segments_on_disk(database: RowReader, family: str, layout: SegmentLayout) -> Iterator[int]:
    lower: bytes | None = None
    while (row := next(database.iterate(family, lower, None), None)) is not None:
        segment = layout.segment_of(row[0])
        yield segment
        lower = layout.prefix(segment + 1)
