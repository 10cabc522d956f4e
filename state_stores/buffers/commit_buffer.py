"""Commit buffer: the writes of one store since the last commit, and its read cache.

Committed entries form a read cache of two generations.

Mutable values are kept serialised: a user function that changes its aggregate and then fails must
not change the store.
"""

import datetime as dt
import decimal
import uuid
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import merge
from itertools import compress, filterfalse, islice, repeat
from operator import is_, is_not, itemgetter
from typing import Any, Final, cast

from tidewheel.state_stores.buffers.rows import SortedRows, column_bytes
from tidewheel.state_stores.errors import StoredRowError
from tidewheel.state_stores.layout.envelope import unwrap_batch, unwrap_value, wrap_batch
from tidewheel.state_stores.layout.headers import Headers
from tidewheel.state_stores.layout.stored_values import StoredValues, key_hash
from tidewheel.state_stores.ports import Database, SerdePort
from tidewheel.state_stores.spec import StoreSpec

#: Immutable types: buffer and user code may share one object.
_SHAREABLE = frozenset(
    {
        int, float, bool, str, bytes, complex, decimal.Decimal, uuid.UUID,
        dt.datetime, dt.date, dt.time, dt.timedelta,
    }
)  # fmt: skip

_TEXTS = frozenset({str, bytes})

#: Values longer than this (bytes or characters) stay serialised: their memory is counted exactly.
_LARGE = 256

#: Memory of a dictionary entry without its bytes (measured).
_ENTRY_OVERHEAD_BYTES = 200

#: Up to this many new dirty keys, a scan inserts them one by one; beyond, sorting all is faster.
_FEW_KEYS = 64

_TIMESTAMPS_END = 1 << 63

_ABSENT: Any = object()

_is_present: Final = partial(is_not, None)


@dataclass(frozen=True)
class Drained:
    """Changes of a store since the last commit, in key order.

    Attributes:
        disk_rows: Rows for the database; None: `keys`, and `values` prefixed with timestamps.
        delete_range: Expired range, (first key, end); deleted before the rows are written.
        metadata: Values stored with the positions, by name, such as the highest stream time so far.
        row_headers: Headers per changelog record; None if the store can_share none.
        all_count: True if the changelog needs all changes of a key, not only the last.
    """

    keys: list[bytes]
    values: list[bytes | None]
    timestamps: list[int]
    disk_rows: SortedRows | None = None
    delete_range: tuple[bytes, bytes] | None = None
    metadata: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    headers: tuple[tuple[str, bytes], ...] = ()
    row_headers: Sequence[Headers] | None = None
    all_count: bool = False
    #: Cache of `stored`; `cached_property` would make threads wait for each other.
    _stored_cache: list[SortedRows] = field(
        default_factory=list[SortedRows], init=False, repr=False, compare=False
    )

    @property
    def stored(self) -> SortedRows:
        if self.disk_rows is not None:
            return self.disk_rows
        if not self._stored_cache:
            self._stored_cache.append(
                SortedRows(self.keys, wrap_batch(self.values, self.timestamps))
            )
        return self._stored_cache[0]


@dataclass(frozen=True)
class RestoreExtras:
    delete_range: tuple[bytes, bytes] | None = None
    metadata: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


NO_EXTRAS = RestoreExtras()


def is_shareable(value: object) -> bool:
    """Return True if the value is immutable.

    >>> is_shareable("text"), is_shareable([])
    (True, False)
    """
    return type(value) in _SHAREABLE


@dataclass(slots=True)
class Generation:
    values: dict[bytes, Any] = field(default_factory=dict[bytes, Any])
    raw: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    timestamps: dict[bytes, int] = field(default_factory=dict[bytes, int])

    def forget(self, key: bytes) -> None:
        self.values.pop(key, None)
        self.raw.pop(key, None)
        self.timestamps.pop(key, None)


