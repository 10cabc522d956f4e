"""JSON and MessagePack straight into the user's types: msgspec Structs, dataclasses, pydantic models.

msgspec decodes everything it knows (Structs, dataclasses, TypedDicts, attrs classes, plain and nested types);
pydantic decodes pydantic models, which msgspec does not know, and types made of them (`list[Model]`).
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from typing import Any, Final, TypeVar, cast

import msgspec
from pydantic import BaseModel, TypeAdapter, ValidationError

from streams.errors import TopologyError
from streams.schema_port import CodecError
from streams.serdes.serde import Serde
from streams.serdes.strict_json import refuse_hidden_nulls

T = TypeVar("T")

#: Values that msgspec quotes in its messages; types and paths stand in backticks.
_QUOTED: Final = re.compile(r"'.*'", re.DOTALL)


class _Typed(Serde[T]):
    """A serde of an encoder and a decoder of single values.

    `made_by` and the type make it anew in another process. `check` raises for values that are none of the type, of which
    many could be written but not read. `convert` makes one of dicts and lists. `plain`, for JSON, returns a value as
    dicts and lists, to look for numbers that JSON can't hold.
    """

    def __init__(
        self,
        name: str,
        made_by: "tuple[Callable[[Any], Serde[Any]], Any]",
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
        check: Callable[[Sequence[Any]], None],
        convert: Callable[[Any], Any],
        plain: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(name=name)
        self._made_by = made_by
        self._convert = convert
        self._encode = encode
        self._decode = decode
        self._check = check
        self._plain = plain

    def __reduce__(self) -> "tuple[Callable[[Any], Serde[Any]], tuple[Any]]":
        """Return how it is made anew: encoders and decoders stay in their process."""
        make, python_type = self._made_by
        return make, (python_type,)

    def from_plain(self, value: Any, /) -> Any:
        try:
            return self._convert(value)
        except Exception as error:  # noqa: BLE001 - models run the user's own code, which may raise anything
            reason = _reason(error)
        raise self.failed("serialise", "", reason)

    def serialize(self, topic: str, value: T, /) -> bytes | None:
        try:
            return self._encoded((value,))[0]
        except Exception as error:  # noqa: BLE001 - models run the user's own code, which may raise anything
            reason = _reason(error)
        raise self.failed("serialise", topic, reason)

    def deserialize(self, topic: str, data: bytes, /) -> T:
        try:
            return cast("T", self._decode(data))
        except Exception as error:  # noqa: BLE001 - models run the user's own code, which may raise anything
            reason = f"{len(data)} bytes, {_reason(error)}"
        raise self.failed("deserialise", topic, reason)

    # `decode_lines` over joined values is no faster, and takes `1 2` for two values.
    def serialize_batch(self, topic: str, values: Sequence[T], /) -> list[bytes | None]:
        try:
            return cast("list[bytes | None]", self._encoded(values))
        except Exception:  # noqa: BLE001 - as above; the loop raises with the reason
            return super().serialize_batch(topic, values)

    def deserialize_batch(self, topic: str, data: Sequence[bytes], /) -> list[T]:
        try:
            return list(map(self._decode, data))
        except Exception:  # noqa: BLE001 - as above; the loop raises with the reason
            return super().deserialize_batch(topic, data)

    def _encoded(self, values: Sequence[T]) -> list[bytes]:
        self._check(values)
        encoded = list(map(self._encode, values))
        if self._plain is not None:
            refuse_hidden_nulls(values, encoded, self._plain)
        return encoded


def json_serde(python_type: Any) -> Serde[Any]:
    """Return the JSON serde of a type; raises `TopologyError` for a type neither library can decode."""
    name = f"json({_type_name(python_type)})"
    if _needs_pydantic(python_type, name):
        adapter = TypeAdapter[Any](python_type)
        return _Typed(
            name,
            (json_serde, python_type),
            lambda value: adapter.dump_json(value, warnings="error"),
            adapter.validate_json,
            _check_of(python_type, adapter),
            adapter.validate_python,
            adapter.dump_python,
        )
    return _Typed(
        name,
        (json_serde, python_type),
        msgspec.json.Encoder().encode,
        msgspec.json.Decoder(python_type).decode,
        _check_of(python_type),
        _converter(python_type),
        msgspec.to_builtins,
    )


def msgpack_serde(python_type: Any) -> Serde[Any]:
    """Return the MessagePack serde of a type (`Any` for untyped); raises as `json_serde` does."""
    name = "msgpack" if python_type is Any else f"msgpack({_type_name(python_type)})"
    encode = msgspec.msgpack.Encoder().encode
    if _needs_pydantic(python_type, name):
        adapter = TypeAdapter[Any](python_type)
        plain = msgspec.msgpack.Decoder[Any]()
        return _Typed(
            name,
            (msgpack_serde, python_type),
            lambda value: encode(adapter.dump_python(value, warnings="error")),
            lambda data: adapter.validate_python(plain.decode(data)),
            _check_of(python_type, adapter),
            adapter.validate_python,
        )
    return _Typed(
        name,
        (msgpack_serde, python_type),
        encode,
        msgspec.msgpack.Decoder(python_type).decode,
        _check_of(python_type),
        _converter(python_type),
    )


def _check_of(
    python_type: Any, adapter: "TypeAdapter[Any] | None" = None
) -> Callable[[Sequence[Any]], None]:
    """Return what refuses values of another type, as cheaply as the type allows.

    For a user's class a look at the class is enough: its fields were checked when the object was made, or a type
    checker has looked at them. Other types (`list[int]`, unions, TypedDicts, numbers) are gone through, in C.
    """
    if python_type is Any:
        return lambda _: None
    if isinstance(python_type, type) and _is_users_class(python_type):
        return lambda values: _check_instances(values, python_type)

    convert = adapter.validate_python if adapter is not None else _converter(python_type)

    def check(values: Sequence[Any]) -> None:
        for value in values:
            convert(value)

    return check


def _converter(python_type: Any) -> Callable[[Any], Any]:
    return lambda value: msgspec.convert(value, python_type)


def _is_users_class(python_type: type[Any]) -> bool:
    return (
        issubclass(python_type, msgspec.Struct | BaseModel)
        or is_dataclass(python_type)
        or hasattr(python_type, "__attrs_attrs__")
    )


def _check_instances(values: Sequence[Any], python_type: type[Any]) -> None:
    if {python_type}.issuperset(map(type, values)):
        return
    for value in values:
        if not isinstance(value, python_type):
            raise CodecError(f"expected {python_type.__name__}, got {type(value).__name__}")


def _type_name(python_type: Any) -> str:
    return python_type.__name__ if isinstance(python_type, type) else str(python_type)


def _needs_pydantic(python_type: Any, name: str) -> bool:
    """Return whether pydantic is to decode a type; refuse at build time what nobody can decode."""
    try:
        unknown = list(_unknown(msgspec.inspect.type_info(python_type)))
        problem = "" if not unknown else f"{_type_name(unknown[0])} is an ordinary class"
    except TypeError as error:
        unknown, problem = [], str(error)
    if unknown and all(isinstance(cls, type) and issubclass(cls, BaseModel) for cls in unknown):
        return True
    if problem:
        raise TopologyError(
            f"{name}: can't decode into this type ({problem}); use a msgspec.Struct, a dataclass, a TypedDict or a "
            "pydantic model, or write a Serde(serialize, deserialize)"
        )
    return False


def _unknown(info: Any, seen: frozenset[int] = frozenset()) -> Iterator[Any]:
    """Yield the classes within a type that msgspec knows nothing of."""
    if isinstance(info, msgspec.inspect.CustomType):
        yield info.cls
    elif isinstance(info, tuple | list):
        parts = cast("Sequence[Any]", info)
        for part in parts:
            yield from _unknown(part, seen)
    elif isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field) and id(info) not in seen:
        # Types may hold themselves.
        for field in msgspec.structs.fields(info):
            yield from _unknown(getattr(info, field.name), seen | {id(info)})


def _reason(error: Exception) -> str:
    """Return why, without the data: types and paths of the message, never values."""
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        return f"{first['type']} at ${'.' if path else ''}{path}"
    if isinstance(error, CodecError):
        return str(error)
    if isinstance(error, msgspec.MsgspecError) or type(error) in {TypeError, OverflowError}:
        return _QUOTED.sub("'…'", str(error))
    return f"raised {type(error).__name__}"
