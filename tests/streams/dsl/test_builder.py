import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tidewheel.state_stores.spec import StoreKind
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.definitions.materialized import Materialized
from tidewheel.streams.definitions.stores import Stores
from tidewheel.streams.dsl.builder import StreamsBuilder
from tidewheel.streams.errors import ConfigError, TopologyError
from tidewheel.streams.kafka_streams import KafkaStreams
from tidewheel.streams.serdes import Serde, Serdes
from tidewheel.streams.topology.topology import Topology
from tidewheel.tasks.processing.api.processor import Processor
from tidewheel.tasks.processing.api.record import ConsumedRecord
from tidewheel.tasks.processing.api.timestamps import (
    FailOnInvalidTimestamp,
    LogAndSkipOnInvalidTimestamp,
    UsePartitionTimeOnInvalidTimestamp,
    WallclockTimestampExtractor,
)
from tidewheel.tasks.processing.api.topology_spec import SinkSpec, SourceSpec
from tidewheel.testing import TopologyTestDriver


def config(**options: Any) -> StreamsConfig:
    return StreamsConfig(application_id="app", bootstrap_servers="localhost:9092", **options)


def node(topology: Topology, name: str) -> Any:
    found = [n for sub in topology.draft().subtopologies for n in sub.nodes if n.name == name]
    assert len(found) == 1, f"{name} is not a node of {topology.describe()}"
    return found[0]


def stores(topology: Topology) -> dict[str, Any]:
    return {spec.name: spec for sub in topology.draft().subtopologies for spec in sub.stores}


def test_serdes_are_inherited_from_the_parent_node() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key_serde=int, value_serde=str).filter(bool).peek(print).to("out")
    sink = node(builder.build(), "KSTREAM-SINK-0000000003")
    assert (sink.key_serde, sink.value_serde) == (Serdes.int64(), Serdes.string())


def test_given_serdes_override_inherited_ones() -> None:
    builder = StreamsBuilder()
    text: Any = builder.stream("in", value_serde=str)
    text.to("out", value_serde=bytes)
    topology = builder.build(config(default_key_serde=float, default_value_serde=float))
    sink = node(topology, "KSTREAM-SINK-0000000001")
    assert (sink.key_serde, sink.value_serde) == (Serdes.float64(), Serdes.bytes())
    assert node(topology, "KSTREAM-SOURCE-0000000000").value_serde is Serdes.string()


@pytest.mark.parametrize("change", ["map", "flat_map", "select_key", "process", "group_by"])
def test_a_changed_key_loses_its_serde(change: str) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=str, value_serde=str)
    match change:
        case "map":
            stream.map(lambda value: (value, value)).to("out", value_serde=str)
        case "flat_map":
            stream.flat_map(lambda value: [(value, value)]).to("out", value_serde=str)
        case "select_key":
            stream.select_key(len).to("out")
        case "process":
            stream.process(Processor[str, str, str, str]).to("out", value_serde=str)
        case _:
            stream.group_by(len).count()
    with pytest.raises(
        TopologyError, match=r"test_builder.py:\d+\): no key serde; give key_serde="
    ):
        builder.build()


@pytest.mark.parametrize("change", ["map_values", "flat_map_values", "map"])
def test_a_changed_value_loses_its_serde(change: str) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=str, value_serde=str)
    match change:
        case "map_values":
            stream.map_values(len).to("out")
        case "flat_map_values":
            stream.flat_map_values(str.split).to("out")
        case _:
            stream.map(lambda value: (value, value)).to("out", key_serde=str)
    with pytest.raises(
        TopologyError, match=r"'KSTREAM-SINK-0000000002' \(.*:\d+\): no value serde;"
    ):
        builder.build()


def test_the_default_fills_in() -> None:
    builder = StreamsBuilder()
    builder.stream("in").group_by(len).aggregate(list, lambda k, v, a: a, store="lists")
    topology = builder.build(config(default_key_serde=str, default_value_serde="json"))
    source = node(topology, "lists-repartition-source")
    assert source.key_serde is Serdes.string()
    assert stores(topology)["lists"].value_serde is Serdes.json()


def test_merged_streams_keep_a_serde_they_share() -> None:
    builder = StreamsBuilder()
    left: Any = builder.stream("left", key_serde=str, value_serde=str)
    left.merge(builder.stream("right", key_serde=str, value_serde=bytes)).to("out", value_serde=str)
    sink = node(builder.build(), "KSTREAM-SINK-0000000003")
    assert sink.key_serde is Serdes.string()
    other = StreamsBuilder()
    left = other.stream("left", key_serde=str, value_serde=str)
    left.merge(other.stream("right", key_serde=str, value_serde=bytes)).to("out")
    with pytest.raises(TopologyError, match="no value serde"):
        other.build()


