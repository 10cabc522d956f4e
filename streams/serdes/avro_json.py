"""JSON of Avro values: what `tidewheel consume` prints and `tidewheel produce` reads.

It is Avro's own JSON encoding, as in Confluent's console tools, with three changes: decimals, dates
and times are text; a union has the branch's name only if it could be mistaken; NaN and infinities
are text.
"""

import base64
import binascii
import math
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final, cast

from tidewheel.streams.serdes.avro_values import AvroValues, branch_name, kind_of
from tidewheel.streams.serdes.schema_port import CodecError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH: Final = _EPOCH.replace(tzinfo=None)
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_BASE64: Final = "base64"
_NO_PROBLEM: Final = CodecError("")
#: Kinds of one schema.
_Schema = Any


class AvroJson:
    def __init__(self, values: AvroValues) -> None:
        self._values = values

    def read(self, value: Any) -> Any:
        """Return the value that JSON means; leave values alone that are no JSON.

        Raises `CodecError` for text that is no date, number or bytes.
        """
        return self._read(value, self._values.schema, self._values.root)

    def write(self, value: Any) -> Any:
        """Return a decoded value as JSON."""
        return self._write(value, self._values.schema)

    def _read(self, value: Any, schema: _Schema, path: str) -> Any:
        schema = self._values.resolved(schema)
        kind, item = kind_of(schema), cast("object", value)
        if kind == "union":
            return self._read_union(value, schema, path)
        if kind in ("record", "error") and isinstance(item, Mapping):
            types = {field["name"]: field["type"] for field in schema["fields"]}
            return {
                name: self._read(part, types[name], f"{path}.{name}") if name in types else part
                for name, part in value.items()
            }
        if kind == "map" and isinstance(item, Mapping):
            return {
                key: self._read(part, schema["values"], f"{path}[str key]")
                for key, part in value.items()
            }
        if kind == "array" and isinstance(item, list):
            return [
                self._read(part, schema["items"], f"{path}[{index}]")
                for index, part in enumerate(value)
            ]
        return _read_leaf(value, kind, _logical(schema), path)

    def _read_union(self, value: Any, schema: list[_Schema], path: str) -> Any:
        kind = cast("object", value)
        if value is None or isinstance(kind, tuple):
            return value
        branches = self._branches(schema)
        named = _named_branch(value, branches)
        if named is not None:
            key, name = named
            inner, problem = self._read_branch(value[key], branches[name], path)
            if problem is None:
                return name, inner
        else:
            problem = None
        branches.pop("null", None)
        branch, inner, plain_problem = self._read_plain(value, branches, path)
        if branch is None:
            raise problem or plain_problem
        return inner if len(branches) == 1 else (branch, inner)

    def _read_plain(
        self, value: Any, branches: Mapping[str, _Schema], path: str
    ) -> tuple[str | None, Any, CodecError]:
        """Return the first branch that accepts a value as it is, or else its reading."""
        kind = cast("object", value)
        if not isinstance(kind, Mapping | list):
            for name, branch in branches.items():
                if self._values.accepts(value, branch):
                    return name, value, _NO_PROBLEM
        problems: list[CodecError] = []
        for name, branch in branches.items():
            inner, problem = self._read_branch(value, branch, path)
            if problem is None:
                return name, inner, _NO_PROBLEM
            problems.append(problem)
        only = problems[0] if len(problems) == 1 else None
        refusal = self._values.refused(value, list(branches.values()), path)
        return None, None, only or CodecError(refusal)

    def _read_branch(self, value: Any, branch: _Schema, path: str) -> tuple[Any, CodecError | None]:
        try:
            inner = self._read(value, branch, path)
        except CodecError as error:
            return None, error
        if self._values.accepts(inner, branch):
            return inner, None
        return None, CodecError(self._values.refused(inner, branch, path))

    def _branches(self, schema: list[_Schema]) -> dict[str, _Schema]:
        return {str(branch_name(self._values.resolved(branch))): branch for branch in schema}

    def _write(self, value: Any, schema: _Schema) -> Any:
        schema = self._values.resolved(schema)
        kind, item = kind_of(schema), cast("object", value)
        if kind == "union":
            return self._write_union(value, schema)
        if isinstance(item, Mapping):
            types = {field["name"]: field["type"] for field in schema.get("fields", ())}
            return {
                name: self._write(part, types.get(name, schema.get("values")))
                for name, part in value.items()
            }
        if isinstance(item, list):
            return [self._write(part, schema["items"]) for part in value]
        return _write_leaf(value)

    def _write_union(self, value: Any, schema: list[_Schema]) -> Any:
        if value is None:
            return None
        branches = self._branches(schema)
        for name, branch in branches.items():
            if self._values.accepts(value, branch):
                plain = self._write(value, branch)
                is_alone = len(branches.keys() - {"null"}) == 1
                is_clear = is_alone and _named_branch(plain, branches) is None
                return plain if is_clear else {name: plain}
        return value


