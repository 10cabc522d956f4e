"""Flat classes, for which the types of a batch's fields prove that its values read back equal. Pure."""

import types
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any, Final, Union, get_args, get_origin

import msgspec
from pydantic import BaseModel

from streams.serdes.type_parts import has_own_equality, is_users_class, type_hints

_NONE: Final = type(None)
_EXACT: Final = frozenset({str, int, float, bool, _NONE})

#: What a class may override that has a say in what is written or read.
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


def exact_fields(python_type: Any, is_json: bool) -> Callable[[Sequence[Any]], bool]:
    """Return the function that says whether a batch's fields are all of exactly their declared types.

    It says no for every batch of a class that is not flat: such values are read back.
    """
    wanted = _exact_types(python_type)
    if (
        wanted is None
        and isinstance(python_type, type)
        and python_type in _EXACT
        and (is_json or python_type is not int)
    ):
        alone = {python_type}
        return lambda values: alone.issuperset(map(type, values))
    if not wanted:
        return lambda _: False
    columns = [(attrgetter(name), kinds) for name, kinds in wanted.items()]

    def are_exact(values: Sequence[Any]) -> bool:
        try:
            return all(kinds.issuperset(map(type, map(get, values))) for get, kinds in columns)
        except AttributeError:  # an object without one of its fields
            return False

    return are_exact


def _exact_types(python_type: Any) -> dict[str, frozenset[type[Any]]] | None:
    """Return the types of the fields of a flat class, or None for any other type."""
    if (
        not is_users_class(python_type)
        or has_own_equality(python_type)
        or not _is_flat(python_type)
    ):
        return None
    hints = type_hints(python_type)
    names = _field_names(python_type)
    found = {name: _kinds(hints.get(name)) for name in names}
    if not all(found.values()) or set(names) != set(hints):
        return None
    return found


def _kinds(hint: Any) -> frozenset[type[Any]]:
    """Return the types of a field's values, or none if a value of such a field has to be read back."""
    parts = get_args(hint) if get_origin(hint) in {Union, types.UnionType} else (hint,)
    kinds = frozenset(_NONE if part is None else part for part in parts)
    return kinds if kinds <= _EXACT else frozenset()


def _is_flat(python_type: Any) -> bool:
    if issubclass(python_type, BaseModel):
        return _is_plain_model(python_type)
    if issubclass(python_type, msgspec.Struct):
        return not any(
            hook in vars(base)
            for hook in _HOOKS
            for base in _own_bases(python_type, msgspec.Struct)
        )
    if is_dataclass(python_type):
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
    return [base for base in python_type.__mro__ if base is not root and base is not object]


def _is_plain_model(model: type[BaseModel]) -> bool:
    """Return whether pydantic writes and reads a model's fields as they are: no setting, alias, validator or serializer."""
    decorators = model.__pydantic_decorators__
    return (
        model.__bases__ == (BaseModel,)
        and not model.model_config
        and not model.__private_attributes__
        and not any(
            vars(decorators).values() if hasattr(decorators, "__dict__") else _slots(decorators)
        )
        and not any(hook in vars(model) for hook in (*_HOOKS, *_MODEL_HOOKS))
        and all(
            not (
                field.alias
                or field.validation_alias
                or field.serialization_alias
                or field.exclude
                or field.metadata
            )
            for field in model.model_fields.values()
        )
    )


def _slots(decorators: Any) -> list[Any]:
    return [getattr(decorators, field.name) for field in fields(decorators)]


def _field_names(python_type: Any) -> list[str]:
    if issubclass(python_type, BaseModel):
        return list(python_type.model_fields)
    if issubclass(python_type, msgspec.Struct):
        return list(python_type.__struct_fields__)
    return [field.name for field in fields(python_type)]
