"""Avro: a written value reads back equal, or the error has the field's path."""

import datetime as dt
import math
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewheel import Serdes, SerializationError


def record(*fields: tuple[str, Any], name: str = "Row") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": kind} for field, kind in fields],
    }


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
UUID = {"type": "string", "logicalType": "uuid"}
DATE = {"type": "int", "logicalType": "date"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
ENVELOPE = record(
    ("after", ["null", record(("price", DECIMAL), ("day", DATE), ("tags", {"type": "array", "items": "string"}), name="Item")]),
    name="Envelope",
)  # fmt: skip
GOOD = {"price": Decimal("1.10"), "day": dt.date(2026, 1, 2), "tags": ["a"]}


def back(schema: Any, value: Any) -> Any:
    serde = Serdes.avro(schema)
    data = serde.serialize("topic", value)
    assert serde.serialize_batch("topic", [value]) == [data]
    return serde.deserialize("topic", data or b"")


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (record(("n", ["null", "double", "long"])), {"n": 2**53 + 1}),
        (record(("n", ["null", "double", "long"])), {"n": 0.1}),
        (record(("n", ["null", "float", "double"])), {"n": 0.1}),
        (record(("n", ["float", "long", "null"])), {"n": 2**40 + 1}),
        (record(("n", [record(("a", "double"), name="A"), record(("a", "long"), name="B")])), {"n": {"a": 2**53 + 1}}),
        ({"type": "array", "items": ["double", "long"]}, [1.5, 2**53 + 1, 3]),
        ({"type": "map", "values": ["null", "double", "long"]}, {"a": 2**53 + 1, "b": None}),
        (record(("id", UUID), ("d", DATE), ("at", MILLIS), ("p", DECIMAL)), {
            "id": uuid.UUID(int=1), "d": dt.date(2026, 1, 2), "at": dt.datetime(2026, 1, 2, 3, 4, 5, 678000, dt.UTC),
            "p": Decimal("1.1"),
        }),
        (ENVELOPE, {"after": GOOD}),
        (ENVELOPE, {"after": None}),
        (record(("f", "float")), {"f": 1.5}),
        (record(("f", "double")), {"f": 1e300}),
        (record(("s", ["null", "string"]), ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]})), {"s": "x", "e": "A"}),
    ],
)  # fmt: skip
def test_values_read_back_equal(schema: Any, value: Any) -> None:
    assert back(schema, value) == value


