"""Serdes of plain values: bytes, text, numbers, booleans, UUIDs and untyped JSON.

Batch forms are the engine's fast paths; on failure they call the single form for its error message.
"""

import math
import struct
import uuid
from collections.abc import Sequence
from typing import Any, Final, TypeVar, cast

from tidewheel.streams.serdes.schema_port import CodecError
from tidewheel.streams.serdes.serde import Serde
from tidewheel.streams.serdes.strict_json import dumps, dumps_batch, loads, loads_batch

T = TypeVar("T")


class _OfModule(Serde[T]):
    """Serde of which each process has one object: a global of this module, in capitals.

    Unpickling returns that object, because operators choose their fast paths by identity.
    """

    def __reduce__(self) -> str:
        return self.name.upper()


class _Bytes(_OfModule[bytes]):
    name = "bytes"
    canonical = True

    def surely_serializes(self, value: Any, /) -> bool:
        return type(value) is bytes

    def serialize(self, topic: str, value: bytes, /) -> bytes | None:
        if isinstance(value, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] - values are whatever users pass
            return value
        if isinstance(value, bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance] - values are whatever users pass
            data = bytes(value)
            if data == value:  # false for a view of larger items
                return data
        raise self.failed("serialise", topic, f"expected bytes, got {type(value).__name__}")

    def deserialize(self, topic: str, data: bytes, /) -> bytes:  # noqa: ARG002 - the serde's signature
        return data

    def serialize_batch(self, topic: str, values: Sequence[bytes], /) -> list[bytes | None]:
        if {bytes}.issuperset(map(type, values)):
            return list(values)
        return super().serialize_batch(topic, values)

    def deserialize_batch(self, topic: str, data: Sequence[bytes], /) -> list[bytes]:  # noqa: ARG002 - the serde's signature
        return list(data)


class _String(_OfModule[str]):
    name = "string"
    canonical = True

    def surely_serializes(self, value: Any, /) -> bool:
        # Only non-ASCII text can contain lone surrogates; `isascii` reads a flag.
        return type(value) is str and value.isascii()

    def serialize(self, topic: str, value: str, /) -> bytes | None:
        try:
            return str.encode(value)
        except TypeError:
            reason = f"expected str, got {type(value).__name__}"
        except UnicodeEncodeError as error:
            reason = f"character {error.start} is a lone surrogate, which UTF-8 can't hold"
        raise self.failed("serialise", topic, reason)

    def deserialize(self, topic: str, data: bytes, /) -> str:
        try:
            return bytes.decode(data)
        except UnicodeDecodeError as error:
            reason = f"{len(data)} bytes, no UTF-8 at byte {error.start}"
        raise self.unreadable(topic, data, reason)

    # Joining, encoding once and splitting is correct for UTF-8, but never faster and three times
    # slower for long text.
    def serialize_batch(self, topic: str, values: Sequence[str], /) -> list[bytes | None]:
        try:
            return list(map(str.encode, values))
        except (TypeError, UnicodeEncodeError):
            return super().serialize_batch(topic, values)  # raises with the reason

    def deserialize_batch(self, topic: str, data: Sequence[bytes], /) -> list[str]:
        try:
            return list(map(bytes.decode, data))
        except UnicodeDecodeError:
            return super().deserialize_batch(topic, data)


#: Numbers cut from packed bytes per `unpack_from` call: enough to amortise the call, and the format
#: stays small.
_BLOCK_ITEMS: Final = 256


class _Number(_OfModule[T]):
    def __init__(self, name: str, code: str, python_type: type[T], *, canonical: bool) -> None:
        super().__init__(name=name, canonical=canonical)
        self._code = code
        self._item = struct.Struct(f">{code}")
        self._block = struct.Struct(f"{self._item.size}s" * _BLOCK_ITEMS)
        self._python_type = python_type
        # Range that `surely_serializes` accepts: every float but NaN, which no comparison accepts.
        limit = 1 << (8 * self._item.size - 1)
        self._lowest: float = -math.inf if python_type is float else -limit
        self._highest: float = math.inf if python_type is float else limit - 1

    def surely_serializes(self, value: Any, /) -> bool:
        exact = cast("object", type(value))  # bools and other subclasses may differ
        return exact is self._python_type and self._lowest <= value <= self._highest

    def serialize(self, topic: str, value: T, /) -> bytes | None:
        expected, got = self._python_type.__name__, type(value).__name__
        try:
            data = self._item.pack(value)
        except (struct.error, OverflowError):
            reason = f"expected {expected}, got {got}" if got != expected else "number out of range"
        else:
            exact = cast("object", type(value)) is self._python_type
            if exact or _is_same_number(value, self._item.unpack(data)[0]):
                return data
            reason = f"{got} is no {expected} of this size without a loss"
        raise self.failed("serialise", topic, reason)

    def deserialize(self, topic: str, data: bytes, /) -> T:
        try:
            return cast("T", self._item.unpack(data)[0])
        except struct.error:
            reason = f"{len(data)} bytes, expected {self._item.size}"
        raise self.unreadable(topic, data, reason)

    def serialize_batch(self, topic: str, values: Sequence[T], /) -> list[bytes | None]:
        size, count = self._item.size, len(values)
        if not {self._python_type}.issuperset(map(type, values)):
            return super().serialize_batch(
                topic, values
            )  # `pack` accepts 2**53 + 1 as a float and loses a digit
        try:
            packed = struct.pack(f">{count}{self._code}", *values)
        except (struct.error, OverflowError):
            return super().serialize_batch(topic, values)
        in_blocks = count - count % _BLOCK_ITEMS
        out: list[bytes | None] = []
        for start in range(0, in_blocks * size, _BLOCK_ITEMS * size):
            out += self._block.unpack_from(packed, start)
        out += [
            packed[position : position + size]
            for position in range(in_blocks * size, count * size, size)
        ]
        return out

    def deserialize_batch(self, topic: str, data: Sequence[bytes], /) -> list[T]:
        # Each length is checked: seven plus nine bytes would decode as two wrong numbers.
        if {self._item.size}.issuperset(map(len, data)):
            return list(struct.unpack(f">{len(data)}{self._code}", b"".join(data)))
        return super().deserialize_batch(topic, data)


