"""Normalises fields of decoded objects, so equal values have equal bytes.

Dataclasses without slots take missing fields from the class, and msgspec's encoder omits them.
attrs classes without slots keep the field order of the read bytes.
"""

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Final, cast

from tidewheel.streams.serdes.read_back import parts
from tidewheel.streams.serdes.type_parts import inner_types, is_recursive

_SCALARS: Final = (str, bytes, int, float, type(None))


def default_setter(python_type: Any) -> Callable[[Any], None] | None:
    """Return a function that sets defaults and field order in decoded objects.

    None if the type needs no such function.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Order:
    ...     cents: int
    ...     currency: str = "EUR"
    >>> set_defaults, order = default_setter(Order), object.__new__(Order)
    >>> set_defaults(order)
    >>> vars(order)
    {'currency': 'EUR'}
    """
    setters = {part: setter for part in inner_types(python_type) if (setter := _setter(part))}
    if not setters:
        return None
    if setters.keys() == {python_type} and not is_recursive(python_type):
        return setters[python_type]

    def set_all(value: Any) -> None:
        set_own = setters.get(type(value))
        if set_own is not None:
            set_own(value)
        for _, part in parts(value):
            if not isinstance(part, _SCALARS):
                set_all(part)

    return set_all


def has_attrs_with_dict(python_type: Any) -> bool:
    return any(_is_attrs_with_dict(part) for part in inner_types(python_type))


def _is_attrs_with_dict(python_type: Any) -> bool:
    is_attrs = isinstance(python_type, type) and hasattr(python_type, "__attrs_attrs__")
    return is_attrs and bool(cast("Any", python_type).__dictoffset__)


def _setter(python_type: Any) -> Callable[[Any], None] | None:
    if _is_attrs_with_dict(python_type):
        return _field_sorter(tuple(field.name for field in python_type.__attrs_attrs__))
    defaults = _defaults(python_type)
    if not defaults:
        return None

    def set_own(value: Any) -> None:
        attributes = value.__dict__
        for name, default in defaults:
            attributes.setdefault(name, default)

    return set_own


def _field_sorter(names: tuple[str, ...]) -> Callable[[Any], None]:
    def sort_fields(value: Any) -> None:
        attributes = value.__dict__
        in_order = {name: attributes[name] for name in names if name in attributes}
        if list(in_order) != list(attributes):
            attributes.clear()
            attributes.update(in_order)

    return sort_fields


def _defaults(python_type: Any) -> tuple[tuple[str, Any], ...]:
    if not (isinstance(python_type, type) and is_dataclass(python_type)):
        return ()
    attributes = _class_attributes(python_type)
    return tuple(
        (field.name, field.default)
        for field in fields(python_type)
        if field.init and field.default is not MISSING and field.name in attributes
    )


def _class_attributes(python_type: type[Any]) -> frozenset[str]:
    slots: set[str] = set()
    for base in python_type.__mro__:
        names = vars(base).get("__slots__", ())
        slots.update((names,) if isinstance(names, str) else names)
    return frozenset(dir(python_type)) - slots
