"""A commit buffer of a window or session store: rows in segments of time, which expire as a whole.

It is keyed by disk key (see `segments`). Whoever knows the exact disk keys uses `fetch`, `get`, `timestamp` and `put` as
with any buffer; scans of one key go through an index of the key's rows (`row_index`), and where that knows nothing they
visit only those segments on disk that hold anything.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import merge
from operator import itemgetter
from typing import Any, TypeVar

from tidewheel.state_stores.buffers.commit_buffer import Drained, Restored
from tidewheel.state_stores.buffers.queried import Page, Queried, RowReader, Scan, clipped
from tidewheel.state_stores.buffers.row_index import DirtyIndex, RowIndex
from tidewheel.state_stores.buffers.rows import SortedRows
from tidewheel.state_stores.buffers.timed_buffer import TimedBuffer
from tidewheel.state_stores.layout.envelope import unseal
from tidewheel.state_stores.layout.segments import SEGMENT_BYTES, TIME_MAX, SegmentLayout
from tidewheel.state_stores.layout.stored_values import read_row
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.spec import StoreSpec

#: (disk key, value, timestamp)
SegmentRow = tuple[bytes, Any, int]

#: A row, of which only the disk key is read.
R = TypeVar("R", bound=tuple[Any, ...])

_disk_key = itemgetter(0)


class SegmentedBuffer(TimedBuffer):
    """Buffered access to a family of a window or session store."""

    def __init__(
        self,
        spec: StoreSpec,
        database: Database,
        *,
        topic: str,
        keep_bytes: int,
        in_range: bool = False,
    ) -> None:
        super().__init__(spec, database, topic=topic, keep_bytes=keep_bytes, in_range=in_range)
        self.layout = SegmentLayout.of(spec)
        self._index = DirtyIndex(slice(SEGMENT_BYTES, -self.layout.tail), self._dirty_since)
        #: The segments that may hold rows on disk, in order; None while that is not known.
        self._on_disk: list[int] | None = None
        #: The rows of each key; made when somebody first scans one, because exact disk keys need none.
        self._rows: RowIndex | None = None
        #: How many dirty disk keys it has been told.
        self._rows_seen = 0

    @property
    def live_from_ms(self) -> int:
        """Return the smallest time that has not expired."""
        return self.layout.live_from_ms(self.observed_stream_time_ms)

    def _record_key(self, key: bytes) -> bytes:
        return self.layout.key_of(key)

    # -- reading ---------------------------------------------------------------------------------------------------

    def scan_key(
        self, key: bytes, low: int, high: int, *, reverse: bool = False, expired: bool = False
    ) -> Iterator[SegmentRow]:
        """Return the live rows of a key with low <= time <= high, in the order of time, as of now.

        `expired`: the others too, as far as they are still there.
        """
        low, high = max(low, 0 if expired else self.live_from_ms), min(high, TIME_MAX)
        if high < low:
            return iter(())
        known = self.known_rows(key, low, high)
        if known is not None:
            self.fetch(known)
            rows = [
                (disk_key, value, self.timestamps[disk_key])
                for disk_key in known
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

    def known_rows(self, key: bytes, low: int, high: int) -> list[bytes] | None:
        """Return the disk keys of a key with low <= time <= high in order, live or not; None if they are too many."""
        return self._row_index().of(key, low, high)

    def _row_index(self) -> RowIndex:
        """Return the index of rows, which knows of all that is uncommitted."""
        rows = self._rows
        if rows is None:
            budget = self._keep_bytes // 2
            rows = RowIndex(self.layout, budget, self._segments_on_disk(), self._look_up)
            self._rows, self._rows_seen = rows, 0
        if len(self.dirty) > self._rows_seen or rows.is_full:
            self._tell_rows(rows)
        return rows

    def rows_of(self, key: bytes, low: int, high: int) -> list[bytes]:
        """Return the disk keys of a key with low <= time <= high in order, live or not; some may have no value."""
        high = min(high, TIME_MAX)
        if high < low:
            return []
        known = self.known_rows(key, low, high)
        if known is not None:
            return known
        return [row[0] for row in self._scanned(key, low, high, reverse=False)]

    def rows_of_each(
        self, keys: Sequence[bytes], lows: Sequence[int], highs: Sequence[int]
    ) -> list[list[bytes]]:
        """Return what `rows_of` does for each key with its times, from 0; the lists are the caller's."""
        if not keys:
            return []
        return [
            self.rows_of(keys[index], lows[index], highs[index]) if known is None else known
            for index, known in enumerate(self._row_index().of_each(keys, lows, highs))
        ]

    def _tell_rows(self, rows: RowIndex) -> None:
        fresh = self._dirty_since(self._rows_seen)
        fresh.reverse()
        rows.add(self._with_values(fresh))
        self._rows_seen = len(self.dirty)

    def _with_values(self, disk_keys: list[bytes]) -> list[bytes]:
        """Return those dirty disk keys that were not deleted."""
        deleted = self._deleted
        return [each for each in disk_keys if each not in deleted] if deleted else disk_keys

    def _look_up(self, segment: int, key: bytes, limit: int) -> list[bytes]:
        """Return the disk keys of a key in a segment in order, up to `limit` of those on disk and all uncommitted ones."""
        layout = self.layout
        low = segment * layout.interval_ms
        high = low + layout.interval_ms - 1
        found = self._changed_of(key, low, high)
        changed = frozenset(found)
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
        return sorted((*self._with_values(found), *read))

    def scan_range(
        self, lo: bytes | None, hi: bytes | None, low: int, high: int, *, reverse: bool = False
    ) -> Iterator[SegmentRow]:
        """Return the live rows of the keys lo <= key <= hi with low <= time <= high: by segment, then by key."""
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
        # Opened now, so that it shows what is there now.
        rows = self._database.iterate(self._family, lower, upper, reverse=reverse)
        return (
            (disk_key, *self._decode(disk_key, data))
            for disk_key, data in rows
            if disk_key not in hidden and (length is None or len(disk_key) == length)
        )

    def _changed_of(self, key: bytes, low: int, high: int) -> list[bytes]:
        """Return the uncommitted disk keys of a key and times, in order."""
        mine = self._index.of(key, len(self.dirty))
        if mine is None:
            return []
        first, end = self.layout.key_span(key, low, high)
        return mine[bisect_left(mine, first) : bisect_left(mine, end)]

    def _segments_between(self, low: int, high: int, *, reverse: bool) -> Sequence[int]:
        return self.layout.segments_of(self._segments_on_disk(), low, high, reverse=reverse)

    def _segments_on_disk(self) -> list[int]:
        if self._on_disk is None:
            self._on_disk = list(segments_on_disk(self._database, self._family, self.layout))
        return self._on_disk

    def _forget_disk(self) -> None:
        """Look at the disk again before anything is said of it."""
        self._on_disk = self._rows = None

    # -- writing ---------------------------------------------------------------------------------------------------

    def put(self, key: bytes, value: Any, timestamp: int) -> None:
        """Set a value, or delete it with None; the index of rows knows of it at once."""
        rows = self._rows
        if rows is None:
            super().put(key, value, timestamp)
            return
        in_step = self._rows_seen == len(self.dirty)
        super().put(key, value, timestamp)
        if key in self._deleted:
            rows.remove(key)
        else:
            rows.put(key)
        if in_step:
            self._rows_seen = len(self.dirty)

    def _begin_all(self, rows: Mapping[bytes, Any], timestamps: Sequence[int]) -> None:
        """Note that these rows are changed; the index of rows knows of it at once."""
        index = self._rows
        in_step = self._rows_seen == len(self.dirty)
        super()._begin_all(rows, timestamps)
        if index is not None:
            index.change(rows)
            if in_step:
                self._rows_seen = len(self.dirty)

    def touched(
        self, keys: Collection[bytes], latest: int, fresh: Collection[bytes] | None = None
    ) -> None:
        """Mark keys whose entries in `values` and `timestamps` were changed directly, to `latest` at most."""
        if self._rows is not None and self._deleted:
            self._rows.add(self._deleted.intersection(keys))
        super().touched(keys, latest, fresh)

    # -- committing ------------------------------------------------------------------------------------------------

    @property
    def _kept_from(self) -> bytes:
        """Return the first disk key that stays on disk."""
        return self.layout.prefix(self.layout.first_kept(self.observed_stream_time_ms))

    def _drained(
        self, keys: list[bytes], values: list[bytes | None], timestamps: list[int]
    ) -> Drained:
        layout = self.layout
        if keys:
            # Operators that know their disk keys write them without a word about time.
            self.observe(layout.latest_time(keys))
        dead = self._kept_from
        live = bisect_left(keys, dead)
        return Drained(
            [key[SEGMENT_BYTES:] for key in keys],
            values,
            timestamps,
            disk_rows=SortedRows(keys[live:], self._seal_batch(values[live:], timestamps[live:])),
            delete_range=None if self.in_range else self._delete_range(dead),
            notes=self._note(),
        )

    def _delete_range(self, dead: bytes) -> tuple[bytes, bytes] | None:
        """Return the range of what has expired on disk, if anything has: all before the key `dead`."""
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
    ) -> Restored:
        """Note that these rows were restored from the changelog; return what is written along with them."""
        restored = super().restored(rows, slowest_ms=slowest_ms)
        self._forget_disk()
        first = self.layout.first_restored(self.observed_stream_time_ms, slowest_ms)
        delete_range = self._delete_range(self.layout.prefix(first))
        self._forget_disk()  # the rows are not there yet
        return Restored(delete_range=delete_range, notes=restored.notes)

    def applied(self) -> None:
        """The database shows the drained changes: all entries are clean now."""
        if self._rows is not None:
            self._tell_rows(self._rows)
            self._rows.expire(self.layout.first_kept(self.observed_stream_time_ms))
        if self._on_disk is not None and self.dirty:  # else nothing was deleted, either
            dead = self.layout.first_kept(self.observed_stream_time_ms)
            found = self.layout.segments_in(self.dirty).union(self._on_disk)
            self._on_disk = sorted(segment for segment in found if segment >= dead)
            if min(found, default=dead) < dead:
                self._evict_before(self.layout.prefix(dead))
        super().applied()

    def _evict_before(self, dead: bytes) -> None:
        """Forget what the database has just deleted; that is once per segment."""
        for disk_key in [key for key in self.timestamps if key < dead]:
            self.evict(disk_key)
        for disk_key in [key for key in self._old.timestamps if key < dead]:
            self.evict(disk_key)

    def discard(self) -> None:
        """Forget everything, also uncommitted changes: the next read sees the database."""
        super().discard()
        self._forget_disk()

    def _clean(self) -> None:
        super()._clean()
        self._index.clear()
        self._rows_seen = 0


