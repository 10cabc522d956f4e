"""Built-in serdes, and the conversion of user arguments to serdes."""

import uuid
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache
from typing import Any, Final, Protocol, TypeGuard, TypeVar, cast, overload

from tidewheel.state_stores.stores.windowed import Windowed
from tidewheel.streams.durations import to_ms
from tidewheel.streams.errors import StreamsError, TopologyError
from tidewheel.streams.serdes.plain import (
    BOOLEAN,
    BYTES,
    FLOAT64,
    INT32,
    INT64,
    JSON,
    JSON_AS_GIVEN,
    STRING,
    UUID,
)
from tidewheel.streams.serdes.schema_port import Registry
from tidewheel.streams.serdes.schema_serdes import (
    Schema,
    SchemaReference,
    SubjectVersion,
    avro_serde,
    json_schema_serde,
    protobuf_serde,
)
from tidewheel.streams.serdes.serde import Serde
from tidewheel.streams.serdes.typed import json_serde, msgpack_serde
from tidewheel.streams.serdes.windowed import SessionWindowedSerde, TimeWindowedSerde, end_after
from tidewheel.streams.windows import FixedWindows, SlidingWindows
from tidewheel.tasks.durations import Duration

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)

_json_of: Final = cache(json_serde)
_msgpack_of: Final = cache(msgpack_serde)
_session_windowed_of: Final = cache(SessionWindowedSerde[Any])


@cache
def _windowed_of(
    inner: Serde[Any], size: int | FixedWindows | SlidingWindows
) -> TimeWindowedSerde[Any]:
    if isinstance(size, FixedWindows | SlidingWindows):
        return TimeWindowedSerde(inner, size.end_of)
    return TimeWindowedSerde(inner, end_after(size))


def _cached_serde(cached: Any, *arguments: Any) -> Serde[Any]:
    hashable = all(isinstance(argument, Hashable) for argument in arguments)
    created: Serde[Any] = (cached if hashable else cached.__wrapped__)(*arguments)
    return created


