"""JSON and MessagePack straight into the user's types: msgspec Structs, dataclasses, pydantic models.

msgspec decodes everything it knows (Structs, dataclasses, TypedDicts, attrs classes, plain and nested types);
pydantic decodes pydantic models, which msgspec does not know.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

import msgspec
from pydantic import BaseModel, TypeAdapter, ValidationError

from streams.errors import TopologyError
from streams.serdes.serde import Serde

T = TypeVar("T")

#: Values that msgspec quotes in its messages; types and paths stand in backticks.
_QUOTED: Final = re.compile(r"'.*'", re.DOTALL)


class _Typed(Serde[T]):
    """A serde of an encoder and a decoder of single values."""

    def __init__(
        self, name: str, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
    ) -> None:
        super().__init__(name=name)
        self._encode = encode
        self._decode = decode

    def serialize(self, topic: str, value: T, /) -> bytes | None:
        try:
            return self._encode(value)
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
            return list(map(self._encode, values))
        except Exception:  # noqa: BLE001 - as above; the loop raises with the reason
            return super().serialize_batch(topic, values)

    def deserialize_batch(self, topic: str, data: Sequence[bytes], /) -> list[T]:
        try:
            return list(map(self._decode, data))
        except Exception:  # noqa: BLE001 - as above; the loop raises with the reason
            return super().deserialize_batch(topic, data)


def json_serde(python_type: Any) -> Serde[Any]:
    """Return the JSON serde of a type; raises `TopologyError` for a type neither library can decode."""
    name = f"json({_type_name(python_type)})"
    if _is_model(python_type):
        adapter = TypeAdapter[Any](python_type)
        return _Typed(
            name, lambda value: adapter.dump_json(value, warnings="error"), adapter.validate_json
        )
    _check(python_type, name)
    return _Typed(name, msgspec.json.Encoder().encode, msgspec.json.Decoder(python_type).decode)


def msgpack_serde(python_type: Any) -> Serde[Any]:
    """Return the MessagePack serde of a type (`Any` for untyped); raises as `json_serde` does."""
    name = "msgpack" if python_type is Any else f"msgpack({_type_name(python_type)})"
    encode = msgspec.msgpack.Encoder().encode
    if _is_model(python_type):
        adapter = TypeAdapter[Any](python_type)
        plain = msgspec.msgpack.Decoder[Any]()
        return _Typed(
            name,
            lambda value: encode(adapter.dump_python(value, warnings="error")),
            lambda data: adapter.validate_python(plain.decode(data)),
        )
    _check(python_type, name)
    return _Typed(name, encode, msgspec.msgpack.Decoder(python_type).decode)


def _is_model(python_type: Any) -> bool:
    return isinstance(python_type, type) and issubclass(python_type, BaseModel)


def _type_name(python_type: Any) -> str:
    return python_type.__name__ if isinstance(python_type, type) else str(python_type)


def _check(python_type: Any, name: str) -> None:
    """Refuse at build time what msgspec would refuse with the first record."""
    try:
        known = not isinstance(msgspec.inspect.type_info(python_type), msgspec.inspect.CustomType)
        problem = "it is an ordinary class"
    except TypeError as error:
        known, problem = False, str(error)
    if not known:
        raise TopologyError(
            f"{name}: can't decode into this type ({problem}); use a msgspec.Struct, a dataclass, a TypedDict or a "
            "pydantic model, or write a Serde(serialize, deserialize)"
        )


def _reason(error: Exception) -> str:
    """Return why, without the data: types and paths of the message, never values."""
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        return f"{first['type']} at ${'.' if path else ''}{path}"
    if isinstance(error, msgspec.MsgspecError) or type(error) in {TypeError, OverflowError}:
        return _QUOTED.sub("'…'", str(error))
    return f"raised {type(error).__name__}"
