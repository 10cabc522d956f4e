"""Grouped tables, suppress and transform_values."""

from datetime import timedelta
from typing import assert_type

from tidewheel import (
    BufferConfig,
    KGroupedTable,
    KTable,
    Serdes,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    ValueTransformerWithKey,
    Windowed,
)

builder = StreamsBuilder()
users = builder.table("users", key_serde=str, value_serde=str)
stock = builder.table("stock", key_serde=str, value_serde=int)

by_city = users.group_by(lambda name, city: (city, len(name)), key_serde=str, value_serde=int)
assert_type(by_city, KGroupedTable[str, int])
assert_type(by_city.count(), KTable[str, int])
assert_type(
    by_city.reduce(lambda total, n: total + n, lambda total, n: total - n), KTable[str, int]
)
assert_type(
    by_city.aggregate(
        lambda: 0.5,
        lambda city, n, total: total + n * len(city),
        lambda city, n, total: total - n * len(city),
        value_serde=float,
    ),
    KTable[str, float],
)


def by_length(city: str) -> tuple[int, str] | None:
    return (len(city), city) if city else None


assert_type(users.group_by(by_length), KGroupedTable[int, str])
assert_type(users.group_by(by_length, key_serde=int), KGroupedTable[int, str])
assert_type(users.group_by(by_length, key_serde=Serdes.int32()), KGroupedTable[int, str])

buffer = BufferConfig.max_records(10).with_max_bytes(1 << 20).shut_down_when_full()
in_windows = builder.stream("a", key_serde=str, value_serde=str).group_by_key()
counts = in_windows.windowed_by(TimeWindows(10)).count()
assert_type(counts.suppress(Suppressed.until_window_closes(buffer)), KTable[Windowed[str], int])
held = stock.suppress(Suppressed.until_time_limit(timedelta(seconds=5), BufferConfig.unbounded()))
assert_type(held, KTable[str, int])


class Length(ValueTransformerWithKey[str, str, int]):
    def transform(self, key: str, value: str | None) -> int | None:
        return None if value is None else len(key + value) + self.context.current_stream_time_ms()


assert_type(users.transform_values(Length), KTable[str, int])
assert_type(users.transform_values(Length, store="lengths"), KTable[str, int])
