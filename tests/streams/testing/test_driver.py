import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tidewheel import (
    ErrorContext,
    ErrorResponse,
    Materialized,
    Processor,
    PunctuationType,
    RecordFailedError,
    Serdes,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    StreamsError,
    Topology,
)
from tidewheel.testing import TestRecord, TopologyTestDriver

STRING, INT = Serdes.string(), Serdes.int64()
TEXT: dict[str, Any] = {"key_serde": STRING, "value_serde": STRING}


def copying(source: Any = "in", to: Any = "out") -> Topology:
    builder = StreamsBuilder()
    builder.stream(source, **TEXT).to(to, **TEXT)
    return builder.build()


def counting(**store: Any) -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream("in", **TEXT).group_by(lambda value: value, key_serde=STRING)
    grouped.count(store=Materialized("counts", **store)).to_stream().to(
        "out", key_serde=STRING, value_serde=INT
    )
    return builder.build()


def test_copied_records_are_unchanged() -> None:
    with TopologyTestDriver(copying()) as driver:
        source = driver.create_input_topic("in", **TEXT)
        output = driver.create_output_topic("out", **TEXT)
        source.pipe_input("k", "v", 5, (("h", b"1"), ("h", None)))
        source.pipe_input(None, None, 6)
        assert output.queue_size == 2
        assert output.read_record() == TestRecord("k", "v", 5, (("h", b"1"), ("h", None)))
        assert output.read_record() == TestRecord(None, None, 6)
        assert output.is_empty
        with pytest.raises(LookupError, match="topic out has no more records"):
            output.read_record()


def test_results_are_read_in_many_ways() -> None:
    with TopologyTestDriver(copying()) as driver:
        source = driver.create_input_topic("in", **TEXT)
        output = driver.create_output_topic("out", **TEXT)
        source.pipe_key_values([(str(n), f"v{n}") for n in range(6)])
        assert output.read_value() == "v0"
        assert output.read_key_value() == ("1", "v1")
        assert output.read_record().value == "v2"
        assert output.read_key_values() == [("3", "v3"), ("4", "v4"), ("5", "v5")]
        assert output.read_records() == []


def test_an_input_that_is_no_source_topic_is_an_error() -> None:
    with (
        TopologyTestDriver(copying()) as driver,
        pytest.raises(StreamsError, match=r"other is not a source topic.*in"),
    ):
        driver.create_input_topic("other", **TEXT)


def test_timestamps_are_those_of_the_wall_clock_or_of_the_topic() -> None:
    with TopologyTestDriver(copying(), initial_wall_clock_ms=1_000) as driver:
        output = driver.create_output_topic("out", **TEXT)

        def times() -> list[int]:
            return [record.timestamp for record in output.read_records()]

        clock = driver.create_input_topic("in", **TEXT)
        clock.pipe_input("k", "v")
        driver.advance_wall_clock_time(timedelta(seconds=1))
        clock.pipe_input("k", "v")
        clock.pipe_input("k", "v", 7)
        clock.pipe_input("k", "v")
        assert times() == [1_000, 2_000, 7, 2_000]
        steady = driver.create_input_topic("in", start_timestamp_ms=50, auto_advance_ms=10, **TEXT)
        steady.pipe_key_values([("k", "1"), ("k", "2")])
        steady.advance_time(timedelta(seconds=1))
        steady.pipe_input("k", "3")
        assert times() == [50, 60, 1_070]
        fixed = driver.create_input_topic("in", start_timestamp_ms=9, **TEXT)
        fixed.pipe_key_values([("k", "1"), ("k", "2")])
        assert times() == [9, 9]


@pytest.mark.parametrize("record_by_record", [False, True])
def test_repartition_topics_are_processed_immediately(record_by_record: bool) -> None:
    with TopologyTestDriver(counting(), record_by_record=record_by_record) as driver:
        source = driver.create_input_topic("in", **TEXT)
        output = driver.create_output_topic("out", key_serde=STRING, value_serde=INT)
        for value, count in (("x", 1), ("y", 1), ("x", 2)):
            source.pipe_input(None, value, 3)
            assert output.read_records() == [TestRecord(value, count, 3)]
        assert driver.get_state_store("counts").get("x").value == 2
        assert set(driver.metrics()) == {"0_0", "1_0"}