class Serdes:
    r"""The built-in serdes. Equal arguments return the same object.

    >>> Serdes.string() is Serdes.string()
    True
    >>> Serdes.int64().serialize("counts", 1)
    b'\x00\x00\x00\x00\x00\x00\x00\x01'
    """

    @staticmethod
    def bytes() -> "Serde[bytes]":
        """Return the serde of unchanged bytes (`bytes`).

        >>> Serdes.bytes().deserialize("t", b"raw")
        b'raw'
        """
        return BYTES

    @staticmethod
    def string() -> Serde[str]:
        """Return the serde of UTF-8 text, as Kafka's StringSerializer (`str`).

        Invalid UTF-8 is an error.

        >>> Serdes.string().deserialize("t", b"text")
        'text'
        """
        return STRING

    @staticmethod
    def int32() -> Serde[int]:
        r"""Return the serde of 4-byte signed integers, as Kafka's IntegerSerializer.

        Larger numbers are an error.

        >>> Serdes.int32().serialize("t", -2)
        b'\xff\xff\xff\xfe'
        """
        return INT32

    @staticmethod
    def int64() -> Serde[int]:
        r"""Return the serde of 8-byte signed integers, as Kafka's LongSerializer (`int`).

        >>> Serdes.int64().serialize("t", 1)
        b'\x00\x00\x00\x00\x00\x00\x00\x01'
        """
        return INT64

    @staticmethod
    def float64() -> Serde[float]:
        """Return the serde of 8-byte floating-point numbers, as Kafka's DoubleSerializer (`float`).

        >>> Serdes.float64().deserialize("t", bytes.fromhex("3ff8000000000000"))
        1.5
        """
        return FLOAT64

    @staticmethod
    def boolean() -> Serde[bool]:
        r"""Return the serde of one-byte booleans, as Kafka's BooleanSerializer (`bool`).

        >>> Serdes.boolean().serialize("t", True)
        b'\x01'
        """
        return BOOLEAN

    @staticmethod
    def uuid() -> Serde[uuid.UUID]:
        """Return the serde of UUIDs as text, as Kafka's UUIDSerializer (`uuid.UUID`).

        >>> Serdes.uuid().serialize("t", uuid.UUID(int=1))
        b'00000000-0000-0000-0000-000000000001'
        """
        return UUID

    @overload
    @staticmethod
    def json(type: None = None, *, sort_keys: bool = True) -> Serde[Any]: ...
    @overload
    @staticmethod
    def json(type: type[T], *, sort_keys: bool = True) -> Serde[T]: ...
    @overload
    @staticmethod
    def json(type: Any, *, sort_keys: bool = True) -> Serde[Any]: ...
    @staticmethod
    def json(type: Any = None, *, sort_keys: bool = True) -> Serde[Any]:  # noqa: A002 - the public name of the parameter
        """Return the serde of JSON, untyped or of a Struct, dataclass, pydantic model or union.

        It writes only values that read back equal; the error for others names the field.

        Args:
            type: Class of the values, or a union such as `Order | Refund`.
            sort_keys: Sort dict entries in record keys by name, so equal keys have equal bytes.
                False keeps the given order, for existing stores written that way.

        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Order:
        ...     id: int
        >>> Serdes.json(Order).deserialize("orders", b'{"id": 7}')
        Order(id=7)
        """
        if type is None or type is Any:
            return JSON if sort_keys else JSON_AS_GIVEN
        return _cached_serde(_json_of, type, sort_keys)

    @overload
    @staticmethod
    def msgpack(type: None = None, *, sort_keys: bool = True) -> Serde[Any]: ...
    @overload
    @staticmethod
    def msgpack(type: type[T], *, sort_keys: bool = True) -> Serde[T]: ...
    @overload
    @staticmethod
    def msgpack(type: Any, *, sort_keys: bool = True) -> Serde[Any]: ...
    @staticmethod
    def msgpack(type: Any = None, *, sort_keys: bool = True) -> Serde[Any]:  # noqa: A002 - the public name of the parameter
        """Return the serde of MessagePack: untyped, or of a Struct, dataclass or pydantic model.

        >>> Serdes.msgpack().deserialize("t", Serdes.msgpack().serialize("t", {"a": [1, 2]}) or b"")
        {'a': [1, 2]}
        """
        return _cached_serde(_msgpack_of, Any if type is None else type, sort_keys)

    @staticmethod
    def avro(
        schema: Schema | None = None,
        registry: Registry | None = None,
        *,
        subject: str | None = None,
        version: SubjectVersion = None,
        references: Iterable[SchemaReference] = (),
    ) -> Serde[Any]:
        """Return the serde of an Avro schema.

        Values are dicts, lists and plain values as in fastavro. Unknown fields and out-of-range
        numbers are rejected.

        Args:
            schema: The schema's JSON as text or dict.
            registry: A Confluent Schema Registry: URL, dict of settings of confluent-kafka's client
                and serialisers (`{"url": …, "auto.register.schemas": False}`; values may be
                `env:NAME` and `file:/path`), or a `SchemaRegistryClient`. None: bytes contain the
                value only; reader and writer need the same schema.
            subject: Instead of a schema: subject whose schema is fetched when the serde is built.
                Records of all topics carry its schema id; nothing is registered.
            version: The subject's version; None or "latest": the latest.
            references: Registry schemas used by this one: `{"name": "shop.Customer", "subject":
                "customers-value", "version": 1}` as in the registry's API, or confluent-kafka's
                `SchemaReference`.

        Raises:
            TopologyError: Invalid schema, subject format or setting, or `pip install
                'tidewheel[avro]'` is missing.
            SchemaRegistryError: A subject or reference does not exist, or the registry is
                unreachable.

        >>> order = {"type": "record", "name": "Order", "fields": [{"name": "cents", "type": "long"}]}
        >>> Serdes.avro(order)
        <serde avro(Order)>
        """
        return avro_serde(schema, registry, subject, version, references)

    @staticmethod
    def protobuf(
        message_type: type[T],
        registry: Registry | None = None,
        *,
        subject: str | None = None,
        version: SubjectVersion = None,
    ) -> Serde[T]:
        """Return the serde of a class generated by protoc; imports are registered as references.

        Args:
            message_type: Generated class, such as `orders_pb2.Order`.
            subject: Existing subject of the class's file. Records carry its schema id; nothing is
                registered.

        Raises:
            TopologyError: Not a generated class, the subject's file has another message at its
                place, or `pip install 'tidewheel[protobuf]'` is missing.
            SchemaRegistryError: The subject does not exist, or the registry is unreachable.

        >>> from google.protobuf.timestamp_pb2 import Timestamp
        >>> Serdes.protobuf(Timestamp).deserialize("t", b"").seconds
        0
        """
        return protobuf_serde(message_type, registry, subject, version)

    @staticmethod
    def json_schema(
        schema: Schema | None = None,
        registry: Registry | None = None,
        *,
        subject: str | None = None,
        version: SubjectVersion = None,
        references: Iterable[SchemaReference] = (),
    ) -> Serde[Any]:
        """Return the serde of JSON validated against a JSON Schema, on writing and reading.

        Args:
            schema: The schema's JSON as text or dict.
            references: As for `avro`; the name is the value of `$ref`. No other `$ref` is fetched.

        Raises:
            TopologyError: Invalid schema, subject format or setting, or `pip install
                'tidewheel[jsonschema]'` is missing.
            SchemaRegistryError: As for `avro`.

        >>> Serdes.json_schema({"title": "Order", "type": "object", "required": ["cents"]})
        <serde json_schema(Order)>
        """
        return json_schema_serde(schema, registry, subject, version, references)

    @staticmethod
    def windowed(
        inner: "SerdeLike[T]", size: Duration | FixedWindows | SlidingWindows
    ) -> Serde[Windowed[T]]:
        """Return the serde of time-windowed keys: Kafka's TimeWindowedSerializer and -Deserializer.

        Bytes: the inner key and the window's start; the end follows from the size.

        Args:
            size: Window size (a sliding window's time difference), or the windows object, needed
                for calendar windows.

        Raises:
            TopologyError: Invalid serde or size.

        >>> minutes = Serdes.windowed(str, "1m")
        >>> minutes.deserialize("counts", minutes.serialize("counts", Windowed("a", 0, 60_000)) or b"")
        Windowed(key='a', start=0, end=60000)
        """
        serde = as_serde(inner, "Serdes.windowed: inner")
        if not isinstance(size, FixedWindows | SlidingWindows):
            size = to_ms(size, "Serdes.windowed: size", minimum_ms=1)
        return _cached_serde(_windowed_of, serde, size)

    @staticmethod
    def session_windowed(inner: "SerdeLike[T]") -> Serde[Windowed[T]]:
        r"""Return the serde of session keys: Kafka's SessionWindowedSerializer and -Deserializer.

        >>> Serdes.session_windowed(str).serialize("counts", Windowed("a", 1, 2))
        b'a\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x01'
        """
        return _session_windowed_of(as_serde(inner, "Serdes.session_windowed: inner"))