def test_a_float_keeps_32_bits() -> None:
    assert back(record(("f", "float")), {"f": 0.1})["f"] == pytest.approx(0.1, rel=1e-7)
    assert math.isnan(back(record(("f", "float")), {"f": math.nan})["f"])
    assert back(record(("f", "float")), {"f": -math.inf})["f"] == -math.inf


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        (record(("f", "float")), {"f": 1e300}, r"at Row\.f: expected float, got float out of the range of 32 bits"),
        (record(("f", "double")), {"f": 2**53 + 1}, r"at Row\.f: int is read back as float"),
        (record(("id", UUID)), {"id": "canary"}, r"at Row\.id: expected uuid, got str"),
        (record(("id", ["null", UUID])), {"id": "canary"}, r"at Row\.id: .*uuid, got str"),
        (record(("at", MILLIS)), {"at": dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC)}, r"at Row\.at: datetime is read back with another value"),
        (record(("d", DATE)), {"d": dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)}, r"at Row\.d: datetime is read back as date"),
        (record(("p", DECIMAL)), {"p": Decimal("1.234")}, r"at Row\.p: expected decimal\(4, 2\), got Decimal that does not fit"),
        (record(("p", DECIMAL)), {"p": 1.5}, r"at Row\.p: expected decimal\(4, 2\), got float"),
        (record(("d", DATE)), {"d": "canary"}, r"at Row\.d: expected date, got str"),
        (record(("tags", {"type": "array", "items": "string"})), {"tags": ("canary",)}, r"at Row\.tags: expected array \(a list\), got tuple"),
        (record(("s", "string")), {"s": "canary\ud800"}, r"at Row\.s: a lone surrogate"),
        (record(("m", {"type": "map", "values": "int"})), {"m": {"a": "canary"}}, r"at Row\.m\[str key\]: expected int, got str"),
        (ENVELOPE, {"after": {**GOOD, "price": Decimal("123.45")}}, r"at Envelope\.after\.price: expected decimal\(4, 2\), got Decimal"),
        (ENVELOPE, {"after": {**GOOD, "price": "canary"}}, r"at Envelope\.after\.price: expected decimal\(4, 2\), got str"),
        (ENVELOPE, {"after": {**GOOD, "day": "canary"}}, r"at Envelope\.after\.day: expected date, got str"),
        (ENVELOPE, {"after": {**GOOD, "tags": ["a", 5]}}, r"at Envelope\.after\.tags\[1\]: expected string, got int"),
        (ENVELOPE, {"after": {key: GOOD[key] for key in ("day", "tags")}}, r"at Envelope\.after\.price: expected decimal\(4, 2\), got NoneType"),
        (ENVELOPE, {"after": {**GOOD, "more": "canary"}}, r"at Envelope\.after: record contains more fields than the schema specifies: more"),
        (ENVELOPE, {"after": "canary"}, r"at Envelope\.after: expected null or Item, got str"),
    ],
)  # fmt: skip
def test_values_that_would_change_are_refused_with_their_path(
    schema: Any, value: Any, reason: str
) -> None:
    serde = Serdes.avro(schema)
    for write in (serde.serialize, lambda topic, one: serde.serialize_batch(topic, [one])):
        with pytest.raises(SerializationError, match=reason) as caught:
            write("topic", value)
        assert "canary" not in str(caught.value)


LEAVES: dict[str, Any] = {
    "int": "int", "long": "long", "float": "float", "double": "double", "string": "string", "bytes": "bytes",
    "boolean": "boolean", "uuid": UUID, "date": DATE, "millis": MILLIS, "micros": MICROS, "decimal": DECIMAL,
    "number": ["null", "double", "long"], "mixed": ["null", "string", "bytes", "boolean", "float", "long", DECIMAL],
}  # fmt: skip


@pytest.mark.parametrize("schema", LEAVES.values(), ids=LEAVES)
def test_every_value_reads_back_equal_or_is_refused(schema: Any) -> None:
    serde = Serdes.avro(record(("f", schema)))

    @settings(max_examples=60)
    @given(
        st.none() | st.booleans() | st.integers() | st.integers(-(2**31) - 1, 2**63) | st.floats() | st.text() | st.binary()
        | st.uuids() | st.uuids().map(str) | st.dates() | st.datetimes() | st.datetimes(timezones=st.just(dt.UTC))
        | st.decimals() | st.sampled_from([2**53 + 1, 1e300, "\ud800", Decimal("1.10"), (1, 2), [1], {"a": 1}])
    )  # fmt: skip
    def law(value: Any) -> None:
        try:
            data = serde.serialize("topic", {"f": value})
        except SerializationError:
            return
        read = serde.deserialize("topic", data or b"")["f"]
        is_nan = value != value and read != read  # noqa: PLR0124
        is_rounded = (
            (schema == "float" or "float" in schema)
            and isinstance(value, float)
            and read == pytest.approx(value, rel=1e-6, abs=1e-40)
        )
        assert read == value or is_nan or is_rounded

    law()


# -- items without bytes -------------------------------------------------------------------------------

NOTHING = record(name="Nothing")
ALL_KINDS = record(
    ("a", "boolean"), ("b", "int"), ("c", "long"), ("d", "float"), ("e", "double"), ("f", "bytes"), ("g", "string"),
    ("h", {"type": "fixed", "name": "Three", "size": 3}), ("i", {"type": "enum", "name": "Side", "symbols": ["L", "R"]}),
    ("j", ["null", "string", NOTHING]), ("k", {"type": "map", "values": ["null", "long"]}),
    ("l", {"type": "array", "items": {"type": "array", "items": "Nothing"}}), ("m", ["null", "Row"]),
    ("n", {"type": "array", "items": "null"}),
)  # fmt: skip


