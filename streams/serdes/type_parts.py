"""Analysis of types at build time: their classes, and a sample value to test a serde. Pure."""

import types
import typing
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import (
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)
from weakref import WeakSet

import msgspec
from pydantic import AliasChoices, AliasPath, BaseModel, SecretBytes, SecretStr, TypeAdapter
from pydantic.fields import FieldInfo

#: Returned if a type has no sample, or creating one fails.
NO_SAMPLE: Final = object()

_MAX_DEPTH: Final = 6
_MAX_LENGTH: Final = 1000

# Values that test a serde at build time. A serde that rounds times to seconds passes, because these
# have whole seconds; it fails later, at a record with a finer time.
_SAMPLES: Final[dict[object, object]] = {
    str: "a",
    int: 1,
    float: 1.5,
    bool: True,
    bytes: b"a",
    type(None): None,
    Any: "a",
    datetime: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    date: date(2026, 1, 2),
    time: time(1, 2, 3),
    timedelta: timedelta(seconds=90),
    Decimal: Decimal("1.10"),
    uuid.UUID: uuid.UUID(int=1),
    SecretStr: SecretStr("a"),
    SecretBytes: SecretBytes(b"a"),
}


def type_name(python_type: Any) -> str:
    """Return a type's name for messages.

    >>> type_name(int), type_name(int | None)
    ('int', 'int | None')
    """
    if isinstance(python_type, type) and not get_args(python_type):
        return python_type.__name__
    if get_origin(python_type) in {Union, types.UnionType}:
        return " | ".join(
            "None" if part is type(None) else type_name(part) for part in get_args(python_type)
        )
    return str(python_type)


def is_users_class(python_type: Any) -> bool:
    if not isinstance(python_type, type):
        return False
    kind: Any = python_type
    is_known = issubclass(kind, msgspec.Struct | BaseModel) or is_dataclass(kind)
    return is_known or hasattr(kind, "__attrs_attrs__")


def is_pydantic_class(python_type: Any) -> bool:
    kind: Any = get_origin(python_type) or python_type
    if not isinstance(kind, type):
        return False
    cls: Any = kind
    return issubclass(cls, BaseModel) or (
        is_dataclass(cls) and hasattr(cls, "__pydantic_validator__")
    )


def pydantic_fields(python_type: Any) -> Mapping[str, FieldInfo]:
    return cast("Mapping[str, FieldInfo]", python_type.__pydantic_fields__)


def type_hints(python_type: Any) -> dict[str, Any]:
    try:
        hints = get_type_hints(python_type, include_extras=True)
    except Exception:  # noqa: BLE001 - names that only type checkers see
        return {}
    return {name: hint for name, hint in hints.items() if get_origin(hint) is not typing.ClassVar}