class SerdeMethods(Protocol[T]):
    """Minimum interface of a serde."""

    def serialize(self, topic: str, value: T, /) -> bytes | None:
        """Return the bytes of a value."""
        ...

    def deserialize(self, topic: str, data: bytes, /) -> T:
        """Return the value of some bytes."""
        ...


class SerdeReading(Protocol[T_co]):
    """A serde whose `deserialize` returns values of type `T_co`.

    Serdes never receive None, so a serde of `str` also serves `str | None`.
    """

    def serialize(self, topic: str, value: Any, /) -> bytes | None:
        """Return the bytes of a value."""
        ...

    def deserialize(self, topic: str, data: bytes, /) -> T_co:
        """Return the value of some bytes."""
        ...


class SerdeWriting(Protocol[T_contra]):
    """A serde whose `serialize` accepts values of type `T_contra`, and possibly others."""

    def serialize(self, topic: str, value: T_contra, /) -> bytes | None:
        """Return the bytes of a value."""
        ...

    def deserialize(self, topic: str, data: bytes, /) -> Any:
        """Return the value of some bytes."""
        ...


#: Plain types as serde arguments beside a user function. A free type variable would not do: for
#: `key_serde=str` and a function that returns int, pyright would infer `int | str`, not an error.
PlainT = TypeVar("PlainT", bytes, str, int, float, bool, uuid.UUID)

#: A serde argument: a serde, any object with its two methods, or a plain type.
SerdeLike = SerdeMethods[T] | type[T]

#: Types of serde arguments: `SerdeOf[T]` reads values of type T. `SerdeInto[T]` only writes them,
#: so it suffices if `serialize` accepts T.
SerdeOf = SerdeReading[T] | type[T]
SerdeInto = SerdeReading[T] | SerdeWriting[T] | type[T]

