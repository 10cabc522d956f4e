"""Window stores as users see them: values by key and window start; over a segmented buffer.

A row lives from its start until the store has seen a start that is `retention` later. Rules are those of Kafka Streams'
RocksDBWindowStore and InMemoryWindowStore: an expired put is dropped and counted, reads never show what has expired,
None deletes, and a store that retains duplicates ignores None. Ranges of keys are in the order of the serialised keys
and both their ends are inclusive, as are those of times.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from operator import is_
from typing import Any, Generic, TypeVar, overload

from tidewheel.state_stores.buffers.headers_buffer import tell_headers, values_of
from tidewheel.state_stores.buffers.segmented_buffer import SegmentedBuffer
from tidewheel.state_stores.layout.segments import SEQ_MASK, TIME_MAX, check_time
from tidewheel.state_stores.spec import StoreKind
from tidewheel.state_stores.stores.key_value_store import ValueAndTimestamp, ValueTimestampHeaders
from tidewheel.state_stores.stores.segmented_store import SegmentedReads, SegmentedStore
from tidewheel.state_stores.stores.windowed import Windowed

K = TypeVar("K")
V = TypeVar("V")


class ReadOnlyWindowStore(SegmentedReads[K, V], Generic[K, V]):
    """Reads of a window store (Kafka Streams' ReadOnlyWindowStore); `WindowStore` adds the writes. Times are ms since the epoch.

    A key of None raises `ValueError`, but as an end of a range. That of `KafkaStreams.store` raises
    `InvalidStateStoreError` when no task of it runs in this process.

    >>> def last_hour(store: ReadOnlyWindowStore[str, int], key: str, now_ms: int) -> int:
    ...     return sum(count for _, count in store.fetch(key, now_ms - 3_600_000, now_ms))
    """

    @overload
    def fetch(self, key: K, from_ms: int) -> V | None: ...
    @overload
    def fetch(self, key: K, from_ms: int, to_ms: int) -> Iterator[tuple[int, V]]: ...
    def fetch(
        self, key: K, from_ms: int, to_ms: int | None = None
    ) -> V | Iterator[tuple[int, V]] | None:
        """Return an iterator over (start, value) of a key's windows with from_ms <= start <= to_ms, the earliest first.

        Without `to_ms`: the value of the window that starts at `from_ms`, or None. Where a store retains duplicates
        that is the first one put.
        """
        if to_ms is None:
            _, value = next(self._starts(key, from_ms, from_ms, reverse=False), (from_ms, None))
            return value
        return self._starts(key, from_ms, to_ms, reverse=False)

    def backward_fetch(self, key: K, from_ms: int, to_ms: int) -> Iterator[tuple[int, V]]:
        """Yield the same as `fetch`, the latest first."""
        return self._starts(key, from_ms, to_ms, reverse=True)

    def _starts(
        self, key: K, from_ms: int, to_ms: int, *, reverse: bool
    ) -> Iterator[tuple[int, V]]:
        time_of = self._layout.time_of
        rows = self._key_rows(key, from_ms, to_ms, reverse=reverse)
        return (
            (time_of(disk_key), self._shown(value, timestamp))
            for disk_key, value, timestamp in rows
        )

    def fetch_range(
        self, lo: K | None, hi: K | None, from_ms: int, to_ms: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Yield (windowed key, value) of the keys from `lo` to `hi` (None: no end) with from_ms <= start <= to_ms.

        Earlier segments of time come first; inside a segment rows are in the order of their keys.
        """
        return self._pairs(self._range_rows(lo, hi, from_ms, to_ms, reverse=False))

    def backward_fetch_range(
        self, lo: K | None, hi: K | None, from_ms: int, to_ms: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Yield the same as `fetch_range`, backwards."""
        return self._pairs(self._range_rows(lo, hi, from_ms, to_ms, reverse=True))

    def fetch_all(self, from_ms: int, to_ms: int) -> Iterator[tuple[Windowed[K], V]]:
        """Yield (windowed key, value) of all keys with from_ms <= start <= to_ms."""
        return self.fetch_range(None, None, from_ms, to_ms)

    def backward_fetch_all(self, from_ms: int, to_ms: int) -> Iterator[tuple[Windowed[K], V]]:
        """Yield the same as `fetch_all`, backwards."""
        return self.backward_fetch_range(None, None, from_ms, to_ms)

    def all(self) -> Iterator[tuple[Windowed[K], V]]:
        """Yield (windowed key, value) of everything that has not expired."""
        return self.fetch_all(0, TIME_MAX)

    def backward_all(self) -> Iterator[tuple[Windowed[K], V]]:
        """Yield the same as `all`, backwards."""
        return self.backward_fetch_all(0, TIME_MAX)

    def _windowed(self, disk_key: bytes) -> Windowed[K]:
        start = self._layout.time_of(disk_key)
        return Windowed(self._key_of(disk_key), start, self.window_end(start))

    def window_end(self, start: int) -> int:
        """Return the end of the window that begins at `start`."""
        if self._spec.window_end is not None:
            return self._spec.window_end(start)
        return start + self._spec.window_size_ms

    def _shown(self, value: Any, timestamp: int) -> Any:
        if self._spec.kind is StoreKind.TIMESTAMPED_WINDOW:
            return ValueAndTimestamp(value, timestamp)
        return value


class WindowStore(ReadOnlyWindowStore[K, V], SegmentedStore):
    """A window store of a task, for its processors.

    `now` gives the timestamp of the record being processed: it becomes that of the changelog record.

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
        self, buffer: SegmentedBuffer, now: Callable[[], int], *, may_hold_back: bool = False
    ) -> None:
        super().__init__(buffer.spec, buffer.topic, lambda: (self.buffer,))
        self._attach(buffer, now, may_hold_back=may_hold_back)
        self._retains_duplicates = buffer.spec.retain_duplicates

    def put(self, key: K, value: V | None, start: int) -> None:
        """Set the value of a key's window, or delete it with None; dropped if it has expired.

        In a store that retains duplicates the value is added to those that are there, and None is ignored; in memory
        it moves the store's time.

        Raises:
            ValueError: The key is None, or `start` (ms since the epoch) is below 0.
            SerializationError: A serde can't take the key or the value.
        """
        self._put(key, self._key_bytes(key), value, start, self._now())

    # -- for operators, by serialised key --------------------------------------------------------------------------

    def disk_key(self, key: bytes, start: int, seq: int = 0) -> bytes:
        """Return the key of a row in `buffer`."""
        return self._layout.window_key(key, start, seq)

    def put_bytes(self, key: bytes, value: Any, start: int, timestamp: int) -> bool:
        """Do what `put` does, with the value's own timestamp; return False if it has expired."""
        return self._put(None, key, value, start, timestamp)

    def add_all(
        self, keys: Sequence[bytes], values: Sequence[Any], starts: Sequence[int]
    ) -> list[bytes] | None:
        """Do what `put_bytes` does with many values that this store, which retains duplicates, adds to those there are.

        Their own timestamps are the starts. Returns the keys of their rows in `buffer`; None, and nothing is done, where one of
        them has expired or is None. There is at least one.
        """
        assert self._retains_duplicates, "only such a store adds"
        buffer = self.buffer
        latest = max(starts)
        first, last = buffer.seq + 1, buffer.seq + len(starts)
        oldest_live = self._layout.live_from_ms(max(latest, buffer.observed_stream_time_ms))
        if self.held is not None or last > SEQ_MASK or any(map(is_, values, repeat(None))):
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
        """Return (start, value, timestamp) of a key's windows with from_ms <= start <= to_ms, as of now.

        `expired`: also of those that have expired, as far as they are still there.
        """
        time_of = self._layout.time_of
        rows = self.buffer.scan_key(key, from_ms, to_ms, reverse=reverse, expired=expired)
        return ((time_of(disk_key), value, timestamp) for disk_key, value, timestamp in rows)

    def _put(self, key: Any, data: bytes, value: Any, start: int, timestamp: int) -> bool:
        check_time(self.name, start, "window start")
        if value is None and self._retains_duplicates:
            if (
                not self._spec.persistent
            ):  # Kafka Streams' in-memory store moves its time before it looks
                self.buffer.observe(start)
            return True
        if not self._accepts(start):
            return False
        seq = 0
        if self._retains_duplicates:
            seq = self.buffer.seq = (self.buffer.seq + 1) & SEQ_MASK
        disk_key = self._layout.window_key(data, start, seq)
        if self.held is None:
            self.buffer.put(disk_key, value, timestamp)
            return True
        if key is None:
            key = self._key_of(disk_key)
        self._write(Windowed(key, start, self.window_end(start)), disk_key, value, timestamp)
        return True


class TimestampedWindowStore(WindowStore[K, ValueAndTimestamp[V]]):
    """A window store whose values are `ValueAndTimestamp`: the store of every aggregation over time windows.

    >>> from tidewheel import Stores
    >>> Stores.timestamped_window("last", retention=10, window_size=5, key_serde=str, value_serde=int).spec.name
    'last'
    """

    def put(self, key: K, value: ValueAndTimestamp[V] | None, start: int) -> None:
        """Set the value and timestamp of a key's window, or delete it with None; dropped if it has expired.

        Raises:
            TypeError: It is no `ValueAndTimestamp`.
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
    """A window store whose values are `ValueTimestampHeaders` (Kafka Streams' KIP-1271).

    >>> from tidewheel import Stores
    >>> store = Stores.timestamped_window_with_headers(
    ...     "last", retention=10, window_size=5, key_serde=str, value_serde=int
    ... )
    >>> store.spec.keeps_headers
    True
    """

    def put(self, key: K, value: ValueTimestampHeaders[V] | None, start: int) -> None:
        """Set the value, timestamp and headers of a key's window, or delete it with None; dropped if it has expired."""
        data = self._key_bytes(key)
        tell_headers(self.buffer, value, ValueTimestampHeaders, self.name)
        if value is None:
            self._put(key, data, None, start, self._now())
        else:
            self._put(key, data, value.value, start, value.timestamp)

    def _shown(self, value: Any, timestamp: int) -> Any:
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
        """Return what any window store does: (start, value, timestamp), without headers."""
        rows = super().fetch_bytes(key, from_ms, to_ms, reverse=reverse, expired=expired)
        return values_of(rows)
