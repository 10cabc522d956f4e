"""count, reduce and aggregate over sliding windows.

Rules are those of Kafka Streams' KStreamSlidingWindowAggregate: a null key or value is dropped. There is a window that
ends at each record, and one that starts just after each record if a later record is in it; both are made when the
first record is seen that belongs to them, from what the windows around it hold.
"""

from collections.abc import Iterable
from itertools import starmap
from typing import Any, Final, NamedTuple

import msgspec

from tidewheel.state_stores.stores.windowed import Windowed
from tidewheel.streams.operators.windows.windowed import Change, Fold, WindowedOperator
from tidewheel.streams.windows import EmitStrategy, SlidingWindows
from tidewheel.tasks.processing.engine.operator import Output
from tidewheel.tasks.processing.engine.record_batch import RecordBatch

#: The old value of a window's second change by one record: what its first change is about to store.
_STORED: Final = object()


class _Row(NamedTuple):
    """A window of a key: its aggregate, and the timestamp of its latest record."""

    start: int
    aggregate: Any
    latest: int


class _Around(msgspec.Struct):
    """What a record finds of its key.

    Attributes:
        updates: The windows to add the record to, in the order of their results.
        starts: Starts of all windows found.
        previous: Timestamp of the latest record before this one, if it may share a window with it.
        left: The window that ends before this record and has the previous record in it.
        left_exists: Whether the window that ends at this record is there.
        right: The window with the latest start up to this record, which has all that follow it in reach.
        right_exists: Whether the window that starts just after this record is there.
        complete: Whether all windows of this record are among the updates: one of its timestamp was here before.
    """

    updates: list[_Row] = msgspec.field(default_factory=list["_Row"])
    starts: set[int] = msgspec.field(default_factory=set[int])
    previous: int | None = None
    left: _Row | None = None
    left_exists: bool = False
    right: _Row | None = None
    right_exists: bool = False
    complete: bool = False


class SlidingWindowAggregate(WindowedOperator):
    """Folds the values of a key that are near each other in time into aggregates."""

    times_null_values = False

    def __init__(
        self,
        store_name: str,
        windows: SlidingWindows,
        fold: Fold,
        emit: EmitStrategy,
        windowed_serde: Any = None,
    ) -> None:
        super().__init__(store_name, windows, fold, emit, windowed_serde)
        self._difference = windows.difference_ms
        self._grace = windows.grace_ms

    def process(self, batch: RecordBatch) -> Output:
        """Return the new aggregates, or the final ones of windows that closed."""
        return self.each_record(self.without_nulls(batch, values=True), self._changes)

    def _changes(self, key: Any, value: Any, data: bytes, timestamp: int) -> list[Change]:
        if self.is_closed(timestamp + self._difference):
            self.late_in_turn()
            return []
        early = timestamp < self._difference
        look_around = self._look_around_early if early else self._look_around
        around = look_around(data, timestamp)
        created, copies = list[_Row](), list[Change]()
        if not around.complete:
            created = self._created(timestamp, around)
            copies = self._right_of(key, data, timestamp, around)

        def added(rows: list[_Row]) -> list[Change]:
            changes = (self._added(key, value, data, timestamp, row) for row in rows)
            return [change for change in changes if change is not None]

        updates, made = added(around.updates), added(created)
        if len({change.data for change in made}) < len(made):  # two changes of one window
            made[1] = made[1]._replace(old_value=_STORED)
        return updates + (copies + made if early else made + copies)

    def _look_around(self, data: bytes, timestamp: int) -> _Around:
        around, difference = _Around(), self._difference
        first = max(0, timestamp - 2 * difference)
        rows = self._store.fetch_bytes(data, first, timestamp + 1, reverse=True, expired=True)
        for row in starmap(_Row, rows):
            around.starts.add(row.start)
            end = row.start + difference
            if row.start == timestamp + 1:
                around.right_exists = True
            elif end > timestamp:
                around.right = around.right or row
                around.updates.append(row)
            elif end == timestamp:
                around.left_exists = True
                around.updates.append(row)
                if row.latest == timestamp:
                    around.complete = True
                    break
                around.previous = row.latest
            else:
                around.left, around.previous = row, row.latest
                break
        return around

    def _look_around_early(self, data: bytes, timestamp: int) -> _Around:
        """Look around a record so near to the epoch that its left window is the one from 0 on, as all others' there."""
        around, first = _Around(), None
        for row in starmap(_Row, self._store.fetch_bytes(data, 0, timestamp + 1, expired=True)):
            around.starts.add(row.start)
            if row.start == timestamp + 1:
                around.right_exists = True
            elif row.start == 0:
                first = row
                if row.latest < timestamp:
                    around.previous = row.latest
            else:
                around.right = row
                around.updates.append(row)
        if first is not None:
            around.left = first
            if around.right is None:
                around.right = first
        return around

    def _created(self, timestamp: int, around: _Around) -> list[_Row]:
        """Return the windows that the record makes: one after the record before it, and one that ends at it.

        If that record is just out of reach they are the same one, whose result then comes twice, as in Kafka Streams.
        """
        rows: list[_Row] = []
        previous = around.previous
        if (
            previous is not None
            and previous + 1 not in around.starts
            and previous + 1 + self._difference >= timestamp
        ):
            rows.append(_Row(previous + 1, None, timestamp))
        if not around.left_exists:
            rows.append(self._left_of(timestamp, around))
        return rows

    def _left_of(self, timestamp: int, around: _Around) -> _Row:
        """Return the window that ends at the record, as it is without it."""
        start = max(0, timestamp - self._difference)
        left, previous = around.left, around.previous
        if left is None:
            return _Row(start, None, timestamp)
        if left.start == start:
            return left
        shared = previous is not None and previous >= start
        return _Row(start, left.aggregate if shared else None, timestamp)

    def _right_of(self, key: Any, data: bytes, timestamp: int, around: _Around) -> list[Change]:
        """Return the window that starts just after the record, if a later record is in it and it is not there yet."""
        right = around.right
        if around.right_exists or right is None or right.latest <= timestamp:
            return []
        # A value of its own: the window it comes from is about to change.
        aggregate = self.buffer.get(self._store.disk_key(data, right.start))
        start = timestamp + 1
        window = Windowed(key, start, start + self._difference)
        return [Change(window, self._store.disk_key(data, start), aggregate, right.latest, None)]

    def _added(self, key: Any, value: Any, data: bytes, timestamp: int, row: _Row) -> Change | None:
        """Return a window with the record in it, or None if it is closed."""
        end = row.start + self._difference
        if self.is_closed(end):
            self.late_in_turn()
            return None
        at = self._store.disk_key(data, row.start)
        old = self.old_value(at)
        new = self._fold.added(key, value, row.aggregate)
        latest = timestamp if row.aggregate is None else max(timestamp, row.latest)
        return Change(Windowed(key, row.start, end), at, new, latest, old)

    def put(self, batch: RecordBatch, index: int, change: Change, results: list[Change]) -> None:
        """Store a change; the second one of the same window, of the same record, changes what the first one stored."""
        if change.old_value is _STORED:
            change = change._replace(old_value=self.old_value(change.data))
        super().put(batch, index, change, results)

    def closed(self, after: int, until: int) -> Iterable[Change]:
        """Return the last result of each window that closes at a stream time after < time <= until."""
        # Closed at end + grace + 1, so the starts in question lie this much earlier.
        earlier = self._difference + self._grace + 1
        time_of, difference = self._segments.layout.time_of, self._difference
        return self.rows_between(
            max(0, after - earlier + 1),
            until - earlier,
            lambda data: (start := time_of(data), start + difference),
        )