def test_an_output_that_is_also_an_input_is_read_again() -> None:
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).to("middle", **TEXT)
    builder.stream("middle", **TEXT).map_values(str.upper).to("out", **TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", **TEXT).pipe_input("k", "v", 1)
        assert driver.create_output_topic("middle", **TEXT).read_value() == "v"
        assert driver.create_output_topic("out", **TEXT).read_value() == "V"


def test_a_batch_is_committed_once() -> None:
    for cache_bytes, expected in ((1 << 20, [3]), (0, [1, 2, 3])):
        config = StreamsConfig(
            application_id="b",
            bootstrap_servers="unused:9092",
            statestore_cache_max_bytes=cache_bytes,
        )
        builder = StreamsBuilder()
        builder.stream("in", **TEXT).group_by_key().count().to_stream().to(
            "out", key_serde=STRING, value_serde=INT
        )
        with TopologyTestDriver(builder.build(config), config) as driver:
            driver.create_input_topic("in", **TEXT).pipe_batch([("a", "", 1)] * 3)
            output = driver.create_output_topic("out", key_serde=STRING, value_serde=INT)
            assert [value for _, value in output.read_key_values()] == expected


def test_an_empty_batch_has_no_effect() -> None:
    with TopologyTestDriver(copying()) as driver:
        driver.create_input_topic("in", **TEXT).pipe_batch([])
        assert driver.create_output_topic("out", **TEXT).is_empty


def test_topics_of_a_pattern_match_when_they_are_created() -> None:
    seen: list[Any] = []

    class Look(Processor[Any, Any, Any, Any]):
        def process(self, record: Any) -> None:
            seen.append((self.context.record_metadata, record.value))

    topology = (
        Topology()
        .add_source("read", re.compile("in-[a-z]"), **TEXT)
        .add_processor("look", Look, "read")
    )
    with TopologyTestDriver(topology) as driver:
        a, b = (driver.create_input_topic(name, **TEXT) for name in ("in-a", "in-b"))
        for topic, value in ((a, "1"), (b, "2"), (a, "3")):
            topic.pipe_input("k", value, 1)
        with pytest.raises(StreamsError):
            driver.create_input_topic("in-ab", **TEXT)
    assert [((each.topic, each.offset), value) for each, value in seen] == [
        (("in-a", 0), "1"),
        (("in-b", 0), "2"),
        (("in-a", 1), "3"),
    ]


def test_dead_letters_are_readable_as_output() -> None:
    config = StreamsConfig(
        application_id="d",
        bootstrap_servers="unused:9092",
        deserialization_exception_handler="continue",
        dead_letter_queue_topic="dead",
    )
    builder = StreamsBuilder()
    builder.stream("in", key_serde=STRING, value_serde=INT).to(
        "out", key_serde=STRING, value_serde=INT
    )
    with TopologyTestDriver(builder.build(config), config) as driver:
        driver.create_input_topic("in", **TEXT).pipe_input("k", "no number", 5)
        assert driver.create_output_topic("out", **TEXT).is_empty
        letter = driver.create_output_topic("dead", **TEXT).read_record()
    assert (letter.key, letter.value, letter.timestamp) == ("k", "no number", 5)
    assert dict(letter.headers)["__streams.errors.offset"] == b"0"


def test_a_failing_record_fails_the_pipe() -> None:
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).map_values(int).to("out", key_serde=STRING, value_serde=INT)
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in", **TEXT)
        with pytest.raises(RecordFailedError, match="in-0 offset 0"):
            source.pipe_input("k", "no number", 1)
        source.pipe_input("k", "7", 2)
        assert (
            driver.create_output_topic("out", key_serde=STRING, value_serde=INT).read_value() == 7
        )


def test_stores_may_be_written_from_outside() -> None:
    class Add(Processor[Any, Any, Any, Any]):
        def process(self, record: Any) -> None:
            store = self.context.get_state_store("sums")
            store.put(record.key, (store.get(record.key) or 0) + 1)

    topology = Topology().add_source("read", "in", **TEXT).add_processor("add", Add, "read")
    topology.add_state_store(Stores.key_value("sums", key_serde=STRING, value_serde=INT), "add")
    with TopologyTestDriver(topology) as driver:
        store = driver.get_state_store("sums")
        store.put("k", 41)
        driver.create_input_topic("in", **TEXT).pipe_input("k", "v", 1)
        assert store.get("k") == 42
        assert list(driver.get_all_state_stores()) == ["sums"]
        with pytest.raises(StreamsError, match=r"no store other \(stores: sums\)"):
            driver.get_state_store("other")


def test_state_is_gone_with_the_driver_unless_a_directory_is_named(tmp_path: Path) -> None:
    with TopologyTestDriver(counting()) as driver:
        folder = driver._tasks[0].stores.directory.parent
        assert folder.exists()
    assert not folder.exists()
    config = StreamsConfig(application_id="kept", bootstrap_servers="unused:9092")
    for expected in (1, 2):
        with TopologyTestDriver(counting(), config, state_dir=tmp_path) as driver:
            driver.create_input_topic("in", **TEXT).pipe_input(None, "x", 1)
            assert driver.get_state_store("counts").get("x").value == expected
    assert (tmp_path / "kept").is_dir()


