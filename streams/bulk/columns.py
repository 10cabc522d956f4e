"""Columns of a data frame for a store's keys and values. Pure."""

import datetime as dt
import decimal
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from tidewheel.state_stores.bulk_restore.content import StoredRow
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreKind, StoreSpec
from tidewheel.streams.errors import SchemaRegistryError, SerializationError

#: Spark DDL type per Python type; other types become JSON text.
_NATIVE: Final[Mapping[type, str]] = {
    bool: "boolean",
    bytes: "binary",
    dt.date: "date",
    dt.datetime: "timestamp",
    decimal.Decimal: "decimal(38,18)",
    float: "double",
    int: "bigint",
    str: "string",
}

_AS_TEXT: Final = "string"

Row = tuple[Any, ...]


def type_of(values: Iterable[Any]) -> str:
    """Return the Spark column type that all values share, else text.

    >>> type_of([1, 2]), type_of(["a"]), type_of([{"a": 1}]), type_of([1, "a"]), type_of([])
    ('bigint', 'string', 'string', 'string', 'string')
    """
    kinds: set[type[Any]] = {type(value) for value in values}
    return _NATIVE.get(kinds.pop(), _AS_TEXT) if len(kinds) == 1 else _AS_TEXT


def converter(column_type: str) -> Callable[[Any], Any]:
    """Return a function that converts a value to a column type.

    >>> converter("string")("a"), converter("string")({"n": [1]}), converter("bigint")(7)
    ('a', '{"n":[1]}', 7)
    """
    return _text if column_type == _AS_TEXT else _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, uuid.UUID):
        return str(value)
    return msgspec.json.encode(value, enc_hook=_encodable).decode()


def _encodable(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)  # pydantic models
    return dump(mode="json") if callable(dump) else str(value)


def columns_of(spec: StoreSpec, key_type: str, value_type: str) -> dict[str, str]:
    """Return name and type of a store's columns; times are milliseconds since the epoch.

    `valid_to` is null for the latest version; `timestamp` is that of the record that set the
    row.
    """
    columns = {"key": key_type}
    if spec.kind in SEGMENTED_KINDS:
        what = "session" if spec.kind is StoreKind.SESSION else "window"
        columns |= {f"{what}_start": "bigint", f"{what}_end": "bigint"}
    columns |= {"value": value_type, "timestamp": "bigint"}
    if spec.kind is StoreKind.VERSIONED:
        columns["valid_to"] = "bigint"
    return columns


class RowDecoder:
    def __init__(self, spec: StoreSpec, topic: str, key_type: str, value_type: str) -> None:
        self._spec = spec
        self._topic = topic
        self._key = converter(key_type)
        self._value = converter(value_type)

    def row(self, stored: StoredRow) -> Row:
        """Return a row in the order of `columns_of`.

        Raises:
            SerializationError: The store's serdes can't read the bytes.
        """
        key, value = self.decoded(stored)
        columns: Row = (self._key(key),)
        if self._spec.kind in SEGMENTED_KINDS:
            columns += (stored.start, stored.end)
        columns += (self._value(value), stored.timestamp)
        if self._spec.kind is StoreKind.VERSIONED:
            columns += (stored.end,)
        return columns

    def decoded(self, stored: StoredRow) -> tuple[Any, Any]:
        try:
            return (
                self._spec.key_serde.deserialize(self._topic, stored.key),
                self._spec.value_serde.deserialize(self._topic, stored.value),
            )
        except SchemaRegistryError:
            raise  # The row may be valid: the registry failed.
        except Exception as error:
            raise SerializationError(
                f"store {self._spec.name}: a row of {self._topic} can't be read by its serdes ({type(error).__name__}: "
                f"{error}); use the topology that wrote it"
            ) from error
