"""Buffer of a stream-table join with grace period: records by time, until they are due.

Rules and bytes: Kafka Streams' RocksDBTimeOrderedKeyValueBuffer. A record is due when stream time
reaches its time plus the grace period; an older record is rejected. A row's key is `0 time(8) key
number(4)` with a running number; its value contains the record's context. A record that arrives and
becomes due within one batch is never written.
"""

import struct
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

from tidewheel.state_stores.layout.stored_values import read_row, unreadable
from tidewheel.state_stores.ports import SerdePort
from tidewheel.streams.serdes.buffered import Buffered, Context, decode_buffered, encode_buffered
from tidewheel.tasks.processing.api.record import Headers, RecordMetadata

_PREFIX: Final = b"\x00"
_TIME: Final = struct.Struct(">q")
_INT: Final = struct.Struct(">i")
_KEY_BEGIN: Final = len(_PREFIX) + _TIME.size
#: Kafka Streams ends each stored value with the time at which the row was buffered; here always 0.
_BUFFER_TIME: Final = 0
_NO_INPUT: Final = ("", -1, -1)
_NUMBERS: Final = 1 << 31


class BufferedRecord(NamedTuple):
    key: Any
    value: Any
    timestamp: int
    headers: Headers


class JoinBuffer:
    """One task's records that wait for the end of their grace period.

    Call order per batch: `begin`, `put` (and `release` if accepted) per record, `end`.
    """

    def __init__(
        self, store: Any, grace_ms: int, key_serde: SerdePort, value_serde: SerdePort
    ) -> None:
        self._rows = store.buffer
        self._grace_ms = grace_ms
        self._key_serde = key_serde
        self._value_serde = value_serde
        self._observed_ms = -1
        self._number = 0
        #: No row in the store is older than this time; saves a scan.
        self._earliest_ms = -1
        #: Heap of rows that may become due in this batch; without a record if it is in the store.
        self._queue: list[tuple[bytes, BufferedRecord | None]] = []
        #: Rows of this batch that are not stored yet.
        self._fresh: dict[bytes, bytes] = {}
        self._removed: list[bytes] = []

    def times(self) -> tuple[int, ...]:
        return self._observed_ms, self._number

    def restore_times(self, times: tuple[int, ...]) -> None:
        self._observed_ms, self._number = times

    def begin(self, latest_ms: int) -> None:
        """Read the stored rows that become due at stream time `latest_ms`, the batch's largest."""
        if self._observed_ms < 0:
            self._recover()
        latest_ms = max(latest_ms, self._observed_ms)
        last_due_ms = latest_ms - self._grace_ms
        self._queue, self._fresh, self._removed = [], {}, []
        if last_due_ms >= self._earliest_ms:
            rows = self._rows.iterate(None, _lower(last_due_ms + 1))
            self._queue = [(self._checked(key), None) for key, _, _ in rows]
            self._earliest_ms = last_due_ms + 1

    def _recover(self) -> None:
        """Compute stream time and the last row's number from the rows if no commit stored them."""
        for key in map(self._checked, (row[0] for row in self._rows.iterate(None, None))):
            self._observed_ms = max(self._observed_ms, _time_of(key))
            self._number = max(self._number, _INT.unpack(key[-_INT.size :])[0])

    def _checked(self, key: bytes) -> bytes:
        if len(key) < _KEY_BEGIN + _INT.size:
            raise unreadable(self._rows.spec.name, ValueError(), key)
        return key

    def put(self, record: BufferedRecord, metadata: RecordMetadata | None) -> bool:
        """Buffer a record; return False if stream time has passed its grace period."""
        if self._observed_ms - self._grace_ms > record.timestamp:
            return False
        topic = self._rows.topic
        key_bytes = self._key_serde.serialize(topic, record.key)
        value = self._value_serde.serialize(topic, record.value)
        if key_bytes is None or value is None:
            raise ValueError("a serde made None of the key or the value of a record that has both")
        number = (self._number + 1) % _NUMBERS
        row = b"".join((_PREFIX, _TIME.pack(record.timestamp), key_bytes, _INT.pack(number)))
        self._number = number
        context = Context(record.timestamp, *(metadata or _NO_INPUT), record.headers)
        # Prior and old value exist in buffers of tables only.
        self._fresh[row] = encode_buffered(Buffered(_BUFFER_TIME, context, None, None, value))
        self._observed_ms = max(self._observed_ms, record.timestamp)
        heappush(self._queue, (row, record))
        return True

    def release(self) -> list[BufferedRecord]:
        due: list[BufferedRecord] = []
        last_due = self._observed_ms - self._grace_ms
        while self._queue and _time_of(self._queue[0][0]) <= last_due:
            row, record = heappop(self._queue)
            if self._fresh.pop(row, None) is None:
                self._removed.append(row)
            due.append(self._stored(row) if record is None else record)
        return due

    def end(self, timestamp: int) -> None:
        for row in self._removed:
            self._rows.put(row, None, timestamp)
        for row, value in self._fresh.items():
            self._rows.put(row, value, _time_of(row))
        if self._queue:
            self._earliest_ms = min(self._earliest_ms, _time_of(self._queue[0][0]))
        self._queue, self._fresh, self._removed = [], {}, []

    def _stored(self, row: bytes) -> BufferedRecord:
        topic = self._rows.topic
        store, data = self._rows.spec.name, row[_KEY_BEGIN : -_INT.size]
        buffered = read_row(store, _decoded, topic, self._rows.get(row), data)
        key = read_row(store, self._key_serde.deserialize, topic, data, data)
        value = read_row(store, self._value_serde.deserialize, topic, buffered.new or b"", data)
        return BufferedRecord(key, value, buffered.context.timestamp, buffered.context.headers)


def _decoded(_topic: str, data: bytes) -> Buffered:
    return decode_buffered(data)


def _lower(time_ms: int) -> bytes:
    return _PREFIX + _TIME.pack(max(time_ms, 0))


def _time_of(row: bytes) -> int:
    timestamp: int = _TIME.unpack_from(row, len(_PREFIX))[0]
    return timestamp
