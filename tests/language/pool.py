"""What a random program has made so far, and the functions it is made with.

Keys and values are text; a function's result is a short digest of its arguments, so that everything that went into a
record shows in it, and nothing grows.
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

#: How long a versioned store remembers (ms).
HISTORY_MS = 30
#: How long a row of a TTL store lives (ms).
TTL_MS = 25


def mix(*parts: object) -> str:
    """Return a short text that depends on every argument."""
    return f"{zlib.crc32(repr(parts).encode()):08x}"


def is_even(key: object, value: object) -> bool:
    """Return what depends on both."""
    return zlib.crc32(repr((key, value)).encode()) % 2 == 0


def key_of(key: object, value: object) -> str:
    """Return one of few keys that depends on both."""
    return "abcdef"[zlib.crc32(repr((key, value)).encode()) % 6]


def added(key: str, value: str, aggregate: str) -> str:
    """Return an aggregate with a value."""
    return mix(key, value, aggregate)


def subtracted(key: str, value: str, aggregate: str) -> str:
    """Return an aggregate without a value."""
    return mix(aggregate, value, key)


def subtract(aggregate: str, value: str) -> str:
    """Return a reduced value without one of its values."""
    return mix(value, aggregate)


async def is_even_later(key: object, value: object) -> bool:
    """Return what `is_even` does, after a turn of the event loop."""
    await asyncio.sleep(0)
    return is_even(key, value)


async def mix_later(value: object) -> str:
    """Return what `mix` does, after a turn of the event loop."""
    await asyncio.sleep(0)
    return mix(value)


async def pair_later(key: object, value: object) -> tuple[str, str]:
    """Return another key and value, after a turn of the event loop."""
    await asyncio.sleep(0)
    return key_of(key, value), mix(key, value)


@dataclass
class Pool:
    """What a program has made so far, and what it may take from.

    Attributes:
        builder: Where it is made.
        most_entries: What its LRU stores keep.
        streams: All streams so far, the sources first.
        tables: All tables so far, the sources first.
        world: The global table, once an operator needs it.
        steps: How many names were given.
        outputs: The topics it writes to, with their partitions where there are several.
        calls: What the functions of each `foreach` were called with.
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
        """Return a new name."""
        self.steps += 1
        return f"made{self.steps}"

    def told(self, table: Table) -> None:
        """Keep a windowed table's changes as a stream by plain keys."""
        self.streams.append(
            table.to_stream().map(lambda key, value: (key.key, mix(key.start, key.end, value)))
        )

    def kept(self, table: Table) -> None:
        """Keep a table, and its changes as a stream."""
        self.tables.append(table)
        self.streams.append(table.to_stream())

    def counted(self, table: Table) -> None:
        """Keep the changes of a table of numbers as a stream of text."""
        self.streams.append(table.to_stream().map_values(mix))

    def store(self, store_type: Any = "rocksdb", **options: Any) -> Materialized:
        """Return a store with a name of its own."""
        return Materialized(self.name(), store_type=store_type, **options)

    def versioned(self) -> Materialized:
        """Return a versioned one."""
        return self.store("versioned", history_retention=HISTORY_MS)

    def the_world(self) -> GlobalKTable[Any, Any]:
        """Return the global table."""
        if self.world is None:
            self.world = self.builder.global_table(GLOBAL, store="world-store")
        return self.world

    def finish(self) -> "Pool":
        """Write each stream that was made to a topic `out<n>`."""
        for number, stream in enumerate(self.streams[len(STREAMS) :]):
            self.outputs[f"out{number}"] = 1
            stream.to(f"out{number}")
        return self

    def take_calls(self) -> dict[str, list[Any]]:
        """Return what each `foreach` was called with since the last time."""
        taken = {name: list(calls) for name, calls in self.calls.items()}
        for calls in self.calls.values():
            calls.clear()
        return taken
