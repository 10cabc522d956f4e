"""Streams and tables of a random program, and its functions.

Keys and values are text. A function returns a short digest of its arguments, so every input of a
record shows in it.
"""

import asyncio
import zlib
from dataclasses import dataclass, field
from typing import Any

from tidewheel import GlobalKTable, KStream, KTable, Materialized, StreamsBuilder

Stream = KStream[Any, Any]
Table = KTable[Any, Any]

STREAMS = ("left", "right")
TABLES = ("rows", "others")
GLOBAL = "world"
INPUTS = (*STREAMS, *TABLES, GLOBAL)

#: History of versioned stores (ms).
HISTORY_MS = 30
#: TTL of rows (ms).
TTL_MS = 25


def mix(*parts: object) -> str:
    """Return a short text that depends on every argument."""
    return f"{zlib.crc32(repr(parts).encode()):08x}"


def is_even(key: object, value: object) -> bool:
    return zlib.crc32(repr((key, value)).encode()) % 2 == 0


def key_of(key: object, value: object) -> str:
    return "abcdef"[zlib.crc32(repr((key, value)).encode()) % 6]


def added(key: str, value: str, aggregate: str) -> str:
    return mix(key, value, aggregate)


def subtracted(key: str, value: str, aggregate: str) -> str:
    return mix(aggregate, value, key)


def subtract(aggregate: str, value: str) -> str:
    return mix(value, aggregate)


async def is_even_later(key: object, value: object) -> bool:
    await asyncio.sleep(0)
    return is_even(key, value)


async def mix_later(value: object) -> str:
    await asyncio.sleep(0)
    return mix(value)


async def pair_later(key: object, value: object) -> tuple[str, str]:
    await asyncio.sleep(0)
    return key_of(key, value), mix(key, value)


@dataclass
class Pool:
    """Streams and tables of a program.

    Attributes:
        most_entries: Size of its LRU stores.
        streams: Sources first.
        tables: Sources first.
        world: The global table, on demand.
        steps: Number of generated names.
        outputs: Its topics, with partition counts above one.
        calls: Arguments of each `foreach`.
    """

    builder: StreamsBuilder = field(default_factory=StreamsBuilder)
    most_entries: int = 3
    streams: list[Stream] = field(default_factory=list[Stream])
    tables: list[Table] = field(default_factory=list[Table])
    world: GlobalKTable[Any, Any] | None = None
    steps: int = 0
    outputs: dict[str, int] = field(default_factory=dict[str, int])
    calls: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])

    def name(self) -> str:
        self.steps += 1
        return f"made{self.steps}"

    def add_changes(self, table: Table) -> None:
        """Keep a windowed table's changes as a stream with plain keys."""
        self.streams.append(
            table.to_stream().map(lambda key, value: (key.key, mix(key.start, key.end, value)))
        )

    def kept(self, table: Table) -> None:
        self.tables.append(table)
        self.streams.append(table.to_stream())

    def counted(self, table: Table) -> None:
        """Keep the changes of a table of numbers as a stream of text."""
        self.streams.append(table.to_stream().map_values(mix))

    def store(self, store_type: Any = "rocksdb", **options: Any) -> Materialized:
        return Materialized(self.name(), store_type=store_type, **options)

    def versioned(self) -> Materialized:
        return self.store("versioned", history_retention=HISTORY_MS)

    def the_world(self) -> GlobalKTable[Any, Any]:
        if self.world is None:
            self.world = self.builder.global_table(GLOBAL, store="world-store")
        return self.world

    def finish(self) -> "Pool":
        for number, stream in enumerate(self.streams[len(STREAMS) :]):
            self.outputs[f"out{number}"] = 1
            stream.to(f"out{number}")
        return self

    def take_calls(self) -> dict[str, list[Any]]:
        taken = {name: list(calls) for name, calls in self.calls.items()}
        for calls in self.calls.values():
            calls.clear()
        return taken
