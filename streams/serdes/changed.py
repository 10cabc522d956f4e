"""A change of a table's row as one value, and its serde, byte for byte Kafka Streams' ChangedSerializer (KIP-904).

It is what a repartition topic below `KTable.group_by` carries: what to take out of a group's aggregate, what to add,
or both at once where the group stayed the same.
"""

from typing import Any, Final, NamedTuple

from tidewheel.state_stores.ports import SerdePort
from tidewheel.streams.serdes.serde import Serde


class Change(NamedTuple):
    """A row's value before and after; None where there was or is none, but not both."""

    new: Any
    old: Any


#: The last byte tells what stands before it. From `_WITH_LATEST` on, a byte that says whether the change is the row's
#: latest stands in front of it; Kafka Streams reads that form and may write it one day.
_OLD, _NEW, _BOTH = range(3)
_WITH_LATEST: Final = 3
_FORMS: Final = 6

#: A length is a variable-length integer of at most 5 bytes, in zigzag form (Kafka's ByteUtils.writeVarint).
_LENGTH_BYTES: Final = 5


class ChangedSerde(Serde[Change]):
    r"""Serde of changes around the serde of the rows' values.

    - only the old value: its bytes, 0
    - only the new value: its bytes, 1
    - both: the length of the new value's bytes, these, those of the old value, 2

    Attributes:
        inner: The serde of the rows' values.

    >>> from tidewheel.streams.serdes import Serdes
    >>> ChangedSerde(Serdes.string()).serialize("topic", Change(new="abc", old="d"))
    b'\x06abcd\x02'
    """

    def __init__(self, inner: SerdePort) -> None:
        super().__init__(name=f"changed({getattr(inner, 'name', inner)})")
        self.inner = inner

    def serialize(self, topic: str, value: Change, /) -> bytes:
        """Return the bytes of a change."""
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
        """Return the change of some bytes."""
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
        """Return where the new value starts, and its length."""
        number = 0
        for index, byte in enumerate(data[:_LENGTH_BYTES]):
            number |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follows
                length = (number >> 1) ^ -(number & 1)
                if length >= 0:
                    return index + 1, length
                break
        raise self.failed("deserialise", topic, "the length of the new value is none")


def _length(length: int) -> bytes:
    number = length << 1  # zigzag, and never negative
    digits = bytearray()
    while number >= 0x80:  # noqa: PLR2004 - what fits into seven bits
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)
