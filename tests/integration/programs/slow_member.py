"""A worker with a slow function: counts per key, and journals the begin and end of each call.

One system call writes each line, so lines survive a SIGKILL. A line has `b` (begin) or `e` (end),
partition, offset, crc32 of the key, and the wall clock in ms.
"""

import asyncio
import logging
import os
import sys
import threading
import time
import zlib
from typing import Any, ClassVar, Final

import msgspec

from tidewheel import (
    KafkaStreams,
    Processor,
    ProcessorContext,
    Record,
    RunOptions,
    Serdes,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    Topology,
)

STORE: Final = "seen"
STUCK: Final = b"stuck"


class Orders(msgspec.Struct, kw_only=True):
    """Orders of a worker.

    `longest_us`: calls take between 0 and this many microseconds. `sticks`: a call for the key
    `STUCK` never returns.
    """

    source: str
    sink: str
    config: dict[str, Any]
    journal: str
    awaits: bool = False
    longest_us: int = 20_000
    sticks: bool = False
    fixed: bool = True


class Journal:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, event: str, context: ProcessorContext[Any, Any], key: bytes) -> None:
        place = context.record_metadata
        assert place is not None, "a record is being processed"
        now_ms = time.time_ns() // 1_000_000
        line = f"{event} {place.partition} {place.offset} {zlib.crc32(key)} {now_ms}\n"
        os.write(self._file, line.encode())


class Slow(Processor[bytes, bytes, bytes, bytes]):
    keyed: ClassVar = True

    def __init__(self, orders: Orders, journal: Journal) -> None:
        self._orders, self._journal = orders, journal

    def init(self, context: ProcessorContext[bytes, bytes]) -> None:
        super().init(context)
        self._seen = context.get_state_store(STORE)

    def process(self, record: Record[bytes, bytes]) -> None:
        seen = self._begin(record)
        if self._orders.sticks and record.key == STUCK:
            threading.Event().wait()
        time.sleep(self._takes_s(record))
        self._end(record, seen)

    def _begin(self, record: Record[bytes, bytes]) -> int:
        self._journal.note("b", self.context, record.key)
        return self._seen.get(record.key) or 0

    def _end(self, record: Record[bytes, bytes], seen: int) -> None:
        self._seen.put(record.key, seen + 1)
        self.context.forward(record.replace(value=b"%d %b" % (seen + 1, record.value)))
        self._journal.note("e", self.context, record.key)

    def _takes_s(self, record: Record[bytes, bytes]) -> float:
        return (
            zlib.crc32(record.value, zlib.crc32(record.key)) % (self._orders.longest_us + 1) / 1e6
        )


class SlowCoroutine(Slow):
    async def process(self, record: Record[bytes, bytes]) -> None:  # type: ignore[override] # a processor may be either
        seen = self._begin(record)
        if self._orders.sticks and record.key == STUCK:
            await asyncio.Event().wait()
        await asyncio.sleep(self._takes_s(record))
        self._end(record, seen)


def topology(orders: Orders) -> Topology:
    journal = Journal(orders.journal)
    processor = SlowCoroutine if orders.awaits else Slow
    builder = StreamsBuilder()
    builder.add_state_store(
        Stores.key_value(STORE, key_serde=Serdes.bytes(), value_serde=Serdes.int64())
    )
    (
        builder.stream(orders.source, key_serde=Serdes.bytes(), value_serde=Serdes.bytes())
        .process(lambda: processor(orders, journal), stores=[STORE])
        .to(orders.sink, key_serde=Serdes.bytes(), value_serde=Serdes.bytes())
    )
    return builder.build()


def main(text: str) -> None:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s.%(msecs)03d %(name)s %(message)s", stream=sys.stderr
    )
    orders = msgspec.json.decode(text, type=Orders)
    config = StreamsConfig(**orders.config)
    KafkaStreams(topology(orders), config, options=RunOptions(fixed=orders.fixed)).run()


if __name__ == "__main__":
    main(sys.argv[1])
