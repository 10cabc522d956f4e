"""Counts, reductions and aggregates of sliding windows.

Rules: Kafka Streams' KStreamSlidingWindowAggregate. A null key or value is dropped. One window ends
at each record; another starts just after it if a later record is in it. Each is created from the
windows around it.
"""

from collections.abc import Iterable
from itertools import starmap
from typing import Any, Final, NamedTuple

import msgspec

from tidewheel.state_stores.stores.windowed import Windowed
from tidewheel.streams.operators.windows.windowed import Fold, WindowChange, WindowedOperator
from tidewheel.streams.windows import EmitStrategy, SlidingWindows
from tidewheel.tasks.processing.engine.operator import Output
from tidewheel.tasks.processing.engine.record_batch import RecordBatch

#: Old value of a window's second change by one record: `put` reads it after the first is stored.
_STORED: Final = object()


class _Row(NamedTuple):
    start: int
    aggregate: Any
    latest: int


class _Neighbours(msgspec.Struct):
    """Stored windows of a record's key around its timestamp t.

    Attributes:
        updates: Windows to add the record to, in the order of results.
        starts: Starts of all windows.
        previous: Time of the latest earlier record that may share a window.
        left: The latest window that ends before t; if t is below the window size, the one from 0.
        left_exists: A window ends at t.
        right: The window with the latest start of those that contain t and end after it.
        right_exists: A window starts just after t.
        complete: An earlier record had this timestamp, so no window needs to be created.
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
        return self.apply_records(self.without_nulls(batch, values=True), self._changes)

    def _changes(self, key: Any, value: Any, data: bytes, timestamp: int) -> list[WindowChange]:
        if self.is_closed(timestamp + self._difference):
            self.count_late_window()
            return []
        early = timestamp < self._difference
        find_neighbours = self._find_neighbours_early if early else self._find_neighbours
        around = find_neighbours(data, timestamp)
        created, copies = list[_Row](), list[WindowChange]()
        if not around.complete:
            created = self._created(timestamp, around)
            copies = self._right_of(key, data, timestamp, around)

        def added(rows: list[_Row]) -> list[WindowChange]:
            changes = (self._added(key, value, data, timestamp, row) for row in rows)
            return [change for change in changes if change is not None]

        updates, creations = added(around.updates), added(created)
        if len({change.data for change in creations}) < len(creations):
            creations[1] = creations[1]._replace(old_value=_STORED)
        return updates + (copies + creations if early else creations + copies)

    def _find_neighbours(self, data: bytes, timestamp: int) -> _Neighbours:
        around, difference = _Neighbours(), self._difference
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

    def _find_neighbours_early(self, data: bytes, timestamp: int) -> _Neighbours:
        """Read the windows around an early record, whose left window is cut off at 0."""
        around, first = _Neighbours(), None
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

    def _created(self, timestamp: int, around: _Neighbours) -> list[_Row]:
        """Return missing windows: from just after the previous record, and up to this record.

        If both are the same window, its result is sent twice, as in Kafka Streams.
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

    def _left_of(self, timestamp: int, around: _Neighbours) -> _Row:
        """Return the window that ends at the record, without the record."""
        start = max(0, timestamp - self._difference)
        left, previous = around.left, around.previous
        if left is None:
            return _Row(start, None, timestamp)
        if left.start == start:
            return left
        shared = previous is not None and previous >= start
        return _Row(start, left.aggregate if shared else None, timestamp)

    def _right_of(
        self, key: Any, data: bytes, timestamp: int, around: _Neighbours
    ) -> list[WindowChange]:
        """Create the window that starts just after the record, if a later record is in it."""
        right = around.right
        if around.right_exists or right is None or right.latest <= timestamp:
            return []
        # Read again to get a separate object: the source window's aggregate changes next.
        aggregate = self.buffer.get(self._store.disk_key(data, right.start))
        start = timestamp + 1
        window = Windowed(key, start, start + self._difference)
        return [
            WindowChange(window, self._store.disk_key(data, start), aggregate, right.latest, None)
        ]

    def _added(
        self, key: Any, value: Any, data: bytes, timestamp: int, row: _Row
    ) -> WindowChange | None:
        end = row.start + self._difference
        if self.is_closed(end):
            self.count_late_window()
            return None
        disk_key = self._store.disk_key(data, row.start)
        old = self.old_value(disk_key)
        new = self._fold.added(key, value, row.aggregate)
        latest = timestamp if row.aggregate is None else max(timestamp, row.latest)
        return WindowChange(Windowed(key, row.start, end), disk_key, new, latest, old)

    def put(
        self, batch: RecordBatch, index: int, change: WindowChange, results: list[WindowChange]
    ) -> None:
        if change.old_value is _STORED:
            change = change._replace(old_value=self.old_value(change.data))
        super().put(batch, index, change, results)

    def closed(self, after: int, until: int) -> Iterable[WindowChange]:
        # Windows close at end + grace + 1.
        earlier = self._difference + self._grace + 1
        time_of, difference = self._segments.layout.time_of, self._difference
        return self.rows_between(
            max(0, after - earlier + 1),
            until - earlier,
            lambda data: (start := time_of(data), start + difference),
        )
