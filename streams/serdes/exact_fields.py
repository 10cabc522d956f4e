"""Closed types: types whose values read back equal if each part has exactly its declared type.

`exact_fields` compiles such a type, when its serde is built, to a batch check that runs in C. Each
field becomes a column of the batch, checked for its set of types. A value that fails the check is
read back and compared.
"""

import gc
import types
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import chain
from math import isfinite
from operator import attrgetter, methodcaller
from typing import Any, Final, Literal, NamedTuple, Union, cast, get_args, get_origin
from uuid import UUID

import msgspec
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tidewheel.streams.serdes.type_parts import (
    has_own_equality,
    is_pydantic_class,
    is_users_class,
    members,
    type_hints,
)

#: Returns True if all values of a column read back equal. After False, the serde reads them back.
Check = Callable[[Sequence[Any]], bool]

_NONE: Final = type(None)
#: Types that a union may mix: their encoded forms differ, so each value is read back as its type.
_EXACT: Final = frozenset({str, int, float, bool, _NONE})
#: Types whose objects always read back equal in msgspec's formats.
_LEAVES: Final = frozenset({bytes, date, timedelta, UUID})
#: Time zones that read back with the same offset. Others' offsets may have seconds, which are lost.
_ZONES: Final = frozenset({None, UTC})
_zone_of: Final = attrgetter("tzinfo")
_values_of: Final = methodcaller("values")

_NO_OPTIONS: Final = FieldInfo()
_HARMLESS_OPTIONS: Final = frozenset({
    "annotation", "default", "default_factory", "title", "field_title_generator", "description", "examples", "deprecated",
    "json_schema_extra", "frozen", "repr",
})  # fmt: skip

#: Methods that change reading or writing if a class defines them, so the class is not closed.
_HOOKS: Final = (
    "__post_init__",
    "model_post_init",
    "__init__",
    "__new__",
    "__getattr__",
    "__getattribute__",
    "__reduce__",
)
_MODEL_HOOKS: Final = ("model_dump", "model_validate", "__get_pydantic_core_schema__", "__iter__")


def exact_fields(python_type: Any, is_json: bool) -> Check:
    """Return a batch check that all values have exactly their declared types.

    >>> check = exact_fields(list[int], is_json=True)
    >>> check([[1, 2], []]), check([[1, True]])
    (True, False)

    Always False for a type with unchecked parts: the serde then reads back and compares values.
    """
    with suppress(TypeError, RecursionError):  # not a type hint
        check = _check_of(python_type, is_json, ())
        if check is not None:
            return check
    return lambda _: False


def _check_of(hint: Any, is_json: bool, outer: tuple[Any, ...]) -> Check | None:
    parts = [_NONE if part is None else part for part in members(hint)]
    if frozenset(parts) <= _EXACT:
        return _of_types(frozenset(parts), is_json)
    remaining = [part for part in parts if part is not _NONE]
    if len(remaining) != 1:
        return None
    check = _one_type(remaining[0], is_json, outer)
    if check is None or len(parts) == 1:
        return check
    return lambda column: check([value for value in column if value is not None])


def _of_types(kinds: frozenset[Any], is_json: bool, also: Check | None = None) -> Check:
    if also is not None:
        return lambda column: kinds.issuperset(map(type, column)) and also(column)
    if is_json and float in kinds:
        # JSON can't hold NaN or infinity; either makes a column's sum not finite. Large numbers may
        # do so, too: they are then read back.
        if str in kinds:
            return lambda column: (
                kinds.issuperset(map(type, column))
                and all(isfinite(value) for value in column if type(value) is float)
            )
        return lambda column: (
            kinds.issuperset(map(type, column)) and isfinite(sum(filter(None, column)))
        )
    return lambda column: kinds.issuperset(map(type, column))


def _have_plain_zones(column: Sequence[Any]) -> bool:
    return _ZONES.issuperset(map(_zone_of, column))


def _are_finite_decimals(column: Sequence[Any]) -> bool:
    return all(map(Decimal.is_finite, column))