@pytest.mark.parametrize("source", ["argument", "environment", "file", "named file"])
@pytest.mark.parametrize("given", [True, False])
def test_a_state_directory_of_the_application_keeps_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, *, given: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    state = tmp_path / "state"
    file = tmp_path / ("other.toml" if source == "named file" else "tidewheel.toml")
    if source == "environment":
        monkeypatch.setenv("TIDEWHEEL_STATE_DIR", str(state))
    elif source != "argument":
        file.write_text(f'state_dir = "{state}"\n')
    options: dict[str, Any] = {"state_dir": state} if source == "argument" else {}
    if source == "named file":
        monkeypatch.setenv("TIDEWHEEL_CONFIG_FILE", str(file))
    for _ in range(2):
        config = StreamsConfig(application_id="shop", **options) if given else None
        assert config is None or config.state_dir == state
        with TopologyTestDriver(counting(), config) as driver:
            driver.create_input_topic("in", **TEXT).pipe_input(None, "x", 1)
            assert driver.get_state_store("counts").get("x").value == 1
    assert not state.exists()


def test_a_closed_driver_accepts_only_close() -> None:
    driver = TopologyTestDriver(counting(store_type="in_memory"))
    source = driver.create_input_topic("in", **TEXT)
    driver.close()
    driver.close()
    works: list[Callable[[], object]] = [
        lambda: source.pipe_input(None, "x", 1),
        lambda: driver.advance_wall_clock_time(1),
    ]
    for work in works:
        with pytest.raises(StreamsError, match="the driver is closed"):
            work()


@pytest.mark.parametrize("headers", [{"a": b"1"}, (("a", "text"),), ("ab",), b"ab"])
def test_headers_of_another_shape_are_refused(headers: Any) -> None:
    with TopologyTestDriver(counting()) as driver:
        source = driver.create_input_topic("in", **TEXT)
        with pytest.raises(StreamsError, match="give headers as"):
            source.pipe_input("k", "v", 1, headers)


def test_an_unchanged_clock_fires_no_punctuation() -> None:
    fired: list[int] = []

    class Tick(Processor[Any, Any, Any, Any]):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule(timedelta(seconds=1), PunctuationType.WALL_CLOCK_TIME, fired.append)

        def process(self, record: Any) -> None:
            pass

    topology = Topology().add_source("read", "in", **TEXT).add_processor("tick", Tick, "read")
    with TopologyTestDriver(topology, initial_wall_clock_ms=500) as driver:
        driver.advance_wall_clock_time(0)
        assert (fired, driver.wall_clock_ms) == ([], 500)
        driver.advance_wall_clock_time(1_000)
        assert fired == [1_500]


def test_a_topic_that_nothing_writes_to_can_not_be_read() -> None:
    """As in Kafka Streams' driver, when it is read; dead letters and repartition topics are readable."""
    config = StreamsConfig(
        application_id="app", bootstrap_servers="unused:9092", dead_letter_queue_topic="dead"
    )
    with TopologyTestDriver(counting(), config) as driver:
        wrong = driver.create_output_topic("uot", **TEXT)
        sinks = "app-counts-repartition, dead, out"
        reads: list[Callable[[], object]] = [
            wrong.read_record,
            wrong.read_records,
            wrong.read_key_values,
            lambda: wrong.is_empty,
            lambda: wrong.queue_size,
        ]
        for read in reads:
            with pytest.raises(StreamsError, match=rf"^uot is not a topic .*: {sinks}\)$"):
                read()
        for topic in sinks.split(", "):
            assert driver.create_output_topic(topic, **TEXT).read_records() == []


def test_a_topic_that_a_function_may_choose_can_be_read() -> None:
    with TopologyTestDriver(copying(to=lambda key, value, context: value)) as driver:
        assert driver.create_output_topic("chosen", **TEXT).read_records() == []

    def skip(context: ErrorContext, record: Any, error: Exception) -> ErrorResponse:
        return ErrorResponse(action="continue")

    config = StreamsConfig(
        application_id="app", bootstrap_servers="unused:9092", processing_exception_handler=skip
    )
    with TopologyTestDriver(copying(), config) as driver:
        assert driver.create_output_topic("letters", **TEXT).read_records() == []


