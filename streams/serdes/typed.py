"""Typed JSON and MessagePack: msgspec Structs, dataclasses, pydantic models and unions.

msgspec decodes all types it supports; pydantic decodes its models, types made of them
(`list[Model]`), and unions of several dataclasses.

Only values that read back equal are written. For a batch of a flat class the field types prove
that; other values are read back and compared.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json as pydantic_to_json

from tidewheel.state_stores.user_code import place_of, raised
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.serdes.class_defaults import default_setter, has_attrs_with_dict
from tidewheel.streams.serdes.exact_fields import exact_fields
from tidewheel.streams.serdes.read_back import PathStep, difference, first_failure, step_to
from tidewheel.streams.serdes.schema_port import CodecError
from tidewheel.streams.serdes.serde import Serde
from tidewheel.streams.serdes.strict_json import are_plain, refuse_hidden_nulls
from tidewheel.streams.serdes.type_parts import (
    NO_SAMPLE,
    declared_names,
    has_own_equality,
    have_sly_subclasses,
    holds_mappings,
    holds_sets,
    inner_types,
    is_hashable,
    is_pydantic_class,
    is_users_class,
    members,
    nested_classes,
    sample,
    type_name,
)
from tidewheel.streams.serdes.unions import UnionCodec, needs_union_codec

T = TypeVar("T")

#: Values quoted in msgspec's messages, to be hidden; types and paths are in backticks.
_QUOTED: Final = re.compile(r"'.*'", re.DOTALL)
_WITH_VALUE: Final = re.compile(
    r"(Invalid (?:enum )?value |Object contains unknown field ).*?( - at `\$[^`']*`)?\Z", re.DOTALL
)
_PLACE: Final = re.compile(r" - at `\$[^`']*`\Z")
#: Our modules that call msgspec and pydantic; errors raised in other modules are the user's.
_OURS: Final = frozenset({__name__, UnionCodec.__module__, default_setter.__module__})

_MSGPACK_TYPES: Final[frozenset[object]] = frozenset(
    {str, int, float, bool, bytes, type(None), dict, list}
)


#: Minimum batch size for which checking the types of all fields is cheaper than decoding the bytes
#: again and comparing.
_MANY: Final = 4


class TypeCodec(NamedTuple):
    """Encoder and decoder of single values of a type.

    Attributes:
        failure: Returns the reason why `encode` raised, without data.
        encode_key: Encodes with dicts sorted by key: equal record keys need equal bytes.
        encode_lines: Encodes many values, each followed by a line feed.
        plain: For JSON: returns dicts and lists, to find numbers that JSON can't represent.
    """

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    convert: Callable[[Any], Any]
    failure: Callable[[Any, Exception], str]
    encode_key: Callable[[Any], bytes]
    encode_lines: Callable[[Any], bytes] | None = None
    plain: Callable[[Any], Any] | None = None


class _Typed(Serde[T]):
    """A serde of a type; `factory` rebuilds it in another process."""

    def __init__(
        self,
        name: str,
        factory: "Callable[[Any, bool], Serde[Any]]",
        python_type: Any,
        codec: TypeCodec,
        *,
        sort_keys: bool = True,
        is_key: bool = False,
    ) -> None:
        super().__init__(name=name)
        self._factory = factory
        self._type = python_type
        self._codec = codec
        self._encode, self._decode = codec.encode, codec.decode
        self._sort_keys = sort_keys
        self.sorts_keys = is_key
        self._key: Serde[T] | None = self if is_key else None
        self._class = python_type if is_users_class(python_type) else None
        self._are_exact = (
            _is_plain_msgpack
            if python_type is Any
            else exact_fields(python_type, codec.plain is not None)
        )
        # False if an `==` is user-defined: it may hold for changed fields.
        self._compares = not any(has_own_equality(part) for part in inner_types(python_type))
        self._nested = nested_classes(python_type)
        self._step = step_in(python_type)

    def __reduce__(self) -> "tuple[Callable[..., Serde[Any]], tuple[Any, ...]]":
        return _unpickle, (self._factory, self._type, self._key is self, self._sort_keys)

    def for_keys(self) -> Serde[T]:
        if self._key is None:
            self._key = self._for_keys()
        return self._key

    def _for_keys(self) -> "Serde[T]":
        if holds_sets(self._type):
            raise TopologyError(
                f"{self.name} can't be a key's serde: a set has no order, so equal keys would have different bytes; use a "
                "sorted tuple"
            )
        has_attrs = has_attrs_with_dict(self._type)
        if not self._sort_keys or not (has_attrs or holds_mappings(self._type)):
            return self
        codec = self._codec
        encode_key = _encoded_as_read(codec) if has_attrs else codec.encode_key
        codec = codec._replace(encode=encode_key, encode_lines=None)
        return _Typed(self.name, self._factory, self._type, codec, is_key=True)

    def from_plain(self, value: Any, /) -> Any:
        try:
            return self._codec.convert(value)
        except Exception as error:  # noqa: BLE001 - models run user code, which may raise anything
            reason = _reason(error, self._step, self._type)
        raise self.failed("serialise", "", reason)

    def serialize(self, topic: str, value: T, /) -> bytes | None:
        if (
            self._compares
            and (self._class is None or type(value) is self._class)
            and not (self._nested and have_sly_subclasses(self._nested))
        ):
            try:
                data = self._encode(value)
                if self._decode(data) == value:
                    return data
            except Exception:  # noqa: BLE001, S110 - `_encoded` below finds the reason
                pass
        try:
            return self._encoded((value,))[0]
        except Exception as error:  # noqa: BLE001 - models run user code, which may raise anything
            reason = _reason(error, self._step, self._type)
        raise self.failed("serialise", topic, reason)

    def deserialize(self, topic: str, data: bytes, /) -> T:
        try:
            return cast("T", self._decode(data))
        except Exception as error:  # noqa: BLE001 - models run user code, which may raise anything
            reason = f"{len(data)} bytes, {_reason(error, self._step, self._type)}"
        raise self.unreadable(topic, data, reason)

    def serialize_batch(self, topic: str, values: Sequence[T], /) -> list[bytes | None]:
        try:
            return cast("list[bytes | None]", self._encoded(values))
        except Exception:  # noqa: BLE001 - any error: encoding one by one raises with the reason
            return super().serialize_batch(topic, values)

    def deserialize_batch(self, topic: str, data: Sequence[bytes], /) -> list[T]:
        # Joining the values for `decode_lines` is not faster, and would accept `1 2` as two values.
        try:
            return list(map(self._decode, data))
        except Exception:  # noqa: BLE001 - any error: decoding one by one raises with the reason
            return super().deserialize_batch(topic, data)

    def probe(self) -> str | None:
        """Return the reason if a sample value of the type can't be written, else None."""
        value = sample(self._type)
        if value is NO_SAMPLE:
            return None
        try:
            self._encoded((value,))
        except Exception as error:  # noqa: BLE001 - models run user code, which may raise anything
            return _reason(error, self._step, self._type)
        return None

    def _encoded(self, values: Sequence[T]) -> list[bytes]:
        codec = self._codec
        # Check first: encoding moves dataclass fields into `__dict__`, where this check is slower.
        is_exact = len(values) >= _MANY and self._are_exact(values)
        try:
            encoded = _encode_many(values, codec)
        except Exception as error:  # noqa: BLE001 - models run user code, which may raise anything
            self._refuse_other_classes(values)
            raise CodecError(codec.failure(values[0], error)) from None
        if is_exact:
            return encoded
        self._refuse_other_classes(values)
        try:
            back = list(map(codec.decode, encoded))
        except Exception:
            self._refuse_hidden_nulls(values, encoded)
            raise
        compares = self._compares and not have_sly_subclasses(self._nested)
        if not (compares and back == list(values)):
            for value, other in zip(values, back, strict=True):
                text = difference(value, other, step=self._step)
                if text is not None:
                    self._refuse_hidden_nulls(values, encoded)
                    raise CodecError(f"{text}; give a value that fits {type_name(self._type)}")
        return encoded

    def _refuse_hidden_nulls(self, values: Sequence[T], encoded: list[bytes]) -> None:
        if self._codec.plain is not None:
            refuse_hidden_nulls(values, encoded, self._codec.plain, self._step)

    def _refuse_other_classes(self, values: Sequence[T]) -> None:
        if self._class is not None and not {self._class}.issuperset(map(type, values)):
            _refuse_other_classes(values, self._class)