_BY_TYPE: Final[dict[Any, Serde[Any]]] = {
    bytes: BYTES, str: STRING, int: INT64, float: FLOAT64, bool: BOOLEAN, uuid.UUID: UUID,
}  # fmt: skip
_BY_NAME: Final[dict[str, Callable[[], Serde[Any]]]] = {
    "bytes": Serdes.bytes, "string": Serdes.string, "int32": Serdes.int32, "int64": Serdes.int64,
    "float64": Serdes.float64, "boolean": Serdes.boolean, "uuid": Serdes.uuid, "json": Serdes.json,
    "msgpack": Serdes.msgpack,
}  # fmt: skip

#: Names by which environment variables and files choose a serde.
SERDE_NAMES: Final = tuple(_BY_NAME)


def as_serde(
    serde: SerdeLike[T], what: str = "serde", *, error: type[StreamsError] = TopologyError
) -> Serde[T]:
    """Return a full serde for any argument that can be used as one.

    `str`, `bytes`, `int` (64 bits), `float`, `bool` and `uuid.UUID` mean their plain serdes; an
    object with `serialize(topic, value)` and `deserialize(topic, data)` gets batch forms.

    Args:
        what: Name of the parameter or option, for error messages.

    >>> as_serde(str) is Serdes.string()
    True
    """
    argument = cast("object", serde)
    if isinstance(argument, Serde):
        full = cast("Serde[T]", argument)
        _check_complete(full, what, error)
        return full
    if isinstance(serde, type):
        return _of_type(serde, what, error)
    if not _has_methods(serde):
        raise error(
            f"{what}={_described(serde)} is not a serde; give one of Serdes, as in Serdes.string(), or an object with "
            "serialize(topic, value) and deserialize(topic, data)"
        )
    return _Adapted(serde)


def serde_named(name: str) -> Serde[Any] | None:
    """Return the built-in serde that a settings file names, or None for an unknown name.

    >>> serde_named("int64")
    <serde int64>
    """
    make = _BY_NAME.get(name)
    return None if make is None else make()


class _Adapted(Serde[T]):
    """Serde around an object with the two methods; uses its other serde methods if present."""

    def __init__(self, methods: SerdeMethods[T]) -> None:
        name = getattr(methods, "name", None)
        super().__init__(
            methods.serialize,
            methods.deserialize,
            name=name if isinstance(name, str) else type(methods).__name__,
            canonical=getattr(methods, "canonical", False) is True,
        )
        self._surely_serializes = getattr(methods, "surely_serializes", None)
        self._serialize_batch = getattr(methods, "serialize_batch", None)
        self._deserialize_batch = getattr(methods, "deserialize_batch", None)

    def surely_serializes(self, value: Any, /) -> bool:
        return self._surely_serializes is not None and self._surely_serializes(value) is True

    def serialize_batch(self, topic: str, values: Sequence[T], /) -> list[bytes | None]:
        if self._serialize_batch is None:
            return super().serialize_batch(topic, values)
        return cast("list[bytes | None]", self._serialize_batch(topic, values))

    def deserialize_batch(self, topic: str, data: Sequence[bytes], /) -> list[T]:
        if self._deserialize_batch is None:
            return super().deserialize_batch(topic, data)
        return cast("list[T]", self._deserialize_batch(topic, data))


def _has_methods(serde: object) -> TypeGuard[SerdeMethods[Any]]:
    return callable(getattr(serde, "serialize", None)) and callable(
        getattr(serde, "deserialize", None)
    )


def _check_complete(serde: Serde[Any], what: str, error: type[StreamsError]) -> None:
    missing = serde.missing()
    if missing is not None:
        raise error(
            f"{what}: serde {serde.name!r} has no {missing} function; give it to Serde(...) or override {missing}()"
        )


def _of_type(python_type: type[T], what: str, error: type[StreamsError]) -> Serde[T]:
    serde = _BY_TYPE.get(python_type)
    if serde is not None:
        return serde
    name = python_type.__name__
    if _has_methods(python_type):
        hint = f"it is a class; give an instance, as in {name}()"
    else:
        hint = f"for values of this type give Serdes.json({name}) or Serdes.msgpack({name})"
    raise error(f"{what}={name}: there is no plain serde of this type; {hint}")


def _described(serde: object) -> str:
    name = getattr(serde, "__qualname__", None)
    return f"{name} (not called?)" if isinstance(name, str) else f"<{type(serde).__name__}>"
