"""Wrong types of processors and forwarded records."""

from tidewheel import (
    FixedKeyProcessor,
    FixedKeyRecord,
    Processor,
    Record,
    Stores,
    StreamsBuilder,
    ValueTransformerWithKey,
)
from tidewheel.testing import TopologyTestDriver

builder = StreamsBuilder()
lines = builder.stream("lines", key_serde=str, value_serde=str)
numbers = builder.stream("numbers", key_serde=str, value_serde=int)


class Shout(FixedKeyProcessor[str, str, str]):
    def process(self, record: FixedKeyRecord[str, str]) -> None:
        self.context.forward(record.replace(value=len(record.value)))  # error
        self.context.forward(Record(record.key, record.value, 0))  # error


class Rows(ValueTransformerWithKey[str, str, int]):
    def transform(self, key: str, value: str | None) -> str | None:  # error
        return value


class Lengths(Processor[str, str, str, int]):
    def process(self, record: Record[str, int]) -> None:  # error
        ...


lines.process(Shout)  # error
numbers.to_table().transform_values(Rows)  # error
lines.process_values(Lengths)  # error
numbers.process_values(Shout)  # error
lines.process(Lengths())  # error
lines.process(Lengths, stores="seen").map_values(str.upper)  # error
lines.map_values_batch(len)  # error
numbers.map_values_batch(lambda values: [value.upper() for value in values])  # error
lines.to("out", partitioner=lambda key: 0)  # error
Stores.key_value("seen", key_serde=str, value_serde=int, caching="yes")  # error
driver = TopologyTestDriver(builder.build())
driver.create_input_topic("lines", key_serde=str, value_serde=str).pipe_input("a", 5)  # error