def test_invalid_times_are_refused() -> None:
    with pytest.raises(
        StreamsError, match=r"initial_wall_clock_ms=-1 is no time; give int ms .* from 0"
    ):
        TopologyTestDriver(copying(), initial_wall_clock_ms=-1)
    with TopologyTestDriver(copying()) as driver:
        with pytest.raises(
            StreamsError, match="auto_advance_ms=-1 is too short; give at least 0 ms"
        ):
            driver.create_input_topic("in", **TEXT, auto_advance_ms=-1)
        source = driver.create_input_topic("in", **TEXT)
        for time in (1.5, "5", True):
            with pytest.raises(
                StreamsError, match=rf"timestamp={time!r}: .* int ms since the epoch"
            ):
                source.pipe_input("k", "v", time)  # type: ignore[arg-type]


@pytest.mark.parametrize("record_by_record", [False, True])
@pytest.mark.parametrize("agg_first", [False, True])
def test_records_of_equal_time_in_repartition_topics_keep_their_order(
    agg_first: bool, record_by_record: bool
) -> None:
    """As in Kafka Streams' driver: a stream joined with its own earlier aggregate finds itself."""
    builder = StreamsBuilder()
    text: dict[str, Any] = {"key_serde": str, "value_serde": str}
    keyed = builder.stream("in", **text).select_key(lambda key, value: value)
    other = keyed.repartition(name="a-first", **text) if not agg_first else keyed
    table = keyed.group_by_key(**text).reduce(lambda old, new: old + new)
    other.left_join(table, lambda left, right: f"{left}-{right}", **text).to("out", **text)
    with TopologyTestDriver(builder.build(), record_by_record=record_by_record) as driver:
        driver.create_input_topic("in", **text).pipe_input("a", "x", 1)
        output = driver.create_output_topic("out", **text)
        assert output.read_key_values() == [("x", "x-x" if agg_first else "x-None")]


def _appended(builder: StreamsBuilder, *numbers: str) -> None:
    stream = builder.stream("in", **TEXT)
    keyed = {number: stream.select_key(lambda key: key) for number in sorted(numbers)}
    grouped = [keyed[number].group_by_key(**TEXT, name=f"topic{number}") for number in numbers]

    def append(number: str) -> Any:
        return lambda key, value, text: text + number

    cogrouped = grouped[0].cogroup(append(numbers[0]))
    for number, group in zip(numbers[1:], grouped[1:], strict=True):
        cogrouped = cogrouped.cogroup(group, append(number))
    cogrouped.aggregate(str, value_serde=str).to_stream().to("out", **TEXT)


@pytest.mark.parametrize("record_by_record", [False, True])
@pytest.mark.parametrize("as_batch", [False, True])
@pytest.mark.parametrize(
    ("topics", "has_other", "expected"),
    [
        pytest.param("12", False, ["1", "12"], id="as made"),
        pytest.param("21", False, ["1", "12"], id="made last to first"),
        pytest.param("12", True, ["2", "21"], id="another sub-topology"),
    ],
)
def test_repartition_topics_alternate_as_in_kafka_streams(
    topics: str, has_other: bool, expected: list[str], as_batch: bool, record_by_record: bool
) -> None:
    """Ties go by arrival, depth first, in one queue of all sub-topologies with Java's sift order."""
    builder = StreamsBuilder()
    if has_other:
        builder.stream("in", **TEXT).group_by(lambda key, value: value, **TEXT).count()
    _appended(builder, *topics)
    with TopologyTestDriver(builder.build(), record_by_record=record_by_record) as driver:
        source = driver.create_input_topic("in", **TEXT)
        if as_batch:
            source.pipe_batch([("k", "v", 1)])
        else:
            source.pipe_input("k", "v", 1)
        output = driver.create_output_topic("out", **TEXT)
        assert [value for _, value in output.read_key_values()] == expected


@pytest.mark.parametrize("record_by_record", [False, True])
def test_each_record_of_a_repartition_topic_is_committed(record_by_record: bool) -> None:
    """As in Kafka Streams' driver: a cache still emits every result, except for batches."""
    config = StreamsConfig(
        application_id="c", bootstrap_servers="unused:9092", statestore_cache_max_bytes=1 << 20
    )
    builder = StreamsBuilder()
    words = builder.stream("in", **TEXT).flat_map_values(str.split)
    words.group_by(lambda word: word, **TEXT).count().to_stream().to(
        "out", key_serde=STRING, value_serde=INT
    )
    topology = builder.build(config)
    with TopologyTestDriver(topology, config, record_by_record=record_by_record) as driver:
        source = driver.create_input_topic("in", **TEXT)
        output = driver.create_output_topic("out", key_serde=STRING, value_serde=INT)
        source.pipe_input("k", "x x", 1)
        assert output.read_key_values() == [("x", 1), ("x", 2)]
        source.pipe_batch([("k", "x x", 1)])
        assert output.read_key_values() == [("x", 4)]