def _one_type(hint: Any, is_json: bool, outer: tuple[Any, ...]) -> Check | None:
    origin, arguments = get_origin(hint), get_args(hint)
    check: Check | None = None
    if origin is Literal:
        allowed, kinds = frozenset(arguments), frozenset(map(type, arguments))
        if kinds <= {str, int, bool, _NONE}:
            check = _of_types(kinds, is_json=False, also=allowed.issuperset)
    elif origin is not None:
        check = _container(origin, arguments, is_json, outer)
    elif hint in _LEAVES:
        check = _of_types(frozenset({hint}), is_json=False)
    elif hint in {datetime, time}:
        check = _of_types(frozenset({hint}), is_json, _have_plain_zones)
    elif hint is Decimal:
        check = _of_types(frozenset({Decimal}), is_json, _are_finite_decimals)
    elif isinstance(hint, type) and issubclass(hint, Enum):
        if all(_is_read_back(member) for member in hint):
            check = _of_types(frozenset({hint}), is_json=False)
    elif is_users_class(hint) and hint not in outer:
        check = _object(cast("Any", hint), is_json, (*outer, cast("Any", hint)))
    return check


def _is_read_back(member: Enum) -> bool:
    try:
        return msgspec.json.decode(msgspec.json.encode(member), type=type(member)) is member
    except Exception:  # noqa: BLE001 - values that are no JSON, and classes with code of their own
        return False


def _container(
    origin: Any, arguments: tuple[Any, ...], is_json: bool, outer: tuple[Any, ...]
) -> Check | None:
    if origin is dict:
        key, value = (_check_of(part, is_json, outer) for part in arguments)
        # JSON keys are text: besides text only integers read back equal.
        if arguments[0] not in {str, int} or key is None or value is None:
            return None
        return lambda column: (
            {dict}.issuperset(map(type, column))
            and key(list(chain.from_iterable(column)))
            and value(list(chain.from_iterable(map(_values_of, column))))
        )
    if origin is tuple:
        if len(arguments) != 2 or arguments[1] is not Ellipsis:  # noqa: PLR2004 - the form tuple[X, ...]
            return None
    elif origin not in {list, set, frozenset}:
        return None
    items = _check_of(arguments[0], is_json, outer)
    if items is None:
        return None
    kinds: frozenset[Any] = frozenset({origin})
    # `gc.get_referents` lists the items of all containers in one call.
    return lambda column: kinds.issuperset(map(type, column)) and items(gc.get_referents(*column))


class _Layout(NamedTuple):
    """Order in which `gc.get_referents` lists the fields of one class's objects.

    Attributes:
        width: Referents per object.
        of_class: Position of the class.
        of_dict: Position of `__dict__` with the fields, or None.
        places: Positions of the fields.
    """

    width: int
    of_class: int
    of_dict: int | None
    places: list[int]


def _object(python_type: Any, is_json: bool, outer: tuple[Any, ...]) -> Check | None:
    if has_own_equality(python_type) or not _is_flat(python_type):
        return None
    hints = type_hints(python_type)
    names = _field_names(python_type)
    if not names or set(names) != set(hints):
        return None
    is_model = issubclass(python_type, BaseModel)
    if is_model and not all(frozenset(_types_of(hints[name])) <= _EXACT for name in names):
        return None  # pydantic may encode other types in special forms
    field_checks = [_check_of(hints[name], is_json, outer) for name in names]
    checks = [check for check in field_checks if check is not None]
    if len(checks) != len(names):
        return None
    check = _by_name(python_type, names, checks)
    for layout in () if is_model else _layouts(python_type, names):
        check = _by_layout(python_type, layout, checks, check)
    return check


def _by_name(python_type: Any, names: list[str], checks: list[Check]) -> Check:
    kinds = frozenset({python_type})
    columns = [(attrgetter(name), check) for name, check in zip(names, checks, strict=True)]

    def are_exact(values: Sequence[Any]) -> bool:
        if not kinds.issuperset(map(type, values)):
            return False
        try:
            return all(check(list(map(get, values))) for get, check in columns)
        except _NOT_EXACT:
            return False

    return are_exact


#: Errors that a check raises for values of unexpected types or objects without a field.
_NOT_EXACT: Final = (AttributeError, TypeError, ValueError, OverflowError)


