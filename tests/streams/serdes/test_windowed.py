"""Windowed key serdes: Kafka's bytes, window ends, errors and partitions."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.murmur2 import partition_of
from tidewheel import (
    CalendarWindows,
    Serdes,
    SerializationError,
    SlidingWindows,
    StreamsBuilder,
    StreamsConfig,
    TimeWindows,
    TopologyError,
    Windowed,
)
from tidewheel.streams.serdes.partitioning import WindowedPartitioner, murmur2
from tidewheel.streams.serdes.windowed import SessionWindowedSerde, TimeWindowedSerde
from tidewheel.streams.windows import FOREVER
from tidewheel.tasks.processing.api.topology_spec import SinkSpec

TIMES = st.integers(0, FOREVER)


def test_bytes_are_those_of_kafkas_serializers() -> None:
    timed = Serdes.windowed(str, 10).serialize("t", Windowed("key", 258, 268))
    assert timed == b"key" + bytes(6) + b"\x01\x02"
    session = Serdes.session_windowed(str).serialize("t", Windowed("key", 258, 268))
    assert session == b"key" + bytes(6) + b"\x01\x0c" + bytes(6) + b"\x01\x02"


@given(st.text(), TIMES, st.integers(1, 1_000))
def test_written_windowed_keys_are_read_back(key: str, start: int, size: int) -> None:
    end = min(start + size, FOREVER)
    for serde in (Serdes.windowed(str, size), Serdes.session_windowed(str)):
        data = serde.serialize("t", Windowed(key, start, end))
        assert data is not None
        assert serde.deserialize("t", data) == Windowed(key, start, end)
        assert serde.serialize_batch("t", [Windowed(key, start, end)]) == [data]


def test_windows_may_be_given_instead_of_a_size() -> None:
    days = CalendarWindows("day", "Europe/Berlin")
    (start,) = days.starts_for(1_711_843_200_000)
    data = bytes(
        Serdes.windowed(str, days).serialize("t", Windowed("a", start, days.end_of(start))) or b""
    )
    assert Serdes.windowed(str, days).deserialize("t", data).end == days.end_of(start)
    assert Serdes.windowed(str, SlidingWindows(5)).deserialize("t", data).end == start + 5
    assert Serdes.windowed(str, TimeWindows(5)).deserialize("t", data).end == start + 5


def test_the_same_arguments_give_the_same_serde() -> None:
    assert Serdes.windowed(str, 10) is Serdes.windowed(Serdes.string(), 10)
    assert Serdes.session_windowed(str) is Serdes.session_windowed(str)


@pytest.mark.parametrize("serde", [Serdes.windowed(str, 10), Serdes.session_windowed(str)])
def test_an_invalid_windowed_key_is_an_error(serde: Any) -> None:
    with pytest.raises(SerializationError, match="str is not a Windowed"):
        serde.serialize("t", "key")
    with pytest.raises(SerializationError, match="7 bytes have no window at their end"):
        serde.deserialize("t", bytes(7))


def test_a_bad_size_or_serde_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"Serdes\.windowed: size=-1 is too short"):
        Serdes.windowed(str, -1)
    with pytest.raises(
        TopologyError, match=r"Serdes\.windowed: size=0 is too short; give at least 1 ms"
    ):
        Serdes.windowed(str, 0)
    with pytest.raises(TopologyError, match=r"Serdes\.windowed: inner=dict"):
        Serdes.windowed(dict, 1)


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_kafkas(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed % (1 << 32)


@given(st.text(), TIMES, st.integers(1, 50))
def test_windows_of_a_key_have_the_partition_of_the_key(
    key: str, start: int, partitions: int
) -> None:
    """As in Kafka Streams' WindowedStreamPartitioner."""
    partitioner = WindowedPartitioner(SessionWindowedSerde(Serdes.string()))
    found = partitioner("t", Windowed(key, start, start), 1, partitions)
    assert found == partition_of(key.encode(), partitions)
    assert partitioner("t", None, 1, partitions) is None


def sink_of(builder: StreamsBuilder, **settings: Any) -> SinkSpec:
    config = StreamsConfig(application_id="a", bootstrap_servers="unused:9092", **settings)
    (subtopology,) = builder.build(config).spec(config).subtopologies
    (sink,) = subtopology.sinks
    return sink


def test_a_sink_of_windowed_keys_has_the_windowed_partitioner() -> None:
    builder = StreamsBuilder()
    counts = builder.stream("in", key_serde=str, value_serde=str).group_by_key()
    table = counts.windowed_by(TimeWindows(10)).count()
    table.to_stream().to("out")
    partitioner = sink_of(builder).partitioner
    assert isinstance(partitioner, WindowedPartitioner)
    assert partitioner.serde.inner is Serdes.string()

    builder = StreamsBuilder()
    counts = builder.stream("in", key_serde=str, value_serde=str).group_by_key()
    stream = counts.windowed_by(TimeWindows(10)).count().to_stream()
    stream.to("out", partitioner=lambda topic, key, value, count: 0)
    assert not isinstance(sink_of(builder).partitioner, WindowedPartitioner)


