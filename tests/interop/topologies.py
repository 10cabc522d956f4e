"""The topologies of `Reference.java` in Python."""

from collections.abc import Callable, Mapping
from typing import Any

from tidewheel import (
    BufferConfig,
    JoinWindows,
    KStream,
    KTable,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    UnlimitedWindows,
)

Params = Mapping[str, Any]
Text = dict[str, Any]

TEXT: Text = {"key_serde": str, "value_serde": str}


def _stream(builder: StreamsBuilder, topic: str) -> KStream[str, Any]:
    return builder.stream(topic, **TEXT)


def _table(builder: StreamsBuilder, topic: str, params: Params) -> KTable[str, str]:
    store = f"{topic}-store"
    if "history_ms" in params:
        versioned = Materialized(
            store, store_type="versioned", history_retention=params["history_ms"]
        )
        return builder.table(topic, store=versioned, **TEXT)
    return builder.table(topic, store=store, **TEXT)


def _to(stream: KStream[Any, Any], topic: str) -> None:
    stream.to(topic, **TEXT)


def _plain(table: KTable[Any, Any]) -> KStream[str, Any]:
    return table.to_stream(lambda key, _: f"{key.key}@{key.start}:{key.end}")


def _joiner(left: Any, right: Any) -> str:
    return "-".join("null" if side is None else side for side in (left, right))


def _appended(sign: str) -> Callable[[Any, str, str], str]:
    return lambda _key, value, aggregate: f"{_java(aggregate)}{sign}{_java(value)}"


def stateless(builder: StreamsBuilder, params: Params) -> None:
    source = _stream(builder, "left")
    some = source.filter(lambda value: value is not None and not value.startswith("b")).flat_map(
        lambda key, value: [(key, f"{value}1"), (value, f"{_java(key)}2")]
    )
    _to(some.merge(source.map_values(lambda value: f"{_java(value)}!")), "merged")
    _to(some.repartition().map_values(lambda key, value: key + value), "repartitioned")
    _to(source.select_key(lambda _key, value: value).to_table().to_stream(), "tabled")


def table_operators(builder: StreamsBuilder, params: Params) -> None:
    source = _table(builder, "left", params)
    _to(source.to_stream(), "source")
    mapped = source.filter(lambda value: not value.startswith("b")).map_values(
        lambda key, value: key + value
    )
    _to(mapped.to_stream(), "mapped")
    _to(mapped.filter_not(lambda value: value.endswith("c"), store="kept").to_stream(), "kept-out")
    counted = mapped.group_by(lambda _key, value: (value, value), **TEXT).count()
    _to(counted.to_stream().map_values(_number), "counted")


def stream_aggregate(builder: StreamsBuilder, params: Params) -> None:
    grouped = _stream(builder, "left").group_by_key()
    _to(grouped.count().to_stream().map_values(_number), "counted")
    reduced = grouped.reduce(lambda old, value: None if value.startswith("d") else old + value)
    _to(reduced.to_stream(), "reduced")
    aggregated = grouped.aggregate(
        lambda: "0",
        lambda _key, value, old: None if value.startswith("d") else f"{old}+{value}",
        value_serde=str,
    )
    _to(aggregated.to_stream(), "aggregated")


def grouped_table(builder: StreamsBuilder, params: Params) -> None:
    same = params["group"] == "same"

    def group(key: str, value: str) -> tuple[str | None, str]:
        if value.startswith("d"):
            return None, value
        return (key if same else value[:1]), value

    left = _table(builder, "left", params).group_by(group, **TEXT)
    aggregated = left.aggregate(lambda: "0", _appended("+"), _appended("-"), value_serde=str)
    _to(aggregated.to_stream(), "aggregated")
    right = _table(builder, "right", params).group_by(
        lambda _key, value: (value[:1], value), **TEXT
    )
    reduced = right.reduce(lambda old, value: f"{old}+{value}", lambda old, value: f"{old}-{value}")
    _to(reduced.to_stream(), "reduced")


def _kept(params: Params, name: str, **options: Any) -> Materialized:
    return Materialized(name, retention=params.get("retention_ms"), **options)


def _windows(params: Params) -> TimeWindows:
    return TimeWindows(
        params["size_ms"], advance=params.get("advance_ms"), grace=params["grace_ms"]
    )


def _emit(params: Params) -> Any:
    return "on_window_close" if params["emit"] == "close" else "on_window_update"


def time_windows(builder: StreamsBuilder, params: Params) -> None:
    windowed = _stream(builder, "left").group_by_key().windowed_by(_windows(params))
    table = windowed.emit_strategy(_emit(params)).aggregate(
        lambda: "0",
        _appended("+"),
        store=_kept(params, "store", caching=False),
        value_serde=str,
    )
    _to(_plain(table), "updates")
    if params["emit"] != "close":
        final = table.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        _to(_plain(final), "final")


def sliding_windows(builder: StreamsBuilder, params: Params) -> None:
    windows = SlidingWindows(params["difference_ms"], grace=params["grace_ms"])
    windowed = _stream(builder, "left").group_by_key().windowed_by(windows)
    table = windowed.emit_strategy(_emit(params)).aggregate(
        lambda: "0",
        _appended("+"),
        store=_kept(params, "store", caching=False),
        value_serde=str,
    )
    _to(_plain(table), "updates")


def session_windows(builder: StreamsBuilder, params: Params) -> None:
    windows = SessionWindows(params["gap_ms"], grace=params["grace_ms"])
    windowed = _stream(builder, "left").group_by_key().windowed_by(windows)
    table = windowed.emit_strategy(_emit(params)).aggregate(
        lambda: "0",
        _appended("+"),
        merger=lambda _key, one, two: f"({one}|{two})",
        store=_kept(params, "store", caching=False),
        value_serde=str,
    )
    _to(_plain(table), "updates")