def _by_layout(python_type: Any, layout: _Layout, checks: list[Check], other: Check) -> Check:
    """Return a check that reads all fields of a batch by one or two `gc.get_referents` calls.

    For objects of another layout it calls `other`, which takes two to four times as long.
    """
    width, of_class, of_dict, places = layout
    columns = list(zip(places, checks, strict=True))
    inner_width = len(places)

    def are_exact(values: Sequence[Any]) -> bool:
        parts = gc.get_referents(*values)
        count = len(values)
        if len(parts) != width * count or parts[of_class::width] != [python_type] * count:
            return other(values)
        step = width
        if of_dict is not None:
            parts, step = gc.get_referents(*parts[of_dict::width]), inner_width
            if len(parts) != inner_width * count:
                return other(values)
        try:
            for place, check in columns:
                if not check(parts[place::step]):
                    return False
        except _NOT_EXACT:
            return False
        return True

    return are_exact


def _layouts(python_type: Any, names: list[str]) -> list[_Layout]:
    """Return the layouts of a class's objects, the most frequent one last.

    Without slots, an object's fields move to `__dict__` when code, such as an encoder, reads that.
    """
    marks = {name: object() for name in names}
    layouts: list[_Layout] = []
    try:
        instance = python_type(**marks)
        plain = gc.get_referents(instance)
        attributes = getattr(instance, "__dict__", None)
        if attributes is not None:
            listed = gc.get_referents(instance)
            of_dict = [part is attributes for part in listed].index(True)
            places = _places(gc.get_referents(attributes), marks)
            if places is not None and len(attributes) == len(names):
                layouts.append(_Layout(len(listed), listed.index(python_type), of_dict, places))
        places = _places(plain, marks)
        if places is not None:
            layouts.append(_Layout(len(plain), plain.index(python_type), None, places))
    except Exception:  # noqa: BLE001 - a class that is not made of its fields is read by name
        return []
    return layouts


def _places(listed: list[Any], marks: dict[str, object]) -> list[int] | None:
    places = {id(part): place for place, part in enumerate(listed)}
    mark_ids = [id(mark) for mark in marks.values()]
    return [places[mark] for mark in mark_ids] if places.keys() >= set(mark_ids) else None


def _types_of(hint: Any) -> Iterable[Any]:
    parts = get_args(hint) if get_origin(hint) in {Union, types.UnionType} else (hint,)
    return (_NONE if part is None else part for part in parts)


def _is_flat(python_type: Any) -> bool:
    if issubclass(python_type, BaseModel):
        return _is_plain_model(python_type)
    if issubclass(python_type, msgspec.Struct):
        return not any(
            hook in vars(base)
            for hook in _HOOKS
            for base in _own_bases(python_type, msgspec.Struct)
        )
    if is_dataclass(python_type) and not is_pydantic_class(python_type):
        generated = {"__init__", "__getstate__", "__setstate__"}
        hooks = set(_HOOKS) - generated
        return (
            _is_generated(vars(python_type).get("__init__"))
            and all(field.init for field in fields(python_type))
            and not any(
                hook in vars(base) for hook in hooks for base in _own_bases(python_type, object)
            )
        )
    return False


def _is_generated(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename == "<string>"


def _own_bases(python_type: Any, root: type[Any]) -> list[type[Any]]:
    return [base for base in python_type.__mro__ if base not in root.__mro__]


def _is_plain_model(model: type[BaseModel]) -> bool:
    decorators = model.__pydantic_decorators__
    return (
        model.__bases__ == (BaseModel,)
        and not model.model_config
        and not model.__private_attributes__
        and not any(
            vars(decorators).values() if hasattr(decorators, "__dict__") else _slots(decorators)
        )
        and not any(hook in vars(model) for hook in (*_HOOKS, *_MODEL_HOOKS))
        and all(map(_is_plain_field, model.model_fields.values()))
    )


def _is_plain_field(field: FieldInfo) -> bool:
    """Return True if a field's options change neither its bytes nor its value."""
    return all(
        getattr(field, option) == getattr(_NO_OPTIONS, option)
        for option in FieldInfo.__slots__
        if option not in _HARMLESS_OPTIONS and not option.startswith("_")
    )


def _slots(decorators: Any) -> list[Any]:
    return [getattr(decorators, field.name) for field in fields(decorators)]


def _field_names(python_type: Any) -> list[str]:
    if issubclass(python_type, BaseModel):
        return list(python_type.model_fields)
    if issubclass(python_type, msgspec.Struct):
        return list(python_type.__struct_fields__)
    return [field.name for field in fields(python_type)]
