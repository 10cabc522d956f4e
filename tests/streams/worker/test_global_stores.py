"""Global stores as a program uses them."""

import pytest

from tidewheel import InvalidStateStoreError, KafkaStreams, StreamsBuilder, StreamsConfig


@pytest.fixture
def app() -> KafkaStreams:
    builder = StreamsBuilder()
    builder.global_table("table", key_serde=str, value_serde=str, store="rows")
    config = StreamsConfig(application_id="globals", bootstrap_servers="unused:9092")
    return KafkaStreams(builder.build(), config)


def test_a_global_store_is_not_open_before_the_start(app: KafkaStreams) -> None:
    with pytest.raises(InvalidStateStoreError, match="wait until the application is RUNNING"):
        app.store("rows")
