"""Wrong values, types and schemas of serdes."""

from dataclasses import dataclass

from tidewheel import Serde, Serdes, StreamsBuilder


@dataclass
class Order:
    id: int


class Half:
    def serialize(self, topic: str, value: Order, /) -> bytes | None:
        return str(value.id).encode()


Serdes.int64().serialize("t", "text")  # error
Serdes.string().serialize_batch("t", [1])  # error
Serdes.json(Order).serialize("t", {"id": 1})  # error
print(Serdes.json(Order).deserialize("t", b"").nothing)  # error
Serdes.protobuf(5)  # error
Serdes.avro(5)  # error
Serdes.avro("{}", 8081)  # error
number: Serde[int] = Serdes.string()  # error
builder = StreamsBuilder()
builder.stream("t", key_serde=Half())  # error
builder.stream("t", value_serde=Serdes.string)  # error
