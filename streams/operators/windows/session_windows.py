"""Counts, reductions and aggregates of session windows.

Rules: Kafka Streams' KStreamSessionWindowAggregate. A null key is dropped, a null value is not. A
record replaces the sessions within its gap by one merged session, unless that is closed. Closed
sessions are merged, too, within the retention time; the shortest retention covers exactly the open
sessions.
"""

from collections.abc import Iterable
from typing import Any

from tidewheel.state_stores.buffers.headers_buffer import HeadersBuffer
from tidewheel.state_stores.stores.session_batch import SessionBatch
from tidewheel.state_stores.stores.windowed import Windowed
from tidewheel.streams.operators.windows.windowed import Fold, WindowChange, WindowedOperator
from tidewheel.streams.windows import EmitStrategy, SessionWindows
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.engine.operator import Output
from tidewheel.tasks.processing.engine.record_batch import RecordBatch


class SessionWindowAggregate(WindowedOperator):
    _bytes_left_out = 0
    deletes_at_record = False

    def __init__(
        self,
        store_name: str,
        windows: SessionWindows,
        fold: Fold,
        emit: EmitStrategy,
        windowed_serde: Any = None,
        retention_ms: int = 0,
    ) -> None:
        super().__init__(store_name, windows, fold, emit, windowed_serde)
        assert fold.merge is not None, "sessions merge"
        self._merge = fold.merge
        self._gap = windows.gap_ms
        self._grace = windows.grace_ms
        #: Lookups find a session only while stream time is below its end plus this (ms).
        self._shown_ms = max(retention_ms, windows.closes_at(0))

    def process(self, batch: RecordBatch) -> Output:
        batch = self.without_nulls(batch, values=False)
        return self.updated(batch) if self.is_plain() else self.apply_records(batch, self._changes)

    def is_plain(self) -> bool:
        """Return True if `updated` suffices: no cache, old values, headers or dead letters."""
        return not (
            self._on_close
            or self.sends_old_values
            or self.cache is not None
            or self.context.late_letter is not None
            or isinstance(self.buffer, HeadersBuffer)
        )

    def updated(self, batch: RecordBatch) -> Output:
        batch, key_bytes = self.with_key_bytes(batch)
        if not len(batch):
            return None
        gap, shown, closes_after = self._gap, self._shown_ms, self._closes_at(0)
        times, timestamps = self.times_of(batch), batch.timestamps
        sessions = SessionBatch(
            self._segments,
            key_bytes,
            [max(at - gap, time - shown + 1) for at, time in zip(timestamps, times, strict=True)],
        )
        merge, step, start_of = self._merge, self._fold.step, self._fold.start
        records = zip(batch.keys, batch.values, timestamps, times, strict=True)
        for index, (key, value, timestamp, time) in enumerate(records):
            try:
                start = end = timestamp
                sessions_found = sessions.find(index, timestamp + gap)
                for _, found_start, found_end, _ in sessions_found:
                    if found_start < start:  # noqa: PLR1730 - a call would take longer
                        start = found_start
                    if found_end > end:  # noqa: PLR1730 - as above
                        end = found_end
                if end + closes_after <= time:
                    self.count_late_windows(1, batch, index)
                    continue
                aggregate = start_of()
                for session in sessions_found:
                    aggregate = merge(key, aggregate, session[3])
                new = step(key, value, start_of() if aggregate is None else aggregate)
                # A session of a single moment is overwritten; nothing is deleted.
                sessions.replace(index, sessions_found if start != end else (), start, end, new)
            except FAILURES as error:
                self.context.failed(batch, index, error)
        self._stream_time = times[-1]
        sessions.store()
        return self._forwarded(batch, sessions) if sessions.rows else None

    def _forwarded(self, batch: RecordBatch, sessions: SessionBatch) -> RecordBatch:
        owners, starts, ends = sessions.owners, sessions.starts, sessions.ends
        key_bytes, serde = self.forwarded_key_bytes(sessions.rows)
        order = None
        if batch.order is not None:
            order = [(*batch.order[owner], number) for number, owner in enumerate(owners)]
        return RecordBatch(
            list(map(Windowed, map(batch.keys.__getitem__, owners), starts, ends)),
            sessions.values,
            ends,
            None if batch.headers is None else list(map(batch.headers.__getitem__, owners)),
            list(map(batch.rows.__getitem__, owners)),
            batch.source,
            order=order,
            key_bytes=key_bytes,
            key_serde=serde,
        )

    def _changes(self, key: Any, value: Any, data: bytes, timestamp: int) -> list[WindowChange]:
        earliest_end = max(timestamp - self._gap, self._stream_time - self._shown_ms + 1)
        merged = self._store.find_sessions_bytes(
            data, earliest_end, timestamp + self._gap, expired=True
        )
        start = min([timestamp, *(session[0] for session in merged)])
        end = max([timestamp, *(session[1] for session in merged)])
        if self.is_closed(end):
            self.count_late_window()
            return []
        new = self._merged(key, value, [session[2] for session in merged])
        changes = [self._deleted(key, data, session[0], session[1]) for session in merged]
        disk_key = self._store.disk_key(data, start, end)
        if start == end:
            old, changes = self.old_value(disk_key), []
        else:
            old = None
            if changes:
                self.buffer.check_value(new)  # before a session is deleted
        return [*changes, WindowChange(Windowed(key, start, end), disk_key, new, end, old)]

    def _merged(self, key: Any, value: Any, values_before: Iterable[Any]) -> Any:
        fold, merge = self._fold, self._merge
        aggregate = fold.start()
        for value_before in values_before:
            aggregate = merge(key, aggregate, value_before)
        return fold.added(key, value, aggregate)

    def _deleted(self, key: Any, data: bytes, start: int, end: int) -> WindowChange:
        disk_key = self._store.disk_key(data, start, end)
        return WindowChange(
            Windowed(key, start, end), disk_key, None, end, self.old_value(disk_key)
        )

    def closing_order(self, change: WindowChange) -> tuple[Any, ...]:
        """Return Kafka Streams' order: in memory by end and key, else by end, start and key."""
        if self._segments.spec.persistent:
            return super().closing_order(change)
        return (change.key.end, self._segments.layout.key_of(change.data))

    def closed(self, after: int, until: int) -> Iterable[WindowChange]:
        # Sessions close at end + gap + grace + 1.
        earlier = self._gap + self._grace + 1
        layout = self._segments.layout
        return self.rows_between(
            max(0, after - earlier + 1),
            until - earlier,
            lambda data: (layout.session_start_of(data), layout.time_of(data)),
        )