def _long(number: int) -> bytes:
    """Avro's form of a number from 0 on."""
    number *= 2
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])


@pytest.mark.parametrize(
    ("schema", "before"),
    [
        ({"type": "array", "items": "null"}, b""),
        ({"type": "array", "items": {"type": "null"}}, b""),
        ({"type": "array", "items": NOTHING}, b""),
        ({"type": "array", "items": {"type": "fixed", "name": "Zero", "size": 0}}, b""),
        ({"type": "array", "items": record(("a", "null"), ("b", NOTHING))}, b""),
        ({"type": "array", "items": {"type": "array", "items": "null"}}, b"\x02"),
        ({"type": "map", "values": {"type": "array", "items": "null"}}, b"\x02\x02k"),
        (["null", {"type": "array", "items": "null"}], b"\x02"),
        (record(("a", NOTHING), ("b", {"type": "array", "items": "Nothing"})), b""),
        (record(("a", "string"), ("b", {"type": "array", "items": "null"})), b"\x02k"),
        ({"type": "array", "items": "null"}, _long(9_999) + _long(1)),
    ],
    ids=str,
)
def test_few_bytes_can_not_make_a_long_list(schema: Any, before: bytes) -> None:
    serde = Serdes.avro(schema)
    # Reading these numbers would need more memory than any machine has.
    for count in (_long(1 << 50), b"\x01\x00", b"\xff" * 9 + b"\x01", b"\x80" * 10 + b"\x02"):
        with pytest.raises(SerializationError):
            serde.deserialize("topic", before + count + bytes(3))
    with pytest.raises(SerializationError, match="10000"):
        serde.deserialize("topic", before + _long(1 << 50) + bytes(3))


def test_a_list_of_nulls_as_long_as_the_limit_is_read_back_and_a_longer_one_is_not_written() -> (
    None
):
    schema = {"type": "array", "items": "null"}
    assert back(schema, [None] * 10_000) == [None] * 10_000
    with pytest.raises(SerializationError, match="10000"):
        Serdes.avro(schema).serialize("topic", [None] * 10_001)


def _rows() -> st.SearchStrategy[dict[str, Any]]:
    return st.recursive(st.none(), _row, max_leaves=3).map(lambda row: row or _PLAIN_ROW)


def _row(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "a": st.booleans(),
            "b": st.integers(-(2**31), 2**31 - 1),
            "c": st.integers(-(2**63), 2**63 - 1),
            "d": st.floats(width=32, allow_nan=False),
            "e": st.floats(allow_nan=False),
            "f": st.binary(max_size=200),
            "g": st.text(max_size=200),
            "h": st.binary(min_size=3, max_size=3),
            "i": st.sampled_from(["L", "R"]),
            "j": st.one_of(st.none(), st.text(max_size=3), st.just({})),
            "k": st.dictionaries(st.text(max_size=3), st.none() | st.integers(0, 9), max_size=3),
            "l": st.lists(st.lists(st.just({}), max_size=3), max_size=3),
            "m": inner,
            "n": st.lists(st.none(), max_size=70),
        }
    )


_PLAIN_ROW: dict[str, Any] = {
    "a": True, "b": 1, "c": 1, "d": 1.0, "e": 1.0, "f": b"f", "g": "g", "h": b"hhh", "i": "L", "j": {}, "k": {}, "l": [[{}]],
    "m": None, "n": [None],
}  # fmt: skip


@given(_rows())
def test_a_value_of_any_kinds_before_a_list_of_nulls_is_read_back(row: dict[str, Any]) -> None:
    assert back(ALL_KINDS, row) == row