def test_a_count_is_an_int64() -> None:
    builder = StreamsBuilder()
    words = builder.stream("in", key_serde=str, value_serde=str).group_by_key()
    words.count(store="a").to_stream().to("out")
    words.count(store=Materialized("b", value_serde=Serdes.int32()))
    topology = builder.build()
    assert stores(topology)["a"].value_serde is Serdes.int64()
    assert stores(topology)["a"].key_serde is Serdes.string()
    assert stores(topology)["b"].value_serde is Serdes.int32()
    assert node(topology, "KSTREAM-SINK-0000000003").value_serde is Serdes.int64()


def test_a_tables_store_may_bring_the_serdes() -> None:
    builder = StreamsBuilder()
    builder.table("in", store=Materialized("s", key_serde=str, value_serde=int))
    topology = builder.build()
    source = node(topology, "KSTREAM-SOURCE-0000000000")
    assert (source.key_serde, source.value_serde) == (Serdes.string(), Serdes.int64())
    assert stores(topology)["s"].value_serde is Serdes.int64()


def test_a_mapped_tables_store_brings_its_serde() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", key_serde=str, value_serde=str)
    lengths = table.map_values(len, store=Materialized("lengths", value_serde=Serdes.int32()))
    lengths.to_stream().to("out")
    assert node(builder.build(), "KSTREAM-SINK-0000000005").value_serde is Serdes.int32()


def test_settings_of_a_table_reach_its_store() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in", key_serde=str, value_serde=str).group_by_key()
    grouped.count(store="plain")
    grouped.count(
        store=Materialized(
            "tuned",
            store_type="in_memory",
            caching=False,
            changelog_config={"min.insync.replicas": "2"},
        )
    )
    grouped.count(store=Materialized("unlogged", logging=False))
    made = stores(builder.build())
    assert made["plain"].kind is StoreKind.TIMESTAMPED_KEY_VALUE
    assert (made["plain"].persistent, made["plain"].caching, made["plain"].logging) == (True,) * 3
    assert (made["tuned"].persistent, made["tuned"].caching, made["unlogged"].logging) == (
        False,
    ) * 3
    assert made["tuned"].changelog_config == {"min.insync.replicas": "2"}


def test_queryable_names() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=str, value_serde=str)
    grouped = stream.group_by_key()
    assert grouped.count(store="counts").queryable_store_name == "counts"
    assert grouped.count(name="clicks").queryable_store_name == "clicks"
    assert grouped.count().queryable_store_name is None
    assert stream.to_table().queryable_store_name is None
    assert stream.to_table(store="last").queryable_store_name == "last"
    table = builder.table("other", key_serde=str, value_serde=str, store="rows")
    assert table.queryable_store_name == "rows"
    assert table.filter(bool).queryable_store_name is None
    assert table.filter(bool, store=Materialized(caching=False)).queryable_store_name is None
    assert table.map_values(len, store="lengths").queryable_store_name == "lengths"


def test_stores_of_processors_may_be_added_after_their_use() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=str, value_serde=str)
    stream.process(Processor[str, str, str, str], stores=["seen"], name="p")
    builder.add_state_store(Stores.key_value("seen", key_serde=str, value_serde=int))
    assert node(builder.build(), "p").stores == ("seen",)


def test_two_tables_can_not_share_a_store_by_accident() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in", key_serde=str, value_serde=str).group_by_key()
    grouped.count(store="counts")
    grouped.reduce(max, store="counts")
    with pytest.raises(
        TopologyError, match=r"store 'counts' \(.*:\d+\): there is another .* \(.*:\d+\)"
    ):
        builder.build()


def test_the_same_topic_is_consumed_once() -> None:
    builder = StreamsBuilder()
    builder.stream(["a", "b"], key_serde=str, value_serde=str).filter(bool)
    builder.stream(["b", "a"], key_serde=str, value_serde=str).filter(bool)
    pattern = re.compile("x.*")
    builder.stream(pattern, key_serde=str, value_serde=str).to("one")
    builder.stream(re.compile("x.*"), key_serde=str, value_serde=str).to("two")
    nodes = [[n.name for n in sub.nodes] for sub in builder.build().draft().subtopologies]
    assert nodes == [
        ["KSTREAM-SOURCE-0000000000", "KSTREAM-FILTER-0000000001", "KSTREAM-FILTER-0000000003"],
        ["KSTREAM-SOURCE-0000000004", "KSTREAM-SINK-0000000005", "KSTREAM-SINK-0000000007"],
    ]


