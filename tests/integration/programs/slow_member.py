"""A worker for tests whose function takes its time: it counts per key, and notes each call's begin and end in a file.

It takes one argument, the JSON of `Orders`. The file is written by one system call a line, so what was noted outlives a
SIGKILL; lines are `b` (begun) or `e` (ended), partition, offset, the key's crc32 and the wall clock in ms.
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
    """What a worker is to do.

    Attributes:
        source: Its input topic, `sink` its output topic.
        config: Settings, as `StreamsConfig` takes them.
        journal: The file of calls.
        awaits: Whether the function is a coroutine.
        longest_us: The longest call takes so many microseconds, the shortest none.
        sticks: Whether a call for the key `STUCK` never returns.
        fixed: As in `RunOptions`.
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
    """Notes when calls begin and end."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, event: str, context: ProcessorContext[Any, Any], key: bytes) -> None:
        """Write one line."""
        place = context.record_metadata
        assert place is not None, "a record is being processed"
        now_ms = time.time_ns() // 1_000_000
        line = f"{event} {place.partition} {place.offset} {zlib.crc32(key)} {now_ms}\n"
        os.write(self._file, line.encode())


class Slow(Processor[bytes, bytes, bytes, bytes]):
    """Reads the key's count, takes its time, writes the count, and forwards it with the record's value."""

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
    """The same as a coroutine."""

    async def process(self, record: Record[bytes, bytes]) -> None:  # type: ignore[override] # a processor may be either
        seen = self._begin(record)
        if self._orders.sticks and record.key == STUCK:
            await asyncio.Event().wait()
        await asyncio.sleep(self._takes_s(record))
        self._end(record, seen)


def topology(orders: Orders) -> Topology:
    """Return the job."""
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
    """Run until SIGTERM."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s.%(msecs)03d %(name)s %(message)s", stream=sys.stderr
    )
    orders = msgspec.json.decode(text, type=Orders)
    config = StreamsConfig(**orders.config)
    KafkaStreams(topology(orders), config, options=RunOptions(fixed=orders.fixed)).run()


if __name__ == "__main__":
    main(sys.argv[1])
