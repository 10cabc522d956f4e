"""Random programs in Python, equal to those that `Programs.java` builds on Kafka Streams.

Functions depend on all arguments, so any difference shows in the outputs.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from tests.interop.shapes import is_order_free
from tidewheel import (
    BufferConfig,
    CustomWindows,
    FixedKeyProcessor,
    FixedKeyRecord,
    GlobalKTable,
    JoinWindows,
    KStream,
    KTable,
    Materialized,
    Processor,
    ProcessorContext,
    PunctuationType,
    Record,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    Suppressed,
    TimeWindows,
    Topology,
    UnlimitedWindows,
    ValueTransformerWithKey,
)
from tidewheel.testing import TopologyTestDriver

Step = Mapping[str, Any]
Program = dict[str, Any]
#: Per output topic: (input index, key, value, timestamp).
Outputs = dict[str, list[list[Any]]]

TEXT: dict[str, Any] = {"key_serde": str, "value_serde": str}
_READABLE = 14
_WITH_KEY = 3


def joined(*parts: object) -> str:
    return ",".join("~" if part is None else str(part) for part in parts)


def digest(*parts: object) -> int:
    return zlib.crc32(joined(*parts).encode())


def mix(*parts: object) -> str:
    text = joined(*parts)
    return text if len(text) <= _READABLE else f"{zlib.crc32(text.encode()):08x}"


def is_chosen(salt: int, key: object, value: object) -> bool:
    return digest(salt, key, value) % 2 == 0


def key_of(salt: int, key: object, value: object) -> str:
    return "abcdef"[digest(salt, key, value) % 6]


def unless_deleted(deletes: bool, value: str | None) -> str | None:
    deleted = deletes and value is not None and digest("deleted", value) % 4 == 0
    return None if deleted else value


@dataclass(frozen=True)
class Shifted:
    shift: int

    def __call__(self, record: Any, partition_time: int) -> int:
        return int(record.timestamp) + self.shift


class _Transform(ValueTransformerWithKey[Any, Any, Any]):
    def transform(self, key: Any, value: Any) -> Any:
        return None if value is None or digest("transformed", value) % 4 == 0 else mix(key, value)


class _Last(Processor[Any, Any, Any, Any]):
    def __init__(self, store: str) -> None:
        self._store = store

    def process(self, record: Record[Any, Any]) -> None:
        if record.key is not None:
            store = self.context.get_state_store(self._store)
            before = store.get(record.key)
            store.put(record.key, record.value)
            self.context.forward(record.replace(value=mix(before, record.value)))


class _Collector(Processor[Any, Any, Any, Any]):
    def __init__(self, store: str, time: PunctuationType) -> None:
        self._store = store
        self._time = time

    def init(self, context: ProcessorContext[Any, Any]) -> None:
        super().init(context)
        context.schedule(10, self._time, self._forward_all)

    def process(self, record: Record[Any, Any]) -> None:
        if record.key is not None:
            store = self.context.get_state_store(self._store)
            store.put(record.key, mix(record.value, record.timestamp))

    def _forward_all(self, now_ms: int) -> None:
        store = self.context.get_state_store(self._store)
        for key, value in list(store.all()):
            store.delete(key)
            self.context.forward(Record(key, value, now_ms))


class _Stamp(FixedKeyProcessor[Any, Any, Any]):
    def process(self, record: FixedKeyRecord[Any, Any]) -> None:
        self.context.forward(record.replace(value=mix(record.value, record.timestamp)))


def _named(step: Step) -> dict[str, Any]:
    return {"name": step["name"]} if "name" in step else {}


def _materialized(kept: Step) -> Materialized[Any, Any]:
    options: dict[str, Any] = {
        "caching": kept.get("cache", True),
        "logging": kept.get("log", True),
        "retention": kept.get("retention"),
        "store_type": kept.get("type"),
    }
    if "history" in kept:
        options |= {"store_type": "versioned", "history_retention": kept["history"]}
    return Materialized(kept.get("store"), **options)


def _kept(step: Step) -> dict[str, Any]:
    return {"store": _materialized(step["kept"])} if "kept" in step else {}


def _accepts_key(step: Step) -> bool:
    return bool(step.get("arguments") == _WITH_KEY)


def _joiner(step: Step) -> Callable[..., Any]:
    deletes = step.get("deletes", False)
    if _accepts_key(step):
        return lambda key, left, right: unless_deleted(deletes, mix(key, left, right))
    return lambda left, right: unless_deleted(deletes, mix(left, right))


def _rows_joiner(step: Step) -> Callable[[Any, Any], Any]:
    deletes = step.get("deletes", False)
    return lambda left, right: unless_deleted(deletes, mix(left, right))


def _within(step: Step) -> JoinWindows:
    return JoinWindows(before=step["before"], after=step["after"], grace=step["grace"])


def _stream_joined(step: Step) -> dict[str, Any]:
    # An unnamed `Materialized` uses generated store names, like `StreamJoined.withName`.
    return _named(step) | {"store": Materialized(step.get("store"), store_type=step.get("type"))}


def _reducer(step: Step, salt: int) -> Callable[[Any, Any], Any]:
    deletes = step.get("deletes", False)
    return lambda old, value: unless_deleted(deletes, mix(salt, old, value))


def _aggregator(step: Step, salt: int) -> Callable[[Any, Any, Any], Any]:
    deletes = step.get("deletes", False)
    return lambda key, value, aggregate: unless_deleted(deletes, mix(salt, aggregate, value))


def _paired(key: Any, value: Any) -> str:
    return mix(key, value)


def _of_both_keys(key: Any, mapped: Any, value: Any, row: Any) -> str:
    return mix(key, mapped, value, row)


def _merger(salt: int) -> Callable[[Any, Any, Any], Any]:
    return lambda key, first, second: mix(salt, key, first, second)


def _subtractor(key: Any, value: Any, old: Any) -> str:
    return mix("-", old, value)


def _without(old: Any, value: Any) -> str:
    return mix("-", old, value)


def _number(count: object) -> str:
    return f"#{count}"


def _grouped(step: Step, salt: int, one: KStream[Any, Any]) -> Any:
    name = {"name": step["group_name"]} if "group_name" in step else {}
    if step.get("rekey", False):
        return one.group_by(lambda key, value: key_of(salt, key, value), **TEXT, **name)
    return one.group_by_key(**TEXT, **name)


def _irregular(timestamp: int, size: int) -> list[tuple[int, int]]:
    starts = range(max(0, timestamp - size + 1), timestamp + 1)
    return [(start, start + size) for start in starts if start % 5 in (0, 2)]


def _windows(step: Step) -> Any:
    match step["windows"]:
        case "time":
            return TimeWindows(step["size"], advance=step.get("advance"), grace=step["grace"])
        case "sliding":
            return SlidingWindows(step["size"], grace=step["grace"])
        case "offset":
            advance, offset = step.get("advance"), step["offset"]
            return TimeWindows(step["size"], advance=advance, grace=step["grace"], offset=offset)
        case "custom":
            size = step["size"]
            return CustomWindows(lambda at: _irregular(at, size), grace=step["grace"], longest=size)
        case "session":
            return SessionWindows(step["size"], grace=step["grace"])
        case _:
            return UnlimitedWindows(start=step["start"])


@dataclass
class Pool:
    builder: StreamsBuilder = field(default_factory=StreamsBuilder)
    streams: list[KStream[Any, Any]] = field(default_factory=list[KStream[Any, Any]])
    tables: list[KTable[Any, Any]] = field(default_factory=list[KTable[Any, Any]])
    world: GlobalKTable[Any, Any] | None = None

    def add(self, table: KTable[Any, Any]) -> None:
        self.tables.append(table)
        self.streams.append(table.to_stream())

    def stream(self, step: Step, place: str) -> KStream[Any, Any]:
        return self.streams[int(step.get(place, 0)) % len(self.streams)]

    def table(self, step: Step, place: str) -> KTable[Any, Any]:
        return self.tables[int(step.get(place, 0)) % len(self.tables)]


def add_source(pool: Pool, source: Step) -> None:
    options: dict[str, Any] = TEXT | _named(source)
    if "shift" in source:
        options["timestamp_extractor"] = Shifted(source["shift"])
    match source["kind"]:
        case "stream":
            pool.streams.append(pool.builder.stream(source["topic"], **options))
        case "table":
            pool.tables.append(pool.builder.table(source["topic"], **options, **_kept(source)))
        case _:
            pool.world = pool.builder.global_table(source["topic"], store="world-store", **options)


def _repartition(pool: Pool, step: Step) -> None:
    # Kafka Streams' `repartition` keeps a record without a key; ours drops it.
    keyed = pool.stream(step, "a").filter(lambda key, value: key is not None)
    pool.streams.append(keyed.repartition(**_named(step)))


def _split(pool: Pool, step: Step) -> None:
    salt = step["salt"]
    branches: dict[str, Callable[[Any, Any], bool]] = {
        "even": lambda key, value: is_chosen(salt, key, value),
        "none": lambda key, value: value is None,
    }
    split = pool.stream(step, "a").split(branches, default="rest", **_named(step))
    pool.streams.extend(split.values())


def _join(pool: Pool, step: Step) -> None:
    one, two = pool.stream(step, "a"), pool.stream(step, "b")
    join: Any = {
        "stream_join": one.join,
        "stream_left_join": one.left_join,
        "stream_outer_join": one.outer_join,
    }[step["op"]]
    options = {"within": _within(step), "other_value_serde": str, **TEXT, **_stream_joined(step)}
    pool.streams.append(join(two, _joiner(step), **options))


def _lookup(pool: Pool, step: Step) -> None:
    one = pool.stream(step, "a")
    join: Any = one.join if step["op"] == "lookup" else one.left_join
    grace = {"grace": step["grace"]} if "grace" in step else {}
    pool.streams.append(join(pool.table(step, "t"), _joiner(step), **TEXT, **grace, **_named(step)))


def _global_join(pool: Pool, step: Step) -> None:
    one, salt = pool.stream(step, "a"), step["salt"]
    join: Any = one.join if step["op"] == "global_join" else one.left_join
    joiner: Any = _joiner(step)
    if step["arguments"] == 4:
        joiner = _of_both_keys
    misses = step.get("misses", False)

    def selected(key: Any, value: Any) -> str | None:
        return (
            None if misses and digest("missed", salt, value) % 5 == 0 else key_of(salt, key, value)
        )

    pool.streams.append(join(pool.world, joiner, key_selector=selected, **_named(step)))


def _cogrouped(pool: Pool, step: Step) -> Any:
    salt = step["salt"]
    count = step["groups"]
    made = _grouped(step, salt, pool.stream(step, "a")).cogroup(_aggregator(step, salt))
    if count > 1:
        two = pool.stream(step, "b").group_by_key(**TEXT, name=f"second{salt}")
        made = made.cogroup(two, _aggregator(step, salt + 1))
    if count > 2:
        three = pool.stream(step, "c").group_by_key(**TEXT, name=f"third{salt}")
        made = made.cogroup(three, _aggregator(step, salt + 2))
    return made


def _process(pool: Pool, step: Step) -> None:
    store = step["store"]
    pool.builder.add_state_store(Stores.key_value(store, **TEXT))
    pool.streams.append(
        pool.stream(step, "a").process(lambda: _Last(store), stores=[store], **_named(step))
    )


def _timer(pool: Pool, step: Step) -> None:
    store, by_clock = step["store"], step["op"] == "clock"
    time = PunctuationType.WALL_CLOCK_TIME if by_clock else PunctuationType.STREAM_TIME
    pool.builder.add_state_store(Stores.key_value(store, persistent=by_clock, **TEXT))
    pool.streams.append(
        pool.stream(step, "a").process(lambda: _Collector(store, time), stores=[store])
    )


def _of_stream(make: Callable[[KStream[Any, Any], Step, int], Any]) -> Callable[[Pool, Step], None]:
    return lambda pool, step: pool.streams.append(
        make(pool.stream(step, "a"), step, step.get("salt", 0))
    )


def _table_of(make: Callable[[KStream[Any, Any], Step, int], Any]) -> Callable[[Pool, Step], None]:
    return lambda pool, step: pool.add(make(pool.stream(step, "a"), step, step.get("salt", 0)))


_STREAMS: dict[str, Callable[[Pool, Step], None]] = {
    "filter": _of_stream(
        lambda s, step, x: s.filter(lambda k, v: is_chosen(x, k, v), **_named(step))
    ),
    "filter_not": _of_stream(
        lambda s, step, x: s.filter_not(lambda k, v: is_chosen(x, k, v), **_named(step))
    ),
    "map": _of_stream(
        lambda s, step, x: s.map(lambda k, v: (key_of(x, k, v), mix(k, v)), **_named(step))
    ),
    "map_values": _of_stream(lambda s, step, x: s.map_values(_paired, **_named(step))),
    "flat_map": _of_stream(
        lambda s, step, x: s.flat_map(
            lambda k, v: [(k, mix(v, 1)), (key_of(x, k, v), v)] if is_chosen(x, k, v) else [],
            **_named(step),
        )
    ),
    "flat_map_values": _of_stream(
        lambda s, step, x: s.flat_map_values(
            lambda v: [mix(v, 1), mix(v, 2)] if is_chosen(x, None, v) else [mix(v, 3)]
        )
    ),
    "select_key": _of_stream(
        lambda s, step, x: s.select_key(lambda k, v: key_of(x, k, v), **_named(step))
    ),
    "peek": _of_stream(lambda s, step, x: s.peek(lambda v: None)),
    "merge": lambda pool, step: pool.streams.append(
        pool.stream(step, "a").merge(pool.stream(step, "b"), **_named(step))
    ),
    "repartition": _repartition,
    "split": _split,
    "stream_join": _join,
    "stream_left_join": _join,
    "stream_outer_join": _join,
    "lookup": _lookup,
    "left_lookup": _lookup,
    "global_join": _global_join,
    "global_left_join": _global_join,
    "to_table": _table_of(lambda s, step, x: s.to_table(**TEXT, **_kept(step), **_named(step))),
    "count": _table_of(
        lambda s, step, x: (
            _grouped(step, x, s).count(**_kept(step), **_named(step)).map_values(_number)
        )
    ),
    "reduce": _table_of(
        lambda s, step, x: _grouped(step, x, s).reduce(
            _reducer(step, x), **_kept(step), **(_named(step) if "kept" in step else {})
        )
    ),
    "aggregate": _table_of(
        lambda s, step, x: _grouped(step, x, s).aggregate(
            str,
            _aggregator(step, x),
            value_serde=str,
            **_kept(step),
            **(_named(step) if "kept" in step else {}),
        )
    ),
    "cogroup": lambda pool, step: pool.add(
        _cogrouped(pool, step).aggregate(str, value_serde=str, **_kept(step), **_named(step))
    ),
    "process": _process,
    "timer": _timer,
    "clock": _timer,
    "process_values": _of_stream(lambda s, step, x: s.process_values(_Stamp, **_named(step))),
}


def _of_table(make: Callable[[KTable[Any, Any], Step, int], Any]) -> Callable[[Pool, Step], None]:
    return lambda pool, step: pool.add(make(pool.table(step, "t"), step, step.get("salt", 0)))


def _of_tables(pool: Pool, step: Step) -> None:
    table, other = pool.table(step, "t"), pool.table(step, "u")
    join: Any = {
        "table_join": table.join,
        "table_left_join": table.left_join,
        "table_outer_join": table.outer_join,
    }[step["op"]]
    pool.add(join(other, _rows_joiner(step), **_kept(step), **_named(step)))


def _foreign(pool: Pool, step: Step) -> None:
    table, other, salt = pool.table(step, "t"), pool.table(step, "u"), step["salt"]
    join: Any = table.join if step["op"] == "table_foreign_join" else table.left_join

    def with_key(key: Any, value: Any) -> str | None:
        return None if digest("foreign", salt, value) % 7 == 0 else key_of(salt, key, value)

    foreign_key = with_key if _accepts_key(step) else lambda value: with_key(None, value)
    joiner = _rows_joiner(step)
    pool.add(join(other, joiner, foreign_key=foreign_key, **_kept(step), **_named(step)))


def _regrouped(step: Step, salt: int, table: KTable[Any, Any]) -> Any:
    name = {"name": step["group_name"]} if "group_name" in step else {}
    same = step.get("same", False)
    return table.group_by(
        lambda key, value: (key if same else key_of(salt, key, value), value), **TEXT, **name
    )


def _suppressed(pool: Pool, step: Step) -> None:
    buffer: Any
    if "bytes" in step:
        buffer = BufferConfig.max_bytes(step["bytes"])
        if "records" in step:
            buffer = buffer.with_max_records(step["records"])
    else:
        buffer = BufferConfig.max_records(step["records"])
    limit = Suppressed.until_time_limit(step["limit"], buffer.emit_early_when_full())
    pool.streams.append(pool.table(step, "t").suppress(limit, **_named(step)).to_stream())


_TABLES: dict[str, Callable[[Pool, Step], None]] = {
    "table_filter": _of_table(
        lambda t, step, x: t.filter(lambda k, v: is_chosen(x, k, v), **_kept(step), **_named(step))
    ),
    "table_filter_not": _of_table(
        lambda t, step, x: t.filter_not(lambda k, v: is_chosen(x, k, v), **_kept(step))
    ),
    "table_map_values": _of_table(
        lambda t, step, x: t.map_values(_paired, **_kept(step), **_named(step))
    ),
    "table_transform_values": _of_table(
        lambda t, step, x: t.transform_values(_Transform, **_kept(step))
    ),
    "table_join": _of_tables,
    "table_left_join": _of_tables,
    "table_outer_join": _of_tables,
    "table_foreign_join": _foreign,
    "table_foreign_left_join": _foreign,
    "table_group_count": _of_table(
        lambda t, step, x: (
            _regrouped(step, x, t).count(**_kept(step), **_named(step)).map_values(_number)
        )
    ),
    "table_group_reduce": _of_table(
        lambda t, step, x: _regrouped(step, x, t).reduce(_reducer(step, x), _without, **_kept(step))
    ),
    "table_group_aggregate": _of_table(
        lambda t, step, x: _regrouped(step, x, t).aggregate(
            str, _aggregator(step, x), _subtractor, value_serde=str, **_kept(step)
        )
    ),
    "table_suppress": _suppressed,
    "table_to_stream": lambda pool, step: pool.streams.append(
        pool.table(step, "t").to_stream(**_named(step))
    ),
    "table_to_stream_by": lambda pool, step: pool.streams.append(
        pool.table(step, "t").to_stream(lambda key, value: key_of(step["salt"], key, value))
    ),
}


def _windowed(pool: Pool, step: Step) -> None:
    salt = step["salt"]
    made: Any
    named = _kept(step) | _named(step) if "kept" in step else {}
    merger = {"merger": _merger(salt)} if step["windows"] == "session" else {}
    if step["op"] == "windowed_cogroup":
        windowed = _cogrouped(pool, step).windowed_by(_windows(step))
        made = windowed.aggregate(str, value_serde=str, **merger, **named)
    else:
        windowed = _grouped(step, salt, pool.stream(step, "a")).windowed_by(_windows(step))
        if step["windows"] in ("time", "sliding", "session"):
            close = step.get("close", False)
            windowed = windowed.emit_strategy("on_window_close" if close else "on_window_update")
        if step["op"] == "windowed_count":
            made = windowed.count(**_kept(step), **_named(step)).map_values(_number)
        elif step["op"] == "windowed_reduce":
            made = windowed.reduce(_reducer(step, salt), **named)
        else:
            made = windowed.aggregate(
                str, _aggregator(step, salt), value_serde=str, **merger, **named
            )
    if step.get("regroup", False):
        grouped = made.group_by(lambda key, value: (key_of(salt, key.key, value), value), **TEXT)
        pool.add(
            grouped.aggregate(
                str,
                lambda key, value, old: mix("+", old, value),
                _subtractor,
                value_serde=str,
            )
        )
    if "suppress" in step:
        buffer: Any = BufferConfig.unbounded()
        if step["suppress"]:
            buffer = BufferConfig.max_records(step["suppress"]).shut_down_when_full()
        name = {"name": step["suppress_name"]} if "suppress_name" in step else {}
        made = made.suppress(Suppressed.until_window_closes(buffer), **name)
    pool.streams.append(
        made.to_stream().map(lambda key, value: (key.key, mix(f"{key.start}:{key.end}", value)))
    )


OPERATORS: dict[str, Callable[[Pool, Step], None]] = {
    **_STREAMS,
    **_TABLES,
    **dict.fromkeys(
        ("windowed_count", "windowed_reduce", "windowed_aggregate", "windowed_cogroup"), _windowed
    ),
}


def config_of(program: Program) -> StreamsConfig:
    asked = program["config"]
    return StreamsConfig(
        application_id="programs",
        bootstrap_servers="unused:9092",
        statestore_cache_max_bytes=asked["cache"],
        default_key_serde="string",
        default_value_serde="string",
        topology_optimization="all" if asked["optimize"] == "all" else "none",
        dsl_store_format=asked["format"],
        dsl_store_suppliers=asked["store"],
    )


def build(program: Program, config: StreamsConfig) -> tuple[Topology, list[str]]:
    pool = Pool()
    for source in program["sources"]:
        add_source(pool, source)
    for step in program["steps"]:
        OPERATORS[step["op"]](pool, step)
    outputs: list[str] = []
    for sink in program["sinks"]:
        number = sink % len(pool.streams)
        if f"out{number}" not in outputs:
            outputs.append(f"out{number}")
            pool.streams[number].to(f"out{number}", **TEXT)
    return pool.builder.build(config), outputs


def answer(program: Program) -> dict[str, Any]:
    """Return the topology's text and outputs as `Programs.java` does, or its error.

    Every other program runs in batches beyond repartition topics, where record order is free.
    """
    phase = "build"
    try:
        config = config_of(program)
        topology, outputs = build(program, config)
        text = str(topology.describe())
        phase = "run"
        seen = _run(program, topology, config, outputs)
    except Exception as error:  # noqa: BLE001 - a program that fails here is a difference to report
        return {"phase": phase, "error": f"{type(error).__name__}: {error}"}
    return {"describe": text, "outputs": seen}


def _run(
    program: Program, topology: Topology, config: StreamsConfig, outputs: list[str]
) -> Outputs:
    seen: Outputs = {}
    record_by_record = bool(program["number"] % 2)
    together = not record_by_record and is_order_free(program)
    with TopologyTestDriver(topology, config, record_by_record=record_by_record) as driver:
        results = {name: driver.create_output_topic(name, **TEXT) for name in outputs}
        inputs: dict[str, Any] = {}
        for index, (topic, key, value, timestamp, *more) in enumerate(program["inputs"]):
            if topic is None:
                driver.advance_wall_clock_time(timestamp)
            elif topic not in inputs:
                inputs[topic] = driver.create_input_topic(topic, **TEXT)
            headers = [
                (name, text.encode()) for name, text in cast("list[Any]", more[0] if more else [])
            ]
            if topic is not None:
                raw = inputs[topic]._raw(key, value, timestamp, headers)
                driver.pipe(topic, [raw], together=together)
            for name, result in results.items():
                for record in result.read_records():
                    seen.setdefault(name, []).append(
                        [index, record.key, record.value, record.timestamp]
                    )
    return seen
