"""Change of a table row, with a serde byte-identical to Kafka Streams' ChangedSerializer (KIP-904)."""

from typing import Any, Final, NamedTuple

from tidewheel.state_stores.ports import SerdePort
from tidewheel.streams.serdes.serde import Serde


class Change(NamedTuple):
    """A row's value before and after; at most one of them is None."""

    new: Any
    old: Any


#: Formats, stored in the last byte. Formats 3 to 5 are 0 to 2 with one more byte before it: a flag
#: for the newest change of a row. Kafka Streams reads them but does not write them yet.
_OLD, _NEW, _BOTH = range(3)
_WITH_LATEST: Final = 3
_FORMS: Final = 6

#: A length is a zigzag varint of at most 5 bytes (Kafka's ByteUtils.writeVarint).
_LENGTH_BYTES: Final = 5


class ChangedSerde(Serde[Change]):
    r"""Serde of changes around the serde of row values.

    - old value only: its bytes, 0
    - new value only: its bytes, 1
    - both: length of the new value, new value, old value, 2

    >>> from tidewheel.streams.serdes import Serdes
    >>> ChangedSerde(Serdes.string()).serialize("topic", Change(new="abc", old="d"))
    b'\x06abcd\x02'
    """

    def __init__(self, inner: SerdePort) -> None:
        super().__init__(name=f"changed({getattr(inner, 'name', inner)})")
        self.inner = inner

    def serialize(self, topic: str, value: Change, /) -> bytes:
        if value.old is None:
            return self._inner_bytes(topic, value.new) + bytes((_NEW,))
        old = self._inner_bytes(topic, value.old)
        if value.new is None:
            return old + bytes((_OLD,))
        new = self._inner_bytes(topic, value.new)
        return _length(len(new)) + new + old + bytes((_BOTH,))

    def _inner_bytes(self, topic: str, value: Any) -> bytes:
        data = None if value is None else self.inner.serialize(topic, value)
        if data is None:
            raise self.failed("serialise", topic, "there is neither an old nor a new value")
        return data

    def deserialize(self, topic: str, data: bytes, /) -> Change:
        form = data[-1] if data else _FORMS
        if form >= _FORMS:
            raise self.failed("deserialise", topic, f"{len(data)} bytes are no change of a row")
        end = len(data) - 1 - (form >= _WITH_LATEST)
        if end < 0:
            raise self.failed("deserialise", topic, f"{len(data)} bytes are too few")
        inner = self.inner.deserialize
        match form % _WITH_LATEST:
            case 0:
                return Change(None, inner(topic, data[:end]))
            case 1:
                return Change(inner(topic, data[:end]), None)
            case _:
                start, length = self._read_length(topic, data)
                if start + length > end:
                    raise self.failed("deserialise", topic, "the new value ends behind the record")
                middle = start + length
                return Change(inner(topic, data[start:middle]), inner(topic, data[middle:end]))

    def _read_length(self, topic: str, data: bytes) -> tuple[int, int]:
        number = 0
        for index, byte in enumerate(data[:_LENGTH_BYTES]):
            number |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:  # noqa: PLR2004 - continuation bit
                length = (number >> 1) ^ -(number & 1)
                if length >= 0:
                    return index + 1, length
                break
        raise self.failed("deserialise", topic, "the length of the new value is none")


def _length(length: int) -> bytes:
    number = length << 1  # zigzag of a non-negative number
    digits = bytearray()
    while number >= 0x80:  # noqa: PLR2004 - seven bits per byte
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)