def test_a_derived_windowed_serde_contains_the_default_serde() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in").group_by_key()
    grouped.windowed_by(TimeWindows(10)).count().to_stream().to("out")
    sink = sink_of(builder, default_key_serde=str, default_value_serde=str)
    assert isinstance(sink.key_serde, TimeWindowedSerde)
    assert sink.key_serde.inner is Serdes.string()
    assert isinstance(sink.partitioner, WindowedPartitioner)
    assert sink.partitioner.serde is sink.key_serde


def test_without_a_default_serde_the_sink_is_named() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in", value_serde=str).group_by_key()
    grouped.windowed_by(TimeWindows(10)).count().to_stream().to("out")
    with pytest.raises(TopologyError, match="no key serde"):
        sink_of(builder)


@given(st.lists(st.tuples(st.text(), TIMES), max_size=20), st.integers(1, 50))
def test_a_batch_of_windowed_keys_has_the_partitions_of_single_keys(
    windowed: list[tuple[str, int]], partitions: int
) -> None:
    serde: TimeWindowedSerde[str] = TimeWindowedSerde(Serdes.string(), lambda start: start + 10)
    partitioner = WindowedPartitioner(serde)
    keys = [Windowed(key, start, start + 10) for key, start in windowed]
    data = [serde.serialize("t", key) or b"" for key in keys]
    each = [partitioner("t", key, 1, partitions) for key in keys]
    assert partitioner.by_bytes(data, partitions) == each
    assert partitioner.by_bytes(data[::-1], partitions) == each[::-1]


def test_serdes_of_the_same_windowed_keys_are_equal() -> None:
    windows = TimeWindows(10)
    made: list[TimeWindowedSerde[str]] = [
        TimeWindowedSerde(Serdes.string(), windows.end_of) for _ in range(2)
    ]
    assert made[0] == made[1]
    assert hash(made[0]) == hash(made[1])
    assert made[0] != TimeWindowedSerde(Serdes.string(), TimeWindows(20).end_of)
    assert made[0] != TimeWindowedSerde(Serdes.bytes(), windows.end_of)
    assert made[0] != SessionWindowedSerde(Serdes.string())


@pytest.mark.parametrize(
    ("serde", "start", "end"),
    [
        (Serdes.windowed(str, 60_000), 0, 30_000),
        (Serdes.windowed(str, 60_000), 0, 2**70),
        (Serdes.windowed(str, 60_000), 2**63, 2**63 + 60_000),
        (Serdes.windowed(str, 60_000), 1.5, 60_001.5),
        (Serdes.windowed(str, 60_000), "0", 60_000),
        (Serdes.windowed(str, CalendarWindows("day", "UTC")), 0, 60_000),
        (Serdes.windowed(str, SlidingWindows(5)), 0, 6),
        (Serdes.session_windowed(str), 5, 1),
        (Serdes.session_windowed(str), 0, 2**63),
        (Serdes.session_windowed(str), -(2**63) - 1, 0),
        (Serdes.session_windowed(str), 0, None),
    ],
    ids=str,
)
def test_windows_that_would_be_read_as_others_are_refused(serde: Any, start: Any, end: Any) -> None:
    for write in (serde.serialize, lambda topic, key: serde.serialize_batch(topic, [key])):
        with pytest.raises(SerializationError, match="can't serialise"):
            write("t", Windowed("a", start, end))


@pytest.mark.parametrize("serde", [Serdes.string(), Serdes.uuid(), Serdes.int64(), Serdes.json()])
@pytest.mark.parametrize(
    ("windowed", "advice"),
    [
        (Serdes.windowed(str, "1m"), "Serdes.windowed("),
        (Serdes.session_windowed(str), "Serdes.session_windowed("),
    ],
)
def test_a_plain_serde_recognises_the_key_of_a_window(
    serde: Any, windowed: Any, advice: str
) -> None:
    start = 1_795_262_400_000
    data = windowed.serialize("t", Windowed("ann", start, start + 60_000))
    with pytest.raises(SerializationError, match=re.escape(f"key_serde={advice}")):
        serde.deserialize("t", data)


@pytest.mark.parametrize("data", [b"\xff", b"ann\xff" + bytes(7), (1_795_262_400_000).to_bytes(8)])
def test_other_bytes_are_not_taken_for_the_key_of_a_window(data: bytes) -> None:
    with pytest.raises(SerializationError) as caught:
        Serdes.string().deserialize("t", data)
    assert "windowed" not in str(caught.value)
