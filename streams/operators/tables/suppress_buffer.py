"""The rows that `suppress` holds back, in the order in which they are to be emitted.

Rows lie in the task's database, by their key, so that they survive a restart and cost no memory; the changelog has them
by the same keys. What tells the oldest row is an index in memory. It holds the oldest rows only, so it is bounded, and
is filled again by a scan when they are gone.
"""

from collections.abc import Iterator
from heapq import heappop, heappush, nsmallest
from typing import Final, NamedTuple

from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer
from tidewheel.state_stores.layout.headers import encode_headers
from tidewheel.streams.serdes.buffered import Buffered

#: How many rows the index is filled with; it never holds more than twice as many.
INDEXED_ROWS = 250_000

#: A row's place in the order of emission: its time, then its serialised key.
Place = tuple[int, bytes]


#: Bytes before a value without headers: their length (0), and a timestamp.
_BARE_PREFIX_BYTES: Final = 1 + 8


class Taken(NamedTuple):
    """A row that was taken out to be emitted."""

    key_bytes: bytes
    row: Buffered


class SuppressBuffer:
    """Rows by key, of which the oldest can be taken out; knows how many there are, and how large.

    Made once the store is restored: it counts what is there. With `counts_headers` each value counts
    with a timestamp and headers, as Kafka Streams keeps it under `dsl.store.format=HEADERS`.
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
        #: Bytes of the timestamp and headers of a row's old value, by key, of rows that replaced
        #: another one. Neither the store nor its changelog has them: restored rows count without headers.
        self._old_prefixes: dict[bytes, int] = {}
        #: A heap of the places of all rows before the horizon; of all rows if there is no horizon.
        self._index: list[Place] = []
        self._horizon: Place | None = None
        #: How many rows are held back.
        self.records = 0
        #: What they count for: see `Buffered.size_bytes`.
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
        self._index = first  # in order, which makes it a heap

    def _size(self, key_bytes: bytes, row: Buffered) -> int:
        """Return how many bytes a row counts for, as Kafka Streams counts (InMemoryTimeOrderedKeyValueChangeBuffer)."""
        size = len(key_bytes) + row.size_bytes
        if not self._counts_headers:
            return size
        if row.new is not None:
            size += _prefix_bytes(row)
        if row.prior is not None:
            size += _BARE_PREFIX_BYTES
        if row.old is not None:
            # Old and prior value are one as long as no change has replaced another.
            prefix = self._old_prefixes.get(key_bytes)
            if prefix is None:
                size += 0 if row.old == row.prior else _BARE_PREFIX_BYTES
            else:
                size += prefix + (len(row.old) if row.old == row.prior else 0)
        return size

    def get(self, key_bytes: bytes) -> Buffered | None:
        """Return the row that is held back for a key."""
        row: Buffered | None = self._rows.get(key_bytes)
        return row

    def put(self, key_bytes: bytes, row: Buffered) -> None:
        """Hold a row back; one that is held back for the key already must have the same time."""
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
        """Return the time of the oldest row, None if there is no row."""
        if not self._index and self._horizon is not None:
            self._fill(self._places())
        return self._index[0][0] if self._index else None

    def take_first(self) -> Taken:
        """Take the oldest row out; there must be one."""
        assert self.first_time is not None, "nothing is held back"
        _, key_bytes = heappop(self._index)
        row = self.get(key_bytes)
        assert row is not None, "the index has only rows that are there"
        self._rows.put(key_bytes, None, row.context.timestamp)
        self.records -= 1
        self.size_bytes -= self._size(key_bytes, row)
        self._old_prefixes.pop(key_bytes, None)
        return Taken(key_bytes, row)


def _prefix_bytes(row: Buffered) -> int:
    """Return how many bytes of headers and timestamp are before a row's new value."""
    return len(encode_headers(row.context.headers)) + 8
