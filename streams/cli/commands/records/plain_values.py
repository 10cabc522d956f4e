r"""Values as JSON: records of any serde as lines, without loss where JSON can say it.

Bytes are text, or `{"base64": …}` if they are not UTF-8.
"""

import base64
import binascii
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import date, datetime, time
from importlib import import_module
from typing import Any, Final

import msgspec

from tidewheel.state_stores.stores.windowed import Windowed

_BASE64: Final = "base64"
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def json_line(value: Any) -> str:
    r"""Return a value as one line of JSON.

    >>> json_line({"key": b"a", "value": b"\xff"}), json_line(1 << 70), json_line(float("inf"))
    ('{"key":"a","value":{"base64":"/w=="}}', '1180591620717411303424', '"Infinity"')
    """
    # Half a surrogate pair can't be written to a terminal or a file.
    text = json.dumps(to_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return (
        text
        if _is_writable(text)
        else json.dumps(json.loads(text), ensure_ascii=True, separators=(",", ":"))
    )


def to_plain(value: Any) -> Any:
    """Return a value as dicts, lists, text and numbers.

    >>> to_plain(Windowed("a", 0, 60_000))
    {'key': 'a', 'start': 0, 'end': 60000}
    """
    kind: object = value  # a type checker does not know the parts of a narrowed `value`
    match kind:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else _text_of(value)
        case bytes() | bytearray() | memoryview():
            return plain_bytes(bytes(value))
        case Mapping():
            return {_name(key): to_plain(entry) for key, entry in value.items()}
        case list() | tuple() | set() | frozenset():
            return [to_plain(entry) for entry in value]
        case _:
            return _object_to_plain(value)


def parsed_json(text: str) -> Any:
    """Return the value of a JSON text; raise ValueError for none, and for one that is too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def plain_bytes(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {_BASE64: base64.b64encode(data).decode()}


def bytes_of(value: Any) -> bytes:
    r"""Return the bytes of text or `{"base64": …}`; raise ValueError for anything else.

    >>> bytes_of("a"), bytes_of({"base64": "/w=="})
    (b'a', b'\xff')
    """
    match value:
        case str():
            return value.encode()
        case {"base64": str(text)} if len(value) == 1:
            try:
                return base64.b64decode(text, validate=True)
            except binascii.Error as error:
                raise ValueError(f"is no base64 ({error})") from None
        case _:
            raise ValueError('are no bytes: write text, or {"base64": …}')


def float_of(value: Any) -> Any:
    """Return the number of a JSON number, or of "NaN", "Infinity" and "-Infinity"."""
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _object_to_plain(value: Any) -> Any:
    kind: object = value
    if isinstance(kind, Windowed):
        return {"key": to_plain(value.key), "start": value.start, "end": value.end}
    if callable(dump := getattr(value, "model_dump", None)):  # a pydantic model
        return dump(mode="json")
    if hasattr(value, "DESCRIPTOR"):
        json_format: Any = import_module("google.protobuf.json_format")  # an extra, without stubs

        return json_format.MessageToDict(value, preserving_proto_field_name=True)
    if isinstance(value, msgspec.Struct):
        return to_plain(msgspec.structs.asdict(value))
    if is_dataclass(value) and not isinstance(value, type):
        return to_plain(asdict(value))
    return value.isoformat() if isinstance(value, datetime | date | time) else str(value)


def _name(key: Any) -> str:
    plain = to_plain(key)
    return plain if isinstance(plain, str) else json_line(plain)


def _text_of(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _is_writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
