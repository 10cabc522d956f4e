"""Records of a left or outer stream-stream join that found no partner so far: their store, and the time of both sides.

Bytes are Kafka Streams': a row's key is TimestampedKeyAndJoinSide, `time(8) side(1) key`, so that rows stand in the order
of time, at one time those of the right side first; its value is a list of LeftOrRightValue, each `side(1) value`. Rules
are those of KStreamKStreamJoin, down to when it looks for what is due: `TimeTracker.earliest_ms` is where its last look
stopped, which may be behind rows that are due earlier than it thinks. They come out with the next look, as there.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer
from tidewheel.state_stores.layout.stored_values import read_row
from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.stores.key_value_store import KeyValueStore

_KEY: Final = struct.Struct(">q?")
_SIDE: Final = struct.Struct("?")
_SIZE: Final = struct.Struct(">i")
#: How Kafka's list serde says that its entries have different lengths.
_VARIABLE_SIZE: Final = b"\x01"

#: No row at all: nothing can become due.
EMPTY: Final = 1 << 63


class TimeTracker(msgspec.Struct):
    """What both sides of one task's join have seen.

    Attributes:
        stream_time_ms: The largest timestamp of both sides, -1 before the first.
        earliest_ms: No row is older as far as known, `EMPTY` if there is none; -1 after a start, until somebody looks.
        next_look_ms: Not before this wall-clock time what is due is looked for again.
    """

    stream_time_ms: int = -1
    earliest_ms: int = -1
    next_look_ms: int = 0


class SharedTime:
    """Gives both sides of a join the same tracker in each task: that of the store they share."""

    def __init__(self) -> None:
        self._trackers: WeakKeyDictionary[KeyValueStore[Any, Any], TimeTracker] = (
            WeakKeyDictionary()
        )

    def of(self, store: KeyValueStore[Any, Any]) -> TimeTracker:
        """Return the tracker of a task, by its store."""
        return self._trackers.setdefault(store, TimeTracker())


class NonJoinedSettings(NamedTuple):
    """What both sides know of the store: its name, and how long rows of each side wait (ms).

    `is_outer` says that there are rows of both sides; in a left join all are the left one's.
    """

    store_name: str
    time: SharedTime
    left_wait_ms: int
    right_wait_ms: int
    is_outer: bool


class NonJoined(NamedTuple):
    """A record without a partner that is due now; one of the two values is None."""

    key_bytes: bytes
    key: Any
    timestamp: int
    left: Any
    right: Any


class NonJoinedStore:
    """The shared store, as one side of a task's join uses it."""

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
        #: Of keys, values of the left side, values of the right side.
        self._serdes = serdes
        self._is_left = is_left
        self.tracker = settings.time.of(store)

    def times(self) -> tuple[int, ...]:
        """Return the time of both sides and that of the earliest row, as far as known."""
        earliest = self.tracker.earliest_ms
        return self.tracker.stream_time_ms, -1 if earliest == EMPTY else earliest

    def restore_times(self, times: tuple[int, ...]) -> None:
        """Go on with what `times` gave."""
        self.tracker.stream_time_ms, self.tracker.earliest_ms = times

    def begin(self) -> None:
        """Find out how old the rows are, after a start."""
        if self.tracker.earliest_ms < 0:
            row = next(self._buffer.iterate(None, None), None)
            self.tracker.earliest_ms = EMPTY if row is None else _time_of(row[0])

    def prefetch(self, others: Iterable[tuple[bytes, int]]) -> None:
        """Look up the rows of records of the other side (key bytes, timestamp), all at once."""
        self._buffer.fetch([self._row(*other, left=not self._is_left) for other in others])

    def found_partner(self, key_bytes: bytes, timestamp: int, now_ms: int) -> None:
        """Forget the records of the other side with this key and timestamp; `now_ms` is the time of their partner."""
        row = self._row(key_bytes, timestamp, left=not self._is_left)
        if self._buffer.exists(row):
            self._buffer.put(row, None, now_ms)

    def keep(self, key_bytes: bytes, value: Any, timestamp: int) -> None:
        """Keep a record of this side until it finds a partner or is due. Raises what the serde raises."""
        data = self._value_serde(is_left=self._is_left).serialize(self._buffer.topic, value)
        if data is None:
            raise ValueError(
                f"the value serde of store {self._settings.store_name} made None of a value"
            )
        row = self._row(key_bytes, timestamp, left=self._is_left)
        entries = (*_entries(self._buffer.get(row)), _SIDE.pack(self._is_left) + data)
        self._buffer.put(row, _listed(entries), timestamp)
        self.tracker.earliest_ms = min(self.tracker.earliest_ms, timestamp)

    def may_be_due(self, wait_ms: int) -> bool:
        """Return whether to look for what is due, when records that wait `wait_ms` are what this side goes by."""
        earliest = self.tracker.earliest_ms
        if earliest == EMPTY:
            # A look at nothing counts, too: Kafka Streams' sum overflows here.
            return wait_ms > 0
        return earliest + wait_ms < self.tracker.stream_time_ms

    def due(self, now_ms: int) -> Iterator[NonJoined]:
        """Yield what is due and forget it; `now_ms` is the timestamp of the record that made it so."""
        if self.tracker.earliest_ms == EMPTY:
            return
        settings, stream_time = self._settings, self.tracker.stream_time_ms
        last_left = stream_time - settings.left_wait_ms - 1
        last_right = stream_time - settings.right_wait_ms - 1
        upper = _KEY.pack(max(last_left, last_right, -1) + 1, False)
        self.tracker.earliest_ms = self._end_of_look(last_left, last_right)
        for row, data, _ in list(self._buffer.iterate(None, upper)):
            timestamp, is_left = _KEY.unpack_from(row)
            if timestamp <= (last_left if is_left else last_right):
                # Whatever a joiner says to it, a record comes out once.
                self._buffer.put(row, None, now_ms)
                for entry in _entries(data):
                    yield self._decoded(row, timestamp, entry)

    def _end_of_look(self, last_left: int, last_right: int) -> int:
        """Return the timestamp of the row that Kafka Streams stops at: the one after both sides have one that waits.

        In a left join that is the last row of all.
        """
        if not self._settings.is_outer:
            last = next(self._buffer.iterate(None, None, reverse=True), None)
            return EMPTY if last is None else _time_of(last[0])
        left_waits = right_waits = False
        timestamp = EMPTY
        for row, data, _ in self._buffer.iterate(None, None):
            timestamp, is_left = _KEY.unpack_from(row)
            if left_waits and right_waits:
                break
            if timestamp > (last_left if is_left else last_right):
                left_waits, right_waits = left_waits or is_left, right_waits or not is_left
                if left_waits and right_waits and len(_entries(data)) > 1:
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

    @staticmethod
    def _row(key_bytes: bytes, timestamp: int, *, left: bool) -> bytes:
        return _KEY.pack(timestamp, left) + key_bytes


def _time_of(row: bytes) -> int:
    timestamp: int = _KEY.unpack_from(row)[0]
    return timestamp


def _listed(entries: tuple[bytes, ...]) -> bytes:
    """Return a list as Kafka's ListSerializer writes it."""
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
        entries.append(data[position : position + size])
        position += size
    return entries