def test_a_stream_merged_with_itself_read_twice_has_one_parent() -> None:
    """As in Kafka Streams."""
    builder = StreamsBuilder()
    one = builder.stream("in", key_serde=str, value_serde=str)
    one.merge(builder.stream("in", key_serde=str, value_serde=str)).to("out")
    merge = node(builder.build(), "KSTREAM-MERGE-0000000002")
    assert merge.parents == ("KSTREAM-SOURCE-0000000000",)


def test_different_sources_of_one_topic_are_refused() -> None:
    for message, first, second in (
        ("but with another offset_reset", {"offset_reset": "earliest"}, {}),
        ("but with another key_serde", {}, {"key_serde": bytes}),
        ("but with another timestamp_extractor", {}, {"timestamp_extractor": lambda r, p: 0}),
        ("but together with other topics", {}, {"topics": ["in", "more"]}),
    ):
        builder = StreamsBuilder()
        options: Any = {"topics": "in", "key_serde": str, "value_serde": str}
        builder.stream(**(options | first))
        builder.stream(**(options | second))
        with pytest.raises(TopologyError, match=message):
            builder.build()


class ByField:
    def __init__(self, field: str) -> None:
        self.field = field

    def __call__(self, record: ConsumedRecord, partition_time: int) -> int:
        return int(record.value[self.field])

    def extract(self, record: ConsumedRecord, partition_time: int) -> int:
        return self(record, partition_time)


class Upper(Serde[str]):
    def serialize(self, topic: str, value: str) -> bytes:
        return value.upper().encode()

    def deserialize(self, topic: str, data: bytes) -> str:
        return data.decode()


def by_field(field: str) -> Callable[[ConsumedRecord, int], int]:
    return lambda record, partition_time: int(record.value[field])


def field_of(field: str, record: ConsumedRecord, partition_time: int) -> int:
    return int(record.value[field])


def at_field(record: ConsumedRecord, partition_time: int) -> int:
    return int(record.value["at"])


EXTRACTORS: list[Callable[[], Any]] = [
    WallclockTimestampExtractor,
    FailOnInvalidTimestamp,
    LogAndSkipOnInvalidTimestamp,
    UsePartitionTimeOnInvalidTimestamp,
    lambda: WallclockTimestampExtractor,
    lambda: ByField("at"),
    lambda: ByField("at").extract,
    lambda: by_field("at"),
    lambda: partial(field_of, "at"),
]


@pytest.mark.parametrize("make", EXTRACTORS)
@pytest.mark.parametrize("topics", ["in", ["in", "more"], re.compile("in.*")])
def test_a_topic_read_twice_with_equal_extractors_and_serdes_is_one_source(
    make: Callable[[], Any], topics: Any
) -> None:
    builder = StreamsBuilder()
    for name in ("one", "two"):
        stream = builder.stream(
            topics, key_serde=str, value_serde=Upper(), timestamp_extractor=make()
        )
        stream.to(name)
    (subtopology,) = builder.build().spec().subtopologies
    assert len(subtopology.sources) == 1


UNEQUAL: list[tuple[Any, Any]] = [
    (WallclockTimestampExtractor(), FailOnInvalidTimestamp()),
    (ByField("at"), ByField("sent")),
    (ByField("at").extract, ByField("sent").extract),
    (by_field("at"), by_field("sent")),
    (partial(field_of, "at"), partial(field_of, "sent")),
    (by_field("at"), at_field),
    (WallclockTimestampExtractor(), None),
]


@pytest.mark.parametrize(("one", "other"), UNEQUAL)
def test_extractors_that_differ_are_refused(one: Any, other: Any) -> None:
    builder = StreamsBuilder()
    for extractor in (one, other):
        builder.stream("in", key_serde=str, value_serde=str, timestamp_extractor=extractor)
    with pytest.raises(TopologyError, match="but with another timestamp_extractor"):
        builder.build()


def test_a_table_does_not_share_its_topic() -> None:
    for first in ("stream", "table"):
        builder = StreamsBuilder()
        getattr(builder, first)("in", key_serde=str, value_serde=str)
        builder.table("in", key_serde=str, value_serde=str)
        with pytest.raises(TopologyError, match=r"topic 'in' is read already by 'KSTREAM-SOURCE-"):
            builder.build()


