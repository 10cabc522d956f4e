"""A serde's type reaches the values it gives (checked by mypy and pyright, never run)."""

from dataclasses import dataclass
from typing import Any, assert_type
from uuid import UUID

from streams.serdes import Serde, SerdeLike, Serdes, as_serde


@dataclass
class Order:
    """A user's type."""

    id: int


class Methods:
    """A user's serde."""

    def serialize(self, topic: str, value: Order, /) -> bytes | None:
        """Return bytes."""
        return str(value.id).encode()

    def deserialize(self, topic: str, data: bytes, /) -> Order:
        """Return an order."""
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
