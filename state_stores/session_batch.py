"""The sessions that a batch of records finds and makes, read from their store and written to it all at once.

What was read for all records says nothing of what the records before made of it; the batch knows that.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from state_stores.segmented_buffer import SegmentedBuffer
from state_stores.segments import TIME_MAX

#: Stands for a value that is in the buffer, serialised, because it can be changed in place.
_STORED: Any = object()


#: One session of a key: its disk key, start and end (both inclusive), and value.
Session = tuple[bytes, int, int, Any]


class SessionBatch:
    """The sessions of the records of a batch.

    Args:
        buffer: That of the store.
        keys: The serialised key of each record.
        earliest_ends: From which end on each record looks for sessions, expired or not.

    Attributes:
        rows, starts, ends, values: What was set and deleted (with a value of None), in order.
        owners: The record that made each of these changes.
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
        #: The rows that each record may find, as they were before the first of them.
        self._rows = buffer.rows_of_each(keys, self._earliest_ends, [TIME_MAX] * len(keys))
        rows = [*chain.from_iterable(self._rows)]
        buffer.fetch(rows)
        #: Those rows as sessions, one record's behind the other's.
        self._sessions: Iterator[Session] = iter(())
        #: Whether their values are known; else each is read at its record's turn.
        self._are_known = buffer.are_decoded(rows)
        if self._are_known:
            starts, ends = self._layout.sessions_of(rows)
            self._sessions = zip(rows, starts, ends, buffer.get_many(rows), strict=True)
        #: By key what is there now of all that was set, and all that was deleted.
        self._live: dict[bytes, dict[bytes, Any]] = {}
        self._gone: set[bytes] = set()
        #: How many of the changes are in the buffer.
        self._stored = 0

    def find(self, index: int, latest_start: int) -> list[Session]:
        """Return the sessions that are there for the record at `index` and start early enough, the earliest first.

        It is asked for one record after the other.
        """
        rows = self._rows[index]
        before = list(islice(self._sessions, len(rows))) if rows else []
        live = self._live.get(self._keys[index])
        if live is None and self._are_known:
            return [
                session
                for session in before
                if session[1] <= latest_start and session[3] is not None
            ]
        return self._found(index, live, latest_start)

    def _found(self, index: int, live: dict[bytes, Any] | None, latest_start: int) -> list[Session]:
        """Return what `find` does for a key with changes in `live`, and where values were not read before."""
        rows = self._rows[index]
        if live is not None:
            rows = self._rows_now(rows, live, self._earliest_ends[index])
        times_of, peek = self._layout.session_times_of, self._buffer.peek
        found: list[Session] = []
        for row in rows:
            start, end = times_of(row)
            if start > latest_start:
                continue
            value = _STORED if live is None else live.get(row, _STORED)
            if value is _STORED:
                value = peek(row)
            if value is not None:
                found.append((row, start, end, value))
        return found

    def _rows_now(self, rows: list[bytes], live: Iterable[bytes], earliest: int) -> list[bytes]:
        """Return what the records before have made of some rows of a key."""
        time_of, gone = self._layout.time_of, self._gone
        known = {row for row in rows if row not in gone}
        return sorted(known.union(row for row in live if time_of(row) >= earliest))

    def replace(
        self, index: int, found: Sequence[Session], start: int, end: int, value: Any
    ) -> None:
        """Replace the sessions that the record at `index` joins by one session.

        If the serde raises, nothing has changed.
        """
        key, buffer = self._keys[index], self._buffer
        new = self._layout.session_key(key, start, end)
        is_kept = buffer.keeps(value)
        if not is_kept:
            self.store()
            buffer.put(new, value, end)  # serialises, so it precedes the deletions
            for row, _, found_end, _ in found:
                if row != new:
                    buffer.put(row, None, found_end)
        live = self._live.get(key)
        if live is None:
            live = self._live[key] = {}
        for row, found_start, found_end, _ in found:
            self._note(index, row, found_start, found_end, None)
            self._gone.add(row)
            live.pop(row, None)
        live[new] = value if is_kept else _STORED
        self._note(index, new, start, end, value)
        self._gone.discard(new)
        if not is_kept:
            self._stored = len(self.rows)

    def _note(self, index: int, row: bytes, start: int, end: int, value: Any) -> None:
        self.rows.append(row)
        self.starts.append(start)
        self.ends.append(end)
        self.values.append(value)
        self.owners.append(index)

    def store(self) -> None:
        """Write what was set and deleted so far to the buffer."""
        first, self._stored = self._stored, len(self.rows)
        if first < self._stored:
            self._buffer.put_kept(self.rows[first:], self.values[first:], self.ends[first:])
