"""Wrong serdes of operators and stores."""

from tidewheel import JoinWindows, Materialized, Serdes, StreamsBuilder, TimeWindows

builder = StreamsBuilder()
lines = builder.stream("lines", key_serde=str, value_serde=str)
numbers = builder.stream("numbers", key_serde=str, value_serde=int)
users = builder.table("users", key_serde=str, value_serde=str)
stock = builder.table("stock", key_serde=str, value_serde=int)
grouped = lines.group_by_key()
by_stock = stock.group_by(lambda item, pieces: (item, pieces))
near = JoinWindows(10)
typed = Materialized("typed", key_serde=str, value_serde=int)


def both(one: str, two: str) -> str:
    return one + two


def counted(key: str, line: str, total: int) -> int:
    return total + 1


lines.to("out", value_serde=int)  # error
lines.to("out", key_serde=Serdes.int64())  # error
lines.map_values(str.upper).to("out", value_serde=bytes)  # error
stock.to_stream().to("out", value_serde=str)  # error
grouped.count().to_stream().to("out", value_serde=str)  # error
grouped.windowed_by(TimeWindows(5)).count().to_stream().to("out", key_serde=str)  # error
lines.repartition(key_serde=int)  # error
lines.repartition(value_serde=Serdes.int64())  # error
lines.to_table(value_serde=int)  # error
lines.to_table(store=typed)  # error
lines.group_by_key(key_serde=int)  # error
lines.select_key(len).group_by_key(key_serde=str)  # error
lines.group_by(len, key_serde=Serdes.string())  # error
lines.group_by(len, key_serde=str)  # error
lines.group_by(lambda line: len(line) + 1, key_serde=str)  # error
lines.group_by(lambda key, line: len(key + line), key_serde=bytes)  # error
lines.group_by(len, value_serde=int)  # error
lines.join(lines, both, within=near, key_serde=int)  # error
lines.join(numbers, lambda one, two: two, within=near, other_value_serde=str)  # error
lines.join(users, both, value_serde=int)  # error
grouped.aggregate(int, counted, value_serde=str)  # error
grouped.aggregate(int, lambda key, line, total: total + 1, value_serde=str)  # error
grouped.aggregate(int, counted, store=Materialized("a", value_serde=str))  # error
grouped.windowed_by(TimeWindows(5)).aggregate(int, counted, value_serde=str)  # error
grouped.cogroup(counted).aggregate(int, value_serde=str)  # error
grouped.count(store=Materialized("b", key_serde=int))  # error
grouped.count(store=Materialized("c", value_serde=str))  # error
grouped.reduce(both, store=typed)  # error
by_stock.reduce(max, min, store=Materialized("d", value_serde=str))  # error
builder.table("e", key_serde=str, value_serde=str, store=typed)  # error
builder.table("f", key_serde=str, value_serde=str, store=Materialized("f", key_serde=int))  # error
builder.table("g", store=typed).map_values(str.upper)  # error
users.filter(bool, store=typed)  # error
users.map_values(len, store=Materialized("h", value_serde=str))  # error
users.map_values(len, store=Materialized("i", key_serde=int))  # error
users.join(stock, lambda user, n: n, store=Materialized("j", value_serde=str))  # error
Materialized("k", store_type="disk")  # error
Materialized("l", caching="yes")  # error
Materialized("m", ttl=1.5)  # error
Materialized("n", changelog_config={"retention.ms": 5})  # error
