"""Serdes of `produce` and `consume`: JSON to bytes and back."""

import json
import math
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.schema_registry import schema_registry
from tidewheel import Serdes, Windowed
from tidewheel.streams.cli.commands.records.line_serdes import line_serde, registry_of
from tidewheel.streams.cli.commands.records.plain_values import json_line
from tidewheel.streams.errors import ConfigError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 63) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}],
}


def round_trip(name: str, value: Any, option: str = "--value") -> Any:
    """Return what `consume` prints of a value that `produce` has read."""
    serde = line_serde(option, name, "t", None)
    return json.loads(json_line(serde.decode("t", serde.encode("t", value))))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("string", "Grüße\n"),
        ("bytes", "plain"),
        ("bytes", {"base64": "/w=="}),
        ("int32", -5),
        ("int64", 1 << 62),
        ("float64", 1.5),
        ("float64", "NaN"),
        ("float64", "-Infinity"),
        ("boolean", True),
        ("uuid", str(uuid.UUID(int=7))),
        ("json", {"b": [1, None], "a": "x"}),
        ("msgpack", {"a": [1, 2.5]}),
        ("windowed:string:1m", {"key": "a", "start": 0, "end": 60_000}),
        ("session_windowed:int64", {"key": 7, "start": 1, "end": 2}),
    ],
)
def test_a_produced_line_is_consumed_as_it_was(name: str, value: Any) -> None:
    assert round_trip(name, value, "--key") == value
    assert round_trip(name, None) is None


def test_bytes_are_those_of_the_named_serde() -> None:
    for name, value, bytes_of in (
        ("int64", 2, Serdes.int64().serialize("t", 2)),
        ("float64", 2, Serdes.float64().serialize("t", 2.0)),
        ("windowed:string:1m", {"key": "a", "start": 0, "end": 60_000},
         Serdes.windowed(str, 60_000).serialize("t", Windowed("a", 0, 60_000))),
    ):  # fmt: skip
        assert line_serde("--value", name, "t", None).encode("t", value) == bytes_of


@given(JSON)
def test_any_json_survives_a_line(value: Any) -> None:
    line = json_line(value)
    assert "\n" not in line
    line.encode()
    assert json.loads(line) == value


def test_numbers_that_json_lacks_are_names() -> None:
    assert json.loads(json_line([math.nan, math.inf, 1 << 80])) == ["NaN", "Infinity", 1 << 80]


def test_a_schema_file_gives_an_avro_serde(tmp_path: Path) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(ORDER), encoding="utf-8")
    assert round_trip(f"avro:{file}", {"id": 7, "note": None}) == {"id": 7, "note": None}


INVOICE = {
    "type": "record",
    "name": "shop.Invoice",
    "fields": [
        {"name": "raw", "type": "bytes"},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "lines", "type": {"type": "array", "items": ["null", "string", "bytes"]}},
        {"name": "more", "type": {"type": "map", "values": {"type": "long", "logicalType": "timestamp-millis"}}},
    ],
}  # fmt: skip
INVOICE_LINE = {
    "raw": "a\u00ff",
    "total": "12.30",
    "day": "2026-02-01",
    "lines": [None, {"string": "x"}, {"bytes": "\u00fe"}],
    "more": {"paid": "2026-02-01T12:00:00+00:00"},
}


def test_avro_types_that_json_lacks_survive(tmp_path: Path) -> None:
    file = tmp_path / "invoice.avsc"
    file.write_text(json.dumps(INVOICE), encoding="utf-8")
    assert round_trip(f"avro:{file}", INVOICE_LINE) == INVOICE_LINE
    key = {"key": INVOICE_LINE, "start": 0, "end": 60_000}
    assert round_trip(f"windowed:avro:{file}:1m", key, "--key") == key


def test_avro_of_a_registry_has_the_same_json() -> None:
    with schema_registry() as registry:
        Serdes.avro(INVOICE, registry.url).serialize(
            "t", Serdes.avro(INVOICE).from_plain(INVOICE_LINE)
        )
        serde = line_serde("--value", "avro", "t", {"url": registry.url})
        data = serde.encode("t", INVOICE_LINE)
        assert json.loads(json_line(serde.decode("t", data))) == INVOICE_LINE


def test_json_of_a_json_schema_survives(tmp_path: Path) -> None:
    file = tmp_path / "order.json"
    file.write_text(json.dumps({"type": "object", "required": ["id"]}), encoding="utf-8")
    value = {"id": 1 << 70, "parts": [{"price": 1.5}, None], "text": "\u2028"}
    assert round_trip(f"json_schema:{file}", value) == value


@pytest.mark.parametrize(
    ("message", "value"),
    [
        ("wrappers_pb2:BytesValue", "/w=="),
        ("wrappers_pb2:Int64Value", str(1 << 62)),
        ("wrappers_pb2:DoubleValue", "NaN"),
        ("timestamp_pb2:Timestamp", "2026-02-01T12:00:00.001Z"),
        ("duration_pb2:Duration", "1.500s"),
        ("struct_pb2:Struct", {"a": [1.0, None, {"b": "c"}]}),
        ("field_mask_pb2:FieldMask", "a,b.c"),
        ("descriptor_pb2:FieldDescriptorProto", {"name": "n", "json_name": "j", "type": "TYPE_BYTES",
                                                 "options": {"packed": True}}),
    ],
)  # fmt: skip
def test_json_of_protobuf_survives(message: str, value: Any) -> None:
    assert round_trip(f"protobuf:google.protobuf.{message}", value) == value


@pytest.mark.parametrize("value", [5, "text", [1], {"nmae": "x"}, {"number": "many"}])
def test_json_that_is_no_message_is_an_error(value: Any) -> None:
    serde = line_serde(
        "--value", "protobuf:google.protobuf.descriptor_pb2:FieldDescriptorProto", "t", None
    )
    with pytest.raises(ValueError, match=r"\S"):
        serde.encode("t", value)


def test_a_generated_class_gives_a_protobuf_serde() -> None:
    name = "protobuf:google.protobuf.wrappers_pb2:StringValue"
    serde = line_serde("--value", name, "t", None)
    assert serde.encode("t", "text") == b"\n\x04text"
    assert serde.decode("t", b"\n\x04text").value == "text"


def test_a_serde_of_your_own_has_a_module_and_a_name() -> None:
    serde = line_serde("--value", f"{__name__}:own_serde", "t", None)
    assert serde.encode("t", 7) == Serdes.int64().serialize("t", 7)


def own_serde() -> Any:
    return Serdes.int64()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("int46", "did you mean int64?"),
        ("cobol", "give one of bytes, string"),
        ("avro", "subject orders-value"),
        ("avro:missing.avsc", "--registry URL"),
        ("protobuf", "protobuf:orders_pb2:Order"),
        ("windowed", "windowed:string:1m"),
        ("windowed:string:soon", "'soon' is not a duration"),
        ("json:dumps", "did you mean json?"),
        ("math:pi", "is not a serde"),
        ("nowhere_at_all:serde", "can't import module"),
    ],
)
def test_an_unknown_serde_has_a_next_step(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        line_serde("--value", name, "orders", None)
    assert message in str(caught.value)
    assert "--value" in str(caught.value) or "module" in str(caught.value)


def test_a_registry_needs_its_url() -> None:
    assert registry_of([]) is None
    assert registry_of(["https://registry:8081"]) == {"url": "https://registry:8081"}
    for settings in (["auto.register.schemas=false"], ["registry"]):
        with pytest.raises(ConfigError):
            registry_of(settings)
