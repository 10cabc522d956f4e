"""Kafka Streams' timestamp extractors, and timestamps out of range."""

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel import (
    ConfigError,
    FailOnInvalidTimestamp,
    LogAndSkipOnInvalidTimestamp,
    RecordFailedError,
    Serdes,
    StreamsBuilder,
    StreamsConfig,
    StreamsError,
    TopologyError,
    UsePartitionTimeOnInvalidTimestamp,
    WallclockTimestampExtractor,
)
from tidewheel.tasks.processing.api.record import TIMESTAMP_MAX_MS, ConsumedRecord
from tidewheel.testing import TopologyTestDriver

STRING = Serdes.string()
EXTRACTORS = (
    FailOnInvalidTimestamp,
    LogAndSkipOnInvalidTimestamp,
    UsePartitionTimeOnInvalidTimestamp,
    WallclockTimestampExtractor,
)


def record(timestamp: int) -> ConsumedRecord:
    return ConsumedRecord("in", 3, 41, "k", "v", timestamp, ())


@given(st.integers(0, TIMESTAMP_MAX_MS), st.integers(-1, TIMESTAMP_MAX_MS))
def test_a_valid_timestamp_is_used_unchanged(timestamp: int, partition_time_ms: int) -> None:
    for kind in EXTRACTORS[:3]:
        assert kind()(record(timestamp), partition_time_ms) == timestamp
    now_ms = WallclockTimestampExtractor()(record(timestamp), partition_time_ms)
    assert now_ms > 1_700_000_000_000


def test_a_negative_timestamp(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(StreamsError, match=r"in-3 offset 41 has no valid timestamp \(-1\)"):
        FailOnInvalidTimestamp()(record(-1), 7)
    with caplog.at_level(logging.WARNING):
        assert LogAndSkipOnInvalidTimestamp()(record(-5), 7) == -5
    assert "in-3 offset 41 is dropped" in caplog.text
    assert UsePartitionTimeOnInvalidTimestamp()(record(-1), 7) == 7
    with pytest.raises(StreamsError, match="no earlier record of its partition"):
        UsePartitionTimeOnInvalidTimestamp()(record(-1), -1)


def run(
    timestamps: list[int], *, of_source: Any = None, one_by_one: bool = False, **settings: Any
) -> tuple[list[int], float, float]:
    builder = StreamsBuilder()
    stream = builder.stream(
        "in", key_serde=STRING, value_serde=STRING, timestamp_extractor=of_source
    )
    stream.to("out")
    config = StreamsConfig(application_id="times", bootstrap_servers="unused:9092", **settings)
    with TopologyTestDriver(builder.build(), config, record_by_record=one_by_one) as driver:
        source = driver.create_input_topic("in", key_serde=STRING, value_serde=STRING)
        output = driver.create_output_topic("out", key_serde=STRING, value_serde=STRING)
        source.pipe_batch([("k", "v", timestamp) for timestamp in timestamps])
        figures = driver.metrics()["0_0"]
        return (
            [each.timestamp for each in output.read_records()],
            figures["dropped-records-total"],
            figures["skipped-records-total"],
        )


TIMES = st.lists(st.sampled_from([-1, 0, 5, 9]), max_size=12)


@given(TIMES, st.booleans())
def test_records_without_a_time_are_dropped(timestamps: list[int], one_by_one: bool) -> None:
    expected = [timestamp for timestamp in timestamps if timestamp >= 0]
    dropped = len(timestamps) - len(expected)
    for options in (
        {"of_source": LogAndSkipOnInvalidTimestamp},
        {"of_source": LogAndSkipOnInvalidTimestamp()},
        {"default_timestamp_extractor": LogAndSkipOnInvalidTimestamp},
        {"default_timestamp_extractor": "LogAndSkipOnInvalidTimestamp"},
    ):
        assert run(timestamps, one_by_one=one_by_one, **options) == (expected, dropped, 0)


@given(TIMES, st.booleans())
def test_the_partition_time_replaces_an_invalid_timestamp(
    timestamps: list[int], one_by_one: bool
) -> None:
    timestamps = [3, *timestamps]
    expected = [
        timestamp if timestamp >= 0 else max(timestamps[:index])
        for index, timestamp in enumerate(timestamps)
    ]
    found = run(timestamps, one_by_one=one_by_one, of_source=UsePartitionTimeOnInvalidTimestamp)
    assert found == (expected, 0, 0)


@pytest.mark.parametrize("of_source", [None, FailOnInvalidTimestamp, FailOnInvalidTimestamp()])
def test_without_a_time_the_default_fails(of_source: Any) -> None:
    """Without a handler, as in Kafka Streams."""
    with pytest.raises(RecordFailedError, match=r"in-0 offset 1 has no valid timestamp \(-1\)"):
        run([1, -1], of_source=of_source, deserialization_exception_handler="continue")


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_time_beyond_64_bits_goes_to_the_deserialisation_handler(one_by_one: bool) -> None:
    def micro(each: ConsumedRecord, _highest: int) -> int:
        return each.timestamp if each.timestamp < 100 else 1 << 63

    assert run(
        [1, 500, 2],
        of_source=micro,
        one_by_one=one_by_one,
        deserialization_exception_handler="continue",
    ) == ([1, 2], 0, 1)
    with pytest.raises(
        RecordFailedError, match=r"in-0 offset 1: .*returned 9223372036854775808; Kafka keeps"
    ):
        run([1, 500, 2], of_source=micro, one_by_one=one_by_one)


@pytest.mark.parametrize("bad", [7, lambda record: 1, dict, "Wallclock"])
def test_an_invalid_extractor_is_refused(bad: Any) -> None:
    with pytest.raises(TopologyError, match="timestamp_extractor"):
        StreamsBuilder().stream("in", timestamp_extractor=bad)
    with pytest.raises(ConfigError, match="default_timestamp_extractor"):
        run([], default_timestamp_extractor=bad)
