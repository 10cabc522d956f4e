"""The writes of one store since the last commit, and its record cache.

Between commits nothing reaches the database: values live here, decoded once, serialised at most once per key and
commit. At a commit `drain` gives what goes to the changelog and to the database; once the database shows it, `applied` makes
the entries clean. Clean entries are kept as a read cache within a budget, in two generations, so that hot keys are
neither re-read nor re-decoded.

Values of types that can be changed in place (dicts, lists, a user's own objects) and large ones are kept serialised,
and decoded anew at each read: a user function that changes its aggregate and then fails must not change the store, and
every update forwarded downstream must keep the value it had.
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

from state_stores.envelope import seal_batch, unseal, unseal_batch
from state_stores.errors import StoredRowError
from state_stores.headers import Headers
from state_stores.ports import Database, SerdePort
from state_stores.rows import SortedRows, column_bytes
from state_stores.spec import StoreSpec
from state_stores.stored_values import StoredValues, key_hash

#: Types whose values nobody can change, so that one object may stand in the store and travel downstream.
_SHAREABLE = frozenset(
    {
        int, float, bool, str, bytes, complex, decimal.Decimal, uuid.UUID,
        dt.datetime, dt.date, dt.time, dt.timedelta,
    }
)  # fmt: skip

_TEXTS = frozenset({str, bytes})

#: A longer value is kept serialised, so that memory is counted exactly.
_LARGE = 256

#: What a dictionary entry of a small value costs beside its bytes (measured with tracemalloc, rounded up).
_ENTRY_OVERHEAD_BYTES = 200

#: Up to this many new dirty keys are put into the sorted ones one by one; more, and sorting all is faster.
_FEW_KEYS = 64

#: Timestamps are kept in 64 bits.
_TIMESTAMPS_END = 1 << 63

_ABSENT: Any = object()

_is_present: Final = partial(is_not, None)


@dataclass(frozen=True)
class Drained:
    """What a store changed since the last commit.

    Attributes:
        keys: Keys for the changelog, in key order.
        values: Their serialised values; None deletes.
        timestamps: Timestamps of the changelog records.
        disk_rows: What the database gets, if that is not just the same keys and values.
        delete_range: The part of the family that has expired, first key and end; it goes before the rows.
        notes: What is kept beside the positions, by name.
        headers: Headers of every changelog record.
        row_headers: Headers of each changelog record, where the store keeps them; None where it doesn't.
        all_count: Whether every change is a version of its own, and not only the last of each key counts.
    """

    keys: list[bytes]
    values: list[bytes | None]
    timestamps: list[int]
    disk_rows: SortedRows | None = None
    delete_range: tuple[bytes, bytes] | None = None
    notes: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    headers: tuple[tuple[str, bytes], ...] = ()
    row_headers: Sequence[Headers] | None = None
    all_count: bool = False
    #: What `stored` has made; `cached_property` would have all threads wait for each other.
    _made: list[SortedRows] = field(
        default_factory=list[SortedRows], init=False, repr=False, compare=False
    )

    @property
    def stored(self) -> SortedRows:
        """The puts and deletes for the database, made when they are first asked for."""
        if self.disk_rows is not None:
            return self.disk_rows
        if not self._made:
            self._made.append(SortedRows(self.keys, seal_batch(self.values, self.timestamps)))
        return self._made[0]


@dataclass(frozen=True)
class Restored:
    """What is written along with restored rows; see `Drained`."""

    delete_range: tuple[bytes, bytes] | None = None
    notes: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


NOTHING_RESTORED = Restored()


def is_shareable(value: object) -> bool:
    """Return whether nobody can change a value in place, so that one object may go to several places.

    >>> is_shareable("text"), is_shareable([])
    (True, False)
    """
    return type(value) in _SHAREABLE


@dataclass(slots=True)
class Generation:
    """What was known at some commit, all of it clean.

    Attributes:
        values: Decoded values; None is a known absence.
        raw: Values that stay serialised.
        timestamps: The timestamp of each key in one of them.
    """

    values: dict[bytes, Any] = field(default_factory=dict[bytes, Any])
    raw: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    timestamps: dict[bytes, int] = field(default_factory=dict[bytes, int])

    def forget(self, key: bytes) -> None:
        """Forget a key, if it is known."""
        self.values.pop(key, None)
        self.raw.pop(key, None)
        self.timestamps.pop(key, None)


class CommitBuffer:
    """Buffered access to one family of a task's database, by serialised key.

    Only the thread that processes the task calls it. `values` may be read and written directly by aggregations after
    `fetch` (they then call `touched`); everybody else uses `get` and `put`.
    """

    #: From stored bytes to the serde's bytes and the timestamp, for one and for many, and back for many.
    _unseal = staticmethod(unseal)
    _unseal_batch = staticmethod(unseal_batch)
    _seal_batch = staticmethod(seal_batch)

    def __init__(self, spec: StoreSpec, database: Database, *, topic: str, keep_bytes: int) -> None:
        self.spec = spec
        self._database = database
        self._family = spec.name
        self._serde: SerdePort = StoredValues(spec.value_serde, spec.name)
        #: Topic name the serdes are told.
        self.topic = topic
        self._keep_bytes = keep_bytes
        #: Decoded values of shareable types; None is a known absence. A key stands in `values` or in `_raw`.
        self.values: dict[bytes, Any] = {}
        #: Timestamp of each known value, and of each delete that is not committed yet.
        self.timestamps: dict[bytes, int] = {}
        #: No known value is later than this; told without a look at each.
        self.newest_ms = -1
        self._raw: dict[bytes, bytes] = {}
        self._raw_bytes = 0
        #: The clean entries of the generation before.
        self._old = Generation()
        #: Keys changed since the last commit, and the bytes of those keys.
        self.dirty: dict[bytes, None] = {}
        self._dirty_key_bytes = 0
        #: Dirty keys known to be deleted, and how many dirty keys are known to be in the database.
        self._deleted: set[bytes] = set()
        self._replaced = 0
        #: The dirty keys in order, brought up to date only when somebody iterates.
        self._ordered: list[bytes] = []
        #: Mean bytes of a value, as last serialised.
        self.mean_value_bytes = 16.0
        self._mean_key_bytes = 16.0

    # -- reading ---------------------------------------------------------------------------------------------------

    def fetch(self, keys: Collection[bytes]) -> None:
        """Make every key known: from the buffer, or by one sorted multi-get."""
        if all(map(self.values.__contains__, keys)):
            return
        missing = set(keys).difference(self.values)
        if self._raw:  # by itself: a second argument would be gone through from end to end
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
        """Take keys over from the generation before."""
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
        """Make known what the database has of these keys, none of which is known yet."""
        present = list(map(_is_present, stored))
        if not all(present):
            absent = [key for key, data in zip(keys, stored, strict=True) if data is None]
            self.values.update(zip(absent, repeat(None)))
            self.timestamps.update(zip(absent, repeat(-1)))
            keys = list(compress(keys, present))
        if not keys:
            return
        payloads, timestamps = self._unseal_batch([data for data in stored if data is not None])
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
            kept = zip(keys, payloads, shareable, strict=True)
            self._remember_raw({key: payload for key, payload, shared in kept if not shared})
        self._remember_timestamps(keys, timestamps)

    def _read(self, key: bytes, payload: bytes) -> Any:
        try:
            return self._serde.deserialize(self.topic, payload)
        except StoredRowError as error:
            raise error.of_key(key_hash(self._record_key(key))) from error.__cause__

    def _record_key(self, key: bytes) -> bytes:
        """Return the user's key within the key of a row."""
        return key

    def _decoded(self, keys: Sequence[bytes], payloads: Sequence[bytes]) -> list[Any]:
        try:
            values = list(self._serde.deserialize_batch(self.topic, payloads))
        except Exception:  # noqa: BLE001 - whatever a serde raises for many, for one it tells the reason
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
        """Return the value, or None, whatever time or use say. A value that can change is a fresh object at each call."""
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

    #: The value as the store shows it; stores where time or use matter have their own.
    get = peek

    def get_many(self, keys: Sequence[bytes]) -> list[Any]:
        """Return the values of many keys, in their order."""
        try:
            return list(map(self.values.__getitem__, keys))
        except KeyError:
            self.fetch(keys)
        if not self._raw:
            return list(map(self.values.__getitem__, keys))
        return list(map(self.get, keys))

    def are_decoded(self, keys: Collection[bytes]) -> bool:
        """Return whether all of these fetched keys stand in `values`, which then may be read and written directly."""
        return self.all_decoded or self._raw.keys().isdisjoint(keys)

    @property
    def all_decoded(self) -> bool:
        """Return whether all that is known stands in `values`, or comes there once it is used again."""
        return not self._raw and not self._old.raw

    def exists(self, key: bytes) -> bool:
        """Return whether a key has a value, without decoding it."""
        value = self.values.get(key, _ABSENT)
        if value is _ABSENT:
            if key in self._raw:
                return True
            self.fetch((key,))
            return key in self._raw or self.values[key] is not None
        return value is not None

    def absent(self, keys: Collection[bytes]) -> Iterable[bytes]:
        """Return those of many keys that have no value; all are known then."""
        try:
            values = list(map(self.values.__getitem__, keys))
        except KeyError:  # one is not known yet, or not decoded
            self.fetch(keys)
            return filterfalse(self.exists, keys)
        return compress(keys, map(is_, values, repeat(None)))

    def timestamp(self, key: bytes) -> int:
        """Return the timestamp of a value that `get` or `fetch` made known; -1 for an absent one."""
        return self.timestamps[key]

    def iterate(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Any, int]]:
        """Yield (key, value, timestamp) of lower <= key < upper: the database with the buffer's changes on top."""
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
        """Return the dirty keys of a range in order, at the price of the range and of what is dirty since the last call."""
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

    def _dirty_since(self, seen: int) -> list[bytes]:
        """Return the dirty keys but the first `seen` ones; those that became dirty last stand at the end."""
        return list(islice(reversed(self.dirty), len(self.dirty) - seen))

    def _decode(self, key: bytes, data: bytes) -> tuple[Any, int]:
        payload, timestamp = self._unseal(data)
        return self._read(key, payload), timestamp

    def uncommitted_row(self, key: bytes) -> bytes | None:
        """Return a dirty key's row as a commit would store it, None for a delete. Changes nothing."""
        data = self._raw.get(key)
        if data is None:
            value = self.values[key]
            data = None if value is None else self._serde.serialize(self.topic, value)
        (stored,) = self._seal_batch([data], [self.timestamps[key]])
        return stored

    def approximate_num_entries(self) -> int:
        """Return about how many keys there are: the database's estimate with the uncommitted changes, as far as known.

        A key that was never read may be in the database; if it is written, it counts twice until the commit.
        """
        on_disk = self._database.approximate_num_entries(self._family)
        return max(0, on_disk + self.entries_added())

    def entries_added(self) -> int:
        """Return how many keys the uncommitted changes add, as far as known; below 0 where more go than come."""
        return len(self.dirty) - self._replaced - len(self._deleted)

    # -- writing ---------------------------------------------------------------------------------------------------

    def put(self, key: bytes, value: Any, timestamp: int) -> None:
        """Set a value, or delete it with None. Raises what the serde raises, and then nothing has changed."""
        if type(timestamp) is not int or not -1 <= timestamp < _TIMESTAMPS_END:
            raise ValueError(
                f"store {self.spec.name}: {timestamp!r} is no timestamp; it must be an int of milliseconds since the epoch"
            )
        if value is None or self.keeps(value):
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
        """Do what `put` does with many rows in order; return False, and do nothing, if they have to be put one by one.

        Raises what the serde raises, and then nothing has changed.
        """
        if not {int}.issuperset(map(type, timestamps)) or min(timestamps, default=0) < -1:
            return False
        if max(timestamps, default=0) >= _TIMESTAMPS_END:
            return False
        present = list(filter(_is_present, values))
        if self._keeps_all(present):
            self.put_kept(keys, values, timestamps)
            return True
        if len(present) < len(values):
            return False
        data = self._serde.serialize_batch(self.topic, values)
        if not all(map(_is_present, data)):
            return False
        rows = dict(zip(keys, cast("list[bytes]", data), strict=True))
        self._begin_all(rows, timestamps)
        for key in rows:
            self.values.pop(key, None)
        self._raw.update(rows)
        self._raw_bytes += column_bytes(list(rows.values()))
        self.timestamps.update(zip(keys, timestamps, strict=True))
        return True

    def put_kept(
        self, keys: Sequence[bytes], values: Sequence[Any], timestamps: Sequence[int]
    ) -> None:
        """Do what `put` does with many rows whose values are None or such as it `keeps`."""
        rows = dict(zip(keys, values, strict=True))
        self._begin_all(rows, timestamps)
        self.values.update(rows)
        if not all(map(_is_present, values)):
            self._deleted.update(key for key, value in rows.items() if value is None)
        self.timestamps.update(zip(keys, timestamps, strict=True))

    def _begin_all(self, rows: Mapping[bytes, Any], timestamps: Sequence[int]) -> None:
        """Note that these rows are changed, and forget what is known of them but the values that stand decoded."""
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

    def check_value(self, value: Any) -> None:
        """Raise the serde's error if a value does not serialise."""
        if value is not None and not self.keeps(value):
            self._serde.serialize(self.topic, value)

    def keeps(self, value: Any) -> bool:
        """Return whether a value may stay as it is until the commit; None is none."""
        if type(value) not in _SHAREABLE or (
            isinstance(value, str | bytes) and len(value) > _LARGE
        ):
            return False
        return self._serde.surely_serializes(value)

    def _keeps_all(self, values: Sequence[Any]) -> bool:
        """Return whether all of these values may stay as they are until the commit."""
        kinds: set[type] = set(map(type, values))
        if not _SHAREABLE.issuperset(kinds):
            return False
        texts = values
        if not _TEXTS.issuperset(kinds):
            texts = [value for value in values if isinstance(value, str | bytes)]
        return max(map(len, texts), default=0) <= _LARGE and all(
            map(self._serde.surely_serializes, values)
        )

    def touched(
        self, keys: Collection[bytes], latest: int, fresh: Collection[bytes] | None = None
    ) -> None:
        """Mark keys whose entries in `values` and `timestamps` were changed directly, to `latest` at most.

        `fresh`: those of them that may not be dirty yet; None: all.
        """
        self.newest_ms = max(self.newest_ms, latest)
        if self._deleted:
            self._deleted.difference_update(keys)
        before = len(self.dirty)
        self.dirty.update(zip(keys if fresh is None else fresh, repeat(None)))
        self._dirty_key_bytes += column_bytes(self._dirty_since(before))

    # -- committing ------------------------------------------------------------------------------------------------

    @property
    def uncommitted_bytes(self) -> int:
        """Return about how much memory the uncommitted changes hold (keys counted, values as last serialised)."""
        if not self.dirty:
            return 0
        per_entry = self.mean_value_bytes + _ENTRY_OVERHEAD_BYTES
        return self._dirty_key_bytes + self._raw_bytes + int(len(self.dirty) * per_entry)

    def has_changes(self) -> bool:
        """Return whether a commit has anything to write; called once before `drain`, to find what time has ended."""
        return bool(self.dirty)

    def drain(self) -> Drained:
        """Return the changes since the last commit; they stay here until `applied` or `discard`."""
        return self._drained(*self._columns())

    def _columns(self) -> tuple[list[bytes], list[bytes | None], list[int]]:
        """Return the dirty keys in order, which is the order RocksDB takes best, their values and timestamps."""
        keys = sorted(self.dirty)
        timestamps = list(map(self.timestamps.__getitem__, keys))
        if not self._raw:
            live = list(map(self.values.__getitem__, keys))
            present = list(filter(_is_present, live))
            values = self._serde.serialize_batch(self.topic, present)
            if len(present) < len(live):
                each = iter(values)
                values = [None if value is None else next(each) for value in live]
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
        """Return what a commit writes, given the disk keys, their values and timestamps."""
        return Drained(keys, values, timestamps, headers=self.spec.changelog_headers)

    def restored(
        self,
        rows: Sequence[tuple[bytes, bytes | None]],  # noqa: ARG002 - for stores that know time
        *,
        slowest_ms: int | None = None,  # noqa: ARG002 - for those whose rows end with it
    ) -> Restored:
        """Note that these rows were restored from the changelog; return what is written along with them.

        `slowest_ms` is the store's time at its task's slowest key range (`SegmentLayout.first_restored`).
        """
        return NOTHING_RESTORED

    def applied(self) -> None:
        """The database shows the drained changes: all entries are clean now."""
        self._clean()
        entries = len(self.values) + len(self._raw)
        per_entry = self._mean_key_bytes + self.mean_value_bytes + _ENTRY_OVERHEAD_BYTES
        if entries * per_entry + self._raw_bytes <= self._keep_bytes / 2:
            return
        # A new generation: what is used again comes back from `_old` at the price of one look-up, the rest goes.
        self._old = Generation(self.values, self._raw, self.timestamps)
        self._forget()

    def discard(self) -> None:
        """Forget everything, also uncommitted changes: the next read sees the database."""
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
        """Forget a clean key: the next read sees the database."""
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
    extras: Mapping[str, Drained | Restored],
) -> None:
    """Write rows of stores with what the stores keep beside the positions, and delete what has expired.

    Args:
        database: Where to.
        rows: Puts and deletes (value None) by store.
        positions: Positions to write behind them.
        extras: What goes with the rows of each store.
    """
    mine = [(name, extras[name]) for name in rows]
    notes = {key: note for _, extra in mine for key, note in extra.notes.items()}
    ranges = {name: extra.delete_range for name, extra in mine if extra.delete_range is not None}
    database.write(rows, {**positions, **notes}, delete_ranges=ranges)
