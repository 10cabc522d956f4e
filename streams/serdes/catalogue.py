"""The serdes that come with Tidewheel, and what else is accepted where a serde is asked for."""

import uuid
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache
from typing import Any, Final, Protocol, TypeGuard, TypeVar, cast, overload

from tidewheel.state_stores.stores.windowed import Windowed
from tidewheel.streams.durations import Duration, to_ms
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

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)

_json_of: Final = cache(json_serde)
_msgpack_of: Final = cache(msgpack_serde)
_session_windowed_of: Final = cache(SessionWindowedSerde[Any])


@cache
def _windowed_of(
    inner: Serde[Any], size: Duration | FixedWindows | SlidingWindows
) -> TimeWindowedSerde[Any]:
    if isinstance(size, FixedWindows | SlidingWindows):
        return TimeWindowedSerde(inner, size.end_of)
    return TimeWindowedSerde(inner, end_after(to_ms(size, "Serdes.windowed: size", minimum_ms=1)))


def _kept(cached: Any, *arguments: Any) -> Serde[Any]:
    """Return what a cached function makes of some arguments; what can't be kept (a dict) it refuses by itself, with words."""
    hashable = all(isinstance(each, Hashable) for each in arguments)
    made: Serde[Any] = (cached if hashable else cached.__wrapped__)(*arguments)
    return made


class Serdes:
    r"""The built-in serdes. Each call with the same arguments gives the same object.

    >>> Serdes.string() is Serdes.string()
    True
    >>> Serdes.int64().serialize("counts", 1)
    b'\x00\x00\x00\x00\x00\x00\x00\x01'
    """

    @staticmethod
    def bytes() -> "Serde[bytes]":
        """Return the serde of bytes as they are; `bytes` stands for it.

        >>> Serdes.bytes().deserialize("t", b"raw")
        b'raw'
        """
        return BYTES

    @staticmethod
    def string() -> Serde[str]:
        """Return the serde of UTF-8 text, as Kafka's StringSerializer; `str` stands for it. Other bytes are an error.

        >>> Serdes.string().deserialize("t", b"text")
        'text'
        """
        return STRING

    @staticmethod
    def int32() -> Serde[int]:
        r"""Return the serde of 4-byte signed integers, as Kafka's IntegerSerializer; a larger number is an error.

        >>> Serdes.int32().serialize("t", -2)
        b'\xff\xff\xff\xfe'
        """
        return INT32

    @staticmethod
    def int64() -> Serde[int]:
        r"""Return the serde of 8-byte signed integers, as Kafka's LongSerializer; `int` stands for it.

        >>> Serdes.int64().serialize("t", 1)
        b'\x00\x00\x00\x00\x00\x00\x00\x01'
        """
        return INT64

    @staticmethod
    def float64() -> Serde[float]:
        """Return the serde of 8-byte floating-point numbers, as Kafka's DoubleSerializer; `float` stands for it.

        >>> Serdes.float64().deserialize("t", bytes.fromhex("3ff8000000000000"))
        1.5
        """
        return FLOAT64

    @staticmethod
    def boolean() -> Serde[bool]:
        r"""Return the serde of booleans in one byte, as Kafka's BooleanSerializer; `bool` stands for it.

        >>> Serdes.boolean().serialize("t", True)
        b'\x01'
        """
        return BOOLEAN

    @staticmethod
    def uuid() -> Serde[uuid.UUID]:
        """Return the serde of UUIDs as text, as Kafka's UUIDSerializer; `uuid.UUID` stands for it.

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
        """Return the serde of JSON: untyped (dicts and lists), of a Struct, dataclass or pydantic model, or of a union of them.

        A value is written only if it reads back equal; else the error names the field.

        Args:
            type: The class of the values, or a union, as `Order | Refund`.
            sort_keys: Whether keys of records have the entries of dicts in the order of their names, so
                that equal keys have equal bytes. False keeps the order given, for applications whose
                stores were filled like that.

        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Order:
        ...     id: int
        >>> Serdes.json(Order).deserialize("orders", b'{"id": 7}')
        Order(id=7)
        """
        if type is None or type is Any:
            return JSON if sort_keys else JSON_AS_GIVEN
        return _kept(_json_of, type, sort_keys)

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

        Args:
            type: As for `json`.
            sort_keys: As for `json`.

        >>> Serdes.msgpack().deserialize("t", Serdes.msgpack().serialize("t", {"a": [1, 2]}) or b"")
        {'a': [1, 2]}
        """
        return _kept(_msgpack_of, Any if type is None else type, sort_keys)

    @staticmethod
    def avro(
        schema: Schema | None = None,
        registry: Registry | None = None,
        *,
        subject: str | None = None,
        version: SubjectVersion = None,
        references: Iterable[SchemaReference] = (),
    ) -> Serde[Any]:
        """Return the serde of an Avro schema; values are dicts, lists and plain values, as fastavro has them.

        Fields that the schema does not have, and numbers that do not fit, are refused.

        Args:
            schema: The schema's JSON as text, or as a dict.
            registry: A Confluent Schema Registry: its URL, a dict of settings (those of confluent-kafka's client and
                of its serialisers, as `{"url": …, "auto.register.schemas": False}`; values may be `env:NAME` and
                `file:/path`), or a `SchemaRegistryClient`. None: bytes are the value's alone, so reader and writer
                need the same schema.
            subject: Instead of a schema: the subject whose schema is fetched when the serde is built.
                Records of all topics are written with its id; nothing is registered.
            version: The subject's version; None or "latest" is the latest.
            references: The schemas of the registry that the schema uses, as in the registry's API:
                `{"name": "shop.Customer", "subject": "customers-value", "version": 1}`, or
                confluent-kafka's `SchemaReference`.

        Raises:
            TopologyError: The schema, the subject's format or a setting is wrong, or
                `pip install 'tidewheel[avro]'` is missing.
            SchemaRegistryError: A subject or a reference is not in the registry, or the registry can't
                be reached.

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
        """Return the serde of a class that protoc generated; imports are registered as references.

        Args:
            message_type: The class, as `orders_pb2.Order`.
            registry: As for `avro`.
            subject: The subject that has the class's file already. Records are written with its id, and
                nothing is registered.
            version: As for `avro`.

        Raises:
            TopologyError: This is no such class, the subject has another message in its place, or
                `pip install 'tidewheel[protobuf]'` is missing.
            SchemaRegistryError: The subject is not in the registry, or the registry is away.

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
        """Return the serde of JSON that is checked against a JSON Schema when it is written and when it is read.

        Args:
            schema: The schema's JSON as text, or as a dict.
            registry: As for `avro`.
            subject: As for `avro`.
            version: As for `avro`.
            references: As for `avro`; the name is what `$ref` says. No `$ref` fetches anything else.

        Raises:
            TopologyError: The schema, the subject's format or a setting is wrong, or
                `pip install 'tidewheel[jsonschema]'` is missing.
            SchemaRegistryError: As for `avro`.

        >>> Serdes.json_schema({"title": "Order", "type": "object", "required": ["cents"]})
        <serde json_schema(Order)>
        """
        return json_schema_serde(schema, registry, subject, version, references)

    @staticmethod
    def windowed(
        inner: "SerdeLike[T]", size: Duration | FixedWindows | SlidingWindows
    ) -> Serde[Windowed[T]]:
        """Return the serde of the keys of time windows: Kafka's TimeWindowedSerializer and -Deserializer.

        The bytes are the inner key's and the window's start; its end follows from the size.

        Args:
            inner: Serde of the keys inside.
            size: The windows' size (a sliding window's time difference), or the windows themselves: calendar windows
                have no one size.

        Raises:
            TopologyError: No serde, or no size.

        >>> minutes = Serdes.windowed(str, 60_000)
        >>> minutes.deserialize("counts", minutes.serialize("counts", Windowed("a", 0, 60_000)) or b"")
        Windowed(key='a', start=0, end=60000)
        """
        return _kept(_windowed_of, as_serde(inner, "Serdes.windowed: inner"), size)

    @staticmethod
    def session_windowed(inner: "SerdeLike[T]") -> Serde[Windowed[T]]:
        r"""Return the serde of the keys of sessions: Kafka's SessionWindowedSerializer and -Deserializer.

        Args:
            inner: Serde of the keys inside.

        >>> Serdes.session_windowed(str).serialize("counts", Windowed("a", 1, 2))
        b'a\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x01'
        """
        return _session_windowed_of(as_serde(inner, "Serdes.session_windowed: inner"))


