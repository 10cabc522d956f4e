"""Streams, groups and their aggregations, tables."""

import re
from typing import Any, assert_type

from tidewheel import (
    KGroupedStream,
    KStream,
    KTable,
    Materialized,
    Processor,
    Record,
    Serdes,
    Stores,
    StreamsBuilder,
    Topology,
)

builder = StreamsBuilder()
lines = builder.stream("lines", key_serde=Serdes.string(), value_serde=Serdes.string())
assert_type(lines, KStream[str, str])
numbers = builder.stream(["a", "b"], key_serde=str, value_serde=int)
assert_type(numbers, KStream[str, int])
assert_type(builder.stream(re.compile("x-.*"), key_serde=str), KStream[str, Any])
assert_type(builder.stream("anything"), KStream[Any, Any])

seen: list[tuple[str, str]] = []

assert_type(lines.filter(lambda line: line.startswith("a")), KStream[str, str])
assert_type(lines.filter(lambda key, line: key in line), KStream[str, str])
assert_type(lines.filter_not(str.isspace), KStream[str, str])
assert_type(lines.map_values(len), KStream[str, int])
assert_type(lines.map_values(lambda line: line.split()), KStream[str, list[str]])
assert_type(lines.map_values(lambda key, line: (key, len(line))), KStream[str, tuple[str, int]])
assert_type(numbers.map_values(float), KStream[str, float])
assert_type(lines.map(lambda key, line: (len(key), line.encode())), KStream[int, bytes])
assert_type(lines.map(lambda line: (line[0], line)), KStream[str, str])
assert_type(lines.select_key(len), KStream[int, str])
assert_type(lines.select_key(lambda key, line: (key, line)), KStream[tuple[str, str], str])
assert_type(lines.flat_map_values(str.split), KStream[str, str])
assert_type(lines.flat_map_values(lambda line: line.split()), KStream[str, str])
assert_type(
    lines.flat_map(lambda key, line: [(word, len(key)) for word in line.split()]), KStream[str, int]
)
assert_type(lines.peek(print), KStream[str, str])
assert_type(lines.peek(lambda key, line: seen.append((key, line))), KStream[str, str])
lines.foreach(lambda line: seen.append((line, line)))
lines.print("lines")


def shorten(line: str, width: int = 80) -> str:
    return line[:width]


def same(key: str, number: int) -> bool:
    return key == str(number)


def first_letter(line: str) -> str | None:
    return line[:1] or None


async def measured(line: str) -> int:
    return len(line)


assert_type(lines.map_values(shorten), KStream[str, str])

by_value = numbers.split({"big": lambda n: n > 9, "small": lambda n: n < 9}, default="rest")
assert_type(by_value, dict[str, KStream[str, int]])
by_both = numbers.split({"own": lambda key, n: key == str(n)})
assert_type(by_both, dict[str, KStream[str, int]])
assert_type(numbers.split({"whole": bool, "own": same}), dict[str, KStream[str, int]])
numbers.split({"whole": bool, "own": lambda n: n > 9})
numbers.split({"whole": bool, "own": lambda key, n: key == str(n)})
numbers.split({"own": same, "other": lambda key, n: key == str(n)})
assert_type(lines.merge(lines, lines), KStream[str, str])
assert_type(lines.repartition(partitions=3, key_serde=str), KStream[str, str])
lines.to("out", key_serde=Serdes.string())
lines.to(lambda key, line, context: f"{key}-{line}-{context.topic}")

assert_type(lines.group_by_key(), KGroupedStream[str, str])
assert_type(lines.group_by(len, key_serde=int), KGroupedStream[int, str])
assert_type(lines.group_by(len, key_serde=Serdes.int32()), KGroupedStream[int, str])
assert_type(lines.group_by(lambda line: line == "a", key_serde=bool), KGroupedStream[bool, str])
assert_type(lines.group_by(first_letter, key_serde=str), KGroupedStream[str, str])
assert_type(lines.group_by(measured, key_serde=int), KGroupedStream[int, str])
builder.stream("anything").group_by(lambda row: row["city"], key_serde=str)
assert_type(lines.group_by(lambda line: line[0]), KGroupedStream[str, str])
counts = lines.group_by(lambda key, line: key + line).count(store="counts")
assert_type(counts, KTable[str, int])
assert_type(numbers.group_by_key().reduce(max), KTable[str, int])
assert_type(numbers.group_by_key().reduce(lambda total, n: total + n), KTable[str, int])
assert_type(
    lines.group_by_key().aggregate(lambda: 0, lambda key, line, total: total + len(key + line)),
    KTable[str, int],
)
assert_type(
    lines.group_by_key().aggregate(int, lambda key, line, total: total + 1 if line else None),
    KTable[str, int],
)
users = builder.table("users", key_serde=str, value_serde=str, store=Materialized("users"))
assert_type(users, KTable[str, str])
assert_type(lines.to_table(), KTable[str, str])
assert_type(users.filter(lambda user: user != "root").filter_not(str.isspace), KTable[str, str])
assert_type(users.map_values(len), KTable[str, int])
assert_type(users.map_values(lambda key, user: key.encode()), KTable[str, bytes])
assert_type(counts.to_stream(), KStream[str, int])
assert_type(counts.to_stream(lambda count: count), KStream[int, int])
assert_type(counts.to_stream(lambda key, count: (key, count)), KStream[tuple[str, int], int])


class Length(Processor[str, str, bytes, int]):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(Record(record.key.encode(), len(record.value), record.timestamp))


def make_length() -> Length:
    return Length()


assert_type(lines.process(Length, stores=["seen"]), KStream[bytes, int])
assert_type(lines.process(make_length), KStream[bytes, int])
builder.add_state_store(Stores.key_value("seen", key_serde=str, value_serde=int))
topology: Topology = builder.build()
topology.add_source("more", ["c"]).add_processor("work", Length, "more")
