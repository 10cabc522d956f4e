"""Processors, stores, punctuations, batches, partitioners and topic functions."""

from collections.abc import Sequence
from typing import assert_type

from tidewheel import (
    FixedKeyProcessor,
    FixedKeyRecord,
    KStream,
    KTable,
    Processor,
    ProcessorContext,
    PunctuationType,
    Record,
    Stores,
    StreamsBuilder,
    Topology,
    ValueTransformerWithKey,
)
from tidewheel.testing import TopologyTestDriver

builder = StreamsBuilder()
lines = builder.stream("lines", key_serde=str, value_serde=str)


class Lengths(Processor[str, str, bytes, int]):
    def init(self, context: ProcessorContext[bytes, int]) -> None:
        super().init(context)
        self.schedule = context.schedule(1_000, PunctuationType.STREAM_TIME, self.flush)

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(Record(record.key.encode(), len(record.value), record.timestamp))

    def flush(self, timestamp_ms: int) -> None:
        if timestamp_ms > 10_000:
            self.schedule.cancel()


class Shout(FixedKeyProcessor[str, str, str]):
    def process(self, record: FixedKeyRecord[str, str]) -> None:
        self.context.forward(record.replace(value=record.value.upper()))


def make_lengths() -> Lengths:
    return Lengths()


def lengths_of(values: list[str]) -> Sequence[int]:
    return [len(value) for value in values]


assert_type(lines.process(Lengths), KStream[bytes, int])
assert_type(lines.process(make_lengths, stores=["seen"]), KStream[bytes, int])


class Rows(ValueTransformerWithKey[str, str, int]):
    def transform(self, key: str, value: str | None) -> int | None:
        return None if value is None else len(value)


users = builder.table("users", key_serde=str, value_serde=str)
assert_type(users.transform_values(Rows), KTable[str, int])
assert_type(lines.process_values(Shout), KStream[str, str])
assert_type(lines.map_values_batch(lengths_of), KStream[str, int])
assert_type(
    lines.map_values_batch(lambda values: [line.encode() for line in values]), KStream[str, bytes]
)


async def looked_up(line: str) -> int:
    return len(line)


async def split_up(key: str, line: str) -> list[tuple[int, str]]:
    return [(len(key), line)]


async def all_looked_up(values: list[str]) -> list[int]:
    return [len(value) for value in values]


class Waits(Processor[str, str, str, int]):
    async def process(self, record: Record[str, str]) -> None:
        self.context.forward(record.replace(value=await looked_up(record.value)))


assert_type(lines.map_values(looked_up), KStream[str, int])
assert_type(lines.select_key(looked_up), KStream[int, str])
assert_type(lines.flat_map(split_up), KStream[int, str])
assert_type(lines.map_values_batch(all_looked_up), KStream[str, int])
assert_type(lines.filter(looked_up), KStream[str, str])
assert_type(lines.process(Waits), KStream[str, int])

builder.add_state_store(Stores.key_value("seen", key_serde=str, value_serde=int, caching=True))
builder.add_state_store(Stores.timestamped_key_value("newest", key_serde=str, value_serde=int))

lines.to("out", partitioner=lambda topic, key, value, partitions: len(key) % partitions)
lines.to("all", partitioner=lambda topic, key, value, partitions: list(range(partitions)))
lines.to(lambda key, line, context: f"{line[0]}-{context.topic}")

topology: Topology = builder.build()
topology.add_source("more", ["c"]).add_processor("work", Lengths, "more")
with TopologyTestDriver(topology) as driver:
    source = driver.create_input_topic("lines", key_serde=str, value_serde=str)
    source.pipe_input("a", "text", 5)
    output = driver.create_output_topic("out", key_serde=str, value_serde=int)
    assert_type(output.read_key_values(), list[tuple[str, int]])

# With explicit types.
assert_type(Record[str, int]("a", 1, 5).replace(value="x"), Record[str, str])
