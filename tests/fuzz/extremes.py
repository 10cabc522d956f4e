"""Values at the limits of a wire type, derived from the type itself."""

import re
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

#: Characters that steer a terminal or change the order of a line: ESC, line breaks, bidi controls,
#: and characters without a width.
STEERING = "\x00\x07\x1b\n\r\x7f\x9b\u061c\u200b\u202e\u2028\u2066\ufeff"

_INTS = (
    *(0, 1, 5, 7, 8, 2**31, 2**53, 2**62, 2**63 - 1, 2**64, 10**400),
    *(-1, -5, -(2**63), -(10**400)),
)
_FLOATS = (0.0, -0.0, 5e-324, 1e-290, 0.5, 1e15, 1e308, -1.0)
_TEXTS = (
    *(
        "",
        "a",
        "b",
        "a-1",
        "b-1",
        "0_0",
        "0_1",
        "9_9",
        "0_0/0of2",
        "9_9/63of64",
        "orders",
        "orders-0",
        "in-1",
    ),
    *("active", "standby", "learner", "ACTIVE", "GONE", "FENCING", "LEAVING", "PARKED"),
    *("RUNNING", "REVOKING", "UNOWNED", "WRITING", "INCOMPATIBLE_VERSION", "[red]x[/red]"),
    *("\x1b]0;pwned\x07\x1b[2J", "x\u202egnp.exe", "y" * 1_000, *STEERING),
)


def extreme(kind: Any) -> st.SearchStrategy[Any]:
    """Draw JSON values that a decoder of `kind` accepts, at its limits where it has some."""
    return _of(inspect.type_info(kind))


def _of(kind: inspect.Type) -> st.SearchStrategy[Any]:  # noqa: C901, PLR0911 - one answer per type
    match kind:
        case inspect.StructType():
            return _struct(kind)
        case inspect.IntType() | inspect.FloatType():
            return _number(kind)
        case inspect.StrType():
            pattern = re.compile(kind.pattern or "")
            return st.sampled_from([each for each in _TEXTS if pattern.search(each)])
        case inspect.BytesType():
            return st.just("")
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.UnionType():
            return st.one_of(*map(_of, kind.types))
        case inspect.VarTupleType():
            return st.lists(_of(kind.item_type), max_size=3)
        case inspect.TupleType():
            return st.tuples(*map(_of, kind.item_types)).map(list)
        case inspect.DictType():
            return st.dictionaries(_of(kind.key_type), _of(kind.value_type), max_size=3)
        case _:
            raise NotImplementedError(kind)


def _number(kind: inspect.IntType | inspect.FloatType) -> st.SearchStrategy[float]:
    numbers = _INTS if isinstance(kind, inspect.IntType) else _FLOATS
    low = -(10**401) if kind.ge is None else kind.ge
    high = 10**401 if kind.le is None else kind.le
    edges = [edge for edge in (kind.ge, kind.le) if edge is not None]
    return st.sampled_from([*edges, *(number for number in numbers if low <= number <= high)])


def _struct(kind: inspect.StructType) -> st.SearchStrategy[Any]:
    fields = {field.encode_name: _of(field.type) for field in kind.fields}
    if kind.array_like:
        return st.tuples(*fields.values()).map(list)
    required = {
        field.encode_name: fields[field.encode_name] for field in kind.fields if field.required
    }
    optional = {name: each for name, each in fields.items() if name not in required}
    rows = st.fixed_dictionaries(required, optional=optional)
    if kind.tag_field is None:
        return rows
    return rows.map(lambda row: row | {kind.tag_field: kind.tag})


def is_plain(text: str) -> bool:
    return not set(text).intersection(STEERING)


def texts_in(value: Any) -> list[str]:
    """Return all texts inside a JSON value."""
    match value:
        case str():
            return [value]
        case dict():
            return [text for pair in value.items() for each in pair for text in texts_in(each)]
        case list() | tuple():
            return [text for each in value for text in texts_in(each)]
        case msgspec.Struct():
            return texts_in(msgspec.to_builtins(value))
        case _:
            return []
