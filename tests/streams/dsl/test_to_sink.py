"""`KStream.to_sink`: its sub-topology, its internal topic, and sinks in the test driver."""

from typing import Any

import pytest

from tidewheel import (
    Processor,
    Record,
    RecordFailedError,
    Serdes,
    StreamsBuilder,
    StreamsConfig,
    Topology,
    TopologyError,
)
from tidewheel.sinks import InMemory, RefusedRow, RowsRefused, Sink, SinkBatch
from tidewheel.testing import TopologyTestDriver

TEXT: dict[str, Any] = {"key_serde": str, "value_serde": str}


def topics_read_by_sinks(topology: Topology) -> list[list[str]]:
    """Return the topics of each sub-topology with a sink."""
    return [
        [topic for source in subtopology.sources for topic in source.topics]
        for subtopology in topology.spec().subtopologies
        if subtopology.external_sink is not None
    ]


def test_sink_alone_reads_the_source_topics_itself() -> None:
    builder = StreamsBuilder()
    left, right = builder.stream("left", **TEXT), builder.stream("right", **TEXT)
    merged = left.filter(bool).merge(right.map_values(str.upper)).select_key(len)
    merged.to_sink(InMemory(), name="list")  # no serde is needed
    topology = builder.build()
    assert topics_read_by_sinks(topology) == [["left", "right"]]
    assert len(topology.spec().subtopologies) == 1


class Passing(Processor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)


@pytest.mark.parametrize("beside", ["to", "state", "processor", "sink"])
def test_internal_topic_comes_between_anything_else_and_the_sink(beside: str) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXT)
    match beside:
        case "to":
            stream.to("out")
        case "state":
            stream.group_by_key().count(store="counts")
        case "processor":
            stream = stream.process(Passing)
        case _:
            stream.to_sink(InMemory(), name="other")
    stream.to_sink(InMemory(), name="list", **TEXT)
    topology = builder.build()
    topics = ["list-sink-repartition"]
    if beside == "sink":
        topics.insert(0, "other-sink-repartition")
    assert sorted(topics_read_by_sinks(topology)) == [[topic] for topic in sorted(topics)]
    assert topology.spec().repartition_topics == dict.fromkeys(topics)


def test_sink_behind_a_repartition_reads_its_topic_itself() -> None:
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).repartition(name="wide").to_sink(InMemory(), name="list")
    assert topics_read_by_sinks(builder.build()) == [["wide-repartition"]]


def test_description_names_the_target_and_the_hash_does_not() -> None:
    def topology(sink: Sink) -> Topology:
        builder = StreamsBuilder()
        builder.stream("in", **TEXT).to_sink(sink, name="list")
        return builder.build()

    class Other(InMemory): ...

    assert "Sink: list (external: InMemory)" in str(topology(InMemory()).describe())
    nodes = topology(InMemory()).describe().to_dict()["subtopologies"][0]["nodes"]
    assert nodes[1]["external"] == "InMemory"
    assert topology(InMemory()).hash() == topology(Other()).hash()


def test_internal_topic_needs_serdes() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXT)
    stream.to("out")
    stream.map_values(len).to_sink(InMemory(), name="list")
    with pytest.raises(TopologyError, match=r"list-sink-repartition.*to_sink\(\)"):
        builder.build()


def test_wrong_calls_are_rejected() -> None:
    stream = StreamsBuilder().stream("in", **TEXT)
    with pytest.raises(TopologyError, match="is no sink"):
        stream.to_sink("postgres")  # type: ignore[arg-type]
    named = StreamsBuilder()
    named.stream("in", **TEXT).to_sink(InMemory())
    config = StreamsConfig(application_id="a", bootstrap_servers="h:1", ensure_explicit_naming=True)
    with pytest.raises(TopologyError, match="sink KSTREAM-SINK-0000000001"):
        named.build(config)
    built = StreamsBuilder()
    built.stream("in", name="read", **TEXT).to_sink(InMemory(), name="list")
    topology = built.build().add_sink("late", "out", ["read"], **TEXT)
    with pytest.raises(TopologyError, match=r"'late'.*sink 'list'"):
        topology.spec()
    with pytest.raises(TopologyError, match="'list' is a sink"):
        built.build().add_sink("below", "out", ["list"], **TEXT)


def test_driver_writes_at_once_with_columns_of_the_records() -> None:
    batches: list[SinkBatch] = []

    class Batches(InMemory):
        def write(self, batch: SinkBatch) -> None:
            batches.append(batch)

    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=str, value_serde=int)
    stream.filter(lambda value: value != 2).to_sink(Batches(), name="list")
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in", key_serde=str, value_serde=int)
        source.pipe_input("a", 1, 5, (("h", b"x"),))
        source.pipe_input("b", 2, 6)
        source.pipe_input(None, None, 7)
    columns = [
        (list(batch.offsets), list(batch.keys), list(batch.values), list(batch.timestamps))
        for batch in batches
    ]
    assert columns == [([0], ["a"], [1], [5]), ([2], [None], [None], [7])]
    assert batches[0].headers_of(0) == (("h", b"x"),)
    assert (batches[0].topic, batches[0].partition) == ("in", 0)


def test_driver_runs_through_the_internal_topic_and_keeps_null_keys() -> None:
    sink, builder = InMemory(), StreamsBuilder()
    stream = builder.stream("in", **TEXT)
    stream.to("out")
    stream.to_sink(sink, name="list")
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in", **TEXT)
        source.pipe_key_values([("a", "1"), (None, "2"), ("b", None)])
        assert sink.rows == [("a", "1"), (None, "2"), ("b", None)]
        assert driver.metrics()["1_0"]["sink-rows-total"] == 3


class Positive(InMemory):
    """Refuses negative values."""

    def flush(self, positions: Any) -> None:
        refused = [
            RefusedRow(batch, row, ValueError("negative"))
            for batch in self.batches
            for row, value in enumerate(batch.values)
            if value < 0
        ]
        if refused:
            raise RowsRefused(refused)
        super().flush(positions)

    def open(self, task: Any) -> Any:
        self.batches: list[SinkBatch] = []
        return super().open(task)

    def write(self, batch: SinkBatch) -> None:
        self.batches.append(batch)
        super().write(batch)


def test_driver_gives_refused_rows_to_the_handler() -> None:
    sink, builder = Positive(), StreamsBuilder()
    builder.stream("in", key_serde=str, value_serde=int).flat_map_values(
        lambda value: [value, -value, 3 * value]
    ).to_sink(sink, name="list")
    config = StreamsConfig(
        application_id="a",
        bootstrap_servers="h:1",
        production_exception_handler="continue",
        dead_letter_queue_topic="dead",
    )
    with TopologyTestDriver(builder.build(), config) as driver:
        driver.create_input_topic("in", key_serde=str, value_serde=int).pipe_input("a", 1)
        letters = driver.create_output_topic("dead", key_serde=str, value_serde=Serdes.int64())
        assert sink.rows == [("a", 1), ("a", 3)]
        letter = letters.read_record()
        assert (letter.key, letter.value) == ("a", 1)
        assert dict(letter.headers)["__streams.errors.message"] == b"negative"
        assert driver.metrics()["0_0"]["skipped-records-total"] == 1


def test_driver_raises_for_a_refused_row_by_default() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key_serde=str, value_serde=int).to_sink(Positive(), name="list")
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in", key_serde=str, value_serde=int)
        with pytest.raises(RecordFailedError, match=r"negative.*production_exception_handler"):
            source.pipe_input("a", -1)
