"""Session stores for users: values by key and session (start and end, both inclusive).

A row lives until the store sees a session end that is `retention` later. Rules are those of Kafka
Streams' RocksDBSessionStore and InMemorySessionStore.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from tidewheel.state_stores.buffers.headers_buffer import set_record_headers
from tidewheel.state_stores.buffers.segmented_buffer import SegmentedBuffer, SegmentRow
from tidewheel.state_stores.layout.headers import Headers
from tidewheel.state_stores.layout.segments import TIME_MAX, check_bounds, check_time
from tidewheel.state_stores.stores.segmented_store import SegmentedReads, SegmentedStore
from tidewheel.state_stores.stores.windowed import Windowed, fully_frozen

K = TypeVar("K")
V = TypeVar("V")

_BOUND_NAMES: Final = ("earliest_end", "latest_start")


@fully_frozen
@dataclass(frozen=True, slots=True)
class AggregationWithHeaders(Generic[V]):
    """A session's value and the headers of the record that set it.

    >>> AggregationWithHeaders(3, (("trace", b"1"),)).aggregation
    3
    """

    aggregation: V
    headers: Headers = ()


class ReadOnlySessionStore(SegmentedReads[K, V], Generic[K, V]):
    """Reads of a session store (Kafka Streams' ReadOnlySessionStore). Times are ms since the epoch.

    Errors are those of `ReadOnlyKeyValueStore`.

    >>> def longest(store: ReadOnlySessionStore[str, int], key: str) -> int:
    ...     return max((session.end - session.start for session, _ in store.fetch(key)), default=0)
    """

    _instead_of_get = (
        "a row has a key and a session: write fetch(key) for its sessions, or "
        "fetch_session(key, start, end) with its times in ms"
    )

    def fetch(self, key: K) -> Iterator[tuple[Windowed[K], V]]:
        """Yield (windowed key, value) of all sessions of a key, earliest first."""
        return self.find_sessions(key, 0, TIME_MAX)

    def backward_fetch(self, key: K) -> Iterator[tuple[Windowed[K], V]]:
        """Yield the rows of `fetch`, latest first."""
        return self.backward_find_sessions(key, 0, TIME_MAX)

    def fetch_session(self, key: K, start: int, end: int) -> V | None:
        check_bounds(self.name, start, end, ("start", "end"))
        for session, value in self._pairs(self._key_rows(key, end, end, reverse=False)):
            if session.start == start:
                return value
        return None

    def fetch_range(self, lo: K | None, hi: K | None) -> Iterator[tuple[Windowed[K], V]]:
        """Yield (windowed key, value) of all sessions of keys from `lo` to `hi`, both inclusive.

        None is unbounded. Earlier time segments come first; within a segment rows are in key order.
        """
        return self._pairs(self._range_rows(lo, hi, 0, TIME_MAX, reverse=False))

    def find_sessions(
        self, key: K, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Yield a key's sessions with end >= earliest_end and start <= latest_start."""
        check_bounds(self.name, earliest_end, latest_start, _BOUND_NAMES)
        rows = self._key_rows(key, earliest_end, TIME_MAX, reverse=False)
        return self._pairs(self._started(rows, latest_start))

    def backward_find_sessions(
        self, key: K, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        check_bounds(self.name, earliest_end, latest_start, _BOUND_NAMES)
        rows = self._key_rows(key, earliest_end, TIME_MAX, reverse=True)
        return self._pairs(self._started(rows, latest_start))

    def _started(self, rows: Iterator[SegmentRow], latest: int) -> Iterator[SegmentRow]:
        start_of = self._layout.session_start_of
        return (row for row in rows if start_of(row[0]) <= latest)

    def _windowed(self, disk_key: bytes) -> Windowed[K]:
        layout = self._layout
        start, end = layout.session_start_of(disk_key), layout.time_of(disk_key)
        return Windowed(self._key_of(disk_key), start, end)


class SessionStore(ReadOnlySessionStore[K, V], SegmentedStore):
    """A session store of a task, for its processors.

    >>> def extend(store: SessionStore[str, int], key: str, at_ms: int, gap_ms: int) -> None:
    ...     start, end, count = at_ms, at_ms, 1
    ...     for session, value in list(store.find_sessions(key, at_ms - gap_ms, at_ms + gap_ms)):
    ...         start, end, count = min(start, session.start), max(end, session.end), count + value
    ...         store.remove(session)
    ...     store.put(Windowed(key, start, end), count)

    >>> from tidewheel import Processor, Stores, Topology
    >>> from tidewheel.testing import TopologyTestDriver
    >>> topology = Topology().add_source("in", "clicks", key_serde=str, value_serde=str)
    >>> _ = topology.add_processor("visits", Processor, ["in"])
    >>> visits = Stores.session("visits", retention=1_000, key_serde=str, value_serde=int)
    >>> _ = topology.add_state_store(visits, ["visits"])
    >>> driver = TopologyTestDriver(topology)
    >>> store = driver.get_state_store("visits")
    >>> store.put(Windowed("ann", 0, 5), 1), store.put(Windowed("ann", 50, 60), 2), store.put(Windowed("bob", 7, 7), 3)
    (None, None, None)
    >>> list(store.fetch("ann")), store.fetch_session("ann", 50, 60)
    ([(Windowed(key='ann', start=0, end=5), 1), (Windowed(key='ann', start=50, end=60), 2)], 2)
    >>> list(store.find_sessions("ann", earliest_end=6, latest_start=50)), list(store.find_sessions("ann", 6, 49))
    ([(Windowed(key='ann', start=50, end=60), 2)], [])
    >>> extend(store, "ann", 40, gap_ms=10)
    >>> [windowed.start for windowed, _ in store.backward_fetch("ann")]
    [40, 0]
    >>> store.remove(Windowed("ann", 0, 5))
    >>> [windowed.key for windowed, _ in store.fetch_range(None, None)]
    ['ann', 'bob']
    >>> driver.close()
    """

    def __init__(
        self, buffer: SegmentedBuffer, now: Callable[[], int], *, is_cached: bool = False
    ) -> None:
        super().__init__(buffer.spec, buffer.topic, lambda: (self.buffer,))
        self._attach(buffer, now, is_cached=is_cached)

    def put(self, windowed: Windowed[K], value: V | None) -> None:
        """Set the value of a session, or delete it with None; ignored if it has expired.

        Raises:
            TypeError: `windowed` is no `Windowed`.
            ValueError: The key is None, a time is below 0, or the session ends before it starts.
            SerializationError: A serde rejects the key or the value.
        """
        if not isinstance(windowed, Windowed):  # pyright: ignore[reportUnnecessaryIsInstance] - users may be untyped
            raise TypeError(
                f"store {self.name}: put() takes a Windowed(key, start, end), not a {type(windowed).__name__}"
            )
        data = self._key_bytes(windowed.key)
        self._put(windowed.key, data, windowed.start, windowed.end, value, self._now())

    def remove(self, windowed: Windowed[K]) -> None:
        self.put(windowed, None)

    # Used by operators, with serialised keys.

    def disk_key(self, key: bytes, start: int, end: int) -> bytes:
        return self._layout.session_key(key, start, end)

    def put_bytes(self, key: bytes, start: int, end: int, value: Any, timestamp: int) -> None:
        self._put(None, key, start, end, value, timestamp)

    def find_sessions_bytes(
        self, key: bytes, earliest_end: int, latest_start: int, *, expired: bool = False
    ) -> list[tuple[int, int, Any, int]]:
        times_of = self._layout.session_times_of
        sessions: list[tuple[int, int, Any, int]] = []
        for row, value, timestamp in self.buffer.scan_key(
            key, earliest_end, TIME_MAX, expired=expired
        ):
            start, end = times_of(row)
            if start <= latest_start:
                sessions.append((start, end, value, timestamp))
        return sessions

    def _put(self, key: Any, data: bytes, start: int, end: int, value: Any, timestamp: int) -> None:
        check_time(self.name, start, "session start")
        if check_time(self.name, end, "session end") < start:
            raise ValueError(
                f"store {self.name}: a session can't end at {end}, before its start {start}"
            )
        if not self._accepts(end, counted=value is not None):
            return
        disk_key = self._layout.session_key(data, start, end)
        if self.cache is None:
            self.buffer.put(disk_key, value, timestamp)
            return
        if key is None:
            key = self._key_of(disk_key)
        self._write(Windowed(key, start, end), disk_key, value, timestamp)


class SessionStoreWithHeaders(SessionStore[K, AggregationWithHeaders[V]]):
    """A session store of `AggregationWithHeaders` (Kafka Streams' KIP-1271).

    >>> from tidewheel import Stores
    >>> Stores.session_with_headers("visits", retention=60_000, key_serde=str, value_serde=int).spec.keeps_headers
    True
    """

    def put(self, windowed: Windowed[K], value: AggregationWithHeaders[V] | None) -> None:
        """Set a session's value and headers, or delete it with None; ignored if expired."""
        set_record_headers(self.buffer, value, AggregationWithHeaders, self.name)
        plain: Any = None if value is None else value.aggregation
        super().put(windowed, plain)

    def _query_value(self, value: Any, timestamp: int) -> Any:  # noqa: ARG002 - for stores that show it
        return AggregationWithHeaders(value.value, value.headers)

    def find_sessions_bytes(
        self, key: bytes, earliest_end: int, latest_start: int, *, expired: bool = False
    ) -> list[tuple[int, int, Any, int]]:
        rows = super().find_sessions_bytes(key, earliest_end, latest_start, expired=expired)
        return [(start, end, value.value, timestamp) for start, end, value, timestamp in rows]