def _named_branch(value: Any, branches: Mapping[str, _Schema]) -> tuple[str, str] | None:
    """Return the key of `{"branch": …}` and the branch's full name; None for other values."""
    kind = cast("object", value)
    if not isinstance(kind, Mapping) or len(value) != 1:
        return None
    (key,) = value
    found = [name for name in branches if key in (name, name.rpartition(".")[2])]
    return (key, key if key in found else found[0]) if found else None


def _logical(schema: _Schema) -> str:
    kind = cast("object", schema)
    return str(schema.get("logicalType", "")) if isinstance(kind, dict) else ""


def _read_leaf(value: Any, kind: str, logical: str, path: str) -> Any:
    item = cast("object", value)
    is_number = isinstance(item, int) and not isinstance(item, bool)
    if kind in ("float", "double") and isinstance(item, str):
        return _NOT_FINITE.get(value, value)
    reader = _READERS.get(f"{kind}-{logical}")
    if reader is None:
        return _bytes_of(value, path) if kind in ("bytes", "fixed") else value
    if logical == "decimal" and isinstance(item, float):
        raise CodecError(f'at {path}: write a decimal as text, such as "12.34"')
    if not isinstance(item, str) and not is_number:
        return value
    try:
        return reader(value)
    except (ValueError, OverflowError, ArithmeticError):
        raise CodecError(f"at {path}: expected {logical}, written as {_FORMS[logical]}") from None


def _bytes_of(value: Any, path: str) -> Any:
    kind = cast("object", value)
    try:
        if isinstance(kind, str):
            return value.encode("latin-1")
        if isinstance(kind, dict) and set(value) == {_BASE64} and isinstance(value[_BASE64], str):
            return base64.b64decode(value[_BASE64], validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise CodecError(
            f'at {path}: no bytes; write each as a character up to U+00FF, or all as {{"base64": …}}'
        ) from None
    return value


def _decimal_of(value: str | int) -> Decimal:
    try:
        return Decimal(value)
    except InvalidOperation:
        raise ValueError from None


def _date_of(value: str | int) -> date:
    return (
        (_LOCAL_EPOCH + timedelta(days=value)).date()
        if isinstance(value, int)
        else date.fromisoformat(value)
    )


def _time_of(**unit: int) -> Callable[[str | int], time]:
    def parse(value: str | int) -> time:
        if isinstance(value, str):
            return time.fromisoformat(value)
        if not timedelta() <= (since := value * timedelta(**unit)) < timedelta(days=1):
            raise ValueError
        return (_LOCAL_EPOCH + since).time()

    return parse


def _datetime_of(epoch: datetime, **unit: int) -> Callable[[str | int], datetime]:
    def parse(value: str | int) -> datetime:
        if isinstance(value, int):
            return epoch + value * timedelta(**unit)
        moment = datetime.fromisoformat(value)
        if (moment.tzinfo is None) is not (epoch.tzinfo is None):
            raise ValueError
        return moment

    return parse


#: Readers of text and numbers, by Avro's type and logical type.
_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "bytes-decimal": _decimal_of,
    "fixed-decimal": _decimal_of,
    "int-date": _date_of,
    "int-time-millis": _time_of(milliseconds=1),
    "long-time-micros": _time_of(microseconds=1),
    "long-timestamp-millis": _datetime_of(_EPOCH, milliseconds=1),
    "long-timestamp-micros": _datetime_of(_EPOCH, microseconds=1),
    "long-local-timestamp-millis": _datetime_of(_LOCAL_EPOCH, milliseconds=1),
    "long-local-timestamp-micros": _datetime_of(_LOCAL_EPOCH, microseconds=1),
    "string-uuid": lambda value: uuid.UUID(str(value)),
}
_TIMESTAMP: Final = '"2026-02-01T12:00:00Z", with a zone'
_LOCAL: Final = '"2026-02-01T12:00:00", without a zone'
_FORMS: Final[Mapping[str, str]] = {
    "decimal": '"12.34"',
    "date": '"2026-02-01"',
    "time-millis": '"12:00:00.001"',
    "time-micros": '"12:00:00.000001"',
    "timestamp-millis": _TIMESTAMP,
    "timestamp-micros": _TIMESTAMP,
    "local-timestamp-millis": _LOCAL,
    "local-timestamp-micros": _LOCAL,
    "uuid": '"00000000-0000-0000-0000-000000000000"',
}


def _write_leaf(value: Any) -> Any:
    kind = cast("object", value)
    match kind:
        case bytes():
            return kind.decode("latin-1")
        case float() if not math.isfinite(kind):
            return next(
                name
                for name, number in _NOT_FINITE.items()
                if number == kind or (math.isnan(number) and math.isnan(kind))
            )
        case datetime() | date() | time():
            return kind.isoformat()
        case Decimal() | uuid.UUID():
            return str(kind)
        case _:
            return value
