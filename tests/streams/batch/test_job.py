"""Batch jobs: other processes can receive them, and some topologies are refused."""

import pytest

from tests.streams.batch.oracle import Row
from tests.streams.batch.records import columns_of, comparable, rows_of
from tidewheel import ConsumedRecord, StreamsBuilder, StreamsConfig, StreamsError, TimeWindows
from tidewheel.rebalance.model import TopicPartition
from tidewheel.sinks import HttpPost
from tidewheel.streams.batch.inline import run_inline
from tidewheel.streams.batch.job import BatchJob, TaskSettings

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


def test_a_record_for_a_topic_of_the_input_is_an_error() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to(lambda _key, value, _context: "in" if value else "out")
    job = BatchJob.of(builder.build(CONFIG), CONFIG, {"in": 3})
    with pytest.raises(StreamsError, match="chose topic in for a record"):
        run_inline(job, columns_of(rows_of(7, ["in"], 3, 1), 1_000))


def pair(left: str, right: str) -> str:
    return f"{left}/{right}"


def extracted(record: ConsumedRecord, partition_time_ms: int) -> int:
    """Return a time of the value, sometimes the partition's time before this record."""
    if record.value is None:
        return -1
    number = int(record.value[1:])
    return partition_time_ms if number % 11 == 0 else number // 3 * 4 - number % 3


@pytest.mark.parametrize("partitions", [1, 3])
def test_extracted_timestamps_order_inputs_whatever_the_sizes(partitions: int) -> None:
    builder = StreamsBuilder()
    table = builder.table("rows", timestamp_extractor=extracted)
    left = builder.table("left", timestamp_extractor=extracted)
    builder.stream("in", timestamp_extractor=extracted).join(table, pair).to("joined")
    referred = left.join(table, pair, foreign_key=lambda value: "abcdef"[len(value) % 6])
    referred.to_stream().to("referred")
    topics = ["in", "rows", "left"]
    job = BatchJob.of(builder.build(CONFIG), CONFIG, dict.fromkeys(topics, partitions))
    rows = rows_of(3, topics, partitions, 1)
    results = [
        comparable(run_inline(job, columns_of(rows, chunk), settings=settings))
        for chunk, settings in (
            (1, TaskSettings(batch_records=1, blob_records=1)),
            (7, TaskSettings(batch_records=5, blob_records=3)),
            (1_000, TaskSettings()),
        )
    ]
    assert results[0] == results[1] == results[2]
    assert {at.topic for at in results[0].outputs} == {"joined", "referred"}


def test_unreadable_records_are_skipped_where_the_settings_say_so() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", value_serde=int)
    joined = stream.join(builder.table("rows"), lambda left, right: f"{left}{right}")
    joined.to("out", value_serde=str)
    config = CONFIG.replace(
        deserialization_exception_handler="continue", dead_letter_queue_topic="letters"
    )
    job = BatchJob.of(builder.build(config), config, dict.fromkeys(["in", "rows"], 1))
    rows = {
        TopicPartition("rows", 0): [Row(b"a", b"v", 0, ())],
        TopicPartition("in", 0): [
            Row(b"a", value, time, ())
            for time, value in enumerate([bytes(8), b"short", bytes(8)], start=1)
        ],
    }
    result = comparable(run_inline(job, columns_of(rows, 1_000)))
    assert [row.value for row in result.outputs[TopicPartition("out", 0)]] == [b"0v", b"0v"]
    assert [row.value for row in result.outputs[TopicPartition("letters", 0)]] == [b"short"]


def test_a_topic_that_the_topology_writes_itself_needs_no_records_and_no_config() -> None:
    builder = StreamsBuilder()
    builder.stream("in").map_values(str.upper).to("between")
    builder.stream("between").group_by_key().count(store="counts")
    job = BatchJob.of(builder.build(CONFIG), None, {"in": 2})
    rows = {TopicPartition("in", 0): [Row(b"a", b"x", 1, ())] * 3}
    result = run_inline(job, columns_of(rows, 1_000))
    (counted,) = [row for rows in result.stores["counts"].values() for row in rows]
    assert (counted.key, int.from_bytes(counted.value, "big")) == (b"a", 3)


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
