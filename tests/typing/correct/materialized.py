"""Stores with both serdes, one or none keep the table's types."""

from typing import Any, assert_type

from tidewheel import (
    GlobalKTable,
    KGroupedStream,
    KTable,
    Materialized,
    Serdes,
    StreamsBuilder,
    TimeWindows,
    Windowed,
)

builder = StreamsBuilder()
lines = builder.stream("lines", key_serde=str, value_serde=str)
maybe = lines.map_values(lambda line: line or None)
users = builder.table("users", key_serde=str, value_serde=str)
stock = builder.table("stock", key_serde=str, value_serde=int)
grouped = lines.group_by_key()
quiet = Materialized("quiet", caching=False)
typed = Materialized("typed", key_serde=str, value_serde=int)
words = Materialized("words", key_serde=str, value_serde=str)

assert_type(
    builder.table("a", key_serde=str, value_serde=str, store=Materialized("a")), KTable[str, str]
)
assert_type(
    builder.table("b", key_serde=str, value_serde=str, store=Materialized("b", value_serde=str)),
    KTable[str, str],
)
assert_type(builder.table("c", key_serde=str, value_serde=str, store=quiet), KTable[str, str])
assert_type(builder.table("d", store=typed), KTable[str, int])
assert_type(builder.table("e", store=quiet), KTable[Any, Any])
assert_type(builder.global_table("f", store=words), GlobalKTable[str, str])
assert_type(users.filter(bool, store=words), KTable[str, str])
assert_type(users.map_values(len, store=quiet), KTable[str, int])
assert_type(users.map_values(len, store=typed), KTable[str, int])
assert_type(
    users.map_values(len, store=Materialized("g", value_serde=Serdes.int64())), KTable[str, int]
)
assert_type(users.join(stock, lambda user, n: n, store=typed), KTable[str, int])
assert_type(users.left_join(stock, lambda user, n: user, store=quiet), KTable[str, str])
assert_type(grouped.count(store=typed), KTable[str, int])
assert_type(grouped.reduce(lambda one, two: one + two, store=words), KTable[str, str])
assert_type(
    grouped.aggregate(int, lambda key, line, total: total + 1, store=typed), KTable[str, int]
)
assert_type(
    grouped.windowed_by(TimeWindows(5)).aggregate(
        int, lambda key, line, total: total + 1, store=Materialized("h", caching=False)
    ),
    KTable[Windowed[str], int],
)

# None is no row, and a None group no group; serdes never receive them.
assert_type(users.map_values(lambda user: user or None, store=words), KTable[str, str])
assert_type(users.join(stock, lambda user, n: n if user else None), KTable[str, int])
assert_type(maybe.to_table(store=words), KTable[str, str])
assert_type(maybe.to_table(value_serde=Serdes.string()), KTable[str, str])
assert_type(
    lines.group_by(lambda line: line or None, key_serde=Serdes.string()), KGroupedStream[str, str]
)
maybe.to("out", value_serde=Serdes.string())
maybe.to("out", value_serde=str)
maybe.repartition(key_serde=str, value_serde=Serdes.string())
maybe.group_by_key(value_serde=Serdes.string())

# Consumers of any value accept these.
lines.to("out", value_serde=Serdes.json(object))
lines.to("out", key_serde=Serdes.json(), value_serde=Serdes.json())
