"""count, reduce and aggregate over sessions.

Rules are those of Kafka Streams' KStreamSessionWindowAggregate: a null key is dropped, a null value is not. A record
joins the sessions within its gap; each of those is deleted, then their merger is put with the record added, unless
that is closed. A closed session is merged too while the retention shows it. The least retention, gap and grace, shows
those that are open and no other (in Kafka Streams it hides a session in the last millisecond in which it is open).
"""

from collections.abc import Iterable
from typing import Any

from state_stores.headers_buffer import HeadersBuffer
from state_stores.session_batch import SessionBatch
from state_stores.windowed import Windowed
from streams.operators.windowed import Change, Fold, WindowedOperator
from streams.windows import EmitStrategy, SessionWindows
from tasks.processing.handlers import FAILURES
from tasks.processing.operator import Output
from tasks.processing.record_batch import RecordBatch


class SessionWindowAggregate(WindowedOperator):
    """Folds the values of a key into an aggregate per session."""

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
        #: How long after its end (ms of stream time) a session is found, open or closed: the last ms is not included.
        self._shown_ms = max(retention_ms, windows.closes_at(0))

    def process(self, batch: RecordBatch) -> Output:
        """Return the deleted sessions and the new ones, or the final ones that closed."""
        batch = self.without_nulls(batch, values=False)
        return self.updated(batch) if self.is_plain() else self.each_record(batch, self._changes)

    def is_plain(self) -> bool:
        """Return whether each change is stored and forwarded as it is, and nobody asks for more."""
        return not (
            self._on_close
            or self.sends_old_values
            or self.held is not None
            or self.context.late_letter is not None
            or isinstance(self.buffer, HeadersBuffer)
        )

    def updated(self, batch: RecordBatch) -> Output:
        """Do what `each_record` does with `_changes` where all is plain, without an object for each change."""
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
                found = sessions.find(index, timestamp + gap)
                for _, found_start, found_end, _ in found:
                    if found_start < start:  # noqa: PLR1730 - a call would take longer
                        start = found_start
                    if found_end > end:  # noqa: PLR1730 - as above
                        end = found_end
                if end + closes_after <= time:
                    self.late(1, batch, index)
                    continue
                aggregate = start_of()
                for session in found:
                    aggregate = merge(key, aggregate, session[3])
                new = step(key, value, start_of() if aggregate is None else aggregate)
                # Where nothing grows nothing is deleted.
                sessions.replace(index, found if start != end else (), start, end, new)
            except FAILURES as error:  # user code, or a serde: the processing handler decides
                self.context.failed(batch, index, error)
        self._stream_time = times[-1]
        sessions.store()
        return self._forwarded(batch, sessions) if sessions.rows else None

    def _forwarded(self, batch: RecordBatch, sessions: SessionBatch) -> RecordBatch:
        """Return the changes of a batch as records."""
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

    def _changes(self, key: Any, value: Any, data: bytes, timestamp: int) -> list[Change]:
        earliest_end = max(timestamp - self._gap, self._stream_time - self._shown_ms + 1)
        found = self._store.find_sessions_bytes(
            data, earliest_end, timestamp + self._gap, expired=True
        )
        start = min([timestamp, *(session[0] for session in found)])
        end = max([timestamp, *(session[1] for session in found)])
        if self.is_closed(end):
            self.late_in_turn()
            return []
        new = self._merged(key, value, [session[2] for session in found])
        changes = [self._deleted(key, data, session[0], session[1]) for session in found]
        at = self._store.disk_key(data, start, end)
        if start == end:
            # The record alone, or one more of the same timestamp: nothing grows, so nothing is deleted.
            old, changes = self.old_value(at), []
        else:
            old = None
            if changes:
                self.buffer.check_value(new)  # before a session is deleted
        return [*changes, Change(Windowed(key, start, end), at, new, end, old)]

    def _merged(self, key: Any, value: Any, values_before: Iterable[Any]) -> Any:
        """Return the aggregate of some sessions with one more value."""
        fold, merge = self._fold, self._merge
        aggregate = fold.start()
        for value_before in values_before:
            aggregate = merge(key, aggregate, value_before)
        return fold.added(key, value, aggregate)

    def _deleted(self, key: Any, data: bytes, start: int, end: int) -> Change:
        at = self._store.disk_key(data, start, end)
        return Change(Windowed(key, start, end), at, None, end, self.old_value(at))

    def closing_order(self, change: Change) -> tuple[Any, ...]:
        """Return the place of a final result: by end and key in memory, else by end, start and key, as in Kafka Streams."""
        if self._segments.spec.persistent:
            return super().closing_order(change)
        return (change.key.end, self._segments.layout.key_of(change.data))

    def closed(self, after: int, until: int) -> Iterable[Change]:
        """Return the last result of each session that closes at a stream time after < time <= until."""
        # Closed at end + gap + grace + 1, so the ends in question lie this much earlier.
        earlier = self._gap + self._grace + 1
        layout = self._segments.layout
        return self.rows_between(
            max(0, after - earlier + 1),
            until - earlier,
            lambda data: (layout.session_start_of(data), layout.time_of(data)),
        )
