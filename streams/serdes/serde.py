"""`Serde`: conversion between values and bytes, for single values and batches.

The engine calls batch forms, and single forms to find a failed record. Serdes never receive None (a
null key, a tombstone). Failures raise `SerializationError` with serde and topic, without data. As
in Kafka's serialisers, numbers are big-endian and text is UTF-8. There is no pickle serde:
unpickling runs code.
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, Final, Generic, Literal, TypeVar

from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.user_code import raised
from tidewheel.streams.errors import SerializationError, TopologyError
from tidewheel.streams.user_functions import accepts, function_name

T = TypeVar("T")

_TIME_BYTES: Final = 8
_YEAR_2000_MS: Final = 946_684_800_000
_YEAR_2100_MS: Final = 4_102_444_800_000

Serializer = Callable[[str, T], bytes | None]
Deserializer = Callable[[str, bytes], T]


class Serde(Generic[T]):
    """Conversion by `serialize(topic, value)` and `deserialize(topic, data)`, with batch forms.

    Pass the two functions, or subclass and override the methods. Batch forms call them per value;
    override those too if lists can be converted faster.

    Attributes:
        canonical: True if `serialize(topic, deserialize(topic, data)) == data` for all readable
            data. The engine then reuses the raw bytes of keys. A wrong True makes equal keys with
            different bytes distinct.

    >>> celsius = Serde(
    ...     lambda topic, degrees: f"{degrees:.1f}".encode(), lambda topic, data: float(data), name="celsius"
    ... )
    >>> celsius.deserialize("readings", celsius.serialize("readings", 21.5) or b"")
    21.5
    >>> celsius.serialize_batch("readings", [21.5, 22.0]), celsius.deserialize_batch("readings", [b"21.5"])
    ([b'21.5', b'22.0'], [21.5])
    """

    name: str = "custom"
    canonical: bool = False
    _serializer: "Serializer[T] | None" = None
    _deserializer: "Deserializer[T] | None" = None

    def __init__(
        self,
        serialize: Serializer[T] | None = None,
        deserialize: Deserializer[T] | None = None,
        *,
        name: str | None = None,
        canonical: bool | None = None,
    ) -> None:
        if serialize is not None:
            self._serializer = _two_parameters(serialize, "serialize(topic, value)")
        if deserialize is not None:
            self._deserializer = _two_parameters(deserialize, "deserialize(topic, data)")
        if name is not None:
            self.name = name
        elif type(self) is not Serde and type(self).name == Serde.name:
            self.name = type(self).__name__
        if canonical is not None:
            self.canonical = canonical

    def for_keys(self) -> "Serde[T]":
        """Return the serde for keys: this one, unless key and value serdes differ.

        They differ with a schema registry, which has separate subjects. It corresponds to Kafka's
        `Serde.configure(configs, isKey)`, and must always return the same object.
        """
        return self

    def sorted_key(self, topic: str, data: bytes, /) -> bytes | None:
        """Return a stored key as written today: old rows may have unsorted dicts (ADR 14)."""
        return self.serialize(topic, self.deserialize(topic, data))

    def from_plain(self, value: Any, /) -> Any:
        """Convert dicts, lists and plain values to a value that `serialize` accepts.

        `tidewheel bootstrap` calls it for loaded rows. Raises `SerializationError` for unsuitable
        data.
        """
        return value

    def surely_serializes(self, value: Any, /) -> bool:  # noqa: ARG002 - subclasses look at it
        """Return True only if `serialize` can't fail for this value; False is always safe.

        Such a value may stay unserialised until the commit, which saves work for overwritten
        values. Override it only for a cheap check of the type.
        """
        return False

    def serialize(self, topic: str, value: T, /) -> bytes | None:
        """Return the bytes of a value; None makes the record's value null (a tombstone).

        Raises:
            SerializationError: Unsuitable value; the message contains no data.
        """
        if self._serializer is None:
            raise NotImplementedError(f"serde {self.name!r} has no serialize function")
        try:
            return self._serializer(topic, value)
        except Exception as error:
            raise self.failed("serialise", topic, raised(error)) from error

    def deserialize(self, topic: str, data: bytes, /) -> T:
        """Return the value of some bytes; raise `SerializationError` for unreadable bytes."""
        if self._deserializer is None:
            raise NotImplementedError(f"serde {self.name!r} has no deserialize function")
        try:
            return self._deserializer(topic, data)
        except Exception as error:
            raise self.unreadable(topic, data, f"{len(data)} bytes, {raised(error)}") from error

    def serialize_batch(self, topic: str, values: Sequence[T], /) -> list[bytes | None]:
        """Return the bytes of many values; raise `SerializationError` if any fails."""
        return self._each("serialise", self.serialize, topic, values)

    def deserialize_batch(self, topic: str, data: Sequence[bytes], /) -> list[T]:
        """Return the values of many bytes; raise `SerializationError` if any fails."""
        return self._each("deserialise", self.deserialize, topic, data)

    def _each(
        self, verb: str, call: Callable[[str, Any], Any], topic: str, items: Sequence[Any]
    ) -> list[Any]:
        results = list(map(call, repeat(topic), items))
        if len(results) != len(items):
            raise self.failed(verb, topic, "StopIteration was raised; give next() a default")
        return results

    def __repr__(self) -> str:
        return f"<serde {self.name}>"

    def failed(self, verb: str, topic: str, reason: str) -> SerializationError:
        """Return the error to raise; `reason` must not contain data."""
        fact = f"{self.name} serde, topic {topic!r}: can't {verb} ({reason})"
        return SerializationError(
            f"{fact}; give the serde that fits the topic (key_serde=, value_serde=)", fact=fact
        )

    def unreadable(self, topic: str, data: bytes, reason: str) -> SerializationError:
        """Return the error of bytes that can't be read; it suggests windowed keys where they fit."""
        error = self.failed("deserialise", topic, reason)
        windows = windows_at_end(data)
        if windows is None:
            return error
        inner = f"Serdes.{self.name}()" if self.name.isidentifier() else self.name
        size = ", size" if windows == "windowed" else ""
        return SerializationError(
            f"{error.fact}; perhaps a windowed key: give key_serde=Serdes.{windows}({inner}{size}), else the serde that "
            "fits the topic (key_serde=, value_serde=)",
            fact=error.fact,
        )

    def missing(self) -> str | None:
        """Return "serialize" or "deserialize" if that is neither given nor overridden."""
        base: Any = Serde
        if self._serializer is None and type(self).serialize is base.serialize:
            return "serialize"
        if self._deserializer is None and type(self).deserialize is base.deserialize:
            return "deserialize"
        return None


