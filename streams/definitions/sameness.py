"""Equality of user objects in two calls: extractors, serdes, functions. Pure."""

from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final

#: `__eq__` of classes that compare by identity.
_BY_IDENTITY: Final[tuple[Any, ...]] = tuple(
    kind.__eq__ for kind in (object, FunctionType, MethodType, partial[Any])
)

#: Depth limit for nested objects, which may contain themselves.
_DEPTH: Final = 6


def is_same(first: object, second: object, depth: int = _DEPTH) -> bool:
    """Return True if two objects are equal, or have the same class and equal attributes.

    Two functions are the same if one `def` or `lambda` made both and their closures are equal.

    >>> def by(field):
    ...     return lambda record, partition_time: record.value[field]
    >>> is_same(by("at"), by("at")), is_same(by("at"), by("sent"))
    (True, False)
    """
    if first is second or (first == second) is True:
        return True
    if not depth or type(first) is not type(second) or type(first).__eq__ not in _BY_IDENTITY:
        return False
    parts, other_parts = _parts(first), _parts(second)
    if parts is None or other_parts is None or len(parts) != len(other_parts):
        return False
    return all(is_same(a, b, depth - 1) for a, b in zip(parts, other_parts, strict=True))


def _parts(item: Any) -> list[Any] | None:
    match item:
        case FunctionType():
            cells = [cell.cell_contents for cell in item.__closure__ or ()]
            return [item.__code__, item.__defaults__, item.__kwdefaults__, *cells]
        case MethodType():
            return [item.__func__, item.__self__]
        case partial():
            return [item.func, item.args, item.keywords]
        case type() | BuiltinFunctionType():
            return None
        case _:
            return attributes_of(item)


def attributes_of(item: Any) -> list[Any] | None:
    """Return an object's attributes sorted by name; None for a class written in C."""
    slots = [name for kind in type(item).__mro__ for name in _slots(kind)]
    instance_dict: dict[str, Any] | None = getattr(item, "__dict__", None)
    if instance_dict is None and not slots and type(item).__basicsize__ > object.__basicsize__:
        return None  # a class written in C
    named = sorted((instance_dict or {}).items(), key=lambda pair: pair[0])
    return [
        *(getattr(item, name, None) for name in slots),
        *(part for pair in named for part in pair),
    ]


def _slots(kind: type) -> tuple[str, ...]:
    slots: Any = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
