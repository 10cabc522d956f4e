"""Batch jobs: other processes can receive them, and some topologies are refused."""

import pytest

from tests.streams.batch.records import columns_of, comparable, rows_of
from tidewheel import StreamsBuilder, StreamsConfig, StreamsError, TimeWindows
from tidewheel.sinks import HttpPost
from tidewheel.streams.batch.inline import run_inline
from tidewheel.streams.batch.job import BatchJob

CONFIG = StreamsConfig(
    application_id="app",
    bootstrap_servers="unused:9092",
    default_key_serde="string",
    default_value_serde="string",
)


def test_another_process_runs_a_job_from_its_bytes() -> None:
    from pyspark import cloudpickle  # noqa: PLC0415 - an extra

    builder = StreamsBuilder()
    grouped = (
        builder.stream("in")
        .select_key(lambda key, value: f"{key}-{len(value or '')}")
        .group_by_key()
    )
    grouped.windowed_by(TimeWindows(10)).count(store="counts").to_stream().to("out")
    job = BatchJob.of(builder.build(CONFIG), CONFIG, {"in": 3})
    sent: BatchJob = cloudpickle.loads(cloudpickle.dumps(job))  # type: ignore[no-untyped-call] # it has no types
    columns = columns_of(rows_of(7, ["in"], 3, 1), 1_000)
    result = comparable(run_inline(sent, columns))
    assert result == comparable(run_inline(job, columns))
    assert sum(map(len, result.outputs.values())) > 0


def test_a_sink_outside_kafka_is_refused() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to_sink(HttpPost("http://localhost:1/"))
    with pytest.raises(StreamsError, match="outside Kafka"):
        BatchJob.of(builder.build(CONFIG), CONFIG, {"in": 1})


def test_a_missing_source_topic_is_refused() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    with pytest.raises(StreamsError, match="in"):
        BatchJob.of(builder.build(CONFIG), CONFIG, {})
