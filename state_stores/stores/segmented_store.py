"""Common parts of window and session stores."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from tidewheel.state_stores.buffers.headers_buffer import HeadersBuffer
from tidewheel.state_stores.buffers.query_sources import QuerySource
from tidewheel.state_stores.buffers.segmented_buffer import (
    QuerySegments,
    SegmentedBuffer,
    SegmentRow,
)
from tidewheel.state_stores.layout.key_schema import key_bytes
from tidewheel.state_stores.layout.segments import TIME_MAX, SegmentLayout, check_bounds
from tidewheel.state_stores.layout.stored_values import read_row
from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.spec import StoreSpec
from tidewheel.state_stores.stores.task_store import TaskStore
from tidewheel.state_stores.stores.windowed import Windowed

K = TypeVar("K")
V = TypeVar("V")


class Segments(Protocol):
    @property
    def layout(self) -> SegmentLayout: ...

    def scan_key(
        self, key: bytes, low: int, high: int, *, reverse: bool = False
    ) -> Iterator[SegmentRow]: ...

    def scan_range(
        self, lo: bytes | None, hi: bytes | None, low: int, high: int, *, reverse: bool = False
    ) -> Iterator[SegmentRow]: ...


class SegmentedReads(Generic[K, V]):
    """Reads of a window or session store; every read calls `sources` for the tasks' rows."""

    #: Advice for users who look for the `get` of key-value stores.
    _instead_of_get: ClassVar[str] = ""

    def __init__(
        self, spec: StoreSpec, topic: str, sources: Callable[[], Sequence[Segments]]
    ) -> None:
        self.name = spec.name
        self._spec = spec
        self._topic = topic
        self._key_serde: SerdePort = spec.key_serde
        self._layout = SegmentLayout.of(spec)
        self._sources = sources

    if not TYPE_CHECKING:  # a type checker would allow every attribute

        def __getattr__(self, name: str) -> Any:
            fact = f"{type(self).__name__!r} object has no attribute {name!r}"
            advice = f"; {self._instead_of_get}" if name == "get" else ""
            raise AttributeError(f"{fact}{advice}", name=name, obj=self)

    def _key_bytes(self, key: K) -> bytes:
        return key_bytes(self._key_serde, self._topic, key, self.name)

    def _bound(self, key: K | None) -> bytes | None:
        return None if key is None else self._key_bytes(key)

    def _key_rows(self, key: K, low: int, high: int, *, reverse: bool) -> Iterator[SegmentRow]:
        data = self._key_bytes(key)
        check_bounds(self.name, low, high)
        return chain.from_iterable(
            [source.scan_key(data, low, high, reverse=reverse) for source in self._sources()]
        )

    def _range_rows(
        self, lo: K | None, hi: K | None, low: int, high: int, *, reverse: bool
    ) -> Iterator[SegmentRow]:
        first, last = self._bound(lo), self._bound(hi)
        check_bounds(self.name, low, high)
        return chain.from_iterable(
            [
                source.scan_range(first, last, low, high, reverse=reverse)
                for source in self._sources()
            ]
        )

    def _windowed(self, disk_key: bytes) -> Windowed[K]:
        raise NotImplementedError

    def _query_value(self, value: Any, timestamp: int) -> Any:  # noqa: ARG002 - for stores that show it
        return value

    def _pairs(self, rows: Iterator[SegmentRow]) -> Iterator[tuple[Windowed[K], V]]:
        return (
            (self._windowed(disk_key), self._query_value(value, timestamp))
            for disk_key, value, timestamp in rows
        )

    def _key_of(self, disk_key: bytes) -> K:
        data = self._layout.key_of(disk_key)
        key: K = read_row(self.name, self._key_serde.deserialize, self._topic, data, data)
        return key


class SegmentedStore(TaskStore[SegmentedBuffer]):
    @property
    def observed_stream_time_ms(self) -> int:
        return self.buffer.observed_stream_time_ms

    def observe(self, stream_time_ms: int) -> None:
        """Advance the store's time; rows older than this time minus the retention expire now."""
        self.buffer.observe(stream_time_ms)

    def erase(self, key: bytes, tail: int = 0) -> int:
        assert not tail, "the keys of windows and sessions are not windowed themselves"
        buffer = self.buffer
        # Not `put`: it rejects expired rows, and ignores None in stores with duplicates.
        rows = [row for row in buffer.rows_of(key, 0, TIME_MAX) if buffer.exists(row)]
        if isinstance(buffer, HeadersBuffer):
            buffer.record_headers = ()
        decoded = [self._windowed(row) for row in rows]
        for row, windowed in zip(rows, decoded, strict=True):
            self._write(windowed, row, None, self._now())
        return len(rows)

    def _windowed(self, disk_key: bytes) -> Windowed[Any]:
        raise NotImplementedError

    def is_expired(self, time: int) -> bool:
        return time < self.buffer.live_from_ms

    def _accepts(self, time: int, *, counted: bool = True) -> bool:
        self.buffer.observe(time)
        if time >= self.buffer.live_from_ms:
            return True
        self.expired_puts += counted
        return False


def list_query_segments(
    spec: StoreSpec,
    topic: str,
    sources: Callable[[], Sequence[QuerySource]],
    segments: type[QuerySegments] = QuerySegments,
) -> Callable[[], Sequence[Segments]]:
    return lambda: [segments(spec, topic, source) for source in sources()]
