"""The buffer of a stream-table join with grace: records by time, until they are due.

Rules and bytes are those of Kafka Streams' RocksDBTimeOrderedKeyValueBuffer. A record is due when the largest time put
so far is past its own by the grace; one that is older than that by more is not taken. Rows are in the order of time, key
bytes and number (`0 time(8) key number(4)`); their values hold the record's context and value, as Kafka Streams' changelog
has them.

Within one batch nothing is written for a record that comes and goes.
"""

import struct
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

from tidewheel.state_stores.layout.stored_values import read_row
from tidewheel.state_stores.ports import SerdePort
from tidewheel.streams.serdes.buffered import Buffered, Context, decode_buffered, encode_buffered
from tidewheel.tasks.processing.api.record import Headers, RecordMetadata

_PREFIX: Final = b"\x00"
_TIME: Final = struct.Struct(">q")
_INT: Final = struct.Struct(">i")
_KEY_BEGIN: Final = len(_PREFIX) + _TIME.size
#: Kafka Streams' changelog of the buffer ends each value with the time a row was buffered at, which is always 0 here.
_BUFFER_TIME: Final = 0
#: The record's input where it has none.
_NO_INPUT: Final = ("", -1, -1)
_NUMBERS: Final = 1 << 31


class Waiting(NamedTuple):
    """A record that waits for rows of the table."""

    key: Any
    value: Any
    timestamp: int
    headers: Headers


class JoinBuffer:
    """Records of one task in the order of their time.

    A batch is taken between `begin` and `end`: for each record `put`, then `release` if it was taken.
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
        #: No row is older, as far as known.
        self._earliest_ms = -1
        #: Rows that may become due in this batch, the next one first; None instead of a record that is in the store.
        self._queue: list[tuple[bytes, Waiting | None]] = []
        #: Values of the rows of this batch that are not in the store.
        self._fresh: dict[bytes, bytes] = {}
        self._gone: list[bytes] = []

    def times(self) -> tuple[int, ...]:
        """Return the largest time put, -1 before the first, and the last number."""
        return self._observed_ms, self._number

    def restore_times(self, times: tuple[int, ...]) -> None:
        """Go on with what `times` gave."""
        self._observed_ms, self._number = times

    def begin(self, latest_ms: int) -> None:
        """Make known what may become due by a batch whose largest time is `latest_ms`."""
        if self._observed_ms < 0:
            self._recover()
        latest_ms = max(latest_ms, self._observed_ms)
        last_due_ms = latest_ms - self._grace_ms
        self._queue, self._fresh, self._gone = [], {}, []
        if last_due_ms >= self._earliest_ms:
            rows = self._rows.iterate(None, _lower(last_due_ms + 1))
            self._queue = [(key, None) for key, _, _ in rows]
            self._earliest_ms = last_due_ms + 1

    def _recover(self) -> None:
        """Find out the largest time and number from the rows, where no committed times say them."""
        for key, _, _ in self._rows.iterate(None, None):
            self._observed_ms = max(self._observed_ms, _time_of(key))
            self._number = max(self._number, _INT.unpack(key[-_INT.size :])[0])

    def put(self, record: Waiting, metadata: RecordMetadata | None) -> bool:
        """Take a record, unless it is too old to wait. Raises what a serde raises, and then it is not taken."""
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
        # Kafka Streams keeps a prior and an old value beside the new one, for buffers of tables.
        self._fresh[row] = encode_buffered(Buffered(_BUFFER_TIME, context, None, None, value))
        self._observed_ms = max(self._observed_ms, record.timestamp)
        heappush(self._queue, (row, record))
        return True

    def release(self) -> list[Waiting]:
        """Return the records that are due now, and forget them."""
        due: list[Waiting] = []
        last_due = self._observed_ms - self._grace_ms
        while self._queue and _time_of(self._queue[0][0]) <= last_due:
            row, record = heappop(self._queue)
            if self._fresh.pop(row, None) is None:
                self._gone.append(row)
            due.append(self._stored(row) if record is None else record)
        return due

    def end(self, timestamp: int) -> None:
        """Write what came and is still here, delete what was here and went; `timestamp` is the batch's last one."""
        for row in self._gone:
            self._rows.put(row, None, timestamp)
        for row, value in self._fresh.items():
            self._rows.put(row, value, _time_of(row))
        if self._queue:  # all that came and is still here, and what was not due after all
            self._earliest_ms = min(self._earliest_ms, _time_of(self._queue[0][0]))
        self._queue, self._fresh, self._gone = [], {}, []

    def _stored(self, row: bytes) -> Waiting:
        topic = self._rows.topic
        held = decode_buffered(self._rows.get(row))
        store, data = self._rows.spec.name, row[_KEY_BEGIN : -_INT.size]
        key = read_row(store, self._key_serde.deserialize, topic, data, data)
        value = read_row(store, self._value_serde.deserialize, topic, held.new or b"", data)
        return Waiting(key, value, held.context.timestamp, held.context.headers)


def _lower(time_ms: int) -> bytes:
    """Return the smallest row of a time; that of 0 for times before the epoch."""
    return _PREFIX + _TIME.pack(max(time_ms, 0))


def _time_of(row: bytes) -> int:
    timestamp: int = _TIME.unpack_from(row, len(_PREFIX))[0]
    return timestamp
