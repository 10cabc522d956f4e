"""Base classes of windowed aggregations: folding, stream time, late records, final results.

Rules: Kafka Streams' AbstractKStreamTimeWindowAggregateProcessor and KStreamSessionWindowAggregate.
Stream time is the largest timestamp of the operator's input; in a key range, that of the whole
task's records up to this one. A record is dropped and counted once per closed window. A result has
the larger timestamp of the old result and the record. With `on_window_close` only the last result
is forwarded.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import Any, NamedTuple

import msgspec

from tidewheel.state_stores.buffers.headers_buffer import HeadersBuffer
from tidewheel.state_stores.buffers.segmented_buffer import SegmentedBuffer
from tidewheel.state_stores.layout.segments import SEGMENT_BYTES, TIME_MAX
from tidewheel.state_stores.layout.stored_values import unreadable
from tidewheel.state_stores.stores.windowed import Windowed
from tidewheel.streams.operators.stateful import MaterializedOperator
from tidewheel.streams.operators.stateless import spread
from tidewheel.streams.operators.windows.due_rows import DueRows, Place
from tidewheel.streams.windows import EmitStrategy, Windows
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.engine.operator import NodeContext
from tidewheel.tasks.processing.engine.record_batch import RecordBatch

NO_TIME = -1


class Fold(msgspec.Struct, frozen=True):
    """The functions of an aggregation.

    Attributes:
        start: Returns the initial aggregate; None if the first value becomes the aggregate.
        step: (key, value, aggregate) -> new aggregate or None.
        merge: (key, aggregate, aggregate) -> aggregate of two sessions.
    """

    start: Callable[[], Any]
    step: Callable[[Any, Any, Any], Any]
    merge: Callable[[Any, Any, Any], Any] | None = None

    def added(self, key: Any, value: Any, aggregate: Any) -> Any:
        """Return the aggregate with one more value; None means the initial aggregate."""
        return self.step(key, value, self.start() if aggregate is None else aggregate)


def counting() -> Fold:
    """Return the fold that counts.

    >>> counting().added("a", "any value", None)
    1
    """
    return Fold(int, lambda _key, _value, total: total + 1, lambda _key, one, two: one + two)


def reducing(reducer: Callable[[Any, Any], Any]) -> Fold:
    """Return the fold of `reduce`: the first value is the first result.

    >>> reducing(max).added("a", 3, None), reducing(max).added("a", 3, 5)
    (3, 5)
    """

    def step(_key: Any, value: Any, aggregate: Any) -> Any:
        return value if aggregate is None else reducer(aggregate, value)

    def merge(_key: Any, first: Any, second: Any) -> Any:
        return second if first is None else reducer(first, second)

    return Fold(_no_aggregate, step, merge)


def _no_aggregate() -> None:
    return None


class WindowChange(NamedTuple):
    """A change of one window; `data` is its store key."""

    key: Windowed[Any]
    data: bytes
    value: Any
    timestamp: int
    old_value: Any


class WindowedOperator(MaterializedOperator):
    expands = True
    keys_out = "windowed"
    observes_time = True

    #: True: a cached deletion has the timestamp of the record that caused it, as in Kafka Streams.
    #: False (sessions): it has the deleted session's end.
    deletes_at_record = True

    #: Bytes of the sequence number at the end of a store key, which forwarded keys lack.
    _bytes_left_out = 4

    def __init__(
        self,
        store_name: str,
        windows: Windows,
        fold: Fold,
        emit: EmitStrategy,
        windowed_serde: Any = None,
    ) -> None:
        super().__init__(store_name)
        self._closes_at = windows.closes_at
        self._retention_ms = windows.retention_ms
        self._fold = fold
        self._on_close = emit == "on_window_close"
        if self._on_close:
            self.emission = "emitted-records-total"
            self.needs_whole_task = "it emits when windows close, which one key range can't detect"
        self._windowed_serde = windowed_serde
        self._stream_time = NO_TIME
        #: Number of (late record, closed window) pairs.
        self._late_windows = 0
        #: Final results are emitted up to this stream time.
        self._emitted_time = NO_TIME
        #: The batch and the record index that `apply` is working on.
        self._batch: RecordBatch | None = None
        self._turn = 0
        self._next_emit_ms = 0

    def init(self, context: NodeContext) -> None:
        super().init(context)
        self._store: Any = context.store(self._store_name)
        self._segments: SegmentedBuffer = self._store.buffer
        self._due = DueRows(self._places)

    def uses_cache(self) -> bool:
        """Return False for final results, which no cache may delay."""
        return not self._on_close

    def times(self) -> tuple[int, ...]:
        return (self._stream_time, self._emitted_time)

    def restore_times(self, times: tuple[int, ...]) -> None:
        self._stream_time, self._emitted_time = times
        self._due = DueRows(self._places)

    @property
    def observed_time_ms(self) -> int:
        return self._stream_time

    def times_at(self, position_ms: int) -> tuple[int, ...]:
        """Return `times` as of a record at which the task's stream time was `position_ms`."""
        return (position_ms, self._emitted_time)

    def times_of(self, batch: RecordBatch) -> list[int]:
        positions = batch.position_times()
        return self.running_times(batch, self._stream_time) if positions is None else positions

    @staticmethod
    def running_times(batch: RecordBatch, before: int) -> list[int]:
        return list(islice(accumulate(batch.timestamps, max, initial=before), 1, None))

    def is_closed(self, end: int) -> bool:
        return self._closes_at(end) <= self._stream_time

    def apply(
        self, batch: RecordBatch, changes_of: Callable[[int], Sequence[WindowChange]]
    ) -> RecordBatch | None:
        """Apply `changes_of(index)` to each record in turn.

        All of a record's changes are computed before the first one is stored.
        """
        if isinstance(self.buffer, HeadersBuffer):
            changes_of = self.buffer.with_record_headers(batch.headers, changes_of)
        results: list[list[WindowChange]] = []
        self._batch = batch
        for index, time in enumerate(self.times_of(batch)):
            self._turn = index
            changes: list[WindowChange] = []
            results.append(changes)
            self._stream_time = time
            try:
                for change in changes_of(index):
                    self.put(batch, index, change, changes)
            except FAILURES as error:
                self.context.failed(batch, index, error)
            self.emit_closed(changes)
        self._batch = None
        return self.forwarded(batch, results)

    def apply_records(
        self,
        batch: RecordBatch,
        changes_of: Callable[[Any, Any, bytes, int], Sequence[WindowChange]],
    ) -> RecordBatch | None:
        batch, key_bytes = self.with_key_bytes(batch)
        keys, values, timestamps = batch.keys, batch.values, batch.timestamps

        def changes(index: int) -> Sequence[WindowChange]:
            return changes_of(keys[index], values[index], key_bytes[index], timestamps[index])

        def changes_with_letters(index: int) -> Sequence[WindowChange]:
            before = self._late_windows
            window_changes = changes(index)
            if self._late_windows > before:
                self.report_late_windows(
                    batch, index, self._late_windows - before, self._stream_time
                )
            return window_changes

        if not len(batch):
            return None
        return self.apply(
            batch, changes if self.context.late_letter is None else changes_with_letters
        )

    def old_value(self, data: bytes) -> Any:
        return self.buffer.get(data) if self.sends_old_values else None

    def put(
        self, batch: RecordBatch, index: int, change: WindowChange, results: list[WindowChange]
    ) -> None:
        cache = self.cache
        existed = cache is not None and self.buffer.exists(change.data)
        timestamp = change.timestamp
        if cache is not None and change.value is None and self.deletes_at_record:
            timestamp = batch.timestamps[index]
        self.buffer.put(change.data, change.value, timestamp)
        if cache is not None:
            if self.sends_old_values:
                self.cached_old_values.setdefault(change.data, change.old_value)
            cache.changed(change.key, change.data, existed=existed)
            self.record_change_headers(batch, (index,), (change.data,))
        elif self._on_close:
            self._due.add(self._segments.layout.time_of(change.data), change.data)
        else:
            results.append(change)

    def forwarded(
        self, batch: RecordBatch, results: Sequence[list[WindowChange]]
    ) -> RecordBatch | None:
        changes = list(chain.from_iterable(results))
        if not changes:
            return None
        keys, data, values, timestamps, old_values = map(list, zip(*changes, strict=True))
        output = self.with_windows(spread(batch, results), keys, data, values, timestamps)
        output.old_values = old_values if self.sends_old_values else None
        return output

    def with_windows(
        self,
        batch: RecordBatch,
        keys: list[Windowed[Any]],
        data: list[bytes],
        values: list[Any],
        timestamps: list[int],
    ) -> RecordBatch:
        output = batch.with_keys(keys, values)
        output.timestamps = timestamps
        output.key_bytes, output.key_serde = self.forwarded_key_bytes(data)
        return output

    def forwarded_key_bytes(self, data: Sequence[bytes]) -> tuple[list[bytes | None] | None, Any]:
        serde = self._windowed_serde
        if serde is None or not serde.canonical:
            return None, None
        cut = slice(SEGMENT_BYTES, -self._bytes_left_out or None)
        return [key[cut] for key in data], serde

    def count_late_windows(self, windows: int, batch: RecordBatch, first: int) -> None:
        """Count updates dropped because their window had closed; `first`: first record's index."""
        self._late_windows += windows
        self.context.dropped(windows, "late record for a closed window", batch, first)

    def count_late_window(self) -> None:
        assert self._batch is not None, "called while a record has its turn"
        self.count_late_windows(1, self._batch, self._turn)

    def report_late_windows(self, batch: RecordBatch, index: int, windows: int, time: int) -> None:
        closed = "a window" if windows == 1 else f"{windows} windows"
        self.report_late(batch, index, f"came too late for {closed}: stream time is {time}")

    @abstractmethod
    def closed(self, after: int, until: int) -> Iterable[WindowChange]:
        """Return the result of each window with after < closing time <= until."""

    def emit_closed(self, results: list[WindowChange]) -> None:
        if self._on_close and self._emitted_time < self._stream_time and self._is_time():
            results += self._newly_closed()

    def _newly_closed(self) -> list[WindowChange]:
        changes = self.closed(self._emitted_time, self._stream_time)
        self._emitted_time = self._stream_time
        return sorted(changes, key=self.closing_order)

    def closing_order(self, change: WindowChange) -> tuple[Any, ...]:
        return (change.key.end, change.key.start, change.data)

    def _is_time(self) -> bool:
        interval = self.context.emit_interval_ms
        if interval:
            now = self.context.now_ms()
            if now < self._next_emit_ms:
                return False
            self._next_emit_ms = now + interval
        return True

    def may_flush(self) -> bool:
        return self._on_close or super().may_flush()

    def flush(self, limit: int | None = None) -> RecordBatch | None:
        """Return cached changes, or final results whose rows may expire at this commit."""
        if not self._on_close:
            return super().flush(limit)
        # All rows before `first_due` are emitted. Rows up to `forgotten` may expire at this commit
        # (the store retains rows longer than the windows need). Emit if an unemitted row may.
        first_due = self._emitted_time - self._retention_ms
        forgotten = self._stream_time - self._segments.spec.retention_ms
        if limit is not None or self._emitted_time >= self._stream_time or first_due > forgotten:
            return None
        changes = self._newly_closed()
        if not changes:
            return None
        keys, data, values, timestamps, _ = map(list, zip(*changes, strict=True))
        key_bytes, serde = self.forwarded_key_bytes(data)
        return RecordBatch(
            keys,
            values,
            timestamps,
            None,
            range(len(keys)),
            None,
            old_values=[None] * len(keys) if self.sends_old_values else None,
            key_bytes=key_bytes,
            key_serde=serde,
        )

    def rows_between(
        self, first: int, last: int, window_of: Callable[[bytes], tuple[int, int]]
    ) -> Iterator[WindowChange]:
        """Yield rows of all keys whose window start (or session end) is in the range."""
        if first > last:
            return
        layout, serde, topic = self._segments.layout, self.buffer.spec.key_serde, self.buffer.topic
        rows = self._due.pop(first, last)
        self.buffer.fetch(rows)
        for data in rows:
            value = self.buffer.get(data)
            if value is not None:  # Missing rows are sessions merged into another one.
                key_bytes = layout.key_of(data)
                try:
                    key = serde.deserialize(topic, key_bytes)
                except FAILURES as error:
                    raise unreadable(self.buffer.spec.name, error, key_bytes) from error
                timestamp = self.buffer.timestamp(data)
                yield WindowChange(Windowed(key, *window_of(data)), data, value, timestamp, None)

    def _places(self, first: int) -> Iterator[Place]:
        time_of = self._segments.layout.time_of
        rows = self._segments.scan_range(None, None, first, TIME_MAX)
        return ((time_of(data), data) for data, _, _ in rows)
