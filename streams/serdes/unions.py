"""Unions of classes without tags: written by the object's class, read as the best-fitting class.

A class fits if it decodes. The class with most of the data's fields wins, then the earlier one. A
`Literal` field decides, because other texts do not decode. A value that would be read as another
class is rejected on writing.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from tidewheel.streams.serdes.schema_port import CodecError
from tidewheel.streams.serdes.type_parts import (
    is_pydantic_class,
    is_users_class,
    members,
    pydantic_fields,
    type_name,
)

_Codecs = Mapping[Any, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]]


def needs_union_codec(python_type: Any) -> bool:
    """Return True for a union with a Struct if msgspec can't tell its user classes apart."""
    parts = [part for part in members(python_type) if part is not type(None)]
    if len(parts) < 2 or not all(is_users_class(part) for part in parts):  # noqa: PLR2004 - one is no union
        return False
    if not any(issubclass(part, msgspec.Struct) for part in parts):
        return False
    try:
        msgspec.inspect.type_info(python_type)
    except TypeError:
        return True
    return any(is_pydantic_class(part) for part in parts)


class UnionCodec:
    def __init__(self, codecs: _Codecs, decode_plain: Callable[[bytes], Any]) -> None:
        self._codecs = codecs
        self._decode_plain = decode_plain
        self._fields = {part: _field_names(part) for part in codecs}

    def encode(self, value: Any) -> bytes:
        codec = self._codecs.get(type(value))
        if codec is None:
            names = " | ".join(type_name(part) for part in self._codecs)
            raise CodecError(f"expected {names}, got {type(value).__name__}")
        return codec[0](value)

    def decode(self, data: bytes) -> Any:
        plain = self._decode_plain(data)
        keys = _keys(plain)
        best: tuple[int, Any] | None = None
        for part, (_, decode) in self._codecs.items():
            matching = len(keys & self._fields[part])
            if best is not None and matching <= best[0]:
                continue
            try:
                best = matching, decode(data)
            except Exception:  # noqa: BLE001, S112 - a failed decode means "does not fit"
                continue
        if best is None:
            raise self._none_fits()
        return best[1]

    def first_of(self, value: Any, converters: Mapping[Any, Callable[[Any], Any]]) -> Any:
        keys = _keys(value)
        order = sorted(converters, key=lambda part: -len(keys & self._fields[part]))
        for part in order:
            try:
                return converters[part](value)
            except Exception:  # noqa: BLE001, S112 - as above
                continue
        raise self._none_fits()

    def _none_fits(self) -> CodecError:
        names = " or ".join(type_name(part) for part in self._codecs)
        return CodecError(f"neither {names} can be read from it")


def _keys(plain: Any) -> frozenset[Any]:
    keys: Callable[[], Any] | None = getattr(plain, "keys", None)
    return frozenset() if keys is None else frozenset(keys())


def _field_names(part: Any) -> frozenset[str]:
    if not isinstance(part, type):
        return frozenset()
    if issubclass(part, msgspec.Struct):
        tag = part.__struct_config__.tag_field
        return frozenset((*part.__struct_encode_fields__, *([tag] if tag else [])))
    if is_pydantic_class(part):
        return frozenset(
            name
            for field_name, field in pydantic_fields(part).items()
            for name in (field_name, field.alias, field.serialization_alias)
            if name is not None
        )
    declared: Mapping[str, Any] = getattr(cast("object", part), "__dataclass_fields__", {})
    return frozenset(declared)
