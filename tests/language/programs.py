"""Random programs of the whole language: any operator on any stream or table made so far.

Keys and values are text; a function's result is a short digest of its arguments, so that everything that went into a
record shows in it, and nothing grows.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from streams import (
    BufferConfig,
    FixedKeyProcessor,
    FixedKeyRecord,
    GlobalKTable,
    JoinWindows,
    KStream,
    KTable,
    Materialized,
    Processor,
    Record,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    UnlimitedWindows,
)

Stream = KStream[Any, Any]
Table = KTable[Any, Any]

STREAMS = ("left", "right")
TABLES = ("rows", "others")
GLOBAL = "world"
INPUTS = (*STREAMS, *TABLES, GLOBAL)


def mix(*parts: object) -> str:
    """Return a short text that depends on every argument."""
    return f"{zlib.crc32(repr(parts).encode()):08x}"


@dataclass
class Pool:
    """What a program has made so far, and what it may take from."""

    builder: StreamsBuilder
    streams: list[Stream] = field(default_factory=list[Stream])
    tables: list[Table] = field(default_factory=list[Table])
    world: GlobalKTable[Any, Any] | None = None
    steps: int = 0

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


#: (pool, a stream, another stream, a table, another table): applies one operator.
Apply = Callable[[Pool, Stream, Stream, Table, Table], None]


def _even(key: object, value: object) -> bool:
    return zlib.crc32(repr((key, value)).encode()) % 2 == 0


def _key(key: object, value: object) -> str:
    return "abcdef"[zlib.crc32(repr((key, value)).encode()) % 6]


def _aggregated(key: str, value: str, aggregate: str) -> str:
    return mix(key, value, aggregate)


def _subtracted(key: str, value: str, aggregate: str) -> str:
    return mix(aggregate, value, key)


def _within(pool: Pool) -> JoinWindows:
    return JoinWindows(before=3 + pool.steps % 3, after=pool.steps % 5, grace=pool.steps % 4)


class _Remember(Processor[Any, Any, Any, Any]):
    """Forwards each value with the one before it."""

    def __init__(self, store: str) -> None:
        self._store = store

    def process(self, record: Record[Any, Any]) -> None:
        if record.key is None:
            return
        store = self.context.get_state_store(self._store)
        before = store.get(record.key)
        store.put(record.key, mix(record.value))
        self.context.forward(record.replace(value=mix(before, record.value)))


class _Stamp(FixedKeyProcessor[Any, Any, Any]):
    """Forwards each value with its timestamp mixed in."""

    def process(self, record: FixedKeyRecord[Any, Any]) -> None:
        self.context.forward(record.replace(value=mix(record.value, record.timestamp)))


def _processed(pool: Pool, s: Stream) -> None:
    name = pool.name()
    pool.builder.add_state_store(Stores.key_value(name, key_serde=str, value_serde=str))
    pool.streams.append(s.process(lambda: _Remember(name), stores=[name]))


def _split(pool: Pool, s: Stream) -> None:
    branches = s.split({"even": _even, "none": lambda value: value is None}, default="rest")
    pool.streams.extend(branches.values())


def _windowed(pool: Pool, s: Stream, windows: Any, emit: Any = "on_window_update") -> None:
    whole: Any = s.group_by_key()
    grouped = whole.windowed_by(windows).emit_strategy(emit)
    pool.told(grouped.count(store=Materialized(pool.name(), retention=100)))


def _session(pool: Pool, s: Stream, emit: Any) -> None:
    grouped = s.group_by_key().windowed_by(SessionWindows(5, grace=4)).emit_strategy(emit)
    table = grouped.aggregate(lambda: "", _aggregated, merger=mix)
    pool.told(table)


def _cogroup(pool: Pool, s: Stream, o: Stream) -> None:
    left, right = (each.group_by_key(name=pool.name()) for each in (s, o))
    both = left.cogroup(_aggregated).cogroup(right, _aggregated)
    pool.kept(both.aggregate(lambda: ""))


def _cogroup_windowed(pool: Pool, s: Stream, o: Stream) -> None:
    left, right = (each.group_by_key(name=pool.name()) for each in (s, o))
    both = left.cogroup(_aggregated).cogroup(right, _aggregated)
    pool.told(both.windowed_by(TimeWindows(8, grace=3)).aggregate(lambda: ""))


def _suppressed(pool: Pool, s: Stream) -> None:
    counts = s.group_by_key().windowed_by(TimeWindows(6, grace=2)).count()
    closes = Suppressed.until_window_closes(BufferConfig.unbounded())
    pool.told(counts.suppress(closes))


def _grouped(t: Table) -> Any:
    return t.group_by(lambda key, value: (_key(key, value), value))


OPERATORS: dict[str, Apply] = {
    "filter": lambda p, s, o, t, u: p.streams.append(s.filter(_even)),
    "filter_not": lambda p, s, o, t, u: p.streams.append(s.filter_not(_even)),
    "map": lambda p, s, o, t, u: p.streams.append(s.map(lambda k, v: (_key(k, v), mix(k, v)))),
    "map_values": lambda p, s, o, t, u: p.streams.append(s.map_values(mix)),
    "map_values_batch": lambda p, s, o, t, u: p.streams.append(
        s.map_values_batch(lambda values: [mix(value) for value in values])
    ),
    "flat_map": lambda p, s, o, t, u: p.streams.append(
        s.flat_map(lambda k, v: [(k, mix(v)), (_key(k, v), v)] if _even(k, v) else [])
    ),
    "flat_map_values": lambda p, s, o, t, u: p.streams.append(
        s.flat_map_values(lambda v: [v, mix(v)] if _even(None, v) else [])
    ),
    "select_key": lambda p, s, o, t, u: p.streams.append(s.select_key(_key)),
    "peek": lambda p, s, o, t, u: p.streams.append(s.peek(lambda v: None)),
    "merge": lambda p, s, o, t, u: p.streams.append(s.merge(o)),
    "split": lambda p, s, o, t, u: _split(p, s),
    "repartition": lambda p, s, o, t, u: p.streams.append(s.repartition()),
    "to_table": lambda p, s, o, t, u: p.kept(s.to_table(store=p.name())),
    "count": lambda p, s, o, t, u: p.streams.append(
        s.group_by_key().count().to_stream().map_values(mix)
    ),
    "reduce": lambda p, s, o, t, u: p.kept(s.group_by_key().reduce(mix)),
    "aggregate": lambda p, s, o, t, u: p.kept(s.group_by(_key).aggregate(lambda: "", _aggregated)),
    "tumbling": lambda p, s, o, t, u: _windowed(p, s, TimeWindows(7, grace=3)),
    "hopping": lambda p, s, o, t, u: _windowed(p, s, TimeWindows(9, advance=4, grace=2)),
    "tumbling_on_close": lambda p, s, o, t, u: _windowed(
        p, s, TimeWindows(7, grace=3), "on_window_close"
    ),
    "sliding": lambda p, s, o, t, u: _windowed(p, s, SlidingWindows(6, grace=5)),
    "session": lambda p, s, o, t, u: _session(p, s, "on_window_update"),
    "session_on_close": lambda p, s, o, t, u: _session(p, s, "on_window_close"),
    "unlimited": lambda p, s, o, t, u: p.told(
        s.group_by_key().windowed_by(UnlimitedWindows(start=20)).count()
    ),
    "cogroup": lambda p, s, o, t, u: _cogroup(p, s, o),
    "cogroup_windowed": lambda p, s, o, t, u: _cogroup_windowed(p, s, o),
    "suppress_close": lambda p, s, o, t, u: _suppressed(p, s),
    "suppress_limit": lambda p, s, o, t, u: p.kept(
        t.suppress(
            Suppressed.until_time_limit(5, BufferConfig.max_records(3).emit_early_when_full())
        )
    ),
    "stream_join": lambda p, s, o, t, u: p.streams.append(s.join(o, mix, within=_within(p))),
    "stream_left_join": lambda p, s, o, t, u: p.streams.append(
        s.left_join(o, mix, within=_within(p))
    ),
    "stream_outer_join": lambda p, s, o, t, u: p.streams.append(
        s.outer_join(o, mix, within=_within(p))
    ),
    "self_join": lambda p, s, o, t, u: p.streams.append(s.join(s, mix, within=_within(p))),
    "table_lookup": lambda p, s, o, t, u: p.streams.append(s.join(t, mix)),
    "table_left_lookup": lambda p, s, o, t, u: p.streams.append(s.left_join(t, mix)),
    "global_lookup": lambda p, s, o, t, u: _global_lookup(p, s),
    "table_filter": lambda p, s, o, t, u: p.kept(t.filter(_even)),
    "table_map_values": lambda p, s, o, t, u: p.kept(t.map_values(mix)),
    "table_map_values_stored": lambda p, s, o, t, u: p.kept(t.map_values(mix, store=p.name())),
    "table_join": lambda p, s, o, t, u: p.kept(t.join(u, mix)),
    "table_left_join": lambda p, s, o, t, u: p.kept(t.left_join(u, mix)),
    "table_outer_join": lambda p, s, o, t, u: p.kept(t.outer_join(u, mix)),
    "foreign_key_join": lambda p, s, o, t, u: p.kept(
        t.join(u, mix, foreign_key=lambda value: _key(None, value))
    ),
    "foreign_key_left_join": lambda p, s, o, t, u: p.kept(
        t.left_join(u, mix, foreign_key=lambda value: _key(None, value))
    ),
    "grouped_table": lambda p, s, o, t, u: p.kept(
        _grouped(t).aggregate(lambda: "", _aggregated, _subtracted)
    ),
    "process": lambda p, s, o, t, u: _processed(p, s),
    "process_values": lambda p, s, o, t, u: p.streams.append(s.process_values(_Stamp)),
}


def _global_lookup(pool: Pool, s: Stream) -> None:
    if pool.world is None:
        pool.world = pool.builder.global_table(GLOBAL, store="world-store")
    pool.streams.append(s.left_join(pool.world, mix, key_selector=_key))


@dataclass(frozen=True)
class Step:
    """One operator, applied to the streams and tables at these places of the pool (counted modulo its size)."""

    operator: str
    stream: int
    other: int


def build(steps: list[Step]) -> StreamsBuilder:
    """Return a program; each stream it makes ends in a topic `out<n>`."""
    builder = StreamsBuilder()
    pool = Pool(builder)
    pool.streams += [builder.stream(topic) for topic in STREAMS]
    pool.tables += [builder.table(topic, store=f"{topic}-store") for topic in TABLES]
    for step in steps:
        streams, tables = pool.streams, pool.tables
        OPERATORS[step.operator](
            pool,
            streams[step.stream % len(streams)],
            streams[step.other % len(streams)],
            tables[step.stream % len(tables)],
            tables[step.other % len(tables)],
        )
    for number, stream in enumerate(pool.streams[len(STREAMS) :]):
        stream.to(f"out{number}")
    return builder