def _encode_many(values: Sequence[Any], codec: TypeCodec) -> list[bytes]:
    """Return the bytes of many values; encoding them as lines in one call saves 1/6 of the time."""
    if codec.encode_lines is not None:
        lines = codec.encode_lines(values).split(b"\n")
        lines.pop()
        if len(lines) == len(values):  # false if a value is JSON that contains line feeds
            return lines
    return list(map(codec.encode, values))


def json_serde(python_type: Any, sort_keys: bool = True) -> Serde[Any]:
    name = f"json({type_name(python_type)})"
    codec = _json_codec(python_type, name)
    return _probed(_Typed(name, json_serde, python_type, codec, sort_keys=sort_keys))


def msgpack_serde(python_type: Any, sort_keys: bool = True) -> Serde[Any]:
    name = "msgpack" if python_type is Any else f"msgpack({type_name(python_type)})"
    codec = _msgpack_codec(python_type, name)
    return _probed(_Typed(name, msgpack_serde, python_type, codec, sort_keys=sort_keys))


def _probed(serde: _Typed[Any]) -> Serde[Any]:
    reason = serde.probe()
    if reason is None:
        return serde
    raise TopologyError(
        f"{serde.name}: a value would not be read back as it was written ({reason}); change the class so that it reads what "
        "it writes, or write a Serde(serialize, deserialize)"
    )


