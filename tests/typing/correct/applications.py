"""Settings, handlers, listeners, stores of a processor, and the test driver."""

import tomllib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, assert_type

from tidewheel import (
    ConsumedRecord,
    DeadLetter,
    ErrorContext,
    ErrorResponse,
    KafkaStreams,
    KafkaStreamsState,
    KeyValueStore,
    Processor,
    ProcessorContext,
    Record,
    RestoreEvent,
    RocksDBOptions,
    Serdes,
    SessionStore,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    TimestampedKeyValueStore,
    Topology,
    ValueAndTimestamp,
    VersionedKeyValueStore,
    VersionedRecord,
    Windowed,
    WindowStore,
)
from tidewheel.testing import TopologyTestDriver


def skipped(context: ErrorContext, record: object, error: Exception) -> ErrorResponse:
    letter = DeadLetter(topic="letters", key=context.raw_key, value=context.raw_value)
    return ErrorResponse(action="continue", dead_letter_records=(letter,))


def created_at(record: ConsumedRecord, partition_time_ms: int) -> int:
    return max(record.timestamp, partition_time_ms)


def moved(state: KafkaStreamsState, before: KafkaStreamsState) -> None: ...


def restored(event: RestoreEvent) -> None:
    print(event.store, event.restored)


config = StreamsConfig(
    application_id="shop",
    bootstrap_servers=["a:9092", "b:9092"],
    commit_interval_ms=timedelta(seconds=1),
    statestore_cache_max_bytes="64 MiB",
    default_key_serde=str,
    default_value_serde=Serdes.json(),
    processing_exception_handler=skipped,
    deserialization_exception_handler="continue",
    default_timestamp_extractor=created_at,
    topology_optimization="all",
    rocksdb=RocksDBOptions(),
    consumer={"fetch.min.bytes": 1},
)
assert_type(config.commit_interval_ms, int)
assert_type(config.replace(commit_interval_ms="5s"), StreamsConfig)


class Uses(Processor[str, str, str, int]):
    def init(self, context: ProcessorContext[str, int]) -> None:
        super().init(context)
        self.counts: KeyValueStore[str, int] = context.get_state_store("counts")
        self.windows: WindowStore[str, int] = context.get_state_store("windows")
        self.sessions: SessionStore[str, int] = context.get_state_store("sessions")
        self.stamped: TimestampedKeyValueStore[str, int] = context.get_state_store("stamped")
        self.prices: VersionedKeyValueStore[str, int] = context.get_state_store("prices")

    def process(self, record: Record[str, str]) -> None:
        total = (self.counts.get(record.key) or 0) + len(record.value)
        self.counts[record.key] = total
        assert_type(self.counts.range("a", "b"), Iterator[tuple[str, int]])
        assert_type(self.windows.fetch(record.key, 0), int | None)
        assert_type(self.windows.fetch(record.key, 0, 10), Iterator[tuple[int, int]])
        assert_type(self.sessions.fetch(record.key), Iterator[tuple[Windowed[str], int]])
        assert_type(self.stamped.get(record.key), ValueAndTimestamp[int] | None)
        assert_type(self.prices.get(record.key, as_of=5), VersionedRecord[int] | None)
        self.sessions.put(Windowed(record.key, 0, 5), total)
        self.context.forward(record.replace(value=total))


builder = StreamsBuilder()
builder.add_state_store(Stores.lru("counts", max_entries=5, key_serde=str, value_serde=int))
lines = builder.stream("lines", key_serde=str, value_serde=str, timestamp_extractor=created_at)
lines.process(Uses, stores=["counts"]).to("out", value_serde=int)
assert_type(builder.build(config), Topology)
app = KafkaStreams(builder.build(config), config)
app.set_state_listener(moved)
app.set_restore_listener(restored)
assert_type(app.state, KafkaStreamsState)
assert_type(app.close(timeout=5), bool)

with TopologyTestDriver(builder.build(config), config) as driver:
    source = driver.create_input_topic("lines", key_serde=str, value_serde=str)
    source.pipe_input("a", "text", 5, headers=(("trace", b"1"), ("empty", None)))
    source.pipe_batch([("a", "text", 5)])
    output = driver.create_output_topic("out", key_serde=str, value_serde=int)
    assert_type(output.read_value(), int)
    assert_type(output.read_records()[0].value, int)


def settings_of_a_file(path: Path, more: dict[str, Any]) -> StreamsConfig:
    toml = tomllib.loads(path.read_text())
    shared = StreamsConfig(**toml, kafka={"security.protocol": "SSL"})
    assert_type(shared.replace(**more), StreamsConfig)
    return StreamsConfig.from_toml(path, **more)