def test_a_topic_that_is_written_may_be_read() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key_serde=str, value_serde=str).to("middle")
    builder.stream("middle", key_serde=str, value_serde=str).to("out")
    assert len(builder.build().spec().subtopologies) == 2


def test_build_may_be_called_again() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=str, value_serde=str)
    first = builder.build()
    stream.select_key(len).group_by_key(key_serde=int).count(store="counts")
    second, third = builder.build(), builder.build()
    assert first.store_names == ()
    assert second.store_names == ("counts",)
    assert str(second.describe()) == str(third.describe())
    assert second.hash() == third.hash()


def test_empty_builder() -> None:
    with pytest.raises(TopologyError, match="the topology is empty"):
        StreamsBuilder().build()


def test_an_unused_store_is_omitted() -> None:
    """As in Kafka Streams."""
    builder = StreamsBuilder()
    builder.stream("in", key_serde=str, value_serde=str)
    builder.add_state_store(Stores.key_value("seen", key_serde=str, value_serde=int))
    assert [sub.stores for sub in builder.build().spec().subtopologies] == [()]


def test_a_builder_is_no_topology() -> None:
    builder: Any = StreamsBuilder()
    builder.stream("in", key_serde=str, value_serde=str)
    with pytest.raises(TopologyError, match=r"^TopologyTestDriver: .*StreamsBuilder; give builder"):
        TopologyTestDriver(builder)
    with pytest.raises(TopologyError, match=r"^KafkaStreams: .*StreamsBuilder; give builder.build"):
        KafkaStreams(builder, config())
    nothing: Any = 7
    with pytest.raises(
        TopologyError, match=r"of type int; give the result of StreamsBuilder.build\(\)"
    ):
        TopologyTestDriver(nothing)


@pytest.mark.parametrize(
    ("given", "step"),
    [
        (None, r"NoneType; give StreamsConfig\(application_id="),
        ({}, r"dict; give StreamsConfig\(\*\*"),
    ],
)
def test_a_config_of_another_type_is_refused(given: Any, step: str) -> None:
    builder = StreamsBuilder()
    builder.stream("in", key_serde=str, value_serde=str)
    with pytest.raises(ConfigError, match=rf"^KafkaStreams: the config is of type {step}"):
        KafkaStreams(builder.build(), given)
    if given is not None:
        with pytest.raises(ConfigError, match=r"^TopologyTestDriver: the config is of type dict"):
            TopologyTestDriver(builder.build(), given)


def test_unknown_store_of_a_processor() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=str, value_serde=str)
    stream.group_by_key().count(store="counts")
    stream.process(Processor[str, str, str, str], stores=["conts"])
    message = r"'KSTREAM-PROCESSOR-0000000002' \(.*\): store 'conts' .*; did you mean 'counts'\?"
    with pytest.raises(TopologyError, match=message):
        builder.build()


def test_strict_naming_lists_every_generated_name() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=str, value_serde=str)
    stream.group_by(lambda value: value, key_serde=str).count()
    stream.repartition()
    stream.group_by_key().count(store="named")
    strict = config(ensure_explicit_naming=True)
    with pytest.raises(TopologyError) as refused:
        builder.build(strict)
    message = str(refused.value)
    assert "store KSTREAM-AGGREGATE-STATE-STORE-0000000002 (" in message
    assert "repartition topic KSTREAM-AGGREGATE-STATE-STORE-0000000002-repartition (" in message
    assert "repartition topic KSTREAM-REPARTITION-0000000007-repartition (" in message
    assert "store named" not in message
    named = StreamsBuilder()
    stream = named.stream("in", key_serde=str, value_serde=str)
    stream.group_by(lambda value: value, key_serde=str, name="by-value").count(name="counts")
    stream.repartition(name="wide")
    stream.to_table()  # not stored, so without a generated name
    assert named.build(strict).store_names == ("counts",)


def test_repartition_topics_and_their_ends() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=str, value_serde=str)
    stream.repartition(name="wide", partitions=12, partitioner=lambda topic, key, value, n: 0)
    stream.select_key(len).group_by_key(key_serde=int, name="narrow").count()
    topology = builder.build()
    assert topology.spec().repartition_topics == {
        "wide-repartition": 12,
        "narrow-repartition": None,
    }
    sink, source = (
        node(topology, "wide-repartition-sink"),
        node(topology, "wide-repartition-source"),
    )
    assert isinstance(sink, SinkSpec)
    assert isinstance(source, SourceSpec)
    assert (sink.internal, source.internal) == (True, True)
    assert sink.partitioner is not None
    assert sink.key_serde is source.key_serde is Serdes.string()
    assert topology.source_topics == ("in",)