def _unpickle(
    factory: Callable[[Any, bool], Serde[Any]], python_type: Any, is_key: bool, sort_keys: bool
) -> Serde[Any]:
    serde = factory(python_type, sort_keys)
    return serde.for_keys() if is_key else serde


def _json_codec(python_type: Any, name: str) -> TypeCodec:
    if needs_union_codec(python_type):
        return _union_codec(python_type, name, _json_codec, msgspec.json)
    if _needs_pydantic(python_type, name):
        adapter = _adapter(python_type, name)
        # The adapter's own methods take twice as long, and so do warnings about values that the
        # check rejects anyway.
        to_json = adapter.serializer.to_json

        def write(value: Any) -> bytes:
            return to_json(value, by_alias=True, warnings=False)

        def read(data: bytes) -> Any:
            # Accept field names besides aliases: earlier versions wrote names.
            return adapter.validate_json(data, by_alias=True, by_name=True)

        return TypeCodec(
            write,
            read,
            partial(adapter.validate_python, by_alias=True, by_name=True),
            _failure(pydantic_to_json, step_in(python_type)),
            _sorted(msgspec.json, write),
            plain=adapter.dump_python,
        )
    encoder = msgspec.json.Encoder()
    return TypeCodec(
        encoder.encode,
        _decoder(msgspec.json.Decoder, python_type, name),
        _converter(python_type),
        _failure(encoder.encode, step_in(python_type)),
        _key_encoder(msgspec.json),
        encoder.encode_lines,
        msgspec.to_builtins,
    )


def _msgpack_codec(python_type: Any, name: str) -> TypeCodec:
    encode = msgspec.msgpack.Encoder().encode
    plain = msgspec.msgpack.Decoder[Any]().decode
    if needs_union_codec(python_type):
        return _union_codec(python_type, name, _msgpack_codec, msgspec.msgpack)
    if _needs_pydantic(python_type, name):
        adapter = _adapter(python_type, name)

        to_python = adapter.serializer.to_python

        def write(value: Any) -> bytes:
            return encode(to_python(value, by_alias=True, warnings=False))

        def read(data: bytes) -> Any:
            return adapter.validate_python(plain(data), by_alias=True, by_name=True)

        return TypeCodec(
            write,
            read,
            partial(adapter.validate_python, by_alias=True, by_name=True),
            _failure(
                encode,
                step_in(python_type),
                lambda value: adapter.dump_python(value, warnings=False),
            ),
            _sorted(msgspec.msgpack, write),
        )
    return TypeCodec(
        encode,
        _decoder(msgspec.msgpack.Decoder, python_type, name),
        _converter(python_type),
        _failure(encode, step_in(python_type)),
        _key_encoder(msgspec.msgpack),
    )


