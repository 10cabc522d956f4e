"""Key-value stores for users.

Ranges follow the order of serialised keys, both ends inclusive, as in Kafka Streams; None is
unbounded. Writes are visible to this task immediately, to others after the commit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast, overload

from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer
from tidewheel.state_stores.buffers.headers_buffer import HeadersBuffer, set_record_headers
from tidewheel.state_stores.buffers.query_sources import (
    QueryScan,
    QuerySource,
    RowReader,
    clipped,
    committed,
    not_running,
)
from tidewheel.state_stores.buffers.timed_buffer import TimedBuffer, read_store_time
from tidewheel.state_stores.errors import SerdeError, StoredRowError
from tidewheel.state_stores.layout.envelope import unwrap_value
from tidewheel.state_stores.layout.headers import Headers
from tidewheel.state_stores.layout.key_schema import after, key_bytes, prefix_end
from tidewheel.state_stores.layout.stored_values import key_hash, read_row
from tidewheel.state_stores.ports import Database, SerdePort
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.state_stores.stores.task_store import TaskStore
from tidewheel.state_stores.stores.windowed import fully_frozen

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

#: Expiry time below every timestamp: no row has expired.
_NOTHING_EXPIRED_MS: Final = -2

_NO_DEFAULT: Final[Any] = object()


@fully_frozen
@dataclass(frozen=True, slots=True)
class ValueAndTimestamp(Generic[V]):
    """A value and the timestamp (ms since the epoch) of the record that set it.

    >>> ValueAndTimestamp(3, 1_000).value
    3
    """

    value: V
    timestamp: int


@fully_frozen
@dataclass(frozen=True, slots=True)
class ValueTimestampHeaders(Generic[V]):
    """A value, with the timestamp (ms since the epoch) and headers of the record that set it.

    >>> ValueTimestampHeaders(3, 1_000, (("trace", b"1"),)).headers
    (('trace', b'1'),)
    """

    value: V
    timestamp: int
    headers: Headers = ()


class ReadOnlyKeyValueStore(Generic[K, V]):
    """Reads of a key-value store (Kafka Streams' ReadOnlyKeyValueStore).

    A key of None raises `ValueError` except as a range end; an invalid key raises the serde's
    error. Stores of `KafkaStreams.store` raise `InvalidStateStoreError` if no task of the store
    runs in this process. Iterators need no close.

    >>> def top(store: ReadOnlyKeyValueStore[str, int]) -> list[str]:
    ...     return [key for key, value in store.range("a", "m") if value > 10]
    """

    def __init__(self, spec: StoreSpec, topic: str) -> None:
        self.name = spec.name
        self._topic = topic
        self._key_serde: SerdePort = spec.key_serde

    def _get(self, key: bytes) -> V | None:
        raise NotImplementedError

    def _iterate(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, V]]:
        raise NotImplementedError

    def approximate_num_entries(self) -> int:
        raise NotImplementedError

    def _key_bytes(self, key: K) -> bytes:
        return key_bytes(self._key_serde, self._topic, key, self.name)

    def _key_of(self, data: bytes) -> K:
        key: K = read_row(self.name, self._key_serde.deserialize, self._topic, data, data)
        return key

    def _bound(self, key: K | None) -> bytes | None:
        return None if key is None else self._key_bytes(key)

    def _scan(self, lo: K | None, hi: K | None, *, reverse: bool) -> Iterator[tuple[K, V]]:
        upper = self._bound(hi)
        rows = self._iterate(
            self._bound(lo), None if upper is None else after(upper), reverse=reverse
        )
        return ((self._key_of(key), value) for key, value in rows)

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, or `default`; a value is never None."""
        value = self._get(self._key_bytes(key))
        return default if value is None else value

    def range(self, lo: K | None, hi: K | None) -> Iterator[tuple[K, V]]:
        """Yield (key, value) from `lo` to `hi`, both inclusive, in serialised key order."""
        return self._scan(lo, hi, reverse=False)

    def reverse_range(self, lo: K | None, hi: K | None) -> Iterator[tuple[K, V]]:
        return self._scan(lo, hi, reverse=True)

    def all(self) -> Iterator[tuple[K, V]]:
        return self._scan(None, None, reverse=False)

    def reverse_all(self) -> Iterator[tuple[K, V]]:
        return self._scan(None, None, reverse=True)

    def prefix_scan(
        self, prefix: Any, prefix_serde: SerdePort | None = None
    ) -> Iterator[tuple[K, V]]:
        """Yield (key, value) of keys with this prefix in their bytes; None raises `ValueError`.

        The default `prefix_serde` is the key serde. It fits keys such as text, whose prefixes
        serialise to prefixes of their bytes.
        """
        serde = self._key_serde if prefix_serde is None else prefix_serde
        if not hasattr(serde, "serialize"):
            raise TypeError(
                f"store {self.name}: prefix_serde is of type {type(serde).__name__}; give a serde, as in Serdes.string()"
            )
        data = key_bytes(serde, self._topic, prefix, self.name, noun="prefix")
        rows = self._iterate(data, prefix_end(data), reverse=False)
        return ((self._key_of(key), value) for key, value in rows)

    def __getitem__(self, key: K) -> V:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        """Return True if the key has a value; False for a key the serde rejects."""
        if key is None:
            return False
        try:
            data = self._key_bytes(cast("K", key))
        except SerdeError:
            return False
        return self._get(data) is not None

    def __len__(self) -> int:
        return self.approximate_num_entries()

    def __iter__(self) -> Iterator[K]:
        return self.keys()

    def keys(self) -> Iterator[K]:
        return (key for key, _ in self.all())

    def values(self) -> Iterator[V]:
        return (value for _, value in self.all())

    def items(self) -> Iterator[tuple[K, V]]:
        return self.all()


class KeyValueStore(ReadOnlyKeyValueStore[K, V], TaskStore[CommitBuffer]):
    """A key-value store of a task, for its processors.

    >>> def is_new(store: KeyValueStore[str, int], key: str) -> bool:
    ...     return store.put_if_absent(key, 1) is None

    >>> from tidewheel import Processor, Stores, Topology
    >>> from tidewheel.testing import TopologyTestDriver
    >>> topology = Topology().add_source("in", "orders", key_serde=str, value_serde=str)
    >>> _ = topology.add_processor("count", Processor, ["in"])
    >>> _ = topology.add_state_store(Stores.key_value("counts", key_serde=str, value_serde=int), ["count"])
    >>> driver = TopologyTestDriver(topology)
    >>> counts = driver.get_state_store("counts")
    >>> counts.put("tea", 1)
    >>> counts.put_all({"milk": 2, "mint": 3})
    >>> counts.put_if_absent("tea", 9), counts.setdefault("tea", 9)
    (1, 1)
    >>> counts["salt"] = 4
    >>> counts.get("tea"), counts.get("rice"), counts.get("rice", 0), "salt" in counts
    (1, None, 0, True)
    >>> list(counts.range("milk", "salt")), list(counts.range(None, "milk"))
    ([('milk', 2), ('mint', 3), ('salt', 4)], [('milk', 2)])
    >>> list(counts.prefix_scan("mi")), list(counts.reverse_all())[0], list(counts.keys())
    ([('milk', 2), ('mint', 3)], ('tea', 1), ['milk', 'mint', 'salt', 'tea'])
    >>> counts.delete("salt"), counts.pop("salt", None), counts.delete("rice")
    (4, None, None)
    >>> driver.close()
    """

    def __init__(
        self, buffer: CommitBuffer, now: Callable[[], int], *, is_cached: bool = False
    ) -> None:
        super().__init__(buffer.spec, buffer.topic)
        self._attach(buffer, now, is_cached=is_cached)
        #: Buffer of a store with a TTL: each read first advances its time to the record's.
        self._timed = buffer if isinstance(buffer, TimedBuffer) else None

    def _get(self, key: bytes) -> V | None:
        if self._timed is not None:
            self._timed.observe(self._now())
        value: V | None = self.buffer.get(key)
        return value

    def _iterate(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, V]]:
        return ((key, value) for key, value, _ in self._rows(lower, upper, reverse=reverse))

    def _rows(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, Any, int]]:
        if self._timed is not None:
            self._timed.observe(self._now())
        return self.buffer.iterate(lower, upper, reverse=reverse)

    def approximate_num_entries(self) -> int:
        return self.buffer.approximate_num_entries()

    def _set(self, key: K, value: Any, timestamp: int) -> None:
        data = self._key_bytes(key)
        try:
            self._write(key, data, value, timestamp)
        except SerdeError as error:
            raise error.in_store(self.name) from error

    def erase(self, key: bytes, tail: int = 0) -> int:
        buffer = self.buffer
        rows = [key] if not tail else self._rows_with_tail(key, tail)
        # Not `exists`, which hides expired rows: they are on disk until a sweep.
        existing = [row for row in rows if buffer.peek(row) is not None]
        if isinstance(buffer, HeadersBuffer):
            buffer.record_headers = ()
        decoded = [self._key_serde.deserialize(self._topic, row) for row in existing]
        for row, user_key in zip(existing, decoded, strict=True):
            self._write(user_key, row, None, self._now())
        return len(existing)

    def _rows_with_tail(self, key: bytes, tail: int) -> list[bytes]:
        rows = self.buffer.iterate(key, prefix_end(key))
        return [row for row, _, _ in rows if len(row) == len(key) + tail]

    def put(self, key: K, value: V | None) -> None:
        """Set a key's value; None deletes it. An invalid value raises `SerializationError`."""
        self._set(key, value, self._now())

    def delete(self, key: K) -> V | None:
        value = self.get(key)
        if value is not None:
            self.put(key, None)
        return value

    def put_if_absent(self, key: K, value: V) -> V | None:
        """Set a value only if the key has none; return the earlier value."""
        existing = self.get(key)
        if existing is None:
            self.put(key, value)
        return existing

    def put_all(self, entries: Mapping[K, V | None] | Iterable[tuple[K, V | None]]) -> None:
        """Set many values in order; None deletes.

        Other inputs than mappings or pairs raise `TypeError`.
        """
        pairs = (
            cast("Mapping[K, V | None]", entries).items()
            if isinstance(entries, Mapping)
            else entries
        )
        if not isinstance(pairs, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - users may be untyped
            raise self._no_pairs(pairs)
        for pair in pairs:
            try:
                key, value = pair
            except (TypeError, ValueError):
                raise self._no_pairs(pair) from None
            self.put(key, value)

    def _no_pairs(self, argument: object) -> TypeError:
        return TypeError(
            f"store {self.name}: put_all() takes a mapping or (key, value) pairs, not an object of type "
            f"{type(argument).__name__}"
        )

    def update(self, entries: Mapping[K, V | None] | Iterable[tuple[K, V | None]]) -> None:
        self.put_all(entries)

    def setdefault(self, key: K, default: V) -> V:
        """Set a value only if the key has none; return the current value."""
        existing = self.put_if_absent(key, default)
        return default if existing is None else existing

    @overload
    def pop(self, key: K) -> V: ...
    @overload
    def pop(self, key: K, default: D) -> V | D: ...
    def pop(self, key: K, default: Any = _NO_DEFAULT) -> Any:
        """Delete a key and return its value, or `default`; without a default raise `KeyError`."""
        value = self.delete(key)
        if value is not None:
            return value
        if default is _NO_DEFAULT:
            raise KeyError(key)
        return default

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        if self.delete(key) is None:
            raise KeyError(key)


class TimestampedKeyValueStore(KeyValueStore[K, ValueAndTimestamp[V]]):
    """A key-value store of `ValueAndTimestamp`: the store of every aggregation and table.

    >>> from tidewheel import StreamsBuilder
    >>> from tidewheel.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> _ = builder.table("users", key_serde=str, value_serde=str, store="users")
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     store = driver.get_state_store("users")
    ...     store.put("u1", ValueAndTimestamp("ann", 1_000))
    ...     store.get("u1")
    ValueAndTimestamp(value='ann', timestamp=1000)
    """

    def _get(self, key: bytes) -> ValueAndTimestamp[V] | None:
        value: V | None = super()._get(key)  # type: ignore[assignment] # the buffer has the bare value
        return None if value is None else ValueAndTimestamp(value, self.buffer.timestamp(key))

    def _iterate(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, ValueAndTimestamp[V]]]:
        rows = self._rows(lower, upper, reverse=reverse)
        return ((key, ValueAndTimestamp(value, timestamp)) for key, value, timestamp in rows)

    def put(self, key: K, value: ValueAndTimestamp[V] | None) -> None:
        """Set a value and its timestamp; None deletes the key. Other types raise `TypeError`."""
        if value is None:
            self._set(key, None, self._now())
        elif isinstance(value, ValueAndTimestamp):  # pyright: ignore[reportUnnecessaryIsInstance] - users may be untyped
            self._set(key, value.value, value.timestamp)
        else:
            raise TypeError(
                f"store {self.name} holds ValueAndTimestamp(value, timestamp), not {type(value).__name__}"
            )


