import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.protobuf import LONG, TEXT, message_types
from tidewheel import Serdes, SerializationError, TopologyError
from tidewheel.streams.serdes.windowed import SessionWindowedSerde, WindowedSerde

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "cents", "type": "long", "default": 0},
        {"name": "city", "type": ["null", "string"], "default": None},
        {"name": "paid", "type": "boolean", "default": False},
    ],
}
JSON_ORDER = {
    "title": "Order",
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"type": "integer"}, "weight": {"type": ["number", "null"]}},
    "additionalProperties": False,
}
PROTO = message_types("plain.proto", Order=[("id", LONG), ("city", TEXT)])["Order"]


def test_avro_is_the_specifications_binary_encoding() -> None:
    serde = Serdes.avro(ORDER)
    value = {"id": 5, "cents": -1, "city": "Ulm", "paid": True}

    data = serde.serialize("orders", value)

    assert data == b"\x0a\x01\x02\x06Ulm\x01"
    assert serde.deserialize("orders", data) == value
    assert serde.serialize("orders", {"id": 5}) == b"\x0a\x00\x00\x00"


@given(
    st.lists(
        st.fixed_dictionaries(
            {"id": st.integers(-(2**31), 2**31 - 1), "cents": st.integers(-(2**63), 2**63 - 1)},
            optional={"city": st.none() | st.text(), "paid": st.booleans()},
        )
    )
)
@settings(max_examples=50)
def test_avro_values_read_back_equal(values: list[dict[str, Any]]) -> None:
    serde = Serdes.avro(ORDER)
    data = serde.serialize_batch("orders", values)

    assert data == [serde.serialize("orders", value) for value in values]
    full = [{"city": None, "paid": False, **value} for value in values]
    assert serde.deserialize_batch("orders", [item or b"" for item in data]) == full


def test_avro_logical_types_are_pythons() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    serde = Serdes.avro({"type": "long", "logicalType": "timestamp-millis"})

    assert serde.deserialize("t", serde.serialize("t", at) or b"") == at


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"id": "canary"}, r"at Order\.id: expected int, got str"),
        ({"id": 2**31}, r"at Order\.id: expected int, got int out of range"),
        ({"id": 1, "cents": 2**63}, r"at Order\.cents: expected long, got int out of range"),
        ({"id": 1.5}, r"at Order\.id: expected int, got float"),
        ({"id": 1, "paid": 5}, r"at Order\.paid: expected boolean, got int"),
        ({"id": 1, "city": 5}, r"at Order\.city: expected null or string, got int"),
        ({}, r"at Order\.id: expected int, got NoneType"),
        ({"id": 1, "cty": "canary"}, "more fields than the schema specifies: cty"),
        ("canary", r"at \$: expected Order, got str"),
    ],
)
def test_avro_refuses_values_it_would_change(value: Any, reason: str) -> None:
    serde = Serdes.avro(ORDER)
    with pytest.raises(SerializationError, match=reason) as caught:
        serde.serialize("orders", value)
    with pytest.raises(SerializationError, match=reason):
        serde.serialize_batch("orders", [{"id": 1}, value])

    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\x0a", b"\x0a\x01\x02\x06Ulm\x01x", b"\xff" * 30])
def test_avro_refuses_bytes_of_another_schema(data: bytes) -> None:
    with pytest.raises(SerializationError, match=f"{len(data)} bytes, "):
        Serdes.avro(ORDER).deserialize("orders", data)


def test_protobuf_messages_have_their_standard_encoding() -> None:
    serde = Serdes.protobuf(PROTO)
    message = PROTO(id=5, city="Ulm")

    data = serde.serialize("orders", message)

    assert data == b"\x08\x05\x12\x03Ulm"
    assert serde.deserialize("orders", data) == message
    with pytest.raises(SerializationError, match="2 bytes, raised DecodeError"):
        serde.deserialize("orders", b"\x08\xff")


def test_json_schema_is_checked_both_ways() -> None:
    serde = Serdes.json_schema(JSON_ORDER)

    assert serde.serialize("orders", {"id": 5}) == b'{"id":5}'
    assert serde.deserialize("orders", b'{"id": 5, "weight": null}') == {"id": 5, "weight": None}
    with pytest.raises(SerializationError, match=r"at \$\.id: not as the schema's 'type' asks"):
        serde.serialize("orders", {"id": "canary"})
    with pytest.raises(SerializationError, match=r"at \$: not as the schema's 'required' asks"):
        serde.deserialize("orders", b"{}")
    with pytest.raises(SerializationError, match=r"\$\.weight is nan"):
        serde.serialize("orders", {"id": 5, "weight": float("nan")})