def _union_codec(
    python_type: Any,
    name: str,
    make: Callable[[Any, str], TypeCodec],
    library: Any,
) -> TypeCodec:
    codecs = {part: make(part, name) for part in members(python_type)}
    union = UnionCodec(
        {part: (codec.encode, codec.decode) for part, codec in codecs.items()},
        library.Decoder().decode,
    )

    step = step_in(python_type)

    def failure(value: Any, error: Exception) -> str:
        codec = codecs.get(type(value))
        return _reason(error, step) if codec is None else codec.failure(value, error)

    def convert(value: Any) -> Any:
        return union.first_of(value, {part: codec.convert for part, codec in codecs.items()})

    def plain(value: Any) -> Any:
        codec = codecs[type(value)].plain
        return value if codec is None else codec(value)

    is_json = all(codec.plain is not None for codec in codecs.values())

    return TypeCodec(
        union.encode,
        union.decode,
        convert,
        failure,
        _sorted(library, union.encode),
        plain=plain if is_json else None,
    )


def _adapter(python_type: Any, name: str) -> "TypeAdapter[Any]":
    try:
        return TypeAdapter[Any](python_type)
    except Exception as error:  # noqa: BLE001 - building a schema runs user code
        problem = str(error).partition("\n")[0]
    raise _undecodable(name, problem)


def _decoder(make: Any, python_type: Any, name: str) -> Callable[[bytes], Any]:
    try:
        decode: Callable[[bytes], Any] = make(python_type).decode
    except TypeError as error:
        problem = str(error)
    else:
        return _with_defaults(decode, python_type)
    raise _undecodable(name, problem)


def _converter(python_type: Any) -> Callable[[Any], Any]:
    return _with_defaults(lambda value: msgspec.convert(value, python_type), python_type)


def _with_defaults(make: Callable[[Any], Any], python_type: Any) -> Callable[[Any], Any]:
    set_defaults = default_setter(python_type)
    if set_defaults is None:
        return make

    def made(data: Any) -> Any:
        value = make(data)
        set_defaults(value)
        return value

    return made


