"""Tidewheel's program of the suite parallel: a count per key with a slow function.

Settings without an argument keep Tidewheel's defaults.
"""

import asyncio
import struct
import sys
import time
import zlib
from collections.abc import Mapping
from typing import Any, ClassVar

from tidewheel import (
    KafkaStreams,
    Materialized,
    Processor,
    ProcessorContext,
    Record,
    Serdes,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    Topology,
)

WAIT_S = 0.010
#: Rounds of arithmetic: about 0.1 ms.
ROUNDS = 1_500
COLD_BLOCK_CACHE_BYTES = 8 << 20
_COUNT = struct.Struct(">q")


class Count(Processor[str, bytes, str, int]):
    """Counts its key; `keyed` promises no access to other keys' state, so keys may overlap."""

    keyed: ClassVar = True
    stores: ClassVar = [
        Stores.key_value("counts", key_serde=Serdes.string(), value_serde=Serdes.int64())
    ]

    def init(self, context: ProcessorContext[str, int]) -> None:
        super().init(context)
        self.counts = context.get_state_store("counts")

    def seen(self, record: Record[str, bytes]) -> int:
        count: int | None = self.counts.get(record.key)
        return count or 0

    def count(self, record: Record[str, bytes], seen: int) -> None:
        self.counts.put(record.key, seen + 1)
        self.context.forward(record.replace(value=seen + 1))


class Blocking(Count):
    def process(self, record: Record[str, bytes]) -> None:
        seen = self.seen(record)
        time.sleep(WAIT_S)
        self.count(record, seen)


class Awaitable(Count):
    async def process(self, record: Record[str, bytes]) -> None:
        seen = self.seen(record)
        await asyncio.sleep(WAIT_S)
        self.count(record, seen)


class Varying(Count):
    """Waits 0 to 5 ms, by the value: equal for every system."""

    def process(self, record: Record[str, bytes]) -> None:
        seen = self.seen(record)
        time.sleep(zlib.crc32(record.value) % 5_001 / 1e6)
        self.count(record, seen)


class Computing(Count):
    """Does not wait: computes in Python all the time."""

    def process(self, record: Record[str, bytes]) -> None:
        seen = self.seen(record)
        number = len(record.value)
        for _ in range(ROUNDS):
            number = (number * 1_103_515_245 + 12_345) & 0xFFFF_FFFF
        assert number >= 0
        self.count(record, seen)


PROCESSORS: Mapping[str, type[Count]] = {
    "blocking_10ms": Blocking,
    "awaitable_10ms": Awaitable,
    "sleep_0_5ms": Varying,
    "cpu_bound": Computing,
}


async def _pass(value: bytes) -> bytes:
    await asyncio.sleep(WAIT_S)
    return value


def _with_value(_key: str, value: bytes, state: bytes) -> bytes:
    return _COUNT.pack(_COUNT.unpack_from(state)[0] + 1) + value


def topology(job: str, input_topic: str, output_topic: str) -> Topology:
    builder = StreamsBuilder()
    records = builder.stream(input_topic, key_serde=Serdes.string(), value_serde=Serdes.bytes())
    if job == "awaitable_mapper_10ms":
        counts = records.map_values(_pass).group_by_key().count(store="counts")
        counts.to_stream().to(output_topic, key_serde=Serdes.string(), value_serde=Serdes.int64())
        return builder.build()
    if job != "cold_state":
        records.process(PROCESSORS[job]).to(
            output_topic, key_serde=Serdes.string(), value_serde=Serdes.int64()
        )
        return builder.build()
    (
        records.group_by_key()
        .aggregate(
            lambda: _COUNT.pack(0),
            _with_value,
            store=Materialized("states", value_serde=Serdes.bytes(), caching=False),
        )
        .to_stream()
        .map_values(lambda state: _COUNT.unpack_from(state)[0])
        .to(output_topic, key_serde=Serdes.string(), value_serde=Serdes.int64())
    )
    return builder.build()


def main(parameters: dict[str, str]) -> None:
    exactly_once = parameters["guarantee"] == "exactly_once"
    more: dict[str, Any] = {}
    if parameters["job"] == "cold_state":
        more["rocksdb"] = {"block_cache_bytes": COLD_BLOCK_CACHE_BYTES}
    config = StreamsConfig(
        application_id=parameters["application_id"],
        bootstrap_servers=parameters["bootstrap_servers"],
        parallelising_factor=int(parameters["factor"]),
        commit_interval_ms=int(parameters["commit_interval_ms"]),
        processing_guarantee="exactly_once" if exactly_once else "at_least_once",
        statestore_cache_max_bytes=int(parameters["cache_bytes"]),
        state_dir=parameters["state_dir"],
        **more,
    )
    job = topology(parameters["job"], parameters["input_topic"], parameters["output_topic"])
    KafkaStreams(job, config).run()


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
