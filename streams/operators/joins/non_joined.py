"""Store of unmatched records of a left or outer stream-stream join, and its stream time.

Bytes are Kafka Streams': a row's key is TimestampedKeyAndJoinSide, `time(8) side(1) key`. Its value
is a list of LeftOrRightValue, each `side(1) value`. Rules are those of KStreamKStreamJoin,
including the moment of each scan for due rows: a scan may stop before due rows, and the next one
finds them.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer
from tidewheel.state_stores.layout.stored_values import read_row, unreadable
from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.stores.key_value_store import KeyValueStore

_KEY: Final = struct.Struct(">q?")
_SIDE: Final = struct.Struct("?")
_SIZE: Final = struct.Struct(">i")
_VARIABLE_SIZE: Final = b"\x01"

#: `earliest_ms` of an empty store.
EMPTY: Final = 1 << 63


class TimeTracker(msgspec.Struct):
    """Stream time that both sides of a task's join share.

    Attributes:
        stream_time_ms: Largest timestamp, -1 before the first.
        earliest_ms: Row time at which the last scan stopped, lowered by new rows; -1 before one.
        next_scan_ms: Wall-clock time of the next allowed scan for due rows.
    """

    stream_time_ms: int = -1
    earliest_ms: int = -1
    next_scan_ms: int = 0


class SharedTime:
    """Time trackers, one per task: both sides find theirs by the store that they share."""

    def __init__(self) -> None:
        self._trackers: WeakKeyDictionary[KeyValueStore[Any, Any], TimeTracker] = (
            WeakKeyDictionary()
        )

    def __reduce__(self) -> tuple[type["SharedTime"], tuple[()]]:
        """Travel to other processes without trackers: these belong to the tasks of this one."""
        return SharedTime, ()

    def of(self, store: KeyValueStore[Any, Any]) -> TimeTracker:
        return self._trackers.setdefault(store, TimeTracker())


class NonJoinedSettings(NamedTuple):
    """Store name, and how long rows of each side wait (ms).

    `is_outer`: both sides keep unmatched records.
    """

    store_name: str
    time: SharedTime
    left_wait_ms: int
    right_wait_ms: int
    is_outer: bool


class NonJoined(NamedTuple):
    """An unmatched record that is due; one of the two values is None."""

    key_bytes: bytes
    key: Any
    timestamp: int
    left: Any
    right: Any


class NonJoinedStore:
    def __init__(
        self,
        settings: NonJoinedSettings,
        store: KeyValueStore[Any, Any],
        serdes: tuple[SerdePort, SerdePort, SerdePort],
        *,
        is_left: bool,
    ) -> None:
        self._settings = settings
        self._buffer: CommitBuffer = store.buffer
        #: Serdes of keys, left values, right values.
        self._serdes = serdes
        self._is_left = is_left
        self.tracker = settings.time.of(store)

    def times(self) -> tuple[int, ...]:
        earliest = self.tracker.earliest_ms
        return self.tracker.stream_time_ms, -1 if earliest == EMPTY else earliest

    def restore_times(self, times: tuple[int, ...]) -> None:
        self.tracker.stream_time_ms, self.tracker.earliest_ms = times

    def begin(self) -> None:
        if self.tracker.earliest_ms < 0:
            row = next(self._buffer.iterate(None, None), None)
            self.tracker.earliest_ms = EMPTY if row is None else self._place(row[0])[0]

    def prefetch(self, others: Iterable[tuple[bytes, int]]) -> None:
        self._buffer.fetch([self._row(*other, left=not self._is_left) for other in others])

    def delete_matched(self, key_bytes: bytes, timestamp: int, now_ms: int) -> None:
        """Delete the other side's matched records; `now_ms` is the time of this side's record."""
        row = self._row(key_bytes, timestamp, left=not self._is_left)
        if self._buffer.exists(row):
            self._buffer.put(row, None, now_ms)

    def keep(self, key_bytes: bytes, value: Any, timestamp: int) -> None:
        data = self._value_serde(is_left=self._is_left).serialize(self._buffer.topic, value)
        if data is None:
            raise ValueError(
                f"the value serde of store {self._settings.store_name} made None of a value"
            )
        row = self._row(key_bytes, timestamp, left=self._is_left)
        entries = (*self._entries(row, self._buffer.get(row)), _SIDE.pack(self._is_left) + data)
        self._buffer.put(row, _listed(entries), timestamp)
        self.tracker.earliest_ms = min(self.tracker.earliest_ms, timestamp)

    def may_be_due(self, wait_ms: int) -> bool:
        """Return True if a scan may find rows that have waited `wait_ms`."""
        earliest = self.tracker.earliest_ms
        if earliest == EMPTY:
            # Kafka Streams' sum overflows here, so it scans an empty store, too.
            return wait_ms > 0
        return earliest + wait_ms < self.tracker.stream_time_ms

    def due(self, now_ms: int) -> Iterator[NonJoined]:
        """Delete and yield due records; `now_ms` is the time of the triggering record."""
        if self.tracker.earliest_ms == EMPTY:
            return
        settings, stream_time = self._settings, self.tracker.stream_time_ms
        last_left = stream_time - settings.left_wait_ms - 1
        last_right = stream_time - settings.right_wait_ms - 1
        upper = _KEY.pack(max(last_left, last_right, -1) + 1, False)
        self.tracker.earliest_ms = self._end_of_scan(last_left, last_right)
        for row, data, _ in list(self._buffer.iterate(None, upper)):
            timestamp, is_left = self._place(row)
            if timestamp <= (last_left if is_left else last_right):
                # Deleted first: a record is emitted once, even if the joiner fails.
                self._buffer.put(row, None, now_ms)
                for entry in self._entries(row, data):
                    yield self._decoded(row, timestamp, entry)

    def _end_of_scan(self, last_left: int, last_right: int) -> int:
        """Return the row time at which Kafka Streams stops its scan, the new `earliest_ms`.

        Left join: the last row. Outer join: the row after the scan has met a left and a right row
        that are not due.
        """
        if not self._settings.is_outer:
            last = next(self._buffer.iterate(None, None, reverse=True), None)
            return EMPTY if last is None else self._place(last[0])[0]
        left_waits = right_waits = False
        timestamp = EMPTY
        for row, data, _ in self._buffer.iterate(None, None):
            timestamp, is_left = self._place(row)
            if left_waits and right_waits:
                break
            if timestamp > (last_left if is_left else last_right):
                left_waits, right_waits = left_waits or is_left, right_waits or not is_left
                if left_waits and right_waits and len(self._entries(row, data)) > 1:
                    break
        return timestamp

    def _decoded(self, row: bytes, timestamp: int, entry: bytes) -> NonJoined:
        topic = self._buffer.topic
        key_bytes = row[_KEY.size :]
        (is_left,) = _SIDE.unpack_from(entry)
        store, decode = self._buffer.spec.name, self._value_serde(is_left=is_left).deserialize
        value = read_row(store, decode, topic, entry[_SIDE.size :], key_bytes)
        return NonJoined(
            key_bytes,
            read_row(store, self._serdes[0].deserialize, topic, key_bytes, key_bytes),
            timestamp,
            value if is_left else None,
            None if is_left else value,
        )

    def _value_serde(self, *, is_left: bool) -> SerdePort:
        return self._serdes[1] if is_left else self._serdes[2]

    def _place(self, row: bytes) -> tuple[int, bool]:
        try:
            timestamp, is_left = _KEY.unpack_from(row)
        except struct.error as error:
            raise unreadable(self._settings.store_name, error, row) from error
        return timestamp, is_left

    def _entries(self, row: bytes, data: bytes | None) -> list[bytes]:
        try:
            return _entries(data)
        except (struct.error, ValueError) as error:
            raise unreadable(self._settings.store_name, error, row) from error

    @staticmethod
    def _row(key_bytes: bytes, timestamp: int, *, left: bool) -> bytes:
        return _KEY.pack(timestamp, left) + key_bytes


def _listed(entries: tuple[bytes, ...]) -> bytes:
    parts = [_VARIABLE_SIZE, _SIZE.pack(len(entries))]
    for entry in entries:
        parts += [_SIZE.pack(len(entry)), entry]
    return b"".join(parts)


def _entries(data: bytes | None) -> list[bytes]:
    entries: list[bytes] = []
    if data is None:
        return entries
    position = len(_VARIABLE_SIZE) + _SIZE.size
    while position < len(data):
        (size,) = _SIZE.unpack_from(data, position)
        position += _SIZE.size
        if not _SIDE.size <= size <= len(data) - position:
            raise ValueError("no list of values")
        entries.append(data[position : position + size])
        position += size
    return entries
