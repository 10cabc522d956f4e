"""Wrong settings, handlers, application and driver calls."""

from tidewheel import (
    ConsumedRecord,
    ErrorContext,
    ErrorResponse,
    KafkaStreams,
    Processor,
    Record,
    RestoreEvent,
    Serdes,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    Topology,
    ValueTransformerWithKey,
    Windowed,
)
from tidewheel.testing import TopologyTestDriver

builder = StreamsBuilder()
lines = builder.stream("lines", key_serde=str, value_serde=str)
seen = Stores.key_value("seen", key_serde=str, value_serde=str)
config = StreamsConfig(application_id="shop")
app = KafkaStreams(builder.build(config), config)
topology = Topology()


class Nothing(Processor[str, str, str, int]): ...


class OtherKeys(ValueTransformerWithKey[int, str, str]): ...


def of_bytes(context: ErrorContext, record: bytes, error: Exception) -> ErrorResponse:
    return ErrorResponse(action="continue")


def in_words(context: ErrorContext, record: Record[str, str], error: Exception) -> str:
    return "continue"


def named(record: ConsumedRecord, partition_time_ms: int) -> str:
    return record.topic


def heard(event: str) -> None: ...


def restored(event: RestoreEvent) -> None: ...


StreamsConfig(application_id=5)  # error
StreamsConfig(application_id="a", processing_guarantee="exactly-once")  # error
StreamsConfig(application_id="a", num_stream_threads="many")  # error
StreamsConfig(application_id="a", dsl_store_format="HEADER")  # error
StreamsConfig(application_id="a", consumer=["client.id"])  # error
StreamsConfig(application_id="a", comit_interval_ms=5)  # error
StreamsConfig(application_id="a", processing_exception_handler=of_bytes)  # error
StreamsConfig(application_id="a", processing_exception_handler=in_words)  # error
config.application_id = "b"  # error
ErrorResponse(action="skip")  # error
KafkaStreams(builder, config)  # error
KafkaStreams(builder.build(config), {"application_id": "a"})  # error
app.close(timeout=5.0)  # error
app.set_restore_listener(heard)  # error
app.set_restore_listener(restored)
app.set_state_listener(lambda state: None)  # error
app.store(5)  # error
app.query_metadata_for_key("seen", "key", "str")  # error
topology.add_source("read", 5)  # error
topology.add_processor("work", Nothing(), "read")  # error
topology.add_state_store("seen", "work")  # error
builder.add_state_store("seen")  # error
builder.add_global_store(seen, "topic", Nothing, key_serde=int, value_serde=str)  # error
builder.stream("a", offset_reset="first")  # error
builder.stream("b", timestamp_extractor=named)  # error
builder.table("c", key_serde=str, value_serde=str).transform_values(OtherKeys)  # error
Stores.key_value("d", key_serde=str, value_serde=int, persistant=True)  # error
Stores.versioned("e", key_serde=str, value_serde=int)  # error
Stores.custom("f", str)  # error
Serdes.windowed(str, 5).serialize("counts", "a")  # error
Windowed("a", 0)  # error

with TopologyTestDriver(builder.build(config), config) as driver:
    source = driver.create_input_topic("lines", key_serde=str, value_serde=str)
    source.pipe_input(5, "x")  # error
    source.pipe_input("a", "x", headers={"trace": b"1"})  # error
    source.pipe_batch([("a", 5)])  # error
    output = driver.create_output_topic("out", key_serde=str, value_serde=int)
    output.read_value().upper()  # error
    output.read_records()[0].value.upper()  # error
