"""JSON of Avro values: what is printed is read as the same bytes."""

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel import Serdes
from tidewheel.streams.errors import SerializationError
from tidewheel.streams.serdes.schema_serdes import plain_value


def logical(kind: str, meaning: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": meaning, **more}


DECIMAL = logical("bytes", "decimal", precision=9, scale=2)
FIXED = {"type": "fixed", "name": "Two", "size": 2}
INNER = {"type": "record", "name": "shop.Inner", "fields": [{"name": "raw", "type": "bytes"}]}
OTHER = {"type": "record", "name": "shop.Other", "fields": [{"name": "n", "type": "long"}]}
ENUM = {"type": "enum", "name": "Size", "symbols": ["S", "M"]}


def field(schema: Any) -> Any:
    return Serdes.avro(
        {"type": "record", "name": "Order", "fields": [{"name": "part", "type": schema}]}
    )


def printed(schema: Any, value: Any) -> Any:
    """Return the JSON of a field's value, after it was read again as the same bytes."""
    serde = field(schema)
    data = serde.serialize("t", {"part": value})
    assert data is not None
    text = json.dumps(plain_value(serde, serde.deserialize("t", data)), allow_nan=False)
    read = serde.from_plain(json.loads(text))
    assert serde.serialize("t", read) == data
    return json.loads(text)["part"]


@pytest.mark.parametrize(
    ("schema", "value", "plain"),
    [
        ("null", None, None),
        ("boolean", True, True),
        ("int", -5, -5),
        ("long", 1 << 62, 1 << 62),
        ("float", float("inf"), "Infinity"),
        ("double", 2.5, 2.5),
        ("double", float("nan"), "NaN"),
        ("string", "Grüße", "Grüße"),
        ("bytes", b"a\xff", "aÿ"),
        (FIXED, b"\x00\xfe", "\x00þ"),
        (ENUM, "M", "M"),
        (DECIMAL, Decimal("-12.30"), "-12.30"),
        (logical("fixed", "decimal", name="F", size=4, precision=5), Decimal(7), "7"),
        (logical("string", "uuid"), UUID(int=7), str(UUID(int=7))),
        (logical("int", "date"), date(2026, 2, 1), "2026-02-01"),
        (logical("int", "time-millis"), time(1, 2, 3, 4_000), "01:02:03.004000"),
        (logical("long", "time-micros"), time(1, 2, 3, 4), "01:02:03.000004"),
        (
            logical("long", "timestamp-millis"),
            datetime(2026, 2, 1, 12, tzinfo=UTC),
            "2026-02-01T12:00:00+00:00",
        ),
        (
            logical("long", "timestamp-micros"),
            datetime(2026, 2, 1, 12, 0, 0, 1, tzinfo=UTC),
            "2026-02-01T12:00:00.000001+00:00",
        ),
        (
            logical("long", "local-timestamp-millis"),
            datetime(2026, 2, 1, 12),  # noqa: DTZ001 - the type has no zone
            "2026-02-01T12:00:00",
        ),
        (INNER, {"raw": b"\xe9"}, {"raw": "é"}),
        ({"type": "array", "items": DECIMAL}, [Decimal("1.10")], ["1.10"]),
        ({"type": "map", "values": "bytes"}, {"k": b"\x80"}, {"k": "\x80"}),
        (["null", DECIMAL], None, None),
        (["null", DECIMAL], Decimal("1.10"), "1.10"),
        (["null", "bytes"], b"\xff", "ÿ"),
        (["null", INNER], {"raw": b"a"}, {"raw": "a"}),
        (["null", "string", "bytes"], b"a", {"bytes": "a"}),
        (["string", "bytes"], "a", {"string": "a"}),
        ([logical("int", "date"), "string"], date(2026, 2, 1), {"int": "2026-02-01"}),
        ([INNER, OTHER], {"n": 1}, {"shop.Other": {"n": 1}}),
        ([INNER, OTHER], {"raw": b"\xff"}, {"shop.Inner": {"raw": "ÿ"}}),
        # A map that looks like a named branch is named itself.
        (["null", {"type": "map", "values": "string"}], {"map": "x"}, {"map": {"map": "x"}}),
        (["string", {"type": "map", "values": "string"}], {"string": "x"},
         {"map": {"string": "x"}}),
        (
            ["null", {"type": "array", "items": ["null", "string", "bytes"]}],
            [None, "a", b"a"],
            [None, {"string": "a"}, {"bytes": "a"}],
        ),
        (
            ["null", {"type": "record", "name": "R", "fields": [
                {"name": "f", "type": ["string", {"type": "map", "values": "string"}]}]}],
            {"f": "x"},
            {"f": {"string": "x"}},
        ),
    ],
)  # fmt: skip
def test_printed_values_are_read_as_the_same_bytes(schema: Any, value: Any, plain: Any) -> None:
    assert printed(schema, value) == plain


@pytest.mark.parametrize(
    ("schema", "plain", "value"),
    [
        ("bytes", {"base64": "/w=="}, b"\xff"),
        (DECIMAL, 12, Decimal(12)),
        (logical("int", "date"), 1, date(1970, 1, 2)),
        (logical("int", "time-millis"), 1, time(0, 0, 0, 1_000)),
        (logical("long", "timestamp-millis"), 1, datetime(1970, 1, 1, 0, 0, 0, 1_000, tzinfo=UTC)),
        (logical("long", "timestamp-millis"), "1970-01-01T00:00:00Z", datetime(1970, 1, 1, tzinfo=UTC)),
        (["null", "string"], {"string": "a"}, "a"),
        (["null", INNER], {"shop.Inner": {"raw": "a"}}, {"raw": b"a"}),
        (["null", INNER], {"Inner": {"raw": "a"}}, {"raw": b"a"}),
        (["null", "long", "string"], "a", "a"),
        (["null", "string", "bytes"], "a", "a"),
    ],
)  # fmt: skip
def test_other_spellings_of_the_field_are_read_too(schema: Any, plain: Any, value: Any) -> None:
    serde = field(schema)
    data = serde.serialize("t", serde.from_plain({"part": plain}))
    assert serde.deserialize("t", data) == {"part": value}


@pytest.mark.parametrize(
    ("schema", "plain"),
    [
        ("bytes", "€"),
        ("bytes", {"base64": "?"}),
        (FIXED, "abc"),
        (DECIMAL, 12.34),
        (DECIMAL, "twelve"),
        (DECIMAL, "1.234"),
        (logical("int", "date"), "tomorrow"),
        (logical("int", "date"), 10**12),
        (logical("long", "timestamp-millis"), "2026-02-01T12:00:00"),
        (logical("long", "local-timestamp-millis"), "2026-02-01T12:00:00Z"),
        (logical("string", "uuid"), "7"),
        (["null", DECIMAL], "twelve"),
        (["null", "long", DECIMAL], [1]),
        ({"type": "array", "items": "bytes"}, ["€"]),
        ({"type": "map", "values": "bytes"}, {"k": "€"}),
        (INNER, {"raw": "€"}),
        (ENUM, "XL"),
        ("long", True),
    ],
)
def test_a_value_that_does_not_fit_names_its_field(schema: Any, plain: Any) -> None:
    serde = field(schema)
    with pytest.raises(SerializationError) as caught:
        serde.serialize("t", serde.from_plain({"part": plain}))
    assert "at Order.part" in str(caught.value)


LEAVES = st.sampled_from(
    ["null", "long", "double", "string", "bytes", DECIMAL, logical("int", "date"),
     logical("long", "timestamp-micros")]
)  # fmt: skip


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2) -> Any:
    kind = draw(st.sampled_from(["leaf", "array", "map", "union"])) if depth else "leaf"
    match kind:
        case "array":
            return {"type": "array", "items": draw(schemas(depth - 1))}
        case "map":
            return {"type": "map", "values": draw(schemas(depth - 1))}
        case "union":
            inner = draw(schemas(0))
            more = [{"type": "map", "values": draw(schemas(0))}, {"type": "array", "items": inner}]
            first = [inner] if inner != "null" else ["long"]
            return [
                "null",
                *first,
                *draw(st.lists(st.sampled_from(more), max_size=2, unique_by=id)),
            ]
        case _:
            return draw(LEAVES)


_LEAF_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "double": st.floats(),
    "string": st.text(),
    "bytes": st.binary(),
    "decimal": st.decimals(-9_999_999, 9_999_999, places=2),
    "date": st.dates(),
    "timestamp-micros": st.datetimes(timezones=st.just(UTC)),
}


def values(schema: Any) -> st.SearchStrategy[Any]:
    if isinstance(schema, list):
        return st.one_of(*map(values, schema))
    name = schema if isinstance(schema, str) else schema.get("logicalType", schema["type"])
    if name == "array":
        return st.lists(values(schema["items"]), max_size=3)
    if name == "map":
        keys = st.sampled_from(["a", "map", "array", "null", "string", "bytes", "long"])
        return st.dictionaries(keys, values(schema["values"]), max_size=2)
    return _LEAF_VALUES[name]


@given(st.data())
def test_any_value_of_any_schema_is_read_as_it_was_printed(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    value = data.draw(values(schema))
    printed(schema, value)
