"""Windowed aggregations, cogroups and suppression: keys become `Windowed`."""

from datetime import timedelta
from typing import assert_type

from tidewheel import (
    BufferConfig,
    CalendarWindows,
    CogroupedKStream,
    CustomWindows,
    KGroupedStream,
    KStream,
    KTable,
    SessionWindowedCogroupedKStream,
    SessionWindowedKStream,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindowedCogroupedKStream,
    TimeWindowedKStream,
    TimeWindows,
    UnlimitedWindows,
    Windowed,
)

builder = StreamsBuilder()
clicks = builder.stream("clicks", key_serde=str, value_serde=str).group_by_key()
orders = builder.stream("orders", key_serde=str, value_serde=int).group_by_key()
assert_type(clicks, KGroupedStream[str, str])

hourly = clicks.windowed_by(TimeWindows(timedelta(hours=1), advance=600_000, grace=5))
assert_type(hourly, TimeWindowedKStream[str, str])
assert_type(clicks.windowed_by(SlidingWindows(10)), TimeWindowedKStream[str, str])
assert_type(clicks.windowed_by(CalendarWindows("month")), TimeWindowedKStream[str, str])
days = CalendarWindows("week", day_start="18:00", week_start="sunday")
assert_type(clicks.windowed_by(days), TimeWindowedKStream[str, str])
pairs = CustomWindows(lambda timestamp: [(timestamp // 2 * 2, timestamp // 2 * 2 + 2)], grace=5)
assert_type(clicks.windowed_by(pairs), TimeWindowedKStream[str, str])
assert_type(clicks.windowed_by(TimeWindows(10, offset=3)), TimeWindowedKStream[str, str])
assert_type(clicks.windowed_by(UnlimitedWindows()), TimeWindowedKStream[str, str])
assert_type(clicks.windowed_by(SessionWindows(10)), SessionWindowedKStream[str, str])
assert_type(hourly.emit_strategy("on_window_close"), TimeWindowedKStream[str, str])

counts = hourly.count(store="hourly")
assert_type(counts, KTable[Windowed[str], int])
assert_type(hourly.reduce(lambda one, two: one + two), KTable[Windowed[str], str])
assert_type(
    orders.windowed_by(TimeWindows(10)).aggregate(
        float, lambda key, cents, total: total + cents / 100
    ),
    KTable[Windowed[str], float],
)


def merged(key: str, one: int, two: int) -> int:
    """Not a lambda: mypy infers Any if all its parameters are aggregates."""
    return one + two


sessions = orders.windowed_by(SessionWindows(10)).aggregate(
    lambda: 0, lambda key, cents, total: total + cents, merger=merged
)
assert_type(sessions, KTable[Windowed[str], int])
assert_type(
    counts.to_stream(lambda key, count: f"{key.key}@{key.start}-{key.end}"), KStream[str, int]
)
assert_type(counts.to_stream(), KStream[Windowed[str], int])

closes = Suppressed.until_window_closes(BufferConfig.unbounded())
limited = Suppressed.until_time_limit(
    timedelta(minutes=5), BufferConfig.max_records(100).with_max_bytes(1_000).emit_early_when_full()
)
assert_type(counts.suppress(closes), KTable[Windowed[str], int])
assert_type(counts.suppress(limited), KTable[Windowed[str], int])


def clicked(key: str, page: str, seen: dict[str, int]) -> dict[str, int]:
    return {**seen, page: seen.get(page, 0) + 1}


def ordered(key: str, cents: int, seen: dict[str, int]) -> dict[str, int] | None:
    return {**seen, "cents": cents} if cents else None


both = clicks.cogroup(clicked).cogroup(orders, ordered)
assert_type(both, CogroupedKStream[str, dict[str, int]])
assert_type(both.aggregate(dict[str, int]), KTable[str, dict[str, int]])
timed = both.windowed_by(TimeWindows(10))
assert_type(timed, TimeWindowedCogroupedKStream[str, dict[str, int]])
assert_type(timed.aggregate(dict[str, int]), KTable[Windowed[str], dict[str, int]])
in_sessions = both.windowed_by(SessionWindows(10))
assert_type(in_sessions, SessionWindowedCogroupedKStream[str, dict[str, int]])
assert_type(
    in_sessions.aggregate(dict[str, int], merger=lambda key, one, two: {**one, **two}),
    KTable[Windowed[str], dict[str, int]],
)
