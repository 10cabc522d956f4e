"""Window stores for users: values by key and window start.

A row lives until the store sees a window start that is `retention` later. Rules are those of Kafka
Streams' RocksDBWindowStore and InMemoryWindowStore.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from operator import is_
from typing import Any, Generic, TypeVar, overload

from tidewheel.state_stores.buffers.headers_buffer import set_record_headers, values_of
from tidewheel.state_stores.buffers.segmented_buffer import SegmentedBuffer
from tidewheel.state_stores.layout.segments import SEQ_MASK, TIME_MAX, check_time
from tidewheel.state_stores.spec import StoreKind
from tidewheel.state_stores.stores.key_value_store import ValueAndTimestamp, ValueTimestampHeaders
from tidewheel.state_stores.stores.segmented_store import SegmentedReads, SegmentedStore
from tidewheel.state_stores.stores.windowed import Windowed

K = TypeVar("K")
V = TypeVar("V")


class ReadOnlyWindowStore(SegmentedReads[K, V], Generic[K, V]):
    """Reads of a window store (Kafka Streams' ReadOnlyWindowStore). Times are ms since the epoch.

    Errors are those of `ReadOnlyKeyValueStore`.

    >>> def last_hour(store: ReadOnlyWindowStore[str, int], key: str, now_ms: int) -> int:
    ...     return sum(count for _, count in store.fetch(key, now_ms - 3_600_000, now_ms))
    """

    _instead_of_get = "a row has a key and a window: write fetch(key, start) with its start in ms"

    @overload
    def fetch(self, key: K, from_ms: int) -> V | None: ...
    @overload
    def fetch(self, key: K, from_ms: int, to_ms: int) -> Iterator[tuple[int, V]]: ...
    def fetch(
        self, key: K, from_ms: int, to_ms: int | None = None
    ) -> V | Iterator[tuple[int, V]] | None:
        """Return (start, value) of a key's windows with from_ms <= start <= to_ms, earliest first.

        Without `to_ms`, return the value of the window that starts at `from_ms`, or None; among
        duplicates, the first one put.
        """
        if to_ms is None:
            _, value = next(self._starts(key, from_ms, from_ms, reverse=False), (from_ms, None))
            return value
        return self._starts(key, from_ms, to_ms, reverse=False)

    def backward_fetch(self, key: K, from_ms: int, to_ms: int) -> Iterator[tuple[int, V]]:
        return self._starts(key, from_ms, to_ms, reverse=True)

    def _starts(
        self, key: K, from_ms: int, to_ms: int, *, reverse: bool
    ) -> Iterator[tuple[int, V]]:
        time_of = self._layout.time_of
        rows = self._key_rows(key, from_ms, to_ms, reverse=reverse)
        return (
            (time_of(disk_key), self._query_value(value, timestamp))
            for disk_key, value, timestamp in rows
        )

    def fetch_range(
        self, lo: K | None, hi: K | None, from_ms: int, to_ms: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Yield (windowed key, value) of keys from `lo` to `hi` with from_ms <= start <= to_ms.

        None is unbounded. Earlier time segments come first; within a segment rows are in key order.
        """
        return self._pairs(self._range_rows(lo, hi, from_ms, to_ms, reverse=False))

    def backward_fetch_range(
        self, lo: K | None, hi: K | None, from_ms: int, to_ms: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        return self._pairs(self._range_rows(lo, hi, from_ms, to_ms, reverse=True))

    def fetch_all(self, from_ms: int, to_ms: int) -> Iterator[tuple[Windowed[K], V]]:
        return self.fetch_range(None, None, from_ms, to_ms)

    def backward_fetch_all(self, from_ms: int, to_ms: int) -> Iterator[tuple[Windowed[K], V]]:
        return self.backward_fetch_range(None, None, from_ms, to_ms)

    def all(self) -> Iterator[tuple[Windowed[K], V]]:
        """Yield all (windowed key, value) that have not expired."""
        return self.fetch_all(0, TIME_MAX)

    def backward_all(self) -> Iterator[tuple[Windowed[K], V]]:
        return self.backward_fetch_all(0, TIME_MAX)

    def _windowed(self, disk_key: bytes) -> Windowed[K]:
        start = self._layout.time_of(disk_key)
        return Windowed(self._key_of(disk_key), start, self.window_end(start))

    def window_end(self, start: int) -> int:
        if self._spec.window_end is not None:
            return self._spec.window_end(start)
        return start + self._spec.window_size_ms

    def _query_value(self, value: Any, timestamp: int) -> Any:
        if self._spec.kind is StoreKind.TIMESTAMPED_WINDOW:
            return ValueAndTimestamp(value, timestamp)
        return value


class WindowStore(ReadOnlyWindowStore[K, V], SegmentedStore):
    """A window store of a task, for its processors.

    >>> def seen_before(store: WindowStore[str, int], key: str, at_ms: int) -> bool:
    ...     seen = any(store.fetch(key, at_ms - 60_000, at_ms))
    ...     store.put(key, 1, at_ms)
    ...     return seen

    >>> from tidewheel import Processor, Stores, Topology
    >>> from tidewheel.testing import TopologyTestDriver
    >>> topology = Topology().add_source("in", "orders", key_serde=str, value_serde=str)
    >>> _ = topology.add_processor("count", Processor, ["in"])
    >>> counts = Stores.window("counts", retention=1_000, window_size=10, key_serde=str, value_serde=int)
    >>> _ = topology.add_state_store(counts, ["count"])
    >>> driver = TopologyTestDriver(topology)
    >>> store = driver.get_state_store("counts")
    >>> for key, start in (("tea", 0), ("tea", 10), ("salt", 10)):
    ...     store.put(key, start + 1, start)
    >>> store.fetch("tea", 10), store.fetch("tea", 20), list(store.fetch("tea", 0, 10))
    (11, None, [(0, 1), (10, 11)])
    >>> list(store.backward_fetch("tea", 0, 99))
    [(10, 11), (0, 1)]
    >>> list(store.fetch_all(5, 10))
    [(Windowed(key='salt', start=10, end=20), 11), (Windowed(key='tea', start=10, end=20), 11)]
    >>> [windowed.key for windowed, _ in store.fetch_range("s", "t", 0, 99)], len(list(store.all()))
    (['salt'], 3)
    >>> store.put("tea", None, 0)
    >>> store.put("tea", 1, 5_000), list(store.fetch("tea", 0, 9_999))
    (None, [(5000, 1)])
    >>> driver.close()
    """

    def __init__(
        self, buffer: SegmentedBuffer, now: Callable[[], int], *, is_cached: bool = False
    ) -> None:
        super().__init__(buffer.spec, buffer.topic, lambda: (self.buffer,))
        self._attach(buffer, now, is_cached=is_cached)
        self._retains_duplicates = buffer.spec.retain_duplicates

    def put(self, key: K, value: V | None, start: int) -> None:
        """Set the value of a key's window, or delete it with None; ignored if it has expired.

        A store that retains duplicates adds the value and ignores None.

        Raises:
            ValueError: The key is None, or `start` (ms since the epoch) is below 0.
            SerializationError: A serde rejects the key or the value.
        """
        self._put(key, self._key_bytes(key), value, start, self._now())

    # Used by operators, with serialised keys.

    def disk_key(self, key: bytes, start: int, seq: int = 0) -> bytes:
        return self._layout.window_key(key, start, seq)

    def put_bytes(self, key: bytes, value: Any, start: int, timestamp: int) -> bool:
        """Apply `put` with the value's own timestamp; return False if the row has expired."""
        return self._put(None, key, value, start, timestamp)

    def add_all(
        self, keys: Sequence[bytes], values: Sequence[Any], starts: Sequence[int]
    ) -> list[bytes] | None:
        """Add values to a store that retains duplicates; return the disk keys of their rows.

        Each timestamp is the window's start. If the store is cached, or a value is None or
        expired, do nothing and return None. `values` must not be empty.
        """
        assert self._retains_duplicates, "only such a store adds"
        buffer = self.buffer
        latest = max(starts)
        first, last = buffer.seq + 1, buffer.seq + len(starts)
        oldest_live = self._layout.live_from_ms(max(latest, buffer.observed_stream_time_ms))
        if self.cache is not None or last > SEQ_MASK or any(map(is_, values, repeat(None))):
            return None
        if not 0 <= latest <= TIME_MAX or min(starts) < oldest_live:
            return None
        disk_keys = self._layout.window_keys(keys, starts, range(first, last + 1))
        if not buffer.put_all(disk_keys, values, starts):
            return None
        buffer.seq = last
        buffer.observe(latest)
        return disk_keys

    def fetch_bytes(
        self,
        key: bytes,
        from_ms: int,
        to_ms: int,
        *,
        reverse: bool = False,
        expired: bool = False,
    ) -> Iterator[tuple[int, Any, int]]:
        time_of = self._layout.time_of
        rows = self.buffer.scan_key(key, from_ms, to_ms, reverse=reverse, expired=expired)
        return ((time_of(disk_key), value, timestamp) for disk_key, value, timestamp in rows)

    def _put(self, key: Any, data: bytes, value: Any, start: int, timestamp: int) -> bool:
        check_time(self.name, start, "window start")
        if value is None and self._retains_duplicates:
            if not self._spec.persistent:  # Kafka Streams' in-memory store advances its time first
                self.buffer.observe(start)
            return True
        if not self._accepts(start):
            return False
        seq = 0
        if self._retains_duplicates:
            seq = self.buffer.seq = (self.buffer.seq + 1) & SEQ_MASK
        disk_key = self._layout.window_key(data, start, seq)
        if self.cache is None:
            self.buffer.put(disk_key, value, timestamp)
            return True
        if key is None:
            key = self._key_of(disk_key)
        self._write(Windowed(key, start, self.window_end(start)), disk_key, value, timestamp)
        return True


class TimestampedWindowStore(WindowStore[K, ValueAndTimestamp[V]]):
    """A window store of `ValueAndTimestamp`: the store of every aggregation over time windows.

    >>> from tidewheel import Stores
    >>> Stores.timestamped_window("last", retention=10, window_size=5, key_serde=str, value_serde=int).spec.name
    'last'
    """

    def put(self, key: K, value: ValueAndTimestamp[V] | None, start: int) -> None:
        """Set value and timestamp of a key's window, or delete it with None; ignored if expired.

        Raises:
            TypeError: The value is no `ValueAndTimestamp`.
            ValueError: The key is None, or `start` (ms since the epoch) is below 0.
        """
        data = self._key_bytes(key)
        if value is None:
            self._put(key, data, None, start, self._now())
        elif isinstance(value, ValueAndTimestamp):  # pyright: ignore[reportUnnecessaryIsInstance] - users may be untyped
            self._put(key, data, value.value, start, value.timestamp)
        else:
            raise TypeError(
                f"store {self.name} holds ValueAndTimestamp(value, timestamp), not {type(value).__name__}"
            )


class TimestampedWindowStoreWithHeaders(WindowStore[K, ValueTimestampHeaders[V]]):
    """A window store of `ValueTimestampHeaders` (Kafka Streams' KIP-1271).

    >>> from tidewheel import Stores
    >>> store = Stores.timestamped_window_with_headers(
    ...     "last", retention=10, window_size=5, key_serde=str, value_serde=int
    ... )
    >>> store.spec.keeps_headers
    True
    """

    def put(self, key: K, value: ValueTimestampHeaders[V] | None, start: int) -> None:
        """Set a window's value, timestamp and headers, or delete it with None; ignored if expired."""
        data = self._key_bytes(key)
        set_record_headers(self.buffer, value, ValueTimestampHeaders, self.name)
        if value is None:
            self._put(key, data, None, start, self._now())
        else:
            self._put(key, data, value.value, start, value.timestamp)

    def _query_value(self, value: Any, timestamp: int) -> Any:
        return ValueTimestampHeaders(value.value, timestamp, value.headers)

    def fetch_bytes(
        self,
        key: bytes,
        from_ms: int,
        to_ms: int,
        *,
        reverse: bool = False,
        expired: bool = False,
    ) -> Iterator[tuple[int, Any, int]]:
        rows = super().fetch_bytes(key, from_ms, to_ms, reverse=reverse, expired=expired)
        return values_of(rows)