def unlimited_windows(builder: StreamsBuilder, params: Params) -> None:
    windows = UnlimitedWindows(start=params["start_ms"])
    windowed = _stream(builder, "left").group_by_key().windowed_by(windows)
    _to(_plain(windowed.reduce(lambda old, value: old + _java(value))), "updates")


def cogroup(builder: StreamsBuilder, params: Params) -> None:
    left = _stream(builder, "left").group_by_key()
    right = _stream(builder, "right").group_by_key()
    together = left.cogroup(_appended("+")).cogroup(right, _appended("-"))
    _to(together.aggregate(lambda: "0", value_serde=str).to_stream(), "updates")
    again = left.cogroup(_appended("+")).cogroup(right, _appended("-"))
    windowed = again.windowed_by(_windows(params)).aggregate(
        lambda: "0", store=_kept(params, "windowed"), value_serde=str
    )
    _to(_plain(windowed), "windowed")


def suppress_limit(builder: StreamsBuilder, params: Params) -> None:
    records = params["records"]
    buffer = (
        BufferConfig.max_records(records).emit_early_when_full()
        if records
        else BufferConfig.unbounded()
    )
    table = _table(builder, "left", params)
    suppressed = table.suppress(Suppressed.until_time_limit(params["limit_ms"], buffer))
    _to(suppressed.to_stream(), "suppressed")


def _within(params: Params) -> JoinWindows:
    return JoinWindows(
        before=params["before_ms"], after=params["after_ms"], grace=params["grace_ms"]
    )


def _join(left: Any, right: Any, params: Params, **options: Any) -> Any:
    how = {"inner": left.join, "left": left.left_join}
    method = how.get(params["how"]) or left.outer_join
    return method(right, _joiner, **options)


def stream_stream_join(builder: StreamsBuilder, params: Params) -> None:
    left, right = _stream(builder, "left"), _stream(builder, "right")
    _to(_join(left, right, params, within=_within(params)), "joined")


def self_join(builder: StreamsBuilder, params: Params) -> None:
    left = _stream(builder, "left")
    _to(left.join(left, _joiner, within=_within(params)), "joined")


def stream_table_join(builder: StreamsBuilder, params: Params) -> None:
    right = _table(builder, "right", params)
    if params["view"] == "mapped":
        right = right.filter(lambda value: not value.startswith("b")).map_values(
            lambda value: f"{value}!"
        )
    grace = {"grace": params["join_grace_ms"]} if "join_grace_ms" in params else {}
    _to(_join(_stream(builder, "left"), right, params, **grace), "joined")


def stream_global_join(builder: StreamsBuilder, params: Params) -> None:
    table = builder.global_table("right", store="global", **TEXT)
    joined = _join(_stream(builder, "left"), table, params, key_selector=_value_of)
    _to(joined, "joined")


def table_table_join(builder: StreamsBuilder, params: Params) -> None:
    left, right = _table(builder, "left", params), _table(builder, "right", params)
    stored = Materialized("result", caching=False, value_serde=str)
    options = {"store": stored} if params["stored"] == "yes" else {}
    joined = _join(left, right, params, **options)
    _to(joined.to_stream(), "joined")
    if params["grouped"] == "yes":
        grouped = joined.group_by(_by_first_letter, **TEXT)
        table = grouped.aggregate(lambda: "0", _appended("+"), _appended("~"), value_serde=str)
        _to(table.to_stream(), "grouped")


def foreign_key_join(builder: StreamsBuilder, params: Params) -> None:
    left, right = _table(builder, "left", params), _table(builder, "right", params)
    joined = _join(
        left,
        right,
        params,
        foreign_key=_foreign_key,
        store=Materialized("result", caching=False, value_serde=str),
    )
    _to(joined.to_stream(), "joined")


def _value_of(_key: str, value: str) -> str:
    return value


def _by_first_letter(_key: str, value: str) -> tuple[str, str]:
    return value[:1], value


def _foreign_key(value: str) -> str | None:
    return None if value.startswith("d") else value[:1]


def _number(value: Any) -> str:
    # Java prints null as text.
    return _java(value)


def _java(value: Any) -> str:
    return "null" if value is None else str(value)


TOPOLOGIES: Mapping[str, Callable[[StreamsBuilder, Params], None]] = {
    build.__name__: build
    for build in (
        stateless,
        table_operators,
        stream_aggregate,
        grouped_table,
        time_windows,
        sliding_windows,
        session_windows,
        unlimited_windows,
        cogroup,
        suppress_limit,
        stream_stream_join,
        self_join,
        stream_table_join,
        stream_global_join,
        table_table_join,
        foreign_key_join,
    )
}

OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "stateless": ("merged", "repartitioned", "tabled"),
    "table_operators": ("source", "mapped", "kept-out", "counted"),
    "stream_aggregate": ("counted", "reduced", "aggregated"),
    "grouped_table": ("aggregated", "reduced"),
    "time_windows": ("updates", "final"),
    "cogroup": ("updates", "windowed"),
    "suppress_limit": ("suppressed",),
    **dict.fromkeys(("sliding_windows", "session_windows", "unlimited_windows"), ("updates",)),
    **dict.fromkeys(
        (
            "stream_stream_join",
            "self_join",
            "stream_table_join",
            "stream_global_join",
            "foreign_key_join",
        ),
        ("joined",),
    ),
    "table_table_join": ("joined", "grouped"),
}
