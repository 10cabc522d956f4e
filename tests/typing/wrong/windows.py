"""Wrong windows and aggregate types."""

from tidewheel import (
    BufferConfig,
    CalendarWindows,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)

builder = StreamsBuilder()
clicks = builder.stream("clicks", key_serde=str, value_serde=str).group_by_key()
orders = builder.stream("orders", key_serde=int, value_serde=int).group_by_key()
hourly = clicks.windowed_by(TimeWindows(10))


def clicked(key: str, page: str, seen: list[str]) -> list[str]:
    return [*seen, page]


def ordered(key: int, cents: int, seen: list[str]) -> list[str]:
    return [*seen, str(cents)]


TimeWindows(1.5)  # error
CalendarWindows("year")  # error
CalendarWindows("week", week_start="someday")  # error
clicks.windowed_by(10)  # error
hourly.emit_strategy("on_close")  # error
hourly.count().map_values(str.strip)  # error
hourly.count().to_stream(lambda key, count: key.nothing)  # error
hourly.count().to_stream().map(lambda key, count: (key.upper(), count))  # error
hourly.reduce(lambda one, two: len(one + two))  # error
hourly.aggregate(list[str], clicked, merger=lambda key, one, two: one + two)  # error
clicks.windowed_by(SessionWindows(10)).aggregate(list[str], ordered)  # error
clicks.cogroup(clicked).cogroup(orders, ordered)  # error
clicks.cogroup(clicked).aggregate(dict[str, int])  # error
hourly.count().suppress(BufferConfig.unbounded())  # error
Suppressed.until_time_limit(5)  # error
