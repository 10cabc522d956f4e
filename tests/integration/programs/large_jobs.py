"""Topologies of bounds tests: operators that store or buffer, one result per input record.

A second input is the source's name with `-2`. Values begin with a number of four bytes; results
are numbers, so outputs stay small where stores are large.
"""

import time
from datetime import timedelta
from typing import Any, Final

from tidewheel import (
    BufferConfig,
    JoinWindows,
    Materialized,
    Serdes,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)

_TEXT: Final = Serdes.string()
_BYTES: Final = Serdes.bytes()
_RAW: Final[dict[str, Any]] = {"key_serde": _TEXT, "value_serde": _BYTES}
_RESULT: Final[dict[str, Any]] = {"key_serde": _TEXT, "value_serde": Serdes.int64()}
#: Far more than the event time of any test, so windows end only when a test ends them.
_DAY: Final = timedelta(days=1)
STORE: Final = "large"
CATCH_UP_WINDOW_MS: Final = 1_000


def _counted(_key: str, value: bytes, stored: bytes) -> bytes:
    """Return the number of the key's records and the last value."""
    return (int.from_bytes(stored[:4]) + 1).to_bytes(4) + value[4:]


def _number(value: bytes) -> int:
    return int.from_bytes(value[:4])


def _either(left: bytes | None, right: bytes | None) -> int:
    one = right if left is None else left
    return 0 if one is None else _number(one)


def _left(left: bytes, _right: bytes | None) -> bytes:
    return left


def _sum(left: bytes, right: bytes) -> int:
    return _number(left) + _number(right)


def _stored(**more: Any) -> Materialized[Any, Any]:
    return Materialized(STORE, value_serde=_BYTES, **more)


def large_table(source: str, sink: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    grouped = builder.stream(source, **_RAW).group_by_key(**_RAW)
    table = grouped.aggregate(bytes, _counted, store=_stored())
    table.to_stream().map_values(_number).to(sink, **_RESULT)
    return builder


def _is_present(_key: str, value: bytes | None) -> bool:
    return value is not None


def _slow(value: bytes) -> bytes:
    time.sleep(0.0002)
    return value


def slow_table(source: str, sink: str) -> StreamsBuilder:
    """Count with a slow function: a few thousand records per second."""
    builder = StreamsBuilder()
    grouped = builder.stream(source, **_RAW).map_values(_slow).group_by_key(**_RAW)
    grouped.count(store=STORE).to_stream().to(sink, **_RESULT)
    return builder


def large_windows(source: str, sink: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    windows = builder.stream(source, **_RAW).group_by_key(**_RAW).windowed_by(TimeWindows(_DAY))
    table = windows.aggregate(bytes, _counted, store=_stored())
    table.to_stream(lambda key, _: key.key).map_values(_number).to(sink, **_RESULT)
    return builder


def large_sessions(source: str, sink: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    grouped = builder.stream(source, **_RAW).group_by_key(**_RAW)
    table = grouped.windowed_by(SessionWindows(_DAY)).aggregate(
        bytes, _counted, merger=lambda _key, one, _other: one, store=_stored()
    )
    changes = table.to_stream(lambda key, _: key.key).filter(_is_present)
    changes.map_values(_number).to(sink, **_RESULT)
    return builder


def large_suppressed(source: str, sink: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    windows = builder.stream(source, **_RAW).group_by_key(**_RAW).windowed_by(TimeWindows(_DAY))
    table = windows.aggregate(bytes, _counted, store=_stored())
    final = table.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    final.to_stream(lambda key, _: key.key).map_values(_number).to(sink, **_RESULT)
    return builder


def large_final_windows(source: str, sink: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    windows = builder.stream(source, **_RAW).group_by_key(**_RAW).windowed_by(TimeWindows(_DAY))
    table = windows.emit_strategy("on_window_close").aggregate(bytes, _counted, store=_stored())
    table.to_stream(lambda key, _: key.key).map_values(_number).to(sink, **_RESULT)
    return builder


def large_join(source: str, sink: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    left, right = builder.stream(source, **_RAW), builder.stream(f"{source}-2", **_RAW)
    left.join(right, _sum, within=JoinWindows(_DAY)).to(sink, **_RESULT)
    return builder


def large_outer_join(source: str, sink: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    left, right = builder.stream(source, **_RAW), builder.stream(f"{source}-2", **_RAW)
    joined = left.outer_join(right, _either, within=JoinWindows(timedelta(hours=1)))
    joined.to(sink, **_RESULT)
    return builder


def large_versioned(source: str, sink: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    history = _stored(store_type="versioned", history_retention=_DAY)
    table = builder.table(source, store=history, **_RAW)
    table.to_stream().map_values(_number).to(sink, **_RESULT)
    return builder


def large_foreign_key_join(source: str, sink: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    left = builder.table(source, store=Materialized("left"), **_RAW)
    right = builder.table(f"{source}-2", store=Materialized("right"), **_RAW)
    joined = left.left_join(
        right, _left, foreign_key=lambda row: f"{_number(row) % 97}", store=_stored()
    )
    joined.to_stream().map_values(_number).to(sink, **_RESULT)
    return builder


def large_global_table(source: str, sink: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    rows = builder.global_table(f"{source}-2", store=Materialized("rows"), **_RAW)
    left = builder.stream(source, **_RAW)
    left.join(rows, _sum, key_selector=lambda key, _: key).to(sink, **_RESULT)
    return builder


def catch_up(source: str, sink: str) -> StreamsBuilder:
    """Count both inputs in windows without grace: a record out of order is lost, and is missed."""
    builder = StreamsBuilder()
    left, right = builder.stream(source, **_RAW), builder.stream(f"{source}-2", **_RAW)
    windows = left.merge(right).group_by_key(**_RAW).windowed_by(TimeWindows(CATCH_UP_WINDOW_MS))
    windows.count(store="windows").to_stream(lambda key, _: f"{key.key}@{key.start}").to(
        sink, **_RESULT
    )
    left.join(right, _sum, within=JoinWindows(1)).map_values(lambda _: -1).to(sink, **_RESULT)
    return builder


def long_list(source: str, sink: str) -> StreamsBuilder:
    """Lengthen a key's list by the number in each value; the result is its length."""
    builder = StreamsBuilder()
    grouped = builder.stream(source, **_RAW).group_by_key(**_RAW)
    lists = Materialized("lists", value_serde=Serdes.json())
    table = grouped.aggregate(
        list, lambda _key, value, items: [*items, *range(_number(value))], store=lists
    )
    table.to_stream().map_values(len).to(sink, **_RESULT)
    return builder


LARGE_JOBS: Final = (
    large_table,
    slow_table,
    large_windows,
    large_sessions,
    large_suppressed,
    large_final_windows,
    large_join,
    large_outer_join,
    large_versioned,
    large_foreign_key_join,
    large_global_table,
    catch_up,
    long_list,
)
