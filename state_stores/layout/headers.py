"""Record headers in Kafka Streams' byte format (KIP-1271).

Format: `size(varint)`, then, unless it is 0, `count(varint)` and per header `size(varint) name
size(varint) value`. A null value has size -1. Numbers are zigzag varints.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from tidewheel.state_stores.errors import StoreCorruptedError
from tidewheel.state_stores.ports import SerdePort

_SEVEN_BITS: Final = 0x7F
#: Continuation bit: set in all bytes of a varint but the last.
CONTINUATION_BIT: Final = 0x80


#: Kafka headers: ordered, names may repeat, values are bytes or null.
Headers = tuple[tuple[str, bytes | None], ...]

NO_HEADERS: Final = b"\x00"

_SHIFT_MAX: Final = 63

#: Longest varint accepted: Kafka's have at most 32 bits.
_VARINT_BYTES: Final = 5


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a varint and the position after it; raise `IndexError` if it has no end.

    >>> read_varint(bytes((0xAC, 0x02, 7)), 0)
    (300, 2)
    """
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & _SEVEN_BITS) << shift
        if byte < CONTINUATION_BIT:
            return value, position
        shift += 7
        if shift > _SHIFT_MAX:
            raise IndexError(shift)


def varint(number: int) -> bytes:
    """Return the varint of a non-negative number.

    >>> varint(300).hex()
    'ac02'
    """
    out = bytearray()
    while number > _SEVEN_BITS:
        out.append(number & _SEVEN_BITS | CONTINUATION_BIT)
        number >>= 7
    out.append(number)
    return bytes(out)


@dataclass(frozen=True, slots=True)
class WithHeaders:
    value: Any
    headers: Headers


def encode_headers(headers: Headers) -> bytes:
    """Return the headers as bytes, to be put before a value.

    >>> encode_headers((("a", b"1"), ("b", None))).hex()
    '100402610231026201'
    """
    if not headers:
        return NO_HEADERS
    parts = [_zigzag(len(headers))]
    for name, data in headers:
        raw = name.encode()
        parts += (_zigzag(len(raw)), raw)
        parts += (_zigzag(-1),) if data is None else (_zigzag(len(data)), data)
    body = b"".join(parts)
    return _zigzag(len(body)) + body


def split_headers(data: bytes) -> tuple[Headers, bytes]:
    """Return the headers before a value, and its bytes; damage raises `StoreCorruptedError`.

    >>> split_headers(encode_headers((("a", b"1"), ("b", None))) + b"value")
    ((('a', b'1'), ('b', None)), b'value')
    """
    if data[:1] == NO_HEADERS:
        return (), data[1:]
    size, at = _read_zigzag(data, 0)
    end = at + size
    count, at = _read_zigzag(data, at)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _piece(data, at)
        value, at = _piece(data, at)
        if name is None:
            raise _damaged(data)
        headers.append((name.decode(errors="replace"), value))
    if at != end:
        raise _damaged(data)
    return tuple(headers), data[end:]


def headers_size(data: bytes) -> int:
    """Return the number of header bytes before a value.

    >>> headers_size(encode_headers((("a", b"1"),)) + b"value")
    6
    """
    size, at = _read_zigzag(data, 0)
    if size < 0 or at + size > len(data):
        raise _damaged(data)
    return at + size


def as_headers(headers: object) -> Headers:
    """Return headers as a tuple; invalid ones raise `TypeError`, with no value in its text.

    >>> as_headers([("trace", b"1")])
    (('trace', b'1'),)
    >>> as_headers([("attempt", 3)])
    Traceback (most recent call last):
    ...
    TypeError: header 0 ('attempt') has a value of type int: give headers as a tuple of (name, value), the name a str and the \
value bytes or None, as (("trace", b"1"),)
    """
    if not isinstance(headers, tuple | list):
        raise TypeError(f"headers are of type {type(headers).__name__}: {_WANTED}")
    pairs = tuple(cast("Sequence[object]", headers))
    for number, pair in enumerate(pairs):
        match pair:
            case (str() as name, bytes() | None) if isinstance(pair, tuple) and _is_name(name):
                pass
            case _:
                raise TypeError(f"{_fault_of(number, pair)}: {_WANTED}")
    return cast("Headers", pairs)


def checked_headers(headers: object, store: str) -> Headers:
    try:
        return as_headers(headers)
    except TypeError as error:
        raise TypeError(f"store {store}: {error}") from None


_WANTED: Final = 'give headers as a tuple of (name, value), the name a str and the value bytes or None, as (("trace", b"1"),)'


def _is_name(name: str) -> bool:
    """Return True if a client can send the name: valid UTF-8 without null characters."""
    if name.isascii():
        return "\0" not in name
    try:
        return b"\0" not in name.encode()
    except UnicodeEncodeError:  # a lone surrogate makes librdkafka's binding end the process
        return False


def _fault_of(number: int, pair: object) -> str:
    if not isinstance(pair, tuple):
        return f"header {number} is of type {type(pair).__name__}"
    parts = cast("tuple[object, ...]", pair)
    match parts:
        case (str() as name, _) if not _is_name(name):
            return f"header {number} has a name that can't be sent ({name!a})"
        case (str() as name, value):
            return f"header {number} ({name!r}) has a value of type {type(value).__name__}"
        case (name, _):
            return f"header {number} has a name of type {type(name).__name__}"
        case _:
            return f"header {number} is a tuple of {len(parts)}"


def _zigzag(number: int) -> bytes:
    return varint(number << 1 if number >= 0 else ~number << 1 | 1)


def _read_zigzag(data: bytes, at: int) -> tuple[int, int]:
    try:
        number, end = read_varint(data, at)
    except IndexError:
        raise _damaged(data) from None
    if end - at > _VARINT_BYTES:
        raise _damaged(data)
    return (number >> 1) ^ -(number & 1), end


def _piece(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _read_zigzag(data, at)
    if size == -1:
        return None, at
    if size < 0 or at + size > len(data):
        raise _damaged(data)
    return data[at : at + size], at + size


def _damaged(data: bytes) -> StoreCorruptedError:
    return StoreCorruptedError(
        f"a stored value of {len(data)} bytes has headers that can't be read; "
        "delete the task's directory to restore it from the changelog"
    )


class HeadersSerde:
    def __init__(self, inner: SerdePort) -> None:
        self._inner = inner

    @property
    def canonical(self) -> bool:
        return self._inner.canonical

    def surely_serializes(self, value: Any, /) -> bool:  # noqa: ARG002 - the serde's signature
        return False

    def serialize(self, topic: str, value: WithHeaders, /) -> bytes | None:
        data = self._inner.serialize(topic, value.value)
        return None if data is None else encode_headers(value.headers) + data

    def deserialize(self, topic: str, data: bytes, /) -> WithHeaders:
        headers, value = split_headers(data)
        return WithHeaders(self._inner.deserialize(topic, value), headers)

    def serialize_batch(self, topic: str, values: Sequence[WithHeaders], /) -> list[bytes | None]:
        return [self.serialize(topic, value) for value in values]

    def deserialize_batch(self, topic: str, data: Sequence[bytes], /) -> list[WithHeaders]:
        return [self.deserialize(topic, item) for item in data]