def _is_same_number(value: Any, back: Any) -> bool:
    return bool(value == back) or (bool(value != value) and back != back)  # noqa: PLR0124 - NaN


class _Boolean(_OfModule[bool]):
    name = "boolean"
    canonical = True

    def surely_serializes(self, value: Any, /) -> bool:
        return value is True or value is False

    def serialize(self, topic: str, value: bool, /) -> bytes | None:
        if value is True:
            return b"\x01"
        if value is False:
            return b"\x00"
        raise self.failed("serialise", topic, f"expected bool, got {type(value).__name__}")

    def deserialize(self, topic: str, data: bytes, /) -> bool:
        if data == b"\x01":
            return True
        if data == b"\x00":
            return False
        raise self.unreadable(topic, data, f"{len(data)} bytes, expected one that is 0 or 1")


class _Uuid(_OfModule[uuid.UUID]):
    """A UUID as text of 36 characters, as in Kafka's UUIDSerializer.

    Not canonical: upper-case text is read, too, and written in lower case.
    """

    name = "uuid"
    _LENGTH: Final = 36

    def surely_serializes(self, value: Any, /) -> bool:
        return type(value) is uuid.UUID

    def serialize(self, topic: str, value: uuid.UUID, /) -> bytes | None:
        if isinstance(value, uuid.UUID):  # pyright: ignore[reportUnnecessaryIsInstance] - values are whatever users pass
            return str(value).encode()
        raise self.failed("serialise", topic, f"expected UUID, got {type(value).__name__}")

    def deserialize(self, topic: str, data: bytes, /) -> uuid.UUID:
        try:
            value = uuid.UUID(bytes.decode(data))
        except ValueError:
            pass
        else:
            # `UUID` also accepts braces, prefixes and misplaced hyphens; Kafka's readers do not.
            if str(value).encode() == data.lower():
                return value
        reason = f"{len(data)} bytes, expected the {self._LENGTH} characters of a UUID"
        raise self.unreadable(topic, data, reason)


class _Json(_OfModule[Any]):
    name = "json"

    def __init__(self, *, is_key: bool = False, sort_keys: bool = True) -> None:
        super().__init__()
        self._sort = is_key and sort_keys
        #: True if fields are sorted, so equal keys have equal bytes. Keys that older releases
        #: stored may be unsorted (ADR 14).
        self.sorts_keys = self._sort
        self._key: Serde[Any] | None = None if sort_keys and not is_key else self

    def __reduce__(self) -> str:
        if self._key is not self:
            return "JSON"
        return "_JSON_KEY" if self._sort else "JSON_AS_GIVEN"

    def for_keys(self) -> Serde[Any]:
        if self._key is None:
            self._key = _JSON_KEY
        return self._key

    def serialize(self, topic: str, value: Any, /) -> bytes | None:
        try:
            return dumps(value, sort=self._sort)
        except CodecError as error:
            reason = str(error)
        raise self.failed("serialise", topic, reason)

    def deserialize(self, topic: str, data: bytes, /) -> Any:
        try:
            return loads(data)
        except CodecError as error:
            reason = f"{len(data)} bytes, {error}"
        raise self.unreadable(topic, data, reason)

    # One array of all values decodes 5% faster but less strictly: `1,2`, `[3` and `4]` are invalid
    # values that form an array of three elements.
    def serialize_batch(self, topic: str, values: Sequence[Any], /) -> list[bytes | None]:
        try:
            return cast("list[bytes | None]", dumps_batch(values, sort=self._sort))
        except CodecError:
            return super().serialize_batch(topic, values)

    def deserialize_batch(self, topic: str, data: Sequence[bytes], /) -> list[Any]:
        try:
            return loads_batch(data)
        except Exception:  # noqa: BLE001 - the loop raises with the reason
            return super().deserialize_batch(topic, data)


BYTES: Final[Serde[bytes]] = _Bytes()
STRING: Final[Serde[str]] = _String()
INT32: Final[Serde[int]] = _Number("int32", "i", int, canonical=True)
INT64: Final[Serde[int]] = _Number("int64", "q", int, canonical=True)
# Not canonical: NaN has many bit patterns, and CPUs may change them.
FLOAT64: Final[Serde[float]] = _Number("float64", "d", float, canonical=False)
BOOLEAN: Final[Serde[bool]] = _Boolean()
UUID: Final[Serde[uuid.UUID]] = _Uuid()
JSON: Final[Serde[Any]] = _Json()
_JSON_KEY: Final[Serde[Any]] = _Json(is_key=True)
#: JSON whose keys keep the given field order, the format before ADR 14.
JSON_AS_GIVEN: Final[Serde[Any]] = _Json(sort_keys=False)
