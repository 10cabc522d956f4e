"""Default values of dataclasses, stored in each decoded object.

msgspec leaves a field that the bytes lack to the class attribute of a dataclass without slots. The
encoder then omits the field, so that equal values have different bytes.
"""

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Final

from streams.serdes.read_back import parts
from streams.serdes.type_parts import inner_types, is_recursive

#: Values without parts.
_SCALARS: Final = (str, bytes, int, float, type(None))


def default_setter(python_type: Any) -> Callable[[Any], None] | None:
    """Return a function that stores the defaults in an object of a type; None where none can be missing.

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
    defaults = {part: found for part in inner_types(python_type) if (found := _defaults(part))}
    if not defaults:
        return None
    if defaults.keys() == {python_type} and not is_recursive(python_type):
        own = defaults[python_type]

        def set_own(value: Any) -> None:
            attributes = value.__dict__
            for name, default in own:
                attributes.setdefault(name, default)

        return set_own

    def set_all(value: Any) -> None:
        for name, default in defaults.get(type(value), ()):
            value.__dict__.setdefault(name, default)
        for _, part in parts(value):
            if not isinstance(part, _SCALARS):
                set_all(part)

    return set_all


def _defaults(python_type: Any) -> tuple[tuple[str, Any], ...]:
    """Return the fields whose default is a class attribute, with the default."""
    if not (isinstance(python_type, type) and is_dataclass(python_type)):
        return ()
    attributes = _class_attributes(python_type)
    return tuple(
        (field.name, field.default)
        for field in fields(python_type)
        if field.init and field.default is not MISSING and field.name in attributes
    )


def _class_attributes(python_type: type[Any]) -> frozenset[str]:
    """Return the names of a class's attributes that are no slots."""
    slots: set[str] = set()
    for base in python_type.__mro__:
        own = vars(base).get("__slots__", ())
        slots.update((own,) if isinstance(own, str) else own)
    return frozenset(dir(python_type)) - slots
