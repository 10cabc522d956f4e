"""Runs a topology over one batch."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tidewheel import KStream, Serdes, StreamsBuilder, StreamsConfig
from tidewheel.testing import TopologyTestDriver

JSON = Serdes.json()
Row = tuple[Any, Any, int]


def driver_of(
    use: Callable[[KStream[Any, Any]], Any],
    *,
    record_by_record: bool = False,
    state_dir: Path | None = None,
    **settings: Any,
) -> TopologyTestDriver:
    builder = StreamsBuilder()
    result = use(builder.stream("in", key_serde=JSON, value_serde=JSON))
    if result is not None:
        result.to("out", key_serde=JSON, value_serde=JSON)
    config = StreamsConfig(
        **{
            "application_id": "operators",
            "bootstrap_servers": "unused:9092",
            "statestore_cache_max_bytes": 0,
            **settings,
        }
    )
    return TopologyTestDriver(
        builder.build(config), config, record_by_record=record_by_record, state_dir=state_dir
    )


def outputs(driver: TopologyTestDriver, topic: str = "out") -> list[Row]:
    output = driver.create_output_topic(topic, key_serde=JSON, value_serde=JSON)
    return [(record.key, record.value, record.timestamp) for record in output.read_records()]


def run(use: Callable[[KStream[Any, Any]], Any], rows: Sequence[Row], **settings: Any) -> list[Row]:
    with driver_of(use, **settings) as driver:
        driver.create_input_topic("in", key_serde=JSON, value_serde=JSON).pipe_batch(rows)
        return outputs(driver)
