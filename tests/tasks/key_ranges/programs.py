"""Programs and checks of their results, for tests of key ranges."""

import asyncio
import random
import time
from collections import Counter
from typing import Any

from tests.tasks.loop.bench import Bench
from tidewheel import Processor, Record, Serdes, Stores, StreamsBuilder, Topology

STRING = Serdes.string()
LONG = Serdes.int64()
TEXT: dict[str, Any] = {"key_serde": STRING, "value_serde": STRING}


def counting() -> Topology:
    builder = StreamsBuilder()
    counts = builder.stream("in", **TEXT).group_by_key().count()
    counts.to_stream().to("out", key_serde=STRING, value_serde=LONG)
    return builder.build()


def counting_mapped(sleep_s: float) -> Topology:
    """Count values that a coroutine function has mapped, whose calls overlap."""
    waits = random.Random(0)

    async def call(value: str) -> str:
        await asyncio.sleep(waits.random() * sleep_s)
        return value

    builder = StreamsBuilder()
    counts = builder.stream("in", **TEXT).map_values(call).group_by_key().count()
    counts.to_stream().to("out", key_serde=STRING, value_serde=LONG)
    return builder.build()


def counting_slowly(sleep_s: float = 0.0, seed: int = 0, *, awaits: bool = False) -> Topology:
    class Count(Processor[str, str, str, int]):
        keyed = True

        def init(self, context: Any) -> None:
            super().init(context)
            self._store = context.get_state_store("counts")
            self._random = random.Random(seed)

        def process(self, record: Record[str, str]) -> None:
            if sleep_s:
                time.sleep(self._random.random() * sleep_s)
            count = (self._store.get(record.key) or 0) + 1
            self._store.put(record.key, count)
            self.context.forward(record.replace(value=count))

    class CountAwaiting(Count):
        async def process(self, record: Record[str, str]) -> None:  # type: ignore[override] # it may be either
            count = (self._store.get(record.key) or 0) + 1
            self._store.put(record.key, count)  # lost if the call never finishes
            await asyncio.sleep(self._random.random() * sleep_s)
            assert self._store.get(record.key) == count
            self.context.forward(record.replace(value=count))

    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value("counts", key_serde=STRING, value_serde=LONG))
    supplier = CountAwaiting if awaits else Count
    counted = builder.stream("in", **TEXT).process(supplier, stores=["counts"])
    counted.to("out", key_serde=STRING, value_serde=LONG)
    return builder.build()


class Fed:
    """Sender of numbered keys, with the expected counts."""

    def __init__(self, bench: Bench, keys: int) -> None:
        self._bench = bench
        self._keys = keys
        self._sent = 0
        self.counts: Counter[str] = Counter()

    def send(self, records: int) -> None:
        for _ in range(records):
            key = f"k{self._sent * 7919 % self._keys}"
            self._sent += 1
            self.counts[key] += 1
            self._bench.send("in", key, "v")

    def check(self) -> None:
        found: dict[str | None, list[int]] = {}
        for key, value in self._bench.outputs("out"):
            found.setdefault(key, []).append(int.from_bytes(value or b"", "big"))
        assert found == {key: list(range(1, count + 1)) for key, count in self.counts.items()}