def test_references_outside_a_json_schema_are_not_fetched() -> None:
    serde = Serdes.json_schema({"$ref": "http://127.0.0.1:1/order.json"})

    with pytest.raises(
        SerializationError, match=r"\$ref 'http://127.0.0.1:1/order.json' is not in"
    ):
        serde.serialize("orders", {})


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Serdes.avro("order.avsc"), r"Serdes\.avro: the schema is no JSON .*not the name of its file"),
        (lambda: Serdes.avro({"type": "no-such-type", "name": "X"}), r"Serdes\.avro: X is no schema"),
        (lambda: Serdes.avro(cast("Any", 5)), r"Serdes\.avro: the schema is of type int"),
        (lambda: Serdes.json_schema({"type": 5}), r"Serdes\.json_schema: untitled is no schema"),
        (lambda: Serdes.protobuf(dict), r"Serdes\.protobuf: give a class that protoc generated"),
        (lambda: Serdes.protobuf(PROTO()), r"Serdes\.protobuf: give a class"),
    ],
)  # fmt: skip
def test_bad_schemas_are_refused_at_build_time(make: Any, reason: str) -> None:
    with pytest.raises(TopologyError, match=reason):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Serdes.avro(ORDER),
        lambda: Serdes.avro(ORDER, {"url": "mock://one", "max.retries": 1}),
        lambda: Serdes.json_schema(json.dumps(JSON_ORDER)),
        lambda: Serdes.protobuf(PROTO, "mock://one"),
    ],
)
def test_serdes_are_made_once(make: Any) -> None:
    assert make() is make()
    assert make().for_keys() is make().for_keys()


def test_the_same_schema_with_and_without_registry_differs() -> None:
    assert Serdes.avro(ORDER) is not Serdes.avro(ORDER, "mock://one")
    assert Serdes.avro(ORDER, "mock://one") is not Serdes.avro(ORDER, "mock://two")


def test_windowed_key_serdes_use_key_subjects() -> None:
    inner = Serdes.avro(ORDER, "mock://one")
    windowed: WindowedSerde[Any] = SessionWindowedSerde(inner)
    plain: WindowedSerde[str] = SessionWindowedSerde(Serdes.string())
    for_keys = windowed.for_keys()

    assert isinstance(for_keys, WindowedSerde)
    assert for_keys.inner is inner.for_keys()
    assert for_keys is windowed.for_keys()
    assert plain.for_keys() is plain


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "call", "extra"),
    [
        ("fastavro", "Serdes.avro('\"string\"')", "avro"),
        ("fastavro", "Serdes.avro('\"string\"', 'mock://r')", "avro"),
        ("httpx2", "Serdes.avro('\"string\"', 'mock://r')", "avro"),
        ("jsonschema", "Serdes.json_schema('{}')", "jsonschema"),
        ("jsonschema", "Serdes.json_schema('{}', 'mock://r')", "jsonschema"),
        ("google.protobuf", "Serdes.protobuf(Message)", "protobuf"),
        ("google.protobuf", "Serdes.protobuf(Message, 'mock://r')", "protobuf"),
    ],
)
def test_a_missing_extra_is_named(library: str, call: str, extra: str) -> None:
    program = f"""
import sys
sys.modules[{library!r}] = None
if {library!r} == "httpx2":
    sys.modules["httpx"] = None
from tidewheel import Serdes, StreamsBuilder, TopologyError
class Message:
    class DESCRIPTOR:
        full_name = "Message"
try:
    {call}
except TopologyError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )

    assert f"pip install 'tidewheel[{extra}]'" in done.stdout, done.stdout + done.stderr
    assert done.stdout.startswith(call.partition("(")[0] + " needs ")


def test_the_fault_of_a_json_schema_is_one_line() -> None:
    with pytest.raises(TopologyError, match=r"\$\.properties\.a\.type: 5 ") as caught:
        Serdes.json_schema('{"properties": {"a": {"type": 5}}}')
    assert "\n" not in str(caught.value)
