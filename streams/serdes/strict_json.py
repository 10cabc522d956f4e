"""Untyped JSON that reads back equal; values that JSON would change are rejected.

orjson writes, because existing stores and topics have its bytes. msgspec reads, because orjson
turns integers beyond 64 bits into floats; speed is about equal.
"""

import gc
import math
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, Final, cast

import msgspec
import orjson

from tidewheel.streams.serdes.read_back import PathStep, difference, first_failure, parts, step_to
from tidewheel.streams.serdes.schema_port import CodecError

_NULL: Final = b"null"
_LEAVES: Final[frozenset[object]] = frozenset({str, int, float, bool, type(None)})
_JSON_TYPES: Final[frozenset[object]] = _LEAVES | {dict, list}
_FINITE_LEAVES: Final[frozenset[object]] = _LEAVES - {float}

_read: Final = msgspec.json.Decoder[Any]().decode
_write_big: Final = msgspec.json.Encoder(order="sorted").encode
#: orjson's error text for integers that only msgspec writes.
_TOO_BIG: Final = "Integer exceeds 64-bit range"

#: Hint for types without a JSON form.
_TYPED: Final = "write plain values, or give the type: Serdes.json(Type)"


def dumps(value: Any, *, sort: bool = False) -> bytes:
    return dumps_batch((value,), sort=sort)[0]


def dumps_batch(values: Sequence[Any], *, sort: bool = False) -> list[bytes]:
    try:
        # orjson builds each result in a new kilobyte and shrinks it: a page fault per kept result.
        # `b"%b" %` copies the result instead: 130 ns for each of 10,000 values, not 2,080 ns.
        if sort:
            option = orjson.OPT_SORT_KEYS
            encoded = [b"%b" % orjson.dumps(value, None, option) for value in values]
        else:
            encoded = [b"%b" % data for data in map(orjson.dumps, values)]
    except orjson.JSONEncodeError:
        encoded = [_dumped(value, sort=sort) for value in values]
    refuse_hidden_nulls(values, encoded)
    if not are_plain(values, _JSON_TYPES):
        for value, data in zip(values, encoded, strict=True):
            text = difference(value, _read(data))
            if text is not None:
                raise CodecError(f"{text}; {_TYPED}")
    return encoded


def loads(data: bytes) -> Any:
    try:
        return _read(data)
    except UnicodeDecodeError:  # its text has a byte of the data
        reason = "no UTF-8"
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        reason = str(error)
    raise CodecError(reason)


def loads_batch(data: Sequence[bytes]) -> list[Any]:
    return list(map(_read, data))


def are_plain(values: Sequence[Any], types: frozenset[object] = _JSON_TYPES) -> bool:
    """Return True if all values, at any depth, have exactly these types.

    `gc.get_referents` lists the parts of all a batch's containers in one call: 30 ns per field; a
    loop takes 100 ns.

    >>> are_plain([{"a": [1, None]}, "x"]), are_plain([{"a": (1, 2)}])
    (True, False)
    """
    level: Sequence[Any] = values
    while level:
        kinds = set(map(type, level))
        if kinds <= _LEAVES:
            return True
        if not kinds <= types:
            return False
        level = gc.get_referents(*level)
    return True


def refuse_hidden_nulls(
    values: Sequence[Any],
    data: Sequence[bytes],
    plain: Callable[[Any], Any] | None = None,
    step: PathStep = step_to,
) -> None:
    """Raise `CodecError` if JSON made null of a NaN or infinity; `data` is the values' JSON."""
    if _NULL in b"".join(data):
        for value, encoded in zip(values, data, strict=True):
            if _NULL in encoded:
                refuse_non_finite(value if plain is None else plain(value), step)


def refuse_non_finite(value: Any, step: PathStep = step_to) -> None:
    """Raise `CodecError` with the place of a NaN or an infinity.

    >>> refuse_non_finite({"readings": [1.0, float("nan")]})
    Traceback (most recent call last):
    ...
    tidewheel.streams.serdes.schema_port.CodecError: $.readings[1] is nan, which JSON has no number for; use None or a text
    """
    if _all_finite((value,)):
        return
    path, number = _non_finite(value, step) or ("", value)
    raise CodecError(f"${path} is {number}, which JSON has no number for; use None or a text")


def _dumped(value: Any, *, sort: bool) -> bytes:
    def write(part: Any) -> bytes:
        try:
            return orjson.dumps(part, option=orjson.OPT_SORT_KEYS if sort else None)
        except orjson.JSONEncodeError as error:
            if str(error) != _TOO_BIG:
                raise
            # Only msgspec writes integers beyond 64 bits. It also writes sets and other types that
            # JSON changes: `dumps_batch` reads the result back and rejects those.
            return _write_big(part) if sort else msgspec.json.encode(part)

    try:
        return b"%b" % write(value)
    except (orjson.JSONEncodeError, TypeError, ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, orjson.JSONEncodeError) else type(error).__name__
    raise CodecError(f"at {first_failure(value, write)}: {reason}; {_TYPED}")


def _all_finite(values: Iterable[Any]) -> bool:
    for value in values:
        kind = cast("object", type(value))
        if kind in _FINITE_LEAVES:
            continue
        if kind is float:
            if not math.isfinite(value):
                return False
        elif not _all_finite(value.values() if kind is dict else _inner(value)):
            return False
    return True


def _inner(value: Any) -> Iterable[Any]:
    if isinstance(value, float):  # a subclass of float
        return (float(value),)
    if isinstance(value, Enum):
        return (value.value,)
    return [inner for _, inner in parts(value)]


def _non_finite(value: Any, step: PathStep) -> tuple[str, float] | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else ("", value)
    if isinstance(value, Enum):
        return _non_finite(value.value, step)
    for part, inner in parts(value, step):
        location = _non_finite(inner, step)
        if location is not None:
            return part + location[0], location[1]
    return None
