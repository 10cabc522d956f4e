"""Read-back checks: find the place where a value and its read-back copy differ. Pure.

They run only for values about to be rejected or unsuitable for `==` (NaN, classes with their own
`__eq__`). Texts contain paths and types, never data.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import is_dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final, cast

import msgspec
from pydantic import BaseModel

#: Values nested deeper are rejected, not compared: they may contain themselves.
_MAX_DEPTH: Final = 200

_ABSENT: Final = object()

#: Dict keys that error messages show: texts like field names. E-mail addresses and customer numbers
#: don't match, because they are user data.
_NAME: Final = re.compile(r"(?!.*\d{3})[^\W\d][\w-]{0,39}")


def step_to(key: object) -> str:
    """Return a dict key as a step of an error path; only texts like field names are shown.

    >>> step_to("city"), step_to("ann@example.com"), step_to("id-4711"), step_to(3)
    ('.city', '[str key]', '[str key]', '[int key]')
    """
    is_name = isinstance(key, str) and _NAME.fullmatch(key) is not None
    return f".{key}" if is_name else f"[{type(key).__name__} key]"


#: Function that returns a dict key as a step of an error path; it hides keys that may be data.
PathStep = Callable[[object], str]


def difference(
    value: Any, back: Any, path: str = "$", depth: int = 0, step: PathStep = step_to
) -> str | None:
    """Return the place and kind of the difference to the read-back value, or None.

    >>> difference({"at": (1, 2)}, {"at": [1, 2]})
    'at $.at: tuple is read back as list'
    >>> difference({"n": [1, float("nan")]}, {"n": [1, float("nan")]})
    """
    text: str | None = None
    kind = cast("object", type(value))
    if value is back:
        pass
    elif depth > _MAX_DEPTH:
        text = f"at {path}: nested too deeply"
    elif _is_object(value) or _is_object(back):
        if kind is type(back):
            fields = _attributes(value), _attributes(back)
            text = _first_difference(*fields, path, depth, step, attributes=True)
        else:
            text = _changed(path, value, back)
    elif _are_both(value, back, (Mapping,)):
        text = _first_difference(value, back, path, depth, step)
    elif _are_both(value, back, (list, tuple)):
        text = _sequence_difference(value, back, path, depth, step)
    elif not _are_equal(value, back):
        text = _changed(path, value, back)
    return text


def first_failure(
    value: Any,
    write: Callable[[Any], object],
    path: str = "$",
    depth: int = 0,
    step: PathStep = step_to,
) -> str:
    """Return the path of the innermost part for which `write` raises.

    >>> import json
    >>> first_failure({"a": [1, {2}]}, json.dumps)
    '$.a[1]'
    """
    if depth <= _MAX_DEPTH:
        for place, part in parts(value, step):
            try:
                write(part)
            except Exception:  # noqa: BLE001 - any encoder error: only the place matters
                return first_failure(part, write, path + place, depth + 1, step)
    return path


def parts(value: Any, step: PathStep = step_to) -> Iterable[tuple[str, Any]]:
    container = value
    if isinstance(value, Mapping):
        return [(step(key), part) for key, part in cast("Mapping[Any, Any]", container).items()]
    if isinstance(value, list | tuple | AbstractSet):
        return [(f"[{index}]", part) for index, part in enumerate(cast("Iterable[Any]", container))]
    if _is_object(value):
        return [(step_to(name), part) for name, part in _attributes(value).items()]
    return ()


def _is_object(value: Any) -> bool:
    kind: Any = cast("object", type(value))
    return (
        isinstance(value, msgspec.Struct | BaseModel)
        or (is_dataclass(kind))
        or hasattr(kind, "__attrs_attrs__")
    )


def _attributes(value: Any) -> dict[str, Any]:
    kind: Any = cast("object", type(value))
    names: list[str] = []
    if isinstance(value, msgspec.Struct):
        names = list(value.__struct_fields__)
    elif is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    elif hasattr(kind, "__attrs_attrs__"):
        names = [field.name for field in kind.__attrs_attrs__]
    attributes = {name: getattr(value, name) for name in names if hasattr(value, name)}
    if isinstance(value, BaseModel):
        attributes |= value.__pydantic_extra__ or {}
        attributes |= value.__pydantic_private__ or {}
    for name, part in getattr(value, "__dict__", {}).items():
        if not isinstance(getattr(kind, name, None), cached_property):
            attributes[name] = part
    return attributes


def _first_difference(
    value: Mapping[Any, Any],
    back: Mapping[Any, Any],
    path: str,
    depth: int,
    step: PathStep,
    *,
    attributes: bool = False,
) -> str | None:
    step_into = step_to if attributes else step
    for key, part in value.items():
        place = path + step_into(key)
        other = back.get(key, _ABSENT)
        if other is _ABSENT:
            return f"at {place}: is lost when it is read back"
        text = difference(part, other, place, depth + 1, step)
        if text is not None:
            return text
    for key in back:
        if key not in value:
            return f"at {path}{step_into(key)}: is added when it is read back"
    if len(value) != len(back):
        return f"at {path}: {len(value)} entries are read back as {len(back)}"
    return None


def _are_both(value: Any, back: Any, kinds: tuple[Any, ...]) -> bool:
    return any(isinstance(value, kind) and isinstance(back, kind) for kind in kinds)


def _sequence_difference(
    value: Sequence[Any], back: Sequence[Any], path: str, depth: int, step: PathStep
) -> str | None:
    if len(value) != len(back):
        return f"at {path}: {len(value)} items are read back as {len(back)}"
    for index, (part, other) in enumerate(zip(value, back, strict=True)):
        text = difference(part, other, f"{path}[{index}]", depth + 1, step)
        if text is not None:
            return text
    return None


def _are_equal(value: Any, back: Any) -> bool:
    try:
        if value == back or (value != value and back != back):  # noqa: PLR0124 - NaN
            return True
        if isinstance(value, datetime) and isinstance(back, datetime) and type(value) is datetime:
            # `==` finds times of different zones unequal near a clock change, even at one moment.
            return bool(value.tzinfo and back.tzinfo) and value.astimezone(UTC) == back.astimezone(
                UTC
            )
    except Exception:  # noqa: BLE001 - a user's `__eq__` may raise anything: such values can't be compared
        return False
    return False


def _changed(path: str, value: Any, back: Any) -> str:
    wrote, read = type(value).__name__, type(back).__name__
    if wrote == read:
        return f"at {path}: {wrote} is read back with another value"
    return f"at {path}: {wrote} is read back as {read}"
