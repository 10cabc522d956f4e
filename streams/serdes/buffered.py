"""Format of buffered rows in stores and changelogs of `suppress` and stream-table joins with grace.

Bytes equal Kafka Streams' BufferValue in changelogs (version 3):

    context          timestamp (8), offset (8), topic, partition (4), number of headers (4), name and value of each
    prior value, old value, new value
    time             place in the order of emission (8)

Names and values have a 4-byte length prefix, -1 for None; the old value's prefix is -2 if it equals
the prior value.
"""

import struct
from typing import Any, Final, NamedTuple

from tidewheel.state_stores.layout.stored_values import read_row
from tidewheel.state_stores.ports import SerdePort
from tidewheel.streams.serdes.serde import Serde

Headers = tuple[tuple[str, bytes | None], ...]

#: Header of `suppress` changelog records: the value version, which Kafka Streams requires.
CHANGELOG_HEADERS: Final = (("v", b"\x03"),)

_LONG: Final = struct.Struct(">q")
_LONGS: Final = struct.Struct(">qq")
_INT: Final = struct.Struct(">i")

_NONE: Final = -1
_AS_PRIOR: Final = -2

#: Size of timestamp, offset and partition in Kafka Streams' accounting, in bytes.
_CONTEXT_BYTES: Final = 8 + 8 + 4


class Context(NamedTuple):
    timestamp: int
    topic: str = ""
    partition: int = -1
    offset: int = -1
    headers: Headers = ()


class Buffered(NamedTuple):
    """One buffered row; the store has its key.

    Attributes:
        time: Sort key of the emission (ms): timestamp of the first change, or end of the window.
        prior: Value last sent downstream.
        old: Value before the last change, or None; only `size_bytes` uses it.
        new: Value to send; None for a deleted row.
    """

    time: int
    context: Context
    prior: bytes | None
    old: bytes | None
    new: bytes | None

    @property
    def size_bytes(self) -> int:
        """Return the row's size without its key (bytes), as Kafka Streams counts it."""
        _, topic, _, _, headers = self.context
        old = 0 if self.old == self.prior else len(self.old or b"")
        values = len(self.prior or b"") + old + len(self.new or b"")
        header_bytes = sum(len(name) + len(data or b"") for name, data in headers)
        return 8 + _CONTEXT_BYTES + len(topic) + header_bytes + values


def encode_buffered(row: Buffered) -> bytes:
    timestamp, topic, partition, offset, headers = row.context
    parts = [
        _LONGS.pack(timestamp, offset),
        _sized(topic.encode()),
        _INT.pack(partition),
        _INT.pack(len(headers)),
    ]
    for name, data in headers:
        parts += [_sized(name.encode()), _sized(data)]
    same = row.old is not None and row.old == row.prior
    old = _INT.pack(_AS_PRIOR) if same else _sized(row.old)
    return b"".join((*parts, _sized(row.prior), old, _sized(row.new), _LONG.pack(row.time)))


def decode_buffered(data: bytes) -> Buffered:
    reader = _BytesReader(data)
    try:
        context = reader.context()
        prior = reader.sized()
        old = reader.sized(prior)
        new = reader.sized()
        time = reader.long()
    except struct.error as error:
        raise ValueError(f"{len(data)} bytes of no known format") from error
    if not reader.at_end:
        raise ValueError(f"{len(data)} bytes of no known format")
    return Buffered(time, context, prior, old, new)


class BufferedSerde(Serde[Buffered]):
    """Serde of buffered rows.

    Attributes:
        counts_headers: True if sizes include each value's timestamp and headers, as in Kafka
            Streams with `dsl.store.format=HEADERS`.
    """

    def __init__(self, inner: SerdePort, *, counts_headers: bool = False) -> None:
        super().__init__(name=f"buffered({getattr(inner, 'name', inner)})")
        self.inner = inner
        self.counts_headers = counts_headers

    def serialize(self, topic: str, value: Buffered, /) -> bytes:  # noqa: ARG002 - the serde's signature
        return encode_buffered(value)

    def deserialize(self, topic: str, data: bytes, /) -> Buffered:
        try:
            return decode_buffered(data)
        except ValueError as error:
            raise self.failed("deserialise", topic, str(error)) from error

    def value(self, topic: str, data: bytes | None) -> Any:
        return None if data is None else self.inner.deserialize(topic, data)

    def stored(self, store: str, topic: str, data: bytes | None, key: bytes) -> Any:
        return None if data is None else read_row(store, self.inner.deserialize, topic, data, key)

    def value_bytes(self, topic: str, value: Any) -> bytes | None:
        return None if value is None else self.inner.serialize(topic, value)


class _BytesReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def at_end(self) -> bool:
        return self._position == len(self._data)

    def _read(self, kind: struct.Struct) -> Any:
        (number,) = kind.unpack_from(self._data, self._position)
        self._position += kind.size
        return number

    def long(self) -> int:
        number: int = self._read(_LONG)
        return number

    def sized(self, prior: bytes | None = None) -> bytes | None:
        length: int = self._read(_INT)
        if length == _AS_PRIOR:
            return prior
        if length == _NONE:
            return None
        begin = self._position
        self._position += length
        if length < 0 or self._position > len(self._data):
            raise struct.error(length)
        return self._data[begin : self._position]

    def text(self) -> str:
        return (self.sized() or b"").decode()

    def context(self) -> Context:
        timestamp, offset = self.long(), self.long()
        topic = self.text()
        partition: int = self._read(_INT)
        count: int = self._read(_INT)
        headers = tuple((self.text(), self.sized()) for _ in range(count))
        return Context(timestamp, topic, partition, offset, headers)


def _sized(data: bytes | None) -> bytes:
    return _INT.pack(_NONE) if data is None else _INT.pack(len(data)) + data
