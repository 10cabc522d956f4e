"""Jobs that write outside Kafka; their sink is a JSON text of the place."""

import json
from collections.abc import Callable
from typing import Any, Final

from tidewheel import Serdes, StreamsBuilder
from tidewheel.sinks import IcebergTable, ParquetFiles, PostgresUpsert, Sink


def _sink(target: str) -> Sink:
    place: dict[str, Any] = json.loads(target)
    limits: dict[str, Any] = {"batch_rows": 500, "flush_every_ms": 100}
    kind = place.pop("kind")
    if kind == "postgres":
        conninfo = place.pop("conninfo")
        return PostgresUpsert(conninfo, key="id", columns=["value"], **place, **limits)
    if kind == "parquet":
        return ParquetFiles(to_row=_row, position_columns=True, **place, **limits)
    assert kind == "iceberg", target
    return IcebergTable(to_row=_row, **place, **(limits | {"flush_every_ms": 500}))


def _row(key: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"id": key, "value": value["value"]}


def _value(text: bytes) -> dict[str, Any]:
    return {"value": int(text)}


def write_outside(source: str, target: str) -> StreamsBuilder:
    """Write each record; the sink reads the source topic itself."""
    builder = StreamsBuilder()
    stream = builder.stream(source, key_serde=Serdes.string(), value_serde=Serdes.bytes())
    stream.map_values(_value).to_sink(_sink(target), name="outside")
    return builder


def count_outside(source: str, target: str) -> StreamsBuilder:
    """Write counts of each key, by way of an internal topic."""
    builder = StreamsBuilder()
    (
        builder.stream(source, key_serde=Serdes.string(), value_serde=Serdes.bytes())
        .group_by_key()
        .count(store="counts")
        .to_stream()
        .map_values(lambda count: {"value": count})
        .to_sink(_sink(target), name="outside", value_serde=Serdes.json())
    )
    return builder


SINK_JOBS: Final[tuple[Callable[[str, str], StreamsBuilder], ...]] = (write_outside, count_outside)