def _sorted(library: Any, encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return an encoder that sorts dicts and fields; `library`: `msgspec.json` or `.msgpack`."""
    write, read = library.Encoder().encode, library.Decoder().decode
    write_sorted = library.Encoder(order="sorted").encode

    def encode_sorted(value: Any) -> bytes:
        plain = read(encode(value))
        try:
            return cast("bytes", write_sorted(plain))
        except TypeError:  # msgspec can't sort dicts with number keys
            return cast("bytes", write(_in_order(plain, write)))

    return encode_sorted


def _key_encoder(library: Any) -> Callable[[Any], bytes]:
    encode = library.Encoder(order="deterministic").encode
    in_order = _sorted(library, library.Encoder().encode)

    def encode_key(value: Any) -> bytes:
        try:
            return cast("bytes", encode(value))
        except TypeError:
            return in_order(value)

    return encode_key


def _encoded_as_read(codec: TypeCodec) -> Callable[[Any], bytes]:
    """Return a key encoder that reads keys back first, to keep only declared fields, in order."""
    return lambda value: codec.encode_key(codec.decode(codec.encode(value)))


def _in_order(value: Any, write: Callable[[Any], bytes]) -> Any:
    container: Any = value
    if isinstance(value, dict):
        order = sorted(container, key=write)
        return {key: _in_order(container[key], write) for key in order}
    if isinstance(value, list):
        return [_in_order(part, write) for part in container]
    return value


def _is_plain_msgpack(values: Sequence[Any]) -> bool:
    return are_plain(values, _MSGPACK_TYPES)


def _refuse_other_classes(values: Sequence[Any], python_type: type[Any]) -> None:
    for value in values:
        kind: Any = cast("object", type(value))
        if kind is python_type:
            continue
        expected, got = python_type.__name__, kind.__name__
        if issubclass(kind, python_type):
            raise CodecError(
                f"expected {expected}, got {got}, a subclass, and would be read back as {expected}; use a serde of "
                f"{expected} | {got}"
            )
        raise CodecError(f"expected {expected}, got {got}")


def _needs_pydantic(python_type: Any, name: str) -> bool:
    try:
        unknown = list(_unknown(msgspec.inspect.type_info(python_type)))
        problem = "" if not unknown else f"{type_name(unknown[0])} is an ordinary class"
    except TypeError as error:
        # msgspec can't decode unions of several dataclasses or models; pydantic can't decode
        # Structs.
        classes = [part for part in inner_types(python_type) if isinstance(part, type)]
        if len(members(python_type)) > 1 or any(
            len(members(part)) > 1 for part in inner_types(python_type)
        ):
            return not any(issubclass(part, msgspec.Struct) for part in classes) or _refused(
                name, str(error)
            )
        unknown, problem = [], str(error)
    if unknown and all(is_pydantic_class(cls) for cls in unknown):
        return True
    if problem:
        raise _undecodable(name, problem)
    return False


def _refused(name: str, problem: str) -> bool:
    raise _undecodable(name, problem)


def _undecodable(name: str, problem: str) -> TopologyError:
    return TopologyError(
        f"{name}: can't decode into this type ({problem}); use a msgspec.Struct, a dataclass, a TypedDict or a "
        "pydantic model, or write a Serde(serialize, deserialize)"
    )


def _unknown(info: Any, seen: frozenset[int] = frozenset()) -> Iterator[Any]:
    if isinstance(info, msgspec.inspect.CustomType) or (
        # msgspec ignores aliases, validators and constraints of pydantic dataclasses.
        isinstance(info, msgspec.inspect.DataclassType) and is_pydantic_class(info.cls)
    ):
        yield info.cls
    elif isinstance(info, tuple | list):
        parts = cast("Sequence[Any]", info)
        for part in parts:
            yield from _unknown(part, seen)
    elif isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field) and id(info) not in seen:
        # Types may contain themselves.
        for field in msgspec.structs.fields(info):
            yield from _unknown(getattr(info, field.name), seen | {id(info)})


def _failure(
    encode: Callable[[Any], object], step: PathStep, plain: Callable[[Any], Any] | None = None
) -> Callable[[Any, Exception], str]:
    def failure(value: Any, error: Exception) -> str:
        place = first_failure(value if plain is None else plain(value), encode, step=step)
        return f"at {place}: {_reason(error, step)}"

    return failure


def step_in(python_type: Any) -> PathStep:
    """Return the function that shows a dict key as a step of an error path.

    It shows only declared field names, because other keys are data.
    """
    if any(part in {Any, object} for part in inner_types(python_type) if is_hashable(part)):
        return step_to
    names = declared_names(python_type)

    def step(key: object) -> str:
        return f".{key}" if key in names else f"[{type(key).__name__} key]"

    return step


def _reason(error: Exception, step: PathStep, python_type: Any = Any) -> str:
    """Return the reason without data: types and paths, no values and no text of user code."""
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        shows_indexes = not holds_mappings(python_type)  # a mapping's int may be data
        path = "".join(
            f"[{place}]" if shows_indexes and isinstance(place, int) else step(place)
            for place in first["loc"]
        )
        return f"{first['type']} at ${path}{_validator_place(error)}"
    if isinstance(error, CodecError):
        return str(error)
    text = str(error)
    # raised by a user's constructor; msgspec has added the place
    if isinstance(error.__cause__, Exception):
        place, users = _PLACE.search(text), place_of(error.__cause__)
        name = type(error.__cause__).__name__
        return f"raised {name}{place[0] if place else ''}{users and f', {users}'}"
    is_expected = isinstance(error, msgspec.MsgspecError) or type(error) in {
        TypeError,
        OverflowError,
    }
    if is_expected and not _is_raised_by_users(error):
        return _QUOTED.sub("'…'", _WITH_VALUE.sub(r"\1'…'\2", text))
    return raised(error)


def _validator_place(error: ValidationError) -> str:
    """Return ", in check() (shop.py:3)" if a user's validator raised."""
    cause: Any = error.errors(include_input=False, include_url=False)[0].get("ctx", {}).get("error")
    place = place_of(cause) if isinstance(cause, Exception) else ""
    return place and f", {place}"


def _is_raised_by_users(error: Exception) -> bool:
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_globals.get("__name__") not in _OURS
