"""Random programs of the whole language: any operator on any stream or table."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.language.objects import (
    WITH_STORES,
    gathered,
    numbered,
    processed_later,
    stamped,
    transformed,
)
from tests.language.pool import (
    STREAMS,
    TABLES,
    TTL_MS,
    Pool,
    Stream,
    Table,
    added,
    is_even,
    is_even_later,
    key_of,
    mix,
    mix_later,
    pair_later,
    subtract,
    subtracted,
)
from tidewheel import (
    BufferConfig,
    CalendarWindows,
    JoinWindows,
    Materialized,
    PunctuationType,
    SessionWindows,
    SlidingWindows,
    Suppressed,
    TimeWindows,
    UnlimitedWindows,
)

#: Time zone of calendar windows, and a midnight (ms) that ends all of them: 1 April 2024, a Monday.
BERLIN = "Europe/Berlin"
MIDNIGHT_MS = 1_711_922_400_000

_AT_CLOSE = Suppressed.until_window_closes(BufferConfig.unbounded())

#: (pool, stream, other stream, table, other table): applies one operator.
Apply = Callable[[Pool, Stream, Stream, Table, Table], None]


def _within(pool: Pool) -> JoinWindows:
    return JoinWindows(before=3 + pool.steps % 3, after=pool.steps % 5, grace=pool.steps % 4)


def _split(pool: Pool, s: Stream) -> None:
    branches = s.split({"even": is_even, "none": lambda value: value is None}, default="rest")
    pool.streams.extend(branches.values())


def _in(s: Stream, windows: Any) -> Any:
    return s.group_by_key().windowed_by(windows)


def _counts(pool: Pool, s: Stream, windows: Any, emit: Any) -> Table:
    retention = None if isinstance(windows, CalendarWindows | UnlimitedWindows) else 100
    kept = Materialized(pool.name(), retention=retention)
    counted: Table = _in(s, windows).emit_strategy(emit).count(store=kept)
    return counted


def _counting(windows: Any, emit: Any) -> Callable[[Pool, Stream, Stream], Table]:
    return lambda pool, s, _other: _counts(pool, s, windows, emit)


def _sessions(s: Stream, emit: Any) -> Table:
    grouped = _in(s, SessionWindows(5, grace=4)).emit_strategy(emit)
    aggregated: Table = grouped.aggregate(str, added, merger=mix)
    return aggregated


def _cogroup(pool: Pool, s: Stream, o: Stream) -> Any:
    left, right = (each.group_by_key(name=pool.name()) for each in (s, o))
    return left.cogroup(added).cogroup(right, added)


def _delayed(pool: Pool, t: Table, buffer: BufferConfig) -> Table:
    limit = Suppressed.until_time_limit(5, buffer.emit_early_when_full())
    return _plain(pool, t).suppress(limit)


def _grouped(t: Table) -> Any:
    return t.group_by(lambda key, value: (key_of(key, value), value))


def _versioned(pool: Pool, o: Stream) -> Table:
    return o.to_table(store=pool.versioned())


def _dynamic(pool: Pool, s: Stream) -> None:
    name = pool.name()
    pool.outputs.update({f"{name}-even": 1, f"{name}-odd": 1})
    s.to(lambda key, value, context: f"{name}-{'even' if is_even(key, value) else 'odd'}")


def _multicast(pool: Pool, s: Stream) -> None:
    name = pool.name()
    pool.outputs[name] = 3

    def some(topic: str, key: Any, value: Any, partitions: int) -> list[int]:
        return [number for number in range(partitions) if is_even(key, (value, number))]

    s.to(name, partitioner=some)


def _foreach(pool: Pool, s: Stream) -> None:
    calls = pool.calls.setdefault(pool.name(), [])
    s.foreach(lambda key, value: calls.append((key, value)))


def _plain(pool: Pool, t: Table) -> Table:
    return t.to_stream().to_table(store=pool.name()) if t._part.versioned else t


#: From one or two streams to one stream.
_STREAMS: dict[str, Callable[[Pool, Stream, Stream], Stream]] = {
    "filter": lambda p, s, o: s.filter(is_even),
    "filter_not": lambda p, s, o: s.filter_not(is_even),
    "filter_later": lambda p, s, o: s.filter(is_even_later),
    "map": lambda p, s, o: s.map(lambda k, v: (key_of(k, v), mix(k, v))),
    "map_later": lambda p, s, o: s.map(pair_later),
    "map_values": lambda p, s, o: s.map_values(mix),
    "map_values_later": lambda p, s, o: s.map_values(mix_later),
    "map_values_batch": lambda p, s, o: s.map_values_batch(lambda values: [*map(mix, values)]),
    "flat_map": lambda p, s, o: s.flat_map(
        lambda k, v: [(k, mix(v)), (key_of(k, v), v)] if is_even(k, v) else []
    ),
    "flat_map_values": lambda p, s, o: s.flat_map_values(
        lambda v: [v, mix(v)] if is_even(None, v) else []
    ),
    "select_key": lambda p, s, o: s.select_key(key_of),
    "peek": lambda p, s, o: s.peek(lambda v: None),
    "merge": lambda p, s, o: s.merge(o),
    "repartition": lambda p, s, o: s.repartition(),
    "stream_join": lambda p, s, o: s.join(o, mix, within=_within(p)),
    "stream_left_join": lambda p, s, o: s.left_join(o, mix, within=_within(p)),
    "stream_outer_join": lambda p, s, o: s.outer_join(o, mix, within=_within(p)),
    "self_join": lambda p, s, o: s.join(s, mix, within=_within(p)),
    "self_left_join": lambda p, s, o: s.left_join(s, mix, within=_within(p)),
    "self_outer_join": lambda p, s, o: s.outer_join(s, mix, within=_within(p)),
    "global_join": lambda p, s, o: s.join(p.the_world(), mix, key_selector=key_of),
    "global_left_join": lambda p, s, o: s.left_join(p.the_world(), mix, key_selector=key_of),
    "as_of_join": lambda p, s, o: s.join(_versioned(p, o), mix),
    "as_of_left_join": lambda p, s, o: s.left_join(_versioned(p, o), mix),
    "as_of_join_grace": lambda p, s, o: s.join(_versioned(p, o), mix, grace=4),
    "as_of_left_join_grace": lambda p, s, o: s.left_join(_versioned(p, o), mix, grace=7),
}

#: From one or two streams to a table.
_TO_TABLES: dict[str, Callable[[Pool, Stream, Stream], Table]] = {
    "to_table": lambda p, s, o: s.to_table(store=p.name()),
    "to_table_versioned": lambda p, s, o: _versioned(p, s),
    "to_table_in_memory": lambda p, s, o: s.to_table(store=p.store("in_memory")),
    "to_table_lru": lambda p, s, o: s.to_table(store=p.store("lru", max_entries=p.most_entries)),
    "to_table_ttl": lambda p, s, o: s.to_table(store=p.store(ttl=TTL_MS)),
    "reduce": lambda p, s, o: s.group_by_key().reduce(mix),
    "reduce_ttl": lambda p, s, o: s.group_by_key().reduce(mix, store=p.store(ttl=TTL_MS)),
    "aggregate": lambda p, s, o: s.group_by(key_of).aggregate(str, added),
    "cogroup": lambda p, s, o: _cogroup(p, s, o).aggregate(str),
}

#: From one or two tables to a table.
_TABLES: dict[str, Callable[[Pool, Table, Table], Table]] = {
    "table_filter": lambda p, t, u: t.filter(is_even),
    "table_filter_not": lambda p, t, u: t.filter_not(is_even),
    "table_filter_stored": lambda p, t, u: t.filter(is_even, store=p.name()),
    "table_map_values": lambda p, t, u: t.map_values(mix),
    "table_map_values_stored": lambda p, t, u: t.map_values(mix, store=p.name()),
    "table_join": lambda p, t, u: t.join(u, mix),
    "table_left_join": lambda p, t, u: t.left_join(u, mix),
    "table_outer_join": lambda p, t, u: t.outer_join(u, mix),
    "foreign_key_join": lambda p, t, u: t.join(u, mix, foreign_key=lambda v: key_of(None, v)),
    "foreign_key_left_join": lambda p, t, u: t.left_join(
        u, mix, foreign_key=lambda v: key_of(None, v)
    ),
    "grouped_table_aggregate": lambda p, t, u: _grouped(t).aggregate(str, added, subtracted),
    "grouped_table_reduce": lambda p, t, u: _grouped(t).reduce(mix, subtract),
    "suppress_records": lambda p, t, u: _delayed(p, t, BufferConfig.max_records(3)),
    "suppress_bytes": lambda p, t, u: _delayed(p, t, BufferConfig.max_bytes(200)),
    "suppress_both": lambda p, t, u: _delayed(
        p, t, BufferConfig.max_bytes(400).with_max_records(4)
    ),
}

#: Windows and emit strategies.
_WINDOWS: dict[str, tuple[Any, Any]] = {
    "tumbling": (TimeWindows(7, grace=3), "on_window_update"),
    "tumbling_on_close": (TimeWindows(7, grace=3), "on_window_close"),
    "hopping": (TimeWindows(9, advance=4, grace=2), "on_window_update"),
    "hopping_on_close": (TimeWindows(9, advance=4, grace=2), "on_window_close"),
    "sliding": (SlidingWindows(6, grace=5), "on_window_update"),
    "sliding_on_close": (SlidingWindows(6, grace=5), "on_window_close"),
    "calendar": (CalendarWindows("day", tz=BERLIN, grace=5), "on_window_update"),
    "calendar_on_close": (CalendarWindows("month", tz=BERLIN, grace=2), "on_window_close"),
    "session_count": (SessionWindows(4, grace=9), "on_window_update"),
    "unlimited": (UnlimitedWindows(start=20), "on_window_update"),
}

#: From one or two streams to a windowed table.
_TO_WINDOWS: dict[str, Callable[[Pool, Stream, Stream], Table]] = {
    **{name: _counting(*windows) for name, windows in _WINDOWS.items()},
    "tumbling_reduce": lambda p, s, o: _in(s, TimeWindows(8, grace=2)).reduce(mix),
    "sliding_reduce": lambda p, s, o: _in(s, SlidingWindows(5, grace=5)).reduce(mix),
    "session_reduce": lambda p, s, o: _in(s, SessionWindows(5, grace=6)).reduce(mix),
    "session": lambda p, s, o: _sessions(s, "on_window_update"),
    "session_on_close": lambda p, s, o: _sessions(s, "on_window_close"),
    "tumbling_in_memory": lambda p, s, o: _in(s, TimeWindows(7, grace=3)).aggregate(
        str, added, store=p.store("in_memory")
    ),
    "session_in_memory": lambda p, s, o: _in(s, SessionWindows(4, grace=5)).count(
        store=p.store("in_memory")
    ),
    "cogroup_tumbling": lambda p, s, o: (
        _cogroup(p, s, o).windowed_by(TimeWindows(8, grace=3)).aggregate(str)
    ),
    "cogroup_sliding": lambda p, s, o: (
        _cogroup(p, s, o).windowed_by(SlidingWindows(6, grace=4)).aggregate(str)
    ),
    "cogroup_session": lambda p, s, o: (
        _cogroup(p, s, o).windowed_by(SessionWindows(5, grace=4)).aggregate(str, merger=mix)
    ),
    "suppress_close": lambda p, s, o: _in(s, TimeWindows(6, grace=2)).count().suppress(_AT_CLOSE),
    "suppress_close_session": lambda p, s, o: (
        _in(s, SessionWindows(4, grace=2)).count().suppress(_AT_CLOSE)
    ),
}

_OTHERS: dict[str, Apply] = {
    "split": lambda p, s, o, t, u: _split(p, s),
    "foreach": lambda p, s, o, t, u: _foreach(p, s),
    "to_dynamic": lambda p, s, o, t, u: _dynamic(p, s),
    "to_multicast": lambda p, s, o, t, u: _multicast(p, s),
    "count": lambda p, s, o, t, u: p.counted(s.group_by_key().count()),
    "count_in_memory": lambda p, s, o, t, u: p.counted(
        s.group_by(key_of).count(store=p.store("in_memory"))
    ),
    "grouped_table_count": lambda p, s, o, t, u: p.counted(_grouped(t).count()),
    "to_stream_by": lambda p, s, o, t, u: p.streams.append(t.to_stream(key_of)),
    "table_lookup": lambda p, s, o, t, u: p.streams.append(s.join(t, mix)),
    "table_left_lookup": lambda p, s, o, t, u: p.streams.append(s.left_join(t, mix)),
    "process_later": lambda p, s, o, t, u: processed_later(p, s),
    "process_values": lambda p, s, o, t, u: stamped(p, s),
    "stream_timer": lambda p, s, o, t, u: gathered(p, s, PunctuationType.STREAM_TIME),
    "wall_clock_timer": lambda p, s, o, t, u: gathered(p, s, PunctuationType.WALL_CLOCK_TIME),
    "transform_values": lambda p, s, o, t, u: transformed(p, t),
    "transform_values_stored": lambda p, s, o, t, u: numbered(p, t),
}


def _kept(keep: Callable[[Pool], Callable[[Any], None]], make: Callable[..., Any]) -> Apply:
    return lambda p, s, o, t, u: keep(p)(make(p, s, o))


def _kept_of_tables(make: Callable[[Pool, Table, Table], Table]) -> Apply:
    return lambda p, s, o, t, u: p.kept(make(p, t, u))


def _added(add: Callable[[Pool, Stream], None]) -> Apply:
    return lambda p, s, o, t, u: add(p, s)


#: Each stores its result in the pool.
OPERATORS: dict[str, Apply] = {
    **{name: _kept(lambda p: p.streams.append, make) for name, make in _STREAMS.items()},
    **{name: _kept(lambda p: p.kept, make) for name, make in _TO_TABLES.items()},
    **{name: _kept(lambda p: p.add_changes, make) for name, make in _TO_WINDOWS.items()},
    **{name: _kept_of_tables(make) for name, make in _TABLES.items()},
    **{name: _added(add) for name, add in WITH_STORES.items()},
    **_OTHERS,
}

#: Operators that force record-by-record execution.
SINGLY = frozenset(
    {
        "process_later", "process_values", "stream_timer", "wall_clock_timer", "transform_values",
        "transform_values_stored", "self_join", "self_left_join", "self_outer_join", *WITH_STORES,
    }
)  # fmt: skip
GLOBALLY = frozenset({"global_join", "global_left_join"})
AT_MIDNIGHT = frozenset({"calendar", "calendar_on_close"})


@dataclass(frozen=True)
class Step:
    """One operator with indices into the pool (modulo its size)."""

    operator: str
    stream: int
    other: int


def build(steps: list[Step], *, most_entries: int = 3) -> Pool:
    pool = Pool(most_entries=most_entries)
    pool.streams += [pool.builder.stream(topic) for topic in STREAMS]
    pool.tables += [pool.builder.table(topic, store=f"{topic}-store") for topic in TABLES]
    for step in steps:
        streams, tables = pool.streams, pool.tables
        OPERATORS[step.operator](
            pool,
            streams[step.stream % len(streams)],
            streams[step.other % len(streams)],
            tables[step.stream % len(tables)],
            tables[step.other % len(tables)],
        )
    return pool.finish()
