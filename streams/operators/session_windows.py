"""count, reduce and aggregate over sessions.

Rules are those of Kafka Streams' KStreamSessionWindowAggregate: a null key is dropped, a null value is not. A record
joins the sessions within its gap; each of those is deleted, then their merger is put with the record added, unless
that is closed. A closed session is merged too while the retention shows it. The least retention, gap and grace, shows
those that are open and no other (in Kafka Streams it hides a session in the last millisecond in which it is open).
"""

from collections.abc import Iterable
from typing import Any

from state_stores.windowed import Windowed
from streams.operators.windowed import Change, Fold, WindowedOperator
from streams.windows import EmitStrategy, SessionWindows
from tasks.processing.operator import Output
from tasks.processing.record_batch import RecordBatch


class SessionWindowAggregate(WindowedOperator):
    """Folds the values of a key into an aggregate per session."""

    _bytes_left_out = 0

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
        return self.each_record(self.without_nulls(batch, values=False), self._changes)

    def _changes(self, key: Any, value: Any, data: bytes, timestamp: int) -> list[Change]:
        earliest_end = max(timestamp - self._gap, self._stream_time - self._shown_ms + 1)
        found = self._store.find_sessions_bytes(
            data, earliest_end, timestamp + self._gap, expired=True
        )
        start = min([timestamp, *(session[0] for session in found)])
        end = max([timestamp, *(session[1] for session in found)])
        if self.is_closed(end):
            self.late(1)
            return []
        aggregate = self._fold.start()
        changes: list[Change] = []
        for session_start, session_end, value_before, _ in found:
            aggregate = self._merge(key, aggregate, value_before)
            changes.append(self._deleted(key, data, session_start, session_end))
        new = self._fold.added(key, value, aggregate)
        at = self._store.disk_key(data, start, end)
        if start == end:
            # The record alone, or one more of the same timestamp: nothing grows, so nothing is deleted.
            old, changes = self.old_value(at), []
        else:
            old = None
        return [*changes, Change(Windowed(key, start, end), at, new, end, old)]

    def _deleted(self, key: Any, data: bytes, start: int, end: int) -> Change:
        at = self._store.disk_key(data, start, end)
        return Change(Windowed(key, start, end), at, None, end, self.old_value(at))

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