class SerdeMethods(Protocol[T]):
    """The least an object needs to be used as a serde."""

    def serialize(self, topic: str, value: T, /) -> bytes | None:
        """Return the bytes of a value."""
        ...

    def deserialize(self, topic: str, data: bytes, /) -> T:
        """Return the value of some bytes."""
        ...


class SerdeReading(Protocol[T_co]):
    """A serde that gives such values; serdes never see None, so one of `str` is one of `str | None`."""

    def serialize(self, topic: str, value: Any, /) -> bytes | None:
        """Return the bytes of a value."""
        ...

    def deserialize(self, topic: str, data: bytes, /) -> T_co:
        """Return the value of some bytes."""
        ...


class SerdeWriting(Protocol[T_contra]):
    """A serde that takes such values, and maybe others."""

    def serialize(self, topic: str, value: T_contra, /) -> bytes | None:
        """Return the bytes of a value."""
        ...

    def deserialize(self, topic: str, data: bytes, /) -> Any:
        """Return the value of some bytes."""
        ...


#: A plain type that stands for its serde, beside a function of the user: it is the type that the function gives, not one
#: that is wide enough for both, as pyright would make it of `type[T]`.
PlainT = TypeVar("PlainT", bytes, str, int, float, bool, uuid.UUID)

#: What is accepted where a serde is asked for: a serde, any object with its two methods, or a plain type.
SerdeLike = SerdeMethods[T] | type[T]

#: The same for a stream whose types are known already, and for one that is only written.
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

#: Names of serdes in environment variables and files.
SERDE_NAMES: Final = tuple(_BY_NAME)


def as_serde(
    serde: SerdeLike[T], what: str = "serde", *, error: type[StreamsError] = TopologyError
) -> Serde[T]:
    """Return a full serde for anything that can be used as one.

    `str`, `bytes`, `int` (64 bits), `float`, `bool` and `uuid.UUID` stand for their plain serdes; an object with
    `serialize(topic, value)` and `deserialize(topic, data)` gets batch forms that call them one by one.

    Args:
        serde: What the user gave.
        what: The parameter or option it was given for.
        error: What to raise if it can't be used.

    >>> as_serde(str) is Serdes.string()
    True
    """
    given = cast("object", serde)
    if isinstance(given, Serde):
        full = cast("Serde[T]", given)
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
    """Return the built-in serde of a name in a settings file, or None if there is no such name.

    >>> serde_named("int64")
    <serde int64>
    """
    make = _BY_NAME.get(name)
    return None if make is None else make()


class _Adapted(Serde[T]):
    """Any object with the two methods; what else of a serde it has is used."""

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
