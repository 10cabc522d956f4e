"""Suppression buffer: rows of `suppress` in the order of emission.

Rows are stored in the task's database and its changelog. An index in memory contains only the
oldest rows; a scan refills it.
"""

from collections.abc import Iterator
from heapq import heappop, heappush, nsmallest
from typing import Final, NamedTuple

from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer
from tidewheel.state_stores.layout.headers import encode_headers
from tidewheel.streams.serdes.buffered import Buffered

#: Rows in the index after a refill; it grows to at most twice as many.
INDEXED_ROWS = 250_000

#: A row's place in the order of emission: (time, serialised key).
Place = tuple[int, bytes]


#: Bytes before a value without headers: length of the headers (0) and a timestamp.
_BARE_PREFIX_BYTES: Final = 1 + 8


class PoppedRow(NamedTuple):
    key_bytes: bytes
    row: Buffered


class SuppressBuffer:
    """Buffered rows, with their count and size.

    Create it after the restore: it counts the stored rows. With `counts_headers`, sizes include
    each value's timestamp and headers (Kafka Streams: `dsl.store.format=HEADERS`).
    """

    def __init__(
        self,
        rows: CommitBuffer,
        *,
        indexed_rows: int = INDEXED_ROWS,
        counts_headers: bool = False,
    ) -> None:
        self._rows = rows
        self._indexed_rows = indexed_rows
        self._counts_headers = counts_headers
        #: Size of a replaced value's timestamp and headers, by key; estimated after a restart.
        self._old_prefixes: dict[bytes, int] = {}
        #: Heap of all places before `_horizon`; of all places if it is None.
        self._index: list[Place] = []
        self._horizon: Place | None = None
        self.records = 0
        #: Bytes of all rows and their keys, see `Buffered.size_bytes`.
        self.size_bytes = 0
        self._fill(self._counted())

    def _places(self) -> Iterator[Place]:
        return ((row.time, key) for key, row, _ in self._rows.iterate(None, None))

    def _counted(self) -> Iterator[Place]:
        for key, row, _ in self._rows.iterate(None, None):
            self.records += 1
            self.size_bytes += self._size(key, row)
            yield row.time, key

    def _fill(self, places: Iterator[Place]) -> None:
        first = nsmallest(self._indexed_rows + 1, places)
        self._horizon = first.pop() if len(first) > self._indexed_rows else None
        self._index = first

    def _size(self, key_bytes: bytes, row: Buffered) -> int:
        size = len(key_bytes) + row.size_bytes
        if not self._counts_headers:
            return size
        if row.new is not None:
            size += _prefix_bytes(row)
        if row.prior is not None:
            size += _BARE_PREFIX_BYTES
        if row.old is not None:
            # Equal old and prior values are one object, counted once, until a second change of the
            # row. Then the old value has the first change's timestamp and headers.
            prefix = self._old_prefixes.get(key_bytes)
            if prefix is None:
                size += 0 if row.old == row.prior else _BARE_PREFIX_BYTES
            else:
                size += prefix + (len(row.old) if row.old == row.prior else 0)
        return size

    def get(self, key_bytes: bytes) -> Buffered | None:
        row: Buffered | None = self._rows.get(key_bytes)
        return row

    def put(self, key_bytes: bytes, row: Buffered) -> None:
        """Buffer a row; if its key is buffered already, `row.time` must be the same."""
        replaced = self.get(key_bytes)
        if replaced is not None:
            self.size_bytes -= self._size(key_bytes, replaced)
            if self._counts_headers:
                has_value = replaced.new is not None
                self._old_prefixes[key_bytes] = (
                    _prefix_bytes(replaced) if has_value else _BARE_PREFIX_BYTES
                )
        self._rows.put(key_bytes, row, row.context.timestamp)
        self.size_bytes += self._size(key_bytes, row)
        if replaced is not None:
            return
        self.records += 1
        place = (row.time, key_bytes)
        if self._horizon is None or place < self._horizon:
            heappush(self._index, place)
            if len(self._index) > 2 * self._indexed_rows:
                self._fill(iter(self._index))

    @property
    def first_time(self) -> int | None:
        if not self._index and self._horizon is not None:
            self._fill(self._places())
        return self._index[0][0] if self._index else None

    def pop_first(self) -> PoppedRow:
        assert self.first_time is not None, "the buffer is empty"
        _, key_bytes = heappop(self._index)
        row = self.get(key_bytes)
        assert row is not None, "the index has only rows that are there"
        self._rows.put(key_bytes, None, row.context.timestamp)
        self.records -= 1
        self.size_bytes -= self._size(key_bytes, row)
        self._old_prefixes.pop(key_bytes, None)
        return PoppedRow(key_bytes, row)


def _prefix_bytes(row: Buffered) -> int:
    return len(encode_headers(row.context.headers)) + 8