class TimestampedKeyValueStoreWithHeaders(KeyValueStore[K, ValueTimestampHeaders[V]]):
    """A key-value store whose values are `ValueTimestampHeaders` (Kafka Streams' KIP-1271).

    >>> from tidewheel import Stores
    >>> Stores.timestamped_key_value_with_headers("last", key_serde=str, value_serde=int).spec.keeps_headers
    True
    """

    def _get(self, key: bytes) -> ValueTimestampHeaders[V] | None:
        value = self.buffer.peek(key)
        if value is None:
            return None
        return ValueTimestampHeaders(value.value, self.buffer.timestamp(key), value.headers)

    def _iterate(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, ValueTimestampHeaders[V]]]:
        rows = self._rows(lower, upper, reverse=reverse)
        return (
            (key, ValueTimestampHeaders(value.value, timestamp, value.headers))
            for key, value, timestamp in rows
        )

    def put(self, key: K, value: ValueTimestampHeaders[V] | None) -> None:
        set_record_headers(self.buffer, value, ValueTimestampHeaders, self.name)
        if value is None:
            self._set(key, None, self._now())
        else:
            self._set(key, value.value, value.timestamp)


class QueryKeyValueStore(ReadOnlyKeyValueStore[K, V]):
    """A key-value store over several tasks, for interactive queries.

    `sources` is called for every query, so a store whose task moved away raises
    `InvalidStateStoreError` instead of reading a closed database.
    """

    def __init__(
        self, spec: StoreSpec, topic: str, sources: Callable[[], Sequence[QuerySource]]
    ) -> None:
        super().__init__(spec, topic)
        self._spec = spec
        self._sources = sources

    def _decode(self, key: bytes, data: bytes, ended_at: int) -> Any:
        payload, timestamp = unwrap_value(data)
        if timestamp <= ended_at:
            return None
        try:
            value = self._spec.value_serde.deserialize(self._topic, payload)
        except StoredRowError as error:
            raise error.of_key(key_hash(key)) from error.__cause__
        return (
            ValueAndTimestamp(value, timestamp)
            if self._spec.kind is StoreKind.TIMESTAMPED_KEY_VALUE
            else value
        )

    def _get(self, key: bytes) -> V | None:
        # Ask all tasks before waiting for the first answer: they work concurrently.
        for answer in [source.get(key) for source in self._sources()]:
            data, observed_ms = answer()
            if data is not None:
                value: V | None = self._decode(key, data, self._ended_at(observed_ms))
                return value
        return None

    def _ended_at(self, observed_ms: int) -> int:
        ttl_ms = self._spec.ttl_ms
        return _NOTHING_EXPIRED_MS if ttl_ms is None else observed_ms - ttl_ms

    def _iterate(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, V]]:
        def rows(
            reader: RowReader, past: bytes | None, _observed_ms: int
        ) -> Iterator[tuple[bytes, bytes | None]]:
            bounds = clipped(lower, upper, past, reverse=reverse)
            return reader.iterate(self.name, *bounds, reverse=reverse)

        # Task by task, as Kafka Streams' composite iterator: keys are sorted within a task only.
        for source in self._sources():
            for page in source.pages(QueryScan(rows, reverse)):
                ended_at = self._ended_at(page.observed_ms)
                for key, data in page.rows:
                    value = self._decode(key, data, ended_at)
                    if value is not None:
                        yield key, value

    def approximate_num_entries(self) -> int:
        return sum(source.approximate_num_entries() for source in self._sources())


class CommittedKeyValueStore(QueryKeyValueStore[K, V]):
    def __init__(
        self, spec: StoreSpec, topic: str, databases: Callable[[], list[Database]]
    ) -> None:
        super().__init__(spec, topic, committed(spec, databases))
        self._databases = databases

    def _opened(self) -> list[Database]:
        databases = self._databases()
        if not databases:
            raise not_running(self.name)
        return databases

    def _get(self, key: bytes) -> V | None:
        # No `QuerySource`: processors read global stores per record, so this path must be fast.
        for database in self._opened():
            (data,) = database.get_many(self.name, [key])
            if data is not None:
                has_ttl = self._spec.ttl_ms is not None
                observed_ms = read_store_time(database, self.name)[0] if has_ttl else -1
                value: V | None = self._decode(key, data, self._ended_at(observed_ms))
                return value
        return None