def windows_at_end(data: bytes) -> Literal["windowed", "session_windowed"] | None:
    """Return the serde of a windowed key that may have written these bytes; None for other bytes.

    Windows end in times between 2000 and 2100.

    >>> windows_at_end(b"ann" + (1_795_262_400_000).to_bytes(8)), windows_at_end(b"ann")
    ('windowed', None)
    """
    if len(data) <= _TIME_BYTES or not _is_recent(start := data[-_TIME_BYTES:]):
        return None
    end = data[-2 * _TIME_BYTES : -_TIME_BYTES]
    is_session = len(data) > 2 * _TIME_BYTES and _is_recent(end) and start <= end
    return "session_windowed" if is_session else "windowed"


def _is_recent(data: bytes) -> bool:
    return _YEAR_2000_MS <= int.from_bytes(data) < _YEAR_2100_MS


def for_keys(serde: SerdePort) -> SerdePort:
    """Return the key form of a serde, see `Serde.for_keys`.

    >>> for_keys(Serde(name="plain")).name
    'plain'
    """
    key_variant: Callable[[], SerdePort] | None = getattr(serde, "for_keys", None)
    return serde if key_variant is None else key_variant()


def _two_parameters(function: Callable[..., Any], signature: str) -> Callable[..., Any]:
    if not callable(function):
        raise TopologyError(
            f"a serde's {signature} is of type {type(function).__name__}, not a function"
        )
    if not accepts(function, 2):
        raise TopologyError(
            f"a serde's function is called as {signature}, but {function_name(function)} can't take two arguments; "
            "wrap it, as in `lambda topic, value: ...`"
        )
    return function
