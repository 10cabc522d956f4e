"""Serdes: any bytes give a value or a `SerializationError`, single and in batches."""

import contextlib
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from google.protobuf import (  # type: ignore[import-untyped]  # its stubs are a package of their own
    struct_pb2,
)
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.fuzz.damage import bounded, hostile
from tidewheel.streams.errors import SerializationError
from tidewheel.streams.operators.joins.subscription import (
    RESPONSES,
    SUBSCRIPTIONS,
    Instruction,
    Response,
    Subscription,
)
from tidewheel.streams.serdes import Serdes
from tidewheel.streams.serdes.buffered import Buffered, BufferedSerde, Context
from tidewheel.streams.serdes.changed import Change, ChangedSerde
from tidewheel.streams.serdes.windowed import SessionWindowedSerde, TimeWindowedSerde, end_after

pytestmark = pytest.mark.fault("DOORS")


class Node(msgspec.Struct):
    name: str
    inner: "Node | None" = None


@dataclass
class Row:
    numbers: list[int] = field(default_factory=list[int])
    names: dict[str, float] = field(default_factory=dict[str, float])


class Model(BaseModel):
    name: str
    inner: "Model | None" = None


_LINKED = {
    "type": "record",
    "name": "Linked",
    "fields": [
        {"name": "text", "type": "string"},
        {"name": "data", "type": {"type": "map", "values": "bytes"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "next", "type": ["null", "Linked"]},
    ],
}
_MESSAGE = struct_pb2.Struct()
_MESSAGE.update({"a": [1, {"b": "c"}], "d": None})

_SERDES: dict[str, tuple[Any, list[bytes]]] = {
    "string": (Serdes.string(), ["é".encode()]),
    "int64": (Serdes.int64(), [bytes(8)]),
    "int32": (Serdes.int32(), [bytes(4)]),
    "float64": (Serdes.float64(), [bytes(8)]),
    "boolean": (Serdes.boolean(), [b"\x01"]),
    "uuid": (Serdes.uuid(), [b"12345678-1234-5678-1234-567812345678"]),
    "json": (Serdes.json(), [b'{"a": [1, 2.5, null, {"b": "\\u00e9"}]}']),
    "json struct": (Serdes.json(Node), [b'{"name": "a", "inner": {"name": "b"}}']),
    "json dataclass": (Serdes.json(Row), [b'{"numbers": [1], "names": {"a": 1.5}}']),
    "json model": (Serdes.json(Model), [b'{"name": "a", "inner": {"name": "b"}}']),
    "msgpack": (Serdes.msgpack(Node), [msgspec.msgpack.encode(Node("a", Node("b")))]),
    "msgpack model": (
        Serdes.msgpack(Model),
        [msgspec.msgpack.encode({"name": "a", "inner": {"name": "b"}})],
    ),
    "avro": (Serdes.avro(_LINKED), [b"\x02a\x02\x02k\x04xy\x00\x00\x00\x02\x05\x00\x00"]),
    "avro nulls": (
        Serdes.avro({"type": "array", "items": {"type": "array", "items": "null"}}),
        [b"\x04\x02\x00\x06\x00\x00"],
    ),
    "protobuf": (Serdes.protobuf(struct_pb2.Struct), [_MESSAGE.SerializeToString()]),
    "json schema": (
        Serdes.json_schema({"type": "object", "properties": {"a": {"type": "integer"}}}),
        [b'{"a": 1}'],
    ),
    "windowed": (
        TimeWindowedSerde(Serdes.string(), end_after(10)),
        [b"key" + bytes(8)],
    ),
    "session": (SessionWindowedSerde(Serdes.json()), [b'"key"' + bytes(16)]),
    "changed": (
        ChangedSerde(Serdes.string()),
        [ChangedSerde(Serdes.string()).serialize("t", Change("new", "old"))],
    ),
    "buffered": (
        BufferedSerde(Serdes.string()),
        [
            BufferedSerde(Serdes.string()).serialize(
                "t", Buffered(1, Context(2, "in", 0, 1, (("h", b"1"),)), b"a", None, b"b")
            )
        ],
    ),
    "subscription": (
        SUBSCRIPTIONS,
        [
            SUBSCRIPTIONS.serialize(
                "t", Subscription(bytes(16), Instruction.DELETE_KEY_AND_PROPAGATE, b"pk", 1)
            )
            or b""
        ],
    ),
    "response": (RESPONSES, [RESPONSES.serialize("t", Response(bytes(16), b"value")) or b""]),
}


@pytest.mark.parametrize("name", _SERDES)
@given(st.data())
@example(None)
def test_any_bytes_are_a_value_or_refused(name: str, data: Any) -> None:
    serde, valid = _SERDES[name]
    items = [*valid]
    if data is not None:
        items.append(data.draw(hostile(valid)))
    values: list[Any] | None = []
    for item in items:
        with bounded():
            try:
                value = serde.deserialize("topic", item)
            except SerializationError:
                values = None
            else:
                assert item not in valid or value is not None
                values = None if values is None else [*values, value]
    with bounded(), contextlib.suppress(SerializationError):
        batch = serde.deserialize_batch("topic", items)
        assert values is not None
        assert repr(batch) == repr(values)
