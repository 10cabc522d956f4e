"""Cost of the checks in serdes against the bare codecs: one process, no broker.

    python -m benchmarks.serdes [--rounds 200]

Each line has nanoseconds of processor time per value (median and minimum of all rounds, in turns)
and their ratio.
"""

import argparse
import statistics
import time
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import orjson
from pydantic import BaseModel, TypeAdapter

from tidewheel import Serdes

_VALUES = 500
"""Values of a batch."""
_TOPIC = "t"


class Order(msgspec.Struct):
    """Five fields, one of them with Nones."""

    id: int
    name: str
    cents: int
    weight: float
    paid: bool | None


@dataclass
class DataOrder:
    """`Order` as a dataclass."""

    id: int
    name: str
    cents: int
    weight: float
    paid: bool | None


class ModelOrder(BaseModel):
    """`Order` as a pydantic model."""

    id: int
    name: str
    cents: int
    weight: float
    paid: bool | None


class Item(msgspec.Struct):
    sku: str
    count: int


class Basket(msgspec.Struct):
    """Fields with parts, a time and an id."""

    id: UUID
    at: datetime
    name: str
    items: list[Item]
    tags: dict[str, str]


Case = tuple[Callable[[], object], Callable[[], object]]


def cases() -> dict[str, Case]:
    fields: list[dict[str, Any]] = [
        {"id": n, "name": f"name-{n}", "cents": n * 100, "weight": n + 0.5, "paid": (True, None)[n % 2]}
        for n in range(_VALUES)
    ]  # fmt: skip
    structs, data = [Order(**row) for row in fields], [DataOrder(**row) for row in fields]
    models = [ModelOrder(**row) for row in fields]
    at = datetime(2026, 1, 2, tzinfo=UTC)
    baskets = [
        Basket(UUID(int=n), at, f"name-{n}", [Item("a", n), Item("b", 2)], {"x": "y", "z": str(n)})
        for n in range(_VALUES)
    ]
    encode, pack = msgspec.json.Encoder().encode, msgspec.msgpack.Encoder().encode
    dump = TypeAdapter(ModelOrder).dump_json
    documents = list(map(orjson.dumps, fields))
    found: dict[str, Case] = {}
    for name, make, bare, values in (
        ("json Struct", Serdes.json(Order), encode, structs),
        ("json dataclass", Serdes.json(DataOrder), encode, data),
        ("json pydantic model", Serdes.json(ModelOrder), dump, models),
        ("json nested Struct", Serdes.json(Basket), encode, baskets),
        ("msgpack Struct", Serdes.msgpack(Order), pack, structs),
        ("json untyped", Serdes.json(), orjson.dumps, fields),
    ):
        found[f"{name}, write"] = _batch(bare, values), _write(make, values)
    single: Any = Serdes.json(Order)
    found["json Struct, write one by one"] = (
        _batch(encode, structs),
        lambda: [single.serialize(_TOPIC, value) for value in structs],
    )
    as_given: Any = Serdes.json(sort_keys=False)
    found["json untyped, write a key (to a value)"] = (
        _write(as_given, fields),
        _write(Serdes.json().for_keys(), fields),
    )
    untyped = Serdes.json()
    found["json untyped, read (to orjson)"] = (
        _batch(orjson.loads, documents),
        lambda: untyped.deserialize_batch(_TOPIC, documents),
    )
    return found


def _batch(function: Callable[[Any], object], values: Sequence[Any]) -> Callable[[], object]:
    return lambda: list(map(function, values))


def _write(serde: Any, values: Sequence[Any]) -> Callable[[], object]:
    return lambda: serde.serialize_batch(_TOPIC, values)


def measure(case: Case, rounds: int) -> list[list[float]]:
    taken: list[list[float]] = [[], []]
    for _ in range(rounds):
        for times, work in zip(taken, case, strict=True):
            times.append(timeit.timeit(work, number=1, timer=time.process_time) / _VALUES * 1e9)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    print(f"{'':40} {'bare':>11} {'serde':>11}   more  ratio (median, least)")
    for name, case in cases().items():
        bare, serde = measure(case, rounds)
        middle, least = (statistics.median(bare), statistics.median(serde)), (min(bare), min(serde))
        print(
            f"{name:40} {middle[0]:5.0f} {least[0]:5.0f} {middle[1]:5.0f} {least[1]:5.0f}  {middle[1] - middle[0]:+5.0f}  "
            f"{middle[1] / middle[0]:.2f} {least[1] / least[0]:.2f}"
        )


if __name__ == "__main__":
    main()
