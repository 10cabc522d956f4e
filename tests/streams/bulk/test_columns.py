"""Keys and values as columns: native Spark types, or JSON text."""

import uuid
from dataclasses import dataclass, replace

import pytest

from tidewheel import SchemaRegistryError, Serdes, SerializationError
from tidewheel.state_stores.bulk_restore.content import StoredRow
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.streams.bulk.columns import RowDecoder, columns_of, converter, type_of

_SPEC = StoreSpec(
    name="counts",
    kind=StoreKind.TIMESTAMPED_KEY_VALUE,
    key_serde=Serdes.string(),
    value_serde=Serdes.int64(),
)


@dataclass(frozen=True)
class _Order:
    number: int
    items: tuple[str, ...]


def test_columns_of_one_type_keep_their_type() -> None:
    assert type_of([b"a", b"b"]) == "binary"
    assert type_of([True]) == "boolean"
    assert type_of([1, 1.5]) == "string"
    assert type_of([_Order(1, ())]) == "string"


def test_values_of_other_types_become_json() -> None:
    as_text = converter("string")
    assert as_text(_Order(7, ("a",))) == '{"number":7,"items":["a"]}'
    assert as_text([1, None]) == "[1,null]"
    assert as_text(uuid.UUID(int=1)) == "00000000-0000-0000-0000-000000000001"


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (StoreKind.KEY_VALUE, []),
        (StoreKind.WINDOW, ["window_start", "window_end"]),
        (StoreKind.SESSION, ["session_start", "session_end"]),
        (StoreKind.VERSIONED, ["valid_to"]),
    ],
)
def test_each_kind_has_its_columns(kind: StoreKind, more: list[str]) -> None:
    spec = replace(_SPEC, kind=kind)
    columns = columns_of(spec, "string", "bigint")
    assert sorted(columns) == sorted(["key", "value", "timestamp", *more])
    stored = StoredRow(b"a", Serdes.int64().serialize("", 5) or b"", 10, 60, 120)
    row = dict(zip(columns, RowDecoder(spec, "t", "string", "bigint").row(stored), strict=True))
    assert (row["key"], row["value"], row["timestamp"]) == ("a", 5, 10)
    assert [row[name] for name in more] == {0: [], 1: [120], 2: [60, 120]}[len(more)]


def test_foreign_bytes_are_named() -> None:
    reader = RowDecoder(_SPEC, "app-counts-changelog", "string", "bigint")
    with pytest.raises(SerializationError, match="store counts: a row of app-counts-changelog"):
        reader.row(StoredRow(b"a", b"no number", 10))


def test_an_unavailable_registry_is_not_an_error_of_the_row() -> None:
    away = {"url": "http://127.0.0.1:1", "max.retries": 0, "timeout": 1}
    spec = replace(_SPEC, value_serde=Serdes.avro('"string"', away))
    with pytest.raises(SchemaRegistryError, match="can't be reached"):
        RowDecoder(spec, "t", "string", "string").row(StoredRow(b"a", b"\0\0\0\0\1\2a", 10))
