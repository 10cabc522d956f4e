"""Settings in processors (Kafka Streams' `appConfigs`): no secret is printed."""

from collections.abc import Mapping
from typing import Any

import pytest

from tidewheel import (
    FixedKeyProcessor,
    FixedKeyRecord,
    Processor,
    Record,
    RecordFailedError,
    Stores,
    StreamsBuilder,
    StreamsConfig,
)
from tidewheel.testing import TopologyTestDriver

SECRET = "no-one-may-read-this"  # noqa: S105 - of no use to anybody


def config(**options: Any) -> StreamsConfig:
    return StreamsConfig(
        application_id="shop",
        bootstrap_servers="unused:9092",
        consumer={"fetch.min.bytes": 5, "sasl.password": SECRET},
        client_tags={"zone": "a"},
        input_partitioners={"in": "murmur2"},
        **options,
    )


def seen_by(kind: str, settings: StreamsConfig) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    seen: list[Mapping[str, Any]] = []

    class ReadsSettings(Processor[str, str, str, str]):
        def process(self, record: Record[str, str]) -> None:
            seen[:] = [
                self.context.app_configs(),
                self.context.app_configs_with_prefix("consumer."),
            ]

    class ReadsSettingsOfValues(FixedKeyProcessor[str, str, str]):
        def process(self, record: FixedKeyRecord[str, str]) -> None:
            seen[:] = [
                self.context.app_configs(),
                self.context.app_configs_with_prefix("consumer."),
            ]

    builder = StreamsBuilder()
    if kind == "global":
        store = Stores.key_value("rates", key_serde=str, value_serde=str)
        builder.add_global_store(store, "in", ReadsSettings, key_serde=str, value_serde=str)
    else:
        stream = builder.stream("in", key_serde=str, value_serde=str)
        if kind == "process":
            stream.process(ReadsSettings)
        else:
            stream.process_values(ReadsSettingsOfValues)
    with TopologyTestDriver(builder.build(), settings) as driver:
        driver.create_input_topic("in", key_serde=str, value_serde=str).pipe_input("a", "1")
    everything, consumers = seen
    return everything, consumers


@pytest.mark.parametrize("kind", ["process", "process_values", "global"])
def test_a_processor_reads_the_settings_of_its_application(kind: str) -> None:
    settings = config(commit_interval_ms="1s")
    seen, consumers = seen_by(kind, settings)
    assert seen["application_id"] == "shop"
    assert seen["commit_interval_ms"] == 1_000
    assert seen["client_tags.zone"] == "a"
    assert seen["rocksdb.block_bytes"] == settings.rocksdb.block_bytes
    assert {name.partition(".")[0] for name in seen} == set(StreamsConfig.model_fields) - {
        "kafka",
        "producer",
        "admin",
        "repartition_topic_config",
    }, "empty tables have no keys"
    assert dict(consumers) == {"fetch.min.bytes": 5, "sasl.password": SECRET}
    with pytest.raises(KeyError):
        _ = seen["commit.interval.ms"]


def test_no_secret_is_printed() -> None:
    seen, consumers = seen_by("process", config(snapshot_location=f"s3://id:{SECRET}@bucket/x"))
    for text in (repr(seen), str(seen), f"{consumers}", repr(consumers)):
        assert SECRET not in text
        assert "'fetch.min.bytes': 5" in text or "'consumer.fetch.min.bytes': 5" in text


@pytest.mark.parametrize("enabled", [False, True])
def test_the_processing_handler_gets_errors_of_global_stores_if_enabled(enabled: bool) -> None:
    """`processing.exception.handler.global.enabled` (KIP-1270)."""

    class Fails(Processor[str, str, None, None]):
        def process(self, record: Record[str, str]) -> None:
            if record.value == "bad":
                raise ValueError("as told")
            self.context.get_state_store("rates").put(record.key, record.value)

    builder = StreamsBuilder()
    store = Stores.key_value("rates", key_serde=str, value_serde=str)
    builder.add_global_store(store, "in", Fails, key_serde=str, value_serde=str)
    settings = config(
        processing_exception_handler="continue", processing_exception_handler_global_enabled=enabled
    )
    with TopologyTestDriver(builder.build(), settings) as driver:
        feed = driver.create_input_topic("in", key_serde=str, value_serde=str)
        feed.pipe_input("a", "1")
        if enabled:
            feed.pipe_input("a", "bad")
            feed.pipe_input("b", "2")
            assert dict(driver.get_state_store("rates").all()) == {"a": "1", "b": "2"}
        else:
            with pytest.raises(RecordFailedError, match="global_enabled=True") as caught:
                feed.pipe_input("a", "bad")
            assert isinstance(caught.value.__cause__, ValueError)
