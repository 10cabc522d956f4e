"""Keys in URLs and rows in JSON, by a store's serdes."""

import base64
import binascii
import math
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from importlib import import_module
from typing import Any, Final, cast

import msgspec
import orjson

from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.stores.key_value_store import ValueAndTimestamp, ValueTimestampHeaders
from tidewheel.state_stores.stores.session_store import AggregationWithHeaders
from tidewheel.state_stores.stores.versioned_store import VersionedRecord
from tidewheel.state_stores.stores.windowed import Windowed
from tidewheel.streams.errors import SerializationError, StreamsError

_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)
#: A number of JSON, or one of the texts by which `encoded` writes what JSON has no number for.
_FLOAT: Final = re.compile(
    r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?|NaN|-?Infinity", re.ASCII
)


class BadQueryError(StreamsError, ValueError):
    """A query that the caller must correct.

    Next step:
        Correct the parameter that it names.

    >>> issubclass(BadQueryError, ValueError)
    True
    """


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _integer(text: str) -> int:
    if _INTEGER.fullmatch(text) is None:
        raise ValueError("digits only")
    return int(text)


def _float(text: str) -> float:
    if _FLOAT.fullmatch(text) is None:
        raise ValueError("a number of JSON only")
    return float(text)


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text]


#: Readers of keys of plain serdes, by the serde's name.
_PLAIN: Final[dict[str, Callable[[str], Any]]] = {
    "string": str,
    "bytes": _from_base64,
    "int32": _integer,
    "int64": _integer,
    "float64": _float,
    "boolean": _boolean,
    "uuid": uuid.UUID,
}


def key_of(serde: SerdePort, topic: str, text: str) -> Any:
    """Return the key that a text means: plain for plain serdes, JSON for all others.

    Keys of `bytes` are base64. Of a serde of the user's, text that is no JSON is the key itself.

    Raises:
        BadQueryError: The serde does not accept it.
    """
    name = getattr(serde, "name", "")
    try:
        if name in _PLAIN:
            key = _PLAIN[name](text)
            serde.serialize(topic, key)
            return key
    except (ValueError, KeyError, binascii.Error, SerializationError) as error:
        raise BadQueryError(f"the key is no {name}") from error
    for read in (orjson.loads, str):
        try:
            key = _converted(serde, read(text))
            serde.serialize(topic, key)
        except (ValueError, TypeError, SerializationError):
            continue
        return key
    raise BadQueryError(f"the key does not fit the store's key serde ({name}); write it as JSON")


def _converted(serde: SerdePort, value: Any) -> Any:
    convert: Callable[[Any], Any] | None = getattr(serde, "from_plain", None)
    return value if convert is None else convert(value)


_TIMED: Final = {"value": "value", "timestamp": "timestamp"}
#: What rows show of the values of some stores: name and attribute.
_SHOWN: Final[Mapping[type[Any], Mapping[str, str]]] = {
    ValueAndTimestamp: _TIMED,
    ValueTimestampHeaders: _TIMED,
    VersionedRecord: {**_TIMED, "valid_to": "valid_to"},
    AggregationWithHeaders: {"value": "aggregation"},
}


def row_of(key: Any, value: Any) -> dict[str, Any]:
    """Return a store's row as an object for `encoded`.

    >>> row_of(Windowed("ann", 0, 10), ValueAndTimestamp(3, 7))
    {'key': 'ann', 'start': 0, 'end': 10, 'value': 3, 'timestamp': 7}
    """
    row: dict[str, Any] = {"key": key}
    if isinstance(key, Windowed):
        windowed: Windowed[Any] = key
        row = {"key": windowed.key, "start": windowed.start, "end": windowed.end}
    kind: type[Any] = type(value)
    shown = _SHOWN.get(kind)
    if shown is None:
        return row | {"value": value}
    return row | {name: getattr(value, attribute) for name, attribute in shown.items()}


def encoded(value: Any) -> bytes:
    """Return JSON; raise `TypeError` for a value without a form in JSON.

    >>> encoded({"key": b"a", "value": {1: {2.5}, "rate": float("-inf")}})
    b'{"key":"YQ==","value":{"1":[2.5],"rate":"-Infinity"}}'
    """
    try:
        data = _dumped(value)
        if b"null" not in data:
            return data
        # A null may be a NaN or an infinity.
        return _dumped(_finite(msgspec.to_builtins(value, builtin_types=_TIMES, enc_hook=_plain)))
    except RecursionError as error:
        raise TypeError("it is nested too deeply") from error


#: Types that orjson writes; msgspec would write other texts.
_TIMES: Final = (date, datetime, time)


def _dumped(value: Any) -> bytes:
    try:
        return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # a number beyond 64 bits, which orjson refuses
        return msgspec.json.encode(value, enc_hook=_plain)


def _finite(value: Any) -> Any:
    """Return a value with "NaN", "Infinity" and "-Infinity" for such numbers."""
    kind: object = value  # a type checker does not know the parts of a narrowed `value`
    match kind:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case dict():
            return {_finite(key): _finite(entry) for key, entry in value.items()}
        case list() | tuple():
            return [_finite(entry) for entry in value]
        case _:
            return value


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if hasattr(value, "model_dump"):  # pydantic
        return value.model_dump(mode="json")
    if hasattr(value, "DESCRIPTOR"):  # Protobuf
        return import_module("google.protobuf.json_format").MessageToDict(value)
    if isinstance(value, tuple | frozenset | set):
        return list(cast("Iterable[Any]", value))
    return msgspec.to_builtins(value, enc_hook=str)
