"""What a serde is: two functions between values and bytes, and batch forms of both.

Every serde has single and batch forms of both directions; the engine calls the batch forms, and the single ones to
find the record that failed. None (a null key, a tombstone) is never passed to a serde. Failures raise
`SerializationError`, which names the serde and the topic but holds nothing of the data. Numbers are big-endian and
text is UTF-8, as Kafka's own serialisers write them. There is no pickle serde: data is not code.
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, Generic, TypeVar

from tidewheel.state_stores.ports import SerdePort
from tidewheel.streams.errors import SerializationError, TopologyError
from tidewheel.streams.user_functions import accepts, function_name

T = TypeVar("T")

Serializer = Callable[[str, T], bytes | None]
Deserializer = Callable[[str, bytes], T]


class Serde(Generic[T]):
    """Two functions, `serialize(topic, value)` and `deserialize(topic, data)`, and batch forms of both.

    Give the two functions, or subclass and override the two methods. The batch forms call them one by one; override
    those too where a whole list goes faster.

    Attributes:
        name: What messages call it.
        canonical: Whether `serialize(topic, deserialize(topic, data)) == data` for all data it can read. Then the
            raw bytes of a key are kept and need not be made again. Say so only if it is true: keys that are equal
            but have different bytes would otherwise be different keys.

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
        """Return the serde to use where this one was given for keys: itself, unless the two differ.

        They do with a schema registry, which keeps the schemas of a topic's keys and of its values apart. Kafka's
        `Serde.configure(configs, isKey)`. Must return the same object each time.
        """
        return self

    def sorted_key(self, topic: str, data: bytes, /) -> bytes | None:
        """Return the bytes that a stored key has now; they differ for dicts of another order (ADR 14)."""
        return self.serialize(topic, self.deserialize(topic, data))

    def from_plain(self, value: Any, /) -> Any:
        """Return a value as `serialize` takes it, from one made of dicts, lists and plain values.

        What is loaded from a table comes like that, whatever class the serde is for. Raises `SerializationError` for
        what does not fit.
        """
        return value

    def surely_serializes(self, value: Any, /) -> bool:  # noqa: ARG002 - subclasses look at it
        """Return True only if `serialize` can't fail for this value; False is always a correct answer.

        Such a value may wait unserialised until the commit, which saves the work for values that are replaced
        before. Override it only where a glance at the value's type is enough to tell.
        """
        return False

    def serialize(self, topic: str, value: T, /) -> bytes | None:
        """Return the bytes of a value; None makes the record's value null (a tombstone).

        Raises:
            SerializationError: It does not fit; the error says nothing of the value.
        """
        if self._serializer is None:
            raise NotImplementedError(f"serde {self.name!r} has no serialize function")
        try:
            return self._serializer(topic, value)
        except Exception as error:
            raise self.failed("serialise", topic, _kind_of(error)) from error

    def deserialize(self, topic: str, data: bytes, /) -> T:
        """Return the value of some bytes; raises `SerializationError` for bytes that it can't read."""
        if self._deserializer is None:
            raise NotImplementedError(f"serde {self.name!r} has no deserialize function")
        try:
            return self._deserializer(topic, data)
        except Exception as error:
            raise self.failed(
                "deserialise", topic, f"{len(data)} bytes, {_kind_of(error)}"
            ) from error

    def serialize_batch(self, topic: str, values: Sequence[T], /) -> list[bytes | None]:
        """Return the bytes of many values; raises if any fails."""
        return list(map(self.serialize, repeat(topic), values))

    def deserialize_batch(self, topic: str, data: Sequence[bytes], /) -> list[T]:
        """Return many values; raises if any fails."""
        return list(map(self.deserialize, repeat(topic), data))

    def __repr__(self) -> str:
        return f"<serde {self.name}>"

    def failed(self, verb: str, topic: str, reason: str) -> SerializationError:
        """Return the error to raise; `reason` must hold nothing of the data."""
        fact = f"{self.name} serde, topic {topic!r}: can't {verb} ({reason})"
        return SerializationError(
            f"{fact}; give the serde that fits the topic (key_serde=, value_serde=), or set an exception handler to skip "
            "such records",
            fact=fact,
        )

    def missing(self) -> str | None:
        """Return which of the two functions was neither given nor overridden, or None if the serde is complete."""
        base: Any = Serde
        if self._serializer is None and type(self).serialize is base.serialize:
            return "serialize"
        if self._deserializer is None and type(self).deserialize is base.deserialize:
            return "deserialize"
        return None


def for_keys(serde: SerdePort) -> SerdePort:
    """Return the serde to use where this one was given for keys.

    >>> for_keys(Serde(name="plain")).name
    'plain'
    """
    own: Callable[[], SerdePort] | None = getattr(serde, "for_keys", None)
    return serde if own is None else own()


def _two_parameters(function: Callable[..., Any], wanted: str) -> Callable[..., Any]:
    if not callable(function):
        raise TopologyError(
            f"a serde's {wanted} is of type {type(function).__name__}, not a function"
        )
    if not accepts(function, 2):
        raise TopologyError(
            f"a serde's function is called as {wanted}, but {function_name(function)} can't take two arguments; "
            "wrap it, as in `lambda topic, value: ...`"
        )
    return function


def _kind_of(error: Exception) -> str:
    # The text of a user's exception may quote the record; the chained exception has it for those who may see it.
    return f"raised {type(error).__name__}"
