"""Sessions of a batch of records, read from the store and written back together."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from tidewheel.state_stores.buffers.segmented_buffer import SegmentedBuffer
from tidewheel.state_stores.layout.segments import TIME_MAX

#: Stands for a value that only the buffer has, serialised; `find` reads it from there.
_STORED: Any = object()


Session = tuple[bytes, int, int, Any]


class SessionBatch:
    """Sessions of the records of a batch.

    Attributes:
        rows, starts, ends, values: Sessions set or deleted (value None), in order.
        owners: For each change, the index of the record that made it.
    """

    def __init__(
        self, buffer: SegmentedBuffer, keys: Sequence[bytes], earliest_ends: Sequence[int]
    ) -> None:
        self.rows: list[bytes] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.values: list[Any] = []
        self.owners: list[int] = []
        self._buffer = buffer
        self._layout = buffer.layout
        self._keys = keys
        self._earliest_ends = earliest_ends
        if min(earliest_ends, default=0) < 0:
            self._earliest_ends = [max(0, earliest) for earliest in earliest_ends]
        self._rows = buffer.rows_of_each(keys, self._earliest_ends, [TIME_MAX] * len(keys))
        rows = [*chain.from_iterable(self._rows)]
        buffer.fetch(rows)
        self._sessions: Iterator[Session] = iter(())
        #: True if the sessions' values are decoded; else `find` reads them record by record.
        self._are_decoded = buffer.are_decoded(rows)
        if self._are_decoded:
            starts, ends = self._layout.sessions_of(rows)
            self._sessions = zip(rows, starts, ends, buffer.get_many(rows), strict=True)
        self._live: dict[bytes, dict[bytes, Any]] = {}
        self._removed: set[bytes] = set()
        self._stored = 0

    def find(self, index: int, latest_start: int) -> list[Session]:
        """Return the sessions that record `index` joins, earliest first; call in record order."""
        rows = self._rows[index]
        before = list(islice(self._sessions, len(rows))) if rows else []
        live = self._live.get(self._keys[index])
        if live is None and self._are_decoded:
            return [
                session
                for session in before
                if session[1] <= latest_start and session[3] is not None
            ]
        return self._live_sessions(index, live, latest_start)

    def _live_sessions(
        self, index: int, live: dict[bytes, Any] | None, latest_start: int
    ) -> list[Session]:
        rows = self._rows[index]
        if live is not None:
            rows = self._rows_now(rows, live, self._earliest_ends[index])
        times_of, peek = self._layout.session_times_of, self._buffer.peek
        sessions: list[Session] = []
        for row in rows:
            start, end = times_of(row)
            if start > latest_start:
                continue
            value = _STORED if live is None else live.get(row, _STORED)
            if value is _STORED:
                value = peek(row)
            if value is not None:
                sessions.append((row, start, end, value))
        return sessions

    def _rows_now(self, rows: list[bytes], live: Iterable[bytes], earliest: int) -> list[bytes]:
        time_of, removed = self._layout.time_of, self._removed
        rows_left = {row for row in rows if row not in removed}
        return sorted(rows_left.union(row for row in live if time_of(row) >= earliest))

    def replace(
        self, index: int, sessions: Sequence[Session], start: int, end: int, value: Any
    ) -> None:
        """Replace the sessions that a record joins by one session.

        If the serde raises, nothing has changed.
        """
        key, buffer = self._keys[index], self._buffer
        new = self._layout.session_key(key, start, end)
        is_shared = buffer.can_share(value)
        if not is_shared:
            self.store()
            # Before the deletions: if `value` can't be serialised, the old sessions must stay.
            buffer.put(new, value, end)
            for row, _, session_end, _ in sessions:
                if row != new:
                    buffer.put(row, None, session_end)
        live = self._live.get(key)
        if live is None:
            live = self._live[key] = {}
        for row, session_start, session_end, _ in sessions:
            self._track_change(index, row, session_start, session_end, None)
            self._removed.add(row)
            live.pop(row, None)
        live[new] = value if is_shared else _STORED
        self._track_change(index, new, start, end, value)
        self._removed.discard(new)
        if not is_shared:
            self._stored = len(self.rows)

    def _track_change(self, index: int, row: bytes, start: int, end: int, value: Any) -> None:
        self.rows.append(row)
        self.starts.append(start)
        self.ends.append(end)
        self.values.append(value)
        self.owners.append(index)

    def store(self) -> None:
        first, self._stored = self._stored, len(self.rows)
        if first < self._stored:
            self._buffer.put_shared(self.rows[first:], self.values[first:], self.ends[first:])