class QueriedSegments:
    """The rows of one task's window or session store, for queries; scans as `SegmentedBuffer`."""

    def __init__(self, spec: StoreSpec, topic: str, source: Queried) -> None:
        self.layout = SegmentLayout.of(spec)
        self._spec = spec
        self._topic = topic
        self._source = source

    def scan_key(
        self, key: bytes, low: int, high: int, *, reverse: bool = False
    ) -> Iterator[SegmentRow]:
        """Return the live rows of a key with low <= time <= high, in the order of time; its task is asked now."""
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

        return self._decoded(self._source.pages(Scan(rows, reverse)))

    def scan_range(
        self, lo: bytes | None, hi: bytes | None, low: int, high: int, *, reverse: bool = False
    ) -> Iterator[SegmentRow]:
        """Yield the live rows of the keys lo <= key <= hi with low <= time <= high: by segment, then by key."""
        layout = self.layout

        def rows(
            reader: RowReader, past: bytes | None, observed_ms: int
        ) -> Iterator[tuple[bytes, bytes | None]]:
            first, last = self._live(low, high, observed_ms)
            for segment in self._segments(reader, first, last, reverse=reverse):
                bounds = layout.range_bounds(segment, lo, hi)
                found = self._between(reader, bounds, past, reverse=reverse)
                yield from rows_within(found, layout, (lo, hi), first, last)

        yield from self._decoded(self._source.pages(Scan(rows, reverse)))

    def _live(self, low: int, high: int, observed_ms: int) -> tuple[int, int]:
        return max(low, self.layout.live_from_ms(observed_ms)), min(high, TIME_MAX)

    def _segments(self, reader: RowReader, low: int, high: int, *, reverse: bool) -> Sequence[int]:
        found = list(segments_on_disk(reader, self._spec.name, self.layout))
        return self.layout.segments_of(found, low, high, reverse=reverse)

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
        payload, timestamp = unseal(data)
        decode, key = self._spec.value_serde.deserialize, self.layout.key_of(disk_key)
        return read_row(self._spec.name, decode, self._topic, payload, key), timestamp


def rows_within(
    rows: Iterator[R],
    layout: SegmentLayout,
    keys: tuple[bytes | None, bytes | None],
    low: int,
    high: int,
) -> Iterator[R]:
    """Yield the rows of keys from `keys[0]` to `keys[1]` (None: no end) and times from `low` to `high`."""
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
    """Yield the segments that hold any row, in order: one short scan each."""
    lower: bytes | None = None
    while (row := next(database.iterate(family, lower, None), None)) is not None:
        segment = layout.segment_of(row[0])
        yield segment
        lower = layout.prefix(segment + 1)
