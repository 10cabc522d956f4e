"""A serde's type reaches its values."""

from dataclasses import dataclass
from typing import Any, assert_type
from uuid import UUID

from tidewheel import KStream, Serde, Serdes, StreamsBuilder
from tidewheel.streams.serdes import SerdeLike, as_serde


@dataclass
class Order:
    id: int


class Methods:
    def serialize(self, topic: str, value: Order, /) -> bytes | None:
        return str(value.id).encode()

    def deserialize(self, topic: str, data: bytes, /) -> Order:
        return Order(int(data))


assert_type(Serdes.string(), Serde[str])
assert_type(Serdes.bytes(), Serde[bytes])
assert_type(Serdes.int64().deserialize("t", b""), int)
assert_type(Serdes.uuid(), Serde[UUID])
assert_type(Serdes.json(), Serde[Any])
assert_type(Serdes.json(Order), Serde[Order])
assert_type(Serdes.msgpack(list[int]).deserialize("t", b""), list[int])
assert_type(as_serde(str), Serde[str])
assert_type(as_serde(Serdes.int32()), Serde[int])
assert_type(as_serde(Methods()), Serde[Order])
assert_type(Serdes.string().deserialize_batch("t", [b"a"]), list[str])

shorthand: SerdeLike[Order] = Methods()

assert_type(Serdes.avro({"type": "string"}), Serde[Any])
assert_type(Serdes.avro("{}", "http://localhost:8081"), Serde[Any])
assert_type(Serdes.json_schema({}, {"url": "http://localhost:8081"}), Serde[Any])
assert_type(Serdes.protobuf(Order), Serde[Order])

orders = StreamsBuilder().stream("orders", key_serde=str, value_serde=Serdes.json(Order))
assert_type(
    orders.map_values(lambda order: order.id).group_by_key().reduce(max).to_stream(),
    KStream[str, int],
)

celsius = Serde(lambda topic, degrees: str(degrees).encode(), lambda topic, data: float(data))
