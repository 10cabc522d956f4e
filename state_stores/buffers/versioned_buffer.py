"""Commit buffer of a versioned store: all versions of a key within the history retention.

A bounded cache has the latest timestamp of each key, so puts in order need no scan.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final

from tidewheel.state_stores.buffers.commit_buffer import Drained
from tidewheel.state_stores.buffers.query_sources import QueryScan, QuerySource, RowReader, clipped
from tidewheel.state_stores.buffers.row_index import DirtyIndex
from tidewheel.state_stores.buffers.rows import SortedRows
from tidewheel.state_stores.buffers.timed_buffer import TimedBuffer
from tidewheel.state_stores.layout import versions
from tidewheel.state_stores.layout.envelope import unwrap_value, wrap_batch
from tidewheel.state_stores.layout.stored_values import StoredValues, read_row
from tidewheel.state_stores.layout.versions import (
    TAIL,
    TOMBSTONE,
    VersionSerde,
    key_bounds,
    time_of,
    version_key,
)
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.spec import StoreSpec

#: (timestamp, value or TOMBSTONE)
Version = tuple[int, Any]

TIME_MAX: Final = (1 << 63) - 1

_MOST_LATEST: Final = 100_000

#: Rows on disk that a commit checks for expired versions, per row it writes.
_SWEPT_PER_ROW: Final = 4

_first = itemgetter(0)


class _ByKey(ABC):
    def newest_first(
        self, key: bytes, newest: int = TIME_MAX, oldest: int = 0
    ) -> Iterator[Version]:
        return self._scan(key, newest, oldest, reverse=False)

    def oldest_first(
        self, key: bytes, newest: int = TIME_MAX, oldest: int = 0
    ) -> Iterator[Version]:
        return self._scan(key, newest, oldest, reverse=True)

    @abstractmethod
    def _scan(
        self, key: bytes, newest: int, oldest: int, *, reverse: bool
    ) -> Iterator[Version]: ...


class VersionedBuffer(_ByKey, TimedBuffer):
    def __init__(
        self, spec: StoreSpec, database: Database, *, topic: str, read_cache_bytes: int
    ) -> None:
        super().__init__(spec, database, topic=topic, read_cache_bytes=read_cache_bytes)
        self._serde = VersionSerde(StoredValues(spec.value_serde, spec.name))
        self._index = DirtyIndex(slice(None, -TAIL), self._dirty_since)
        #: Latest timestamp of some keys; -1 for a key without versions.
        self._latest: dict[bytes, int] = {}
        self._cursor: bytes | None = None
        self._swept: list[bytes] = []

    def _record_key(self, key: bytes) -> bytes:
        return key[:-TAIL]

    @property
    def horizon_ms(self) -> int:
        return self.observed_stream_time_ms - self.spec.history_retention_ms

    def latest(self, key: bytes) -> Version | None:
        timestamp = self.latest_timestamp(key)
        return None if timestamp < 0 else (timestamp, self.get(version_key(key, timestamp)))

    def latest_timestamp(self, key: bytes) -> int:
        timestamp = self._latest.get(key)
        if timestamp is None:
            newest = next(self.newest_first(key), None)
            timestamp = self._latest[key] = -1 if newest is None else newest[0]
        return timestamp

    def _scan(self, key: bytes, newest: int, oldest: int, *, reverse: bool) -> Iterator[Version]:
        if newest < oldest:
            return iter(())
        lower, upper = key_bounds(key, newest, oldest)
        disk_keys = self._index.of(key, len(self.dirty)) or []
        changed = disk_keys[bisect_left(disk_keys, lower) : bisect_left(disk_keys, upper)]
        hidden = frozenset(changed)
        length = len(key) + TAIL
        # Opened now, not at the first row, to show the current rows.
        rows = self._database.iterate(self._family, lower, upper, reverse=reverse)
        disk = (
            (disk_key, self._decode(disk_key, data)[0])
            for disk_key, data in rows
            if len(disk_key) == length and disk_key not in hidden
        )
        buffered = [
            (disk_key, self.peek(disk_key)) for disk_key in (changed[::-1] if reverse else changed)
        ]
        return (
            (time_of(disk_key), value)
            for disk_key, value in merge(buffered, disk, key=_first, reverse=reverse)
        )

    def put_version(self, key: bytes, value: Any, timestamp: int) -> int | None:
        """Set a version (None: deletion); return the next newer version's timestamp, or None."""
        latest = self.latest_timestamp(key)
        following = None
        if latest > timestamp:
            following = next(self.oldest_first(key, oldest=timestamp + 1))[0]
        self.put(version_key(key, timestamp), TOMBSTONE if value is None else value, timestamp)
        if following is None:
            self._latest[key] = timestamp
        else:
            # Write the latest version again, after the older one: compaction keeps only the
            # last record of a key.
            disk_key = version_key(key, latest)
            self.fetch((disk_key,))
            self.mark_changed((disk_key,), self.timestamps[disk_key])
        return following

    def _drained(
        self, keys: list[bytes], values: list[bytes | None], timestamps: list[int]
    ) -> Drained:
        dead = self._swept = self._sweep(_SWEPT_PER_ROW * len(keys)) if keys else []
        wrapped = wrap_batch(values, timestamps)
        rows = sorted(
            [*zip(keys, wrapped, strict=True), *((key, None) for key in dead)], key=_first
        )
        columns = [
            (disk_key[:-TAIL], timestamp, value)
            for disk_key, timestamp, value in zip(keys, timestamps, values, strict=True)
        ]
        columns.sort(key=itemgetter(0, 1))
        return Drained(
            [key for key, _, _ in columns],
            [None if value is None else versions.value_of(value) for _, _, value in columns],
            [timestamp for _, timestamp, _ in columns],
            disk_rows=SortedRows([key for key, _ in rows], [value for _, value in rows]),
            metadata=self._time_to_store(),
            all_count=True,
        )

    def _sweep(self, limit: int) -> list[bytes]:
        horizon = self.horizon_ms
        if horizon < 0:
            return []
        rows = list(islice(self._database.iterate(self._family, self._cursor, None), limit))
        self._cursor = rows[-1][0] + b"\x00" if len(rows) == limit else None
        dead: list[bytes] = []
        for key, group in groupby(rows, key=_key_of_row):
            if not self._index.of(key, len(self.dirty)):
                complete = self._cursor is None or key != rows[-1][0][:-TAIL]
                dead += self._ended(list(group), horizon, complete=complete)
        return dead

    def _ended(
        self, rows: Sequence[tuple[bytes, bytes]], horizon: int, *, complete: bool
    ) -> list[bytes]:
        """Return disk keys of one key's versions (newest first) that no read can reach."""
        old = [row for row in rows if time_of(row[0]) <= horizon]
        if not old:
            return []
        # The newest old version is valid at the horizon; if a deletion, no read needs it.
        (last, data), *before = old
        ended = [disk_key for disk_key, _ in before]
        if complete and versions.value_of(unwrap_value(data)[0]) is None:
            ended.append(last)
        return ended

    def _observe_rows(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        self.observe(max((time_of(key) for key, _ in rows), default=-1))
        self._latest = {}

    def applied(self) -> None:
        super().applied()
        for disk_key in self._swept:
            self.evict(disk_key)
            self._latest.pop(disk_key[:-TAIL], None)
        self._swept = []
        if len(self._latest) > _MOST_LATEST:
            self._latest = {}

    def discard(self) -> None:
        super().discard()
        self._latest = {}
        self._swept = []
        self._cursor = None

    def _clean(self) -> None:
        super()._clean()
        self._index.clear()


class QueryVersions(_ByKey):
    """Query access to the versions of one key; repeated reads of one query are consistent."""

    def __init__(self, spec: StoreSpec, topic: str, source: QuerySource, key: bytes) -> None:
        self._spec = spec
        self._serde = VersionSerde(spec.value_serde)
        self._topic = topic
        bounds = key_bounds(key, TIME_MAX, 0)

        def rows(
            reader: RowReader, past: bytes | None, _observed_ms: int
        ) -> Iterator[tuple[bytes, bytes | None]]:
            return reader.iterate(spec.name, *clipped(*bounds, past, reverse=False))

        self._rows, observed_ms = source.stable_rows(QueryScan(rows))
        self.horizon_ms = observed_ms - spec.history_retention_ms

    def latest(self, key: bytes) -> Version | None:
        return next(self.newest_first(key), None)

    def _scan(self, key: bytes, newest: int, oldest: int, *, reverse: bool) -> Iterator[Version]:
        if newest < oldest:
            return
        lower, upper = key_bounds(key, newest, oldest)
        for disk_key, data in self._rows.iterate(self._spec.name, lower, upper, reverse=reverse):
            if data is not None and len(disk_key) == len(key) + TAIL:
                payload, _ = unwrap_value(data)
                decode = self._serde.deserialize
                yield (
                    time_of(disk_key),
                    read_row(self._spec.name, decode, self._topic, payload, key),
                )


def _key_of_row(row: tuple[bytes, bytes]) -> bytes:
    return row[0][:-TAIL]