def members(python_type: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself.

    >>> members(int | None)
    (<class 'int'>, <class 'NoneType'>)
    """
    if get_origin(python_type) in {Union, types.UnionType}:
        return get_args(python_type)
    return (python_type,)


def inner_types(python_type: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Yield a type and all types within it, once each: of containers, unions and fields.

    >>> list(inner_types(dict[str, int]))
    [dict[str, int], <class 'str'>, <class 'int'>]
    """
    seen = set() if seen is None else seen
    if id(python_type) in seen:
        return
    seen.add(id(python_type))
    yield python_type
    origin = get_origin(python_type)
    if origin is Literal:
        return
    value = getattr(python_type, "__value__", None)  # the alias of a `type` statement
    if value is not None and not isinstance(python_type, type):
        yield from inner_types(value, seen)
    if origin is not None and is_users_class(origin):
        yield from inner_types(origin, seen)
    for part in get_args(python_type):
        yield from inner_types(part, seen)
    if is_users_class(python_type) or is_typed_dict(python_type) or _is_named_tuple(python_type):
        for hint in type_hints(python_type).values():
            yield from inner_types(hint, seen)


def is_typed_dict(python_type: object) -> bool:
    return typing.is_typeddict(python_type)


def _is_named_tuple(python_type: Any) -> bool:
    is_tuple = isinstance(python_type, type) and issubclass(python_type, tuple)
    return is_tuple and hasattr(cast("object", python_type), "_fields")


def holds_sets(python_type: Any) -> bool:
    return any(_is_subclass(part, AbstractSet) for part in inner_types(python_type))


def holds_mappings(python_type: Any) -> bool:
    return any(
        part in {Any, object}
        or isinstance(part, TypeVar)
        or is_typed_dict(part)
        or _is_bare_container(part)
        or _is_subclass(part, Mapping)
        or _allows_extra(part)
        for part in inner_types(python_type)
        if is_hashable(part)
    )


def _is_bare_container(part: Any) -> bool:
    return (
        isinstance(part, type)
        and not get_args(part)
        and issubclass(part, Collection)
        and not issubclass(part, str | bytes | bytearray | memoryview)
        and not _is_named_tuple(part)
    )


def _allows_extra(python_type: Any) -> bool:
    kind = get_origin(python_type) or python_type
    if not is_pydantic_class(kind):
        return False
    config = kind.model_config if issubclass(kind, BaseModel) else kind.__pydantic_config__
    return bool(config.get("extra") == "allow")


def is_hashable(part: Any) -> bool:
    try:
        hash(part)
    except TypeError:
        return False
    return True


def _is_subclass(part: Any, kind: type[Any]) -> bool:
    origin = get_origin(part) or part
    return isinstance(origin, type) and issubclass(origin, kind)


def has_own_equality(python_type: Any) -> bool:
    """Return True if a class's `==` may hold for objects with different fields."""
    if not is_users_class(python_type):
        return False
    equals: Any = python_type.__eq__
    if issubclass(python_type, BaseModel):
        return equals is not BaseModel.__eq__
    if issubclass(python_type, msgspec.Struct):
        return equals is not msgspec.Struct.__eq__ or not python_type.__struct_config__.eq
    if is_dataclass(python_type):
        if _allows_extra(python_type):  # a dataclass's `==` ignores extra fields
            return True
        code = getattr(equals, "__code__", None)
        generated = code is not None and code.co_filename == "<string>"
        return not generated or not all(field.compare for field in fields(python_type))
    return True  # attrs: options may exclude fields from `==`


def declared_names(python_type: Any) -> frozenset[str]:
    """Return all field names within a type, including their aliases in the data.

    >>> sorted(declared_names(msgspec.defstruct("Order", [("line_items", int)], rename="camel")))
    ['lineItems', 'line_items']
    """
    names: set[str] = set()
    for part in inner_types(python_type):
        names.update(type_hints(part) if not get_origin(part) and isinstance(part, type) else ())
        if is_pydantic_class(part):
            for field in pydantic_fields(part).values():
                names.update(_texts(field.alias, field.validation_alias, field.serialization_alias))
            cls: Any = part
            for name, computed in cls.__pydantic_decorators__.computed_fields.items():
                names.update(_texts(name, computed.info.alias))
        elif _is_subclass(part, msgspec.Struct):
            struct: Any = get_origin(part) or part
            names.update(struct.__struct_encode_fields__)
    return frozenset(names)


def _texts(*aliases: Any) -> Iterator[str]:
    for alias in aliases:
        if isinstance(alias, str):
            yield alias
        elif isinstance(alias, AliasPath):
            yield from _texts(*alias.path)
        elif isinstance(alias, AliasChoices):
            yield from _texts(*alias.choices)


def nested_classes(python_type: Any) -> tuple[type[Any], ...]:
    classes = [part for part in inner_types(python_type) if is_users_class(part)]
    if is_users_class(python_type) and not is_recursive(python_type):
        classes.remove(python_type)
    return tuple(classes)


def is_recursive(python_type: Any) -> bool:
    hints = type_hints(python_type).values()
    return any(part is python_type for hint in hints for part in inner_types(hint))


#: Subclasses already checked: their `==` compares all fields.
_TRUSTED: Final[WeakSet[type[Any]]] = WeakSet()


def have_sly_subclasses(classes: Iterable[type[Any]]) -> bool:
    """Return True if a subclass has its own equality and may equal an object with other fields."""
    for cls in classes:
        for subclass in cls.__subclasses__():
            if subclass not in _TRUSTED:
                if has_own_equality(subclass):
                    return True
                _TRUSTED.add(subclass)
            if have_sly_subclasses((subclass,)):
                return True
    return False


def sample(python_type: Any, depth: int = 0) -> Any:
    """Return an example value of a type, to test its serde, or `NO_SAMPLE`.

    >>> sample(dict[str, list[int]])
    {'a': [1]}
    """
    if depth > _MAX_DEPTH:
        return NO_SAMPLE
    try:
        return _sample(python_type, depth)
    except Exception:  # noqa: BLE001 - constructors and validators are the user's: without a sample there is no verdict
        return NO_SAMPLE


def _sample(python_type: Any, depth: int) -> Any:  # noqa: PLR0911 - one for each kind of type
    if is_hashable(python_type) and python_type in _SAMPLES:
        return _SAMPLES[python_type]
    origin, arguments = get_origin(python_type), get_args(python_type)
    if origin is Literal:
        return arguments[0]
    if origin is typing.Annotated:
        example = sample(arguments[0], depth)
        return next(
            (
                candidate
                for candidate in _candidates(example, arguments[1:])
                if _fits(candidate, python_type)
            ),
            NO_SAMPLE,
        )
    if origin in {Union, types.UnionType}:
        example = (sample(part, depth + 1) for part in arguments if part is not type(None))
        return next((candidate for candidate in example if candidate is not NO_SAMPLE), NO_SAMPLE)
    if origin is not None:
        return _sample_container(origin, arguments, depth)
    if is_typed_dict(python_type) or is_users_class(python_type):
        return _sample_object(python_type, depth)
    if isinstance(python_type, type) and issubclass(python_type, Enum):
        return next(iter(python_type))
    return NO_SAMPLE


def _candidates(example: Any, metadata: Sequence[Any]) -> Iterator[Any]:
    """Yield a sample and variants that satisfy most declared constraints."""
    yield example
    limits = _constraints(metadata)
    if isinstance(example, str | bytes | list | tuple):
        yield example * min(limits.get("min_length", 1), _MAX_LENGTH)
    elif isinstance(example, datetime | time):
        yield example.replace(tzinfo=None if example.tzinfo else UTC)
    elif isinstance(example, int | float | Decimal):
        kind: Any = type(example)
        step = limits.get("multiple_of", 1)
        low = limits.get("ge", limits.get("gt"))
        high = limits.get("le", limits.get("lt"))
        bounds = [bound for bound in (low, high) if bound is not None]
        for bound in bounds:
            rounded = bound // step * step
            yield from (kind(rounded + change) for change in (0, step, -step))
        yield kind(step)
        if len(bounds) == 2:  # noqa: PLR2004 - both
            yield kind(sum(bounds) / 2)


def _constraints(metadata: Sequence[Any]) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for part in metadata:
        limits |= _constraints(getattr(part, "metadata", ()))
        for name in ("ge", "gt", "le", "lt", "multiple_of", "min_length"):
            bound = getattr(part, name, None)
            if bound is not None:
                limits[name] = bound
    return limits


def _fits(value: Any, annotated: Any) -> bool:
    metadata = [part for part in get_args(annotated)[1:] if not isinstance(part, str)]
    is_msgspec = [isinstance(part, msgspec.Meta) for part in metadata]
    try:
        if any(is_msgspec):
            msgspec.convert(value, annotated)
        if not all(is_msgspec):
            TypeAdapter(annotated).validate_python(value)
    except Exception:  # noqa: BLE001 - validators are the user's: without a sample there is no verdict
        return False
    return value is not NO_SAMPLE


def _sample_container(origin: Any, arguments: tuple[Any, ...], depth: int) -> Any:
    if origin is tuple:
        arguments = tuple(part for part in arguments if part is not Ellipsis)
    inner = [sample(part, depth + 1) for part in arguments]
    example: Any = NO_SAMPLE
    if NO_SAMPLE in inner or not isinstance(origin, type):
        return example
    if origin is tuple:
        example = tuple(inner)
    elif issubclass(origin, Mapping):
        example = {inner[0]: inner[1]}
    elif issubclass(origin, AbstractSet):
        example = (frozenset if origin is frozenset else set)(inner)
    elif issubclass(origin, Collection):
        example = inner
    return example


def _sample_object(python_type: Any, depth: int) -> Any:
    is_pydantic = is_pydantic_class(python_type)
    hints = type_hints(python_type)
    if is_pydantic:
        declared = pydantic_fields(python_type)
        hints = {name: field.rebuild_annotation() for name, field in declared.items()}
    optional = _optional_fields(python_type)
    field_samples: dict[str, Any] = {}
    for name in hints if is_typed_dict(python_type) else _settable_fields(python_type):
        field_sample = sample(hints.get(name, NO_SAMPLE), depth + 1)
        if field_sample is not NO_SAMPLE:
            field_samples[name] = field_sample
        elif name not in optional:
            return NO_SAMPLE
    if is_typed_dict(python_type):
        return field_samples
    if is_pydantic:
        adapter = TypeAdapter[Any](python_type)
        return adapter.validate_python(field_samples, by_name=True, by_alias=False)
    if hasattr(python_type, "__attrs_attrs__"):
        aliases = {field.name: field.alias for field in python_type.__attrs_attrs__}
        field_samples = {
            aliases.get(name, name): field_sample for name, field_sample in field_samples.items()
        }
    return python_type(**field_samples)


def _settable_fields(python_type: Any) -> list[str]:
    if is_pydantic_class(python_type):
        # Leave out excluded fields: they are not written, so their defaults are read back.
        return [
            name
            for name, field in pydantic_fields(python_type).items()
            if field.init is not False and (field.is_required() or not field.exclude)
        ]
    if issubclass(python_type, msgspec.Struct):
        return list(python_type.__struct_fields__)
    if is_dataclass(python_type):
        return [field.name for field in fields(python_type) if field.init]
    return [field.name for field in python_type.__attrs_attrs__ if field.init]


def _optional_fields(python_type: Any) -> AbstractSet[str]:
    if is_typed_dict(python_type):
        return cast("AbstractSet[str]", python_type.__optional_keys__)
    if is_pydantic_class(python_type):
        declared = pydantic_fields(python_type)
        return {name for name, field in declared.items() if not field.is_required()}
    if issubclass(python_type, msgspec.Struct):
        infos = msgspec.structs.fields(python_type)
        return {field.name for field in infos if not field.required}
    if is_dataclass(python_type):
        return {
            field.name
            for field in fields(python_type)
            if field.default is not MISSING or field.default_factory is not MISSING
        }
    return set()