class CommitBuffer:
    """Buffered access to one column family, by serialised key.

    Only the task's thread calls it. After `fetch`, aggregations may change `values` directly and
    then call `mark_changed`.
    """

    _unwrap = staticmethod(unwrap_value)
    _unwrap_batch = staticmethod(unwrap_batch)
    _wrap_batch = staticmethod(wrap_batch)

    def __init__(
        self, spec: StoreSpec, database: Database, *, topic: str, read_cache_bytes: int
    ) -> None:
        self.spec = spec
        self._database = database
        self._family = spec.name
        self._serde: SerdePort = StoredValues(spec.value_serde, spec.name)
        self.topic = topic
        self._read_cache_bytes = read_cache_bytes
        #: Decoded shareable values; None: the database lacks the key. No key is also in `_raw`.
        self.values: dict[bytes, Any] = {}
        #: Timestamps of known values and of uncommitted deletes.
        self.timestamps: dict[bytes, int] = {}
        #: Upper bound of all known timestamps.
        self.newest_ms = -1
        self._raw: dict[bytes, bytes] = {}
        self._raw_bytes = 0
        self._old = Generation()
        self.dirty: dict[bytes, None] = {}
        self._dirty_key_bytes = 0
        #: Deleted dirty keys, and the number of dirty keys known to be in the database.
        self._deleted: set[bytes] = set()
        self._replaced = 0
        self._ordered: list[bytes] = []
        self.mean_value_bytes = 16.0
        self._mean_key_bytes = 16.0

    def fetch(self, keys: Collection[bytes]) -> None:
        if all(map(self.values.__contains__, keys)):
            return
        missing = set(keys).difference(self.values)
        if self._raw:  # `_raw` as second argument above would be iterated in full
            missing = missing.difference(self._raw)
        if not missing:
            return
        if again := list(filter(self._old.timestamps.__contains__, missing)):
            self._recall(again)
            missing.difference_update(again)
        if missing:
            fresh = sorted(missing)
            self._load(fresh, self._database.get_many(self._family, fresh))

    def _knows(self, key: bytes) -> bool:
        return key in self.values or key in self._raw or key in self._old.timestamps

    def _recall(self, keys: Sequence[bytes]) -> None:
        old = self._old
        timestamps = list(map(old.timestamps.pop, keys))
        if old.raw:
            raw = {key: old.raw.pop(key) for key in keys if key in old.raw}
            self._remember_raw(raw)
            values = {key: old.values.pop(key) for key in keys if key not in raw}
        else:
            values = dict(zip(keys, map(old.values.pop, keys), strict=True))
        self.values.update(values)
        self._remember_timestamps(keys, timestamps)

    def _load(self, keys: Sequence[bytes], stored: Sequence[bytes | None]) -> None:
        present = list(map(_is_present, stored))
        if not all(present):
            absent = [key for key, data in zip(keys, stored, strict=True) if data is None]
            self.values.update(zip(absent, repeat(None)))
            self.timestamps.update(zip(absent, repeat(-1)))
            keys = list(compress(keys, present))
        if not keys:
            return
        payloads, timestamps = self._unwrap_batch([data for data in stored if data is not None])
        if max(map(len, payloads)) <= _LARGE:
            values = self._decoded(keys, payloads)
        else:
            values = [
                self._read(key, payload) if len(payload) <= _LARGE else _ABSENT
                for key, payload in zip(keys, payloads, strict=True)
            ]
        if _SHAREABLE.issuperset(map(type, values)):
            self.values.update(zip(keys, values, strict=True))
        else:
            shareable = [type(value) in _SHAREABLE for value in values]
            self.values.update(compress(zip(keys, values, strict=True), shareable))
            entries = zip(keys, payloads, shareable, strict=True)
            self._remember_raw({key: payload for key, payload, shared in entries if not shared})
        self._remember_timestamps(keys, timestamps)

    def _read(self, key: bytes, payload: bytes) -> Any:
        try:
            return self._serde.deserialize(self.topic, payload)
        except StoredRowError as error:
            raise error.of_key(key_hash(self._record_key(key))) from error.__cause__

    def _record_key(self, key: bytes) -> bytes:
        return key

    def _decoded(self, keys: Sequence[bytes], payloads: Sequence[bytes]) -> list[Any]:
        try:
            values = list(self._serde.deserialize_batch(self.topic, payloads))
        except Exception:  # noqa: BLE001 - serdes may raise anything; single reads find the reason
            values = []
        if len(values) == len(payloads):
            return values
        return list(map(self._read, keys, payloads))

    def _remember_raw(self, rows: Mapping[bytes, bytes]) -> None:
        self._raw.update(rows)
        self._raw_bytes += column_bytes(list(rows.values()))

    def _remember_timestamps(self, keys: Sequence[bytes], timestamps: Sequence[int]) -> None:
        self.timestamps.update(zip(keys, timestamps, strict=True))
        self.newest_ms = max(self.newest_ms, *timestamps)

    def peek(self, key: bytes) -> Any:
        """Return the value or None, ignoring expiry and LRU order. Mutable values are copies."""
        value = self.values.get(key, _ABSENT)
        if value is not _ABSENT:
            return value
        raw = self._raw.get(key)
        if raw is None:
            self.fetch((key,))
            raw = self._raw.get(key)
            if raw is None:
                return self.values[key]
        return self._read(key, raw)

    #: The value visible to users; stores with expiry or a use order override this.
    get = peek

    def get_many(self, keys: Sequence[bytes]) -> list[Any]:
        try:
            return list(map(self.values.__getitem__, keys))
        except KeyError:
            self.fetch(keys)
        if not self._raw:
            return list(map(self.values.__getitem__, keys))
        return list(map(self.get, keys))

    def are_decoded(self, keys: Collection[bytes]) -> bool:
        return self.all_decoded or self._raw.keys().isdisjoint(keys)

    @property
    def all_decoded(self) -> bool:
        return not self._raw and not self._old.raw

    def exists(self, key: bytes) -> bool:
        value = self.values.get(key, _ABSENT)
        if value is _ABSENT:
            if key in self._raw:
                return True
            self.fetch((key,))
            return key in self._raw or self.values[key] is not None
        return value is not None

    def absent(self, keys: Collection[bytes]) -> Iterable[bytes]:
        try:
            values = list(map(self.values.__getitem__, keys))
        except KeyError:
            self.fetch(keys)
            return filterfalse(self.exists, keys)
        return compress(keys, map(is_, values, repeat(None)))

    def timestamp(self, key: bytes) -> int:
        return self.timestamps[key]

    def iterate(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Any, int]]:
        changed = self.dirty_between(lower, upper)
        if reverse:
            changed.reverse()
        hidden = frozenset(changed)
        buffered = [(key, self.peek(key), self.timestamps[key]) for key in changed]
        disk = (
            (key, *self._decode(key, data))
            for key, data in self._database.iterate(self._family, lower, upper, reverse=reverse)
            if key not in hidden
        )
        return (
            row
            for row in merge(buffered, disk, key=itemgetter(0), reverse=reverse)
            if row[1] is not None
        )

    def dirty_between(self, lower: bytes | None, upper: bytes | None) -> list[bytes]:
        ordered = self._ordered
        fresh = self._dirty_since(len(ordered))
        if len(fresh) <= _FEW_KEYS:
            for key in fresh:
                insort(ordered, key)
        else:
            ordered.extend(fresh)
            ordered.sort()
        start = 0 if lower is None else bisect_left(ordered, lower)
        stop = len(ordered) if upper is None else bisect_left(ordered, upper)
        return ordered[start:stop]

    def _dirty_since(self, count: int) -> list[bytes]:
        return list(islice(reversed(self.dirty), len(self.dirty) - count))

    def _decode(self, key: bytes, data: bytes) -> tuple[Any, int]:
        payload, timestamp = self._unwrap(data)
        return self._read(key, payload), timestamp

    def uncommitted_row(self, key: bytes) -> bytes | None:
        data = self._raw.get(key)
        if data is None:
            value = self.values[key]
            data = None if value is None else self._serde.serialize(self.topic, value)
        (stored,) = self._wrap_batch([data], [self.timestamps[key]])
        return stored

    def approximate_num_entries(self) -> int:
        """Return an estimate: a key written without being read may count twice."""
        on_disk = self._database.approximate_num_entries(self._family)
        return max(0, on_disk + self.entries_added())

    def entries_added(self) -> int:
        return len(self.dirty) - self._replaced - len(self._deleted)

    def put(self, key: bytes, value: Any, timestamp: int) -> None:
        """Set a value; None deletes it. If the serde raises, nothing has changed."""
        if type(timestamp) is not int or not -1 <= timestamp < _TIMESTAMPS_END:
            raise ValueError(
                f"store {self.spec.name}: {timestamp!r} is no timestamp; it must be an int of milliseconds since the epoch"
            )
        if value is None or self.can_share(value):
            data = None
        else:
            data = self._serde.serialize(self.topic, value)
            value = None
        values, dirty = self.values, self.dirty
        raw = self._raw.pop(key, None) if self._raw else None
        if raw is not None:
            self._raw_bytes -= len(raw)
        if key not in dirty:
            dirty[key] = None
            self._dirty_key_bytes += len(key)
            if raw is not None or values.get(key) is not None:
                self._replaced += 1
        if data is None and value is None:
            self._deleted.add(key)
        elif self._deleted:
            self._deleted.discard(key)
        if data is None:
            values[key] = value
        else:
            values.pop(key, None)
            self._raw[key] = data
            self._raw_bytes += len(data)
        self.timestamps[key] = timestamp
        self.newest_ms = max(self.newest_ms, timestamp)

    def put_all(
        self, keys: Sequence[bytes], values: Sequence[Any], timestamps: Sequence[int]
    ) -> bool:
        """Put many rows in order; return False, without a change, if only `put` can handle them.

        `put` reports invalid timestamps, and accepts deletes among values to serialise.
        """
        if not {int}.issuperset(map(type, timestamps)) or min(timestamps, default=0) < -1:
            return False
        if max(timestamps, default=0) >= _TIMESTAMPS_END:
            return False
        present = list(filter(_is_present, values))
        if self._can_share_all(present):
            self.put_shared(keys, values, timestamps)
            return True
        if len(present) < len(values):
            return False
        data = self._serde.serialize_batch(self.topic, values)
        if not all(map(_is_present, data)):
            return False
        rows = dict(zip(keys, cast("list[bytes]", data), strict=True))
        self._mark_all_dirty(rows, timestamps)
        for key in rows:
            self.values.pop(key, None)
        self._raw.update(rows)
        self._raw_bytes += column_bytes(list(rows.values()))
        self.timestamps.update(zip(keys, timestamps, strict=True))
        return True

    def put_shared(
        self, keys: Sequence[bytes], values: Sequence[Any], timestamps: Sequence[int]
    ) -> None:
        rows = dict(zip(keys, values, strict=True))
        self._mark_all_dirty(rows, timestamps)
        self.values.update(rows)
        if not all(map(_is_present, values)):
            self._deleted.update(key for key, value in rows.items() if value is None)
        self.timestamps.update(zip(keys, timestamps, strict=True))

    def _mark_all_dirty(self, rows: Mapping[bytes, Any], timestamps: Sequence[int]) -> None:
        before = len(self.dirty)
        self.dirty.update(zip(rows, repeat(None)))
        fresh = self._dirty_since(before)
        self._dirty_key_bytes += column_bytes(fresh)
        self._replaced += sum(map(_is_present, map(self.values.get, fresh)))
        if self._raw:
            self._replaced += len(self._raw.keys() & set(fresh))
            for key in self._raw.keys() & rows.keys():
                self._raw_bytes -= len(self._raw.pop(key))
        if self._deleted:
            self._deleted.difference_update(rows)
        self.newest_ms = max(self.newest_ms, max(timestamps, default=-1))

    def can_share(self, value: Any) -> bool:
        if type(value) not in _SHAREABLE or (
            isinstance(value, str | bytes) and len(value) > _LARGE
        ):
            return False
        return self._serde.surely_serializes(value)

    def check_value(self, value: Any) -> None:
        """Raise the serde's error if a value does not serialise."""
        if value is not None and not self.can_share(value):
            self._serde.serialize(self.topic, value)

    def _can_share_all(self, values: Sequence[Any]) -> bool:
        kinds: set[type] = set(map(type, values))
        if not _SHAREABLE.issuperset(kinds):
            return False
        texts = values
        if not _TEXTS.issuperset(kinds):
            texts = [value for value in values if isinstance(value, str | bytes)]
        return max(map(len, texts), default=0) <= _LARGE and all(
            map(self._serde.surely_serializes, values)
        )

    def mark_changed(
        self, keys: Collection[bytes], latest: int, fresh: Collection[bytes] | None = None
    ) -> None:
        """Mark keys whose `values` and `timestamps` entries were changed directly.

        `latest` is the highest new timestamp; `fresh` has the keys that may not be dirty yet.
        """
        self.newest_ms = max(self.newest_ms, latest)
        if self._deleted:
            self._deleted.difference_update(keys)
        before = len(self.dirty)
        self.dirty.update(zip(keys if fresh is None else fresh, repeat(None)))
        self._dirty_key_bytes += column_bytes(self._dirty_since(before))

    @property
    def uncommitted_bytes(self) -> int:
        if not self.dirty:
            return 0
        per_entry = self.mean_value_bytes + _ENTRY_OVERHEAD_BYTES
        return self._dirty_key_bytes + self._raw_bytes + int(len(self.dirty) * per_entry)

    def has_changes(self) -> bool:
        """Return True if a commit has rows to write; `TtlBuffer` first deletes expired rows."""
        return bool(self.dirty)

    def drain(self) -> Drained:
        """Return the changes, which stay until `applied` or `discard`."""
        return self._drained(*self._columns())

    def _columns(self) -> tuple[list[bytes], list[bytes | None], list[int]]:
        keys = sorted(self.dirty)
        timestamps = list(map(self.timestamps.__getitem__, keys))
        if not self._raw:
            live = list(map(self.values.__getitem__, keys))
            present = list(filter(_is_present, live))
            values = self._serde.serialize_batch(self.topic, present)
            if len(present) < len(live):
                iterator = iter(values)
                values = [None if value is None else next(iterator) for value in live]
            return self._measured(keys, values, timestamps)
        serialize, raw = self._serde.serialize, self._raw
        values = list[bytes | None]((None,)) * len(keys)
        for index, key in enumerate(keys):
            data = raw.get(key)
            if data is None and (value := self.values[key]) is not None:
                data = serialize(self.topic, value)
            values[index] = data
        return self._measured(keys, values, timestamps)

    def _measured(
        self, keys: list[bytes], values: list[bytes | None], timestamps: list[int]
    ) -> tuple[list[bytes], list[bytes | None], list[int]]:
        if keys:
            self._mean_key_bytes = self._dirty_key_bytes / len(keys)
            self.mean_value_bytes = column_bytes(values) / len(keys)
        return keys, values, timestamps

    def _drained(
        self, keys: list[bytes], values: list[bytes | None], timestamps: list[int]
    ) -> Drained:
        return Drained(keys, values, timestamps, headers=self.spec.changelog_headers)

    def restored(
        self,
        rows: Sequence[tuple[bytes, bytes | None]],  # noqa: ARG002
        *,
        slowest_ms: int | None = None,  # noqa: ARG002 - for stores whose rows expire
    ) -> RestoreExtras:
        """Handle rows restored from the changelog; return values to write along with them."""
        return NO_EXTRAS

    def applied(self) -> None:
        self._clean()
        entries = len(self.values) + len(self._raw)
        per_entry = self._mean_key_bytes + self.mean_value_bytes + _ENTRY_OVERHEAD_BYTES
        if entries * per_entry + self._raw_bytes <= self._read_cache_bytes / 2:
            return
        # The read cache is full: it becomes `_old`. Reads move entries back; the next time it
        # is full, the others are dropped.
        self._old = Generation(self.values, self._raw, self.timestamps)
        self._forget()

    def discard(self) -> None:
        self._old = Generation()
        self._clean()
        self._forget()

    def _clean(self) -> None:
        self.dirty.clear()
        self._dirty_key_bytes = 0
        self._deleted.clear()
        self._replaced = 0
        self._ordered = []

    def evict(self, key: bytes) -> None:
        self._old.forget(key)
        self.values.pop(key, None)
        self.timestamps.pop(key, None)
        raw = self._raw.pop(key, None)
        if raw is not None:
            self._raw_bytes -= len(raw)

    def _forget(self) -> None:
        self.values = {}
        self._raw = {}
        self._raw_bytes = 0
        self.timestamps = {}
        self.newest_ms = -1


def write_rows(
    database: Database,
    rows: Mapping[str, Sequence[tuple[bytes, bytes | None]]],
    positions: Mapping[str, bytes],
    extras: Mapping[str, Drained | RestoreExtras],
) -> None:
    store_extras = [(name, extras[name]) for name in rows]
    metadata = {key: value for _, extra in store_extras for key, value in extra.metadata.items()}
    ranges = {
        name: extra.delete_range for name, extra in store_extras if extra.delete_range is not None
    }
    database.write(rows, {**positions, **metadata}, delete_ranges=ranges)
