"""`topology_optimization`: fewer topics, equal results, Kafka Streams' names.

Texts are from Kafka Streams' RepartitionOptimizingTest, RepartitionWithMergeOptimizingTest,
StreamsGraphTest and StreamsBuilderTest.
"""

from collections.abc import Callable
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tidewheel import (
    JoinWindows,
    KStream,
    Materialized,
    Processor,
    Serdes,
    StreamsBuilder,
    StreamsConfig,
    Topology,
)
from tidewheel.testing import TopologyTestDriver

STRING = Serdes.string()


def config_of(optimization: Any = "all", **options: Any) -> StreamsConfig:
    return StreamsConfig(
        application_id="app",
        bootstrap_servers="unused:9092",
        statestore_cache_max_bytes=0,
        topology_optimization=optimization,
        default_key_serde=STRING,
        default_value_serde=STRING,
        **options,
    )


PLAIN = config_of("none")


def text(expected: str) -> str:
    return dedent(expected).strip("\n") + "\n\n"


def repartition_topics(topology: Topology) -> list[str]:
    return sorted(topology.spec().repartition_topics)


def strings(builder: StreamsBuilder, topic: str, name: str | None = None) -> KStream[str, str]:
    return builder.stream(topic, key_serde=STRING, value_serde=STRING, name=name)


class Noting(Processor[str, str, None, None]):
    def process(self, record: Any) -> None:
        pass


def grouped_again_and_again(builder: StreamsBuilder) -> None:
    """RepartitionOptimizingTest."""
    mapped = strings(builder, "input", "sourceStream").map(
        lambda key, value: (key.upper(), value), name="source-map"
    )
    mapped.filter(lambda key, value: key == "B", name="process-filter").map_values(
        str.upper, name="process-mapValues"
    ).process(Noting, name="process")
    counts = mapped.group_by_key(name="count-groupByKey").count(
        store=Materialized("count-store", store_type="in_memory", key_serde=STRING), name="count"
    )
    counted = counts.to_stream(name="count-toStream")
    counted.to("outputTopic_0", name="count-to")
    mapped.group_by_key(name="aggregate-groupByKey").aggregate(
        lambda: 0,
        lambda key, value, total: total + len(value),
        store=Materialized("aggregate-store", store_type="in_memory", value_serde=int),
        name="aggregate",
    ).to_stream(name="aggregate-toStream").to("outputTopic_1", name="reduce-to")
    mapped.filter(lambda value: True, name="reduce-filter").peek(
        lambda value: None, name="reduce-peek"
    ).group_by_key(name="reduce-groupByKey").reduce(
        lambda first, second: f"{first}:{second}",
        store=Materialized("reduce-store", store_type="in_memory"),
        name="reducer",
    ).to_stream(name="reduce-toStream").to("outputTopic_2")
    mapped.filter(lambda key, value: key == "A", name="join-filter").join(
        counted,
        lambda word, count: f"{word}:{count}",
        within=JoinWindows(5_000),
        value_serde=STRING,
        other_value_serde=int,
        name="join",
    ).to("joinedOutputTopic", name="join-to")


GROUPED_ONCE = """
    Topologies:
       Sub-topology: 0
        Source: sourceStream (topics: [input])
          --> source-map
        Processor: source-map (stores: [])
          --> process-filter, count-groupByKey-repartition-filter
          <-- sourceStream
        Processor: process-filter (stores: [])
          --> process-mapValues
          <-- source-map
        Processor: count-groupByKey-repartition-filter (stores: [])
          --> count-groupByKey-repartition-sink
          <-- source-map
        Processor: process-mapValues (stores: [])
          --> process
          <-- process-filter
        Sink: count-groupByKey-repartition-sink (topic: count-groupByKey-repartition)
          <-- count-groupByKey-repartition-filter
        Processor: process (stores: [])
          --> none
          <-- process-mapValues

      Sub-topology: 1
        Source: count-groupByKey-repartition-source (topics: [count-groupByKey-repartition])
          --> aggregate, count, join-filter, reduce-filter
        Processor: count (stores: [count-store])
          --> count-toStream
          <-- count-groupByKey-repartition-source
        Processor: count-toStream (stores: [])
          --> join-other-windowed, count-to
          <-- count
        Processor: join-filter (stores: [])
          --> join-this-windowed
          <-- count-groupByKey-repartition-source
        Processor: reduce-filter (stores: [])
          --> reduce-peek
          <-- count-groupByKey-repartition-source
        Processor: join-other-windowed (stores: [join-other-join-store])
          --> join-other-join
          <-- count-toStream
        Processor: join-this-windowed (stores: [join-this-join-store])
          --> join-this-join
          <-- join-filter
        Processor: reduce-peek (stores: [])
          --> reducer
          <-- reduce-filter
        Processor: aggregate (stores: [aggregate-store])
          --> aggregate-toStream
          <-- count-groupByKey-repartition-source
        Processor: join-other-join (stores: [join-this-join-store])
          --> join-merge
          <-- join-other-windowed
        Processor: join-this-join (stores: [join-other-join-store])
          --> join-merge
          <-- join-this-windowed
        Processor: reducer (stores: [reduce-store])
          --> reduce-toStream
          <-- reduce-peek
        Processor: aggregate-toStream (stores: [])
          --> reduce-to
          <-- aggregate
        Processor: join-merge (stores: [])
          --> join-to
          <-- join-this-join, join-other-join
        Processor: reduce-toStream (stores: [])
          --> KSTREAM-SINK-0000000023
          <-- reducer
        Sink: KSTREAM-SINK-0000000023 (topic: outputTopic_2)
          <-- reduce-toStream
        Sink: count-to (topic: outputTopic_0)
          <-- count-toStream
        Sink: join-to (topic: joinedOutputTopic)
          <-- join-merge
        Sink: reduce-to (topic: outputTopic_1)
          <-- aggregate-toStream
    """

GROUPED_EACH_TIME = """
    Topologies:
       Sub-topology: 0
        Source: sourceStream (topics: [input])
          --> source-map
        Processor: source-map (stores: [])
          --> reduce-filter, process-filter, aggregate-groupByKey-repartition-filter, count-groupByKey-repartition-filter, join-filter
          <-- sourceStream
        Processor: reduce-filter (stores: [])
          --> reduce-peek
          <-- source-map
        Processor: join-filter (stores: [])
          --> join-left-repartition-filter
          <-- source-map
        Processor: process-filter (stores: [])
          --> process-mapValues
          <-- source-map
        Processor: reduce-peek (stores: [])
          --> reduce-groupByKey-repartition-filter
          <-- reduce-filter
        Processor: aggregate-groupByKey-repartition-filter (stores: [])
          --> aggregate-groupByKey-repartition-sink
          <-- source-map
        Processor: count-groupByKey-repartition-filter (stores: [])
          --> count-groupByKey-repartition-sink
          <-- source-map
        Processor: join-left-repartition-filter (stores: [])
          --> join-left-repartition-sink
          <-- join-filter
        Processor: process-mapValues (stores: [])
          --> process
          <-- process-filter
        Processor: reduce-groupByKey-repartition-filter (stores: [])
          --> reduce-groupByKey-repartition-sink
          <-- reduce-peek
        Sink: aggregate-groupByKey-repartition-sink (topic: aggregate-groupByKey-repartition)
          <-- aggregate-groupByKey-repartition-filter
        Sink: count-groupByKey-repartition-sink (topic: count-groupByKey-repartition)
          <-- count-groupByKey-repartition-filter
        Sink: join-left-repartition-sink (topic: join-left-repartition)
          <-- join-left-repartition-filter
        Processor: process (stores: [])
          --> none
          <-- process-mapValues
        Sink: reduce-groupByKey-repartition-sink (topic: reduce-groupByKey-repartition)
          <-- reduce-groupByKey-repartition-filter

      Sub-topology: 1
        Source: count-groupByKey-repartition-source (topics: [count-groupByKey-repartition])
          --> count
        Processor: count (stores: [count-store])
          --> count-toStream
          <-- count-groupByKey-repartition-source
        Processor: count-toStream (stores: [])
          --> join-other-windowed, count-to
          <-- count
        Source: join-left-repartition-source (topics: [join-left-repartition])
          --> join-this-windowed
        Processor: join-other-windowed (stores: [join-other-join-store])
          --> join-other-join
          <-- count-toStream
        Processor: join-this-windowed (stores: [join-this-join-store])
          --> join-this-join
          <-- join-left-repartition-source
        Processor: join-other-join (stores: [join-this-join-store])
          --> join-merge
          <-- join-other-windowed
        Processor: join-this-join (stores: [join-other-join-store])
          --> join-merge
          <-- join-this-windowed
        Processor: join-merge (stores: [])
          --> join-to
          <-- join-this-join, join-other-join
        Sink: count-to (topic: outputTopic_0)
          <-- count-toStream
        Sink: join-to (topic: joinedOutputTopic)
          <-- join-merge

      Sub-topology: 2
        Source: aggregate-groupByKey-repartition-source (topics: [aggregate-groupByKey-repartition])
          --> aggregate
        Processor: aggregate (stores: [aggregate-store])
          --> aggregate-toStream
          <-- aggregate-groupByKey-repartition-source
        Processor: aggregate-toStream (stores: [])
          --> reduce-to
          <-- aggregate
        Sink: reduce-to (topic: outputTopic_1)
          <-- aggregate-toStream

      Sub-topology: 3
        Source: reduce-groupByKey-repartition-source (topics: [reduce-groupByKey-repartition])
          --> reducer
        Processor: reducer (stores: [reduce-store])
          --> reduce-toStream
          <-- reduce-groupByKey-repartition-source
        Processor: reduce-toStream (stores: [])
          --> KSTREAM-SINK-0000000023
          <-- reducer
        Sink: KSTREAM-SINK-0000000023 (topic: outputTopic_2)
          <-- reduce-toStream
    """


def test_a_stream_with_several_groups_is_repartitioned_once() -> None:
    builder = StreamsBuilder()
    grouped_again_and_again(builder)
    assert str(builder.build(config_of()).describe()) == text(GROUPED_ONCE)
    assert str(builder.build(PLAIN).describe()) == text(GROUPED_EACH_TIME)


def merged_before_grouped(builder: StreamsBuilder) -> None:
    first, second = (
        strings(builder, f"input{each}", f"source{each}Stream").map(
            lambda key, value: (value.split(":")[0], value), name=f"mapped{each}Stream"
        )
        for each in "AB"
    )
    merged = first.merge(second, name="mergedStream")
    merged.group_by_key(name="long-groupByKey").count(
        store=Materialized("long-store", store_type="in_memory"), name="long-count"
    ).to_stream(name="long-toStream").to("outputTopic_0", name="long-to")
    merged.group_by_key(name="string-groupByKey").count(
        store=Materialized("string-store", store_type="in_memory"), name="string-count"
    ).to_stream(name="string-toStream").map_values(str, name="string-mapValues").to(
        "outputTopic_1", value_serde=STRING, name="string-to"
    )


MERGED_ONCE = """
    Topologies:
       Sub-topology: 0
        Source: sourceAStream (topics: [inputA])
          --> mappedAStream
        Source: sourceBStream (topics: [inputB])
          --> mappedBStream
        Processor: mappedAStream (stores: [])
          --> mergedStream
          <-- sourceAStream
        Processor: mappedBStream (stores: [])
          --> mergedStream
          <-- sourceBStream
        Processor: mergedStream (stores: [])
          --> long-groupByKey-repartition-filter
          <-- mappedAStream, mappedBStream
        Processor: long-groupByKey-repartition-filter (stores: [])
          --> long-groupByKey-repartition-sink
          <-- mergedStream
        Sink: long-groupByKey-repartition-sink (topic: long-groupByKey-repartition)
          <-- long-groupByKey-repartition-filter

      Sub-topology: 1
        Source: long-groupByKey-repartition-source (topics: [long-groupByKey-repartition])
          --> long-count, string-count
        Processor: string-count (stores: [string-store])
          --> string-toStream
          <-- long-groupByKey-repartition-source
        Processor: long-count (stores: [long-store])
          --> long-toStream
          <-- long-groupByKey-repartition-source
        Processor: string-toStream (stores: [])
          --> string-mapValues
          <-- string-count
        Processor: long-toStream (stores: [])
          --> long-to
          <-- long-count
        Processor: string-mapValues (stores: [])
          --> string-to
          <-- string-toStream
        Sink: long-to (topic: outputTopic_0)
          <-- long-toStream
        Sink: string-to (topic: outputTopic_1)
          <-- string-mapValues
    """


def test_merged_streams_are_repartitioned_once_behind_the_merge() -> None:
    builder = StreamsBuilder()
    merged_before_grouped(builder)
    assert str(builder.build(config_of()).describe()) == text(MERGED_ONCE)
    assert len(repartition_topics(builder.build(PLAIN))) == 2


def values_changed(builder: StreamsBuilder) -> None:
    """shouldNotOptimizeWithValueOrKeyChangingOperatorsAfterInitialKeyChange."""
    keyed = strings(builder, "input").select_key(lambda key, value: key + value)
    keyed.map_values(
        str.upper,
    ).group_by_key().count().to_stream().to("output")
    keyed.flat_map_values(str.split).group_by_key().count().to_stream().to("windowed-output")  # fmt: skip


def repartitioned_by_hand(builder: StreamsBuilder) -> None:
    """shouldNotOptimizeWhenRepartitionOperationIsDone."""
    keyed = strings(builder, "input").select_key(lambda key, value: key + value)
    keyed.repartition().group_by_key().count().to_stream().to("output")
    keyed.repartition().group_by_key().count().to_stream().to("windowed-output")


def merged_without_grouping(builder: StreamsBuilder) -> None:
    """shouldOptimizeSeveralMergeNodesWithCommonKeyChangingParent."""
    keyed = strings(builder, "input_topic").select_key(lambda key, value: key + value)
    first, second, third = (keyed.map_values(lambda value: value) for _ in range(3))
    first.merge(second).merge(third).to("output_topic")


def processed_in_between(builder: StreamsBuilder) -> None:
    """A processor may change keys again (KAFKA-19668)."""
    keyed = strings(builder, "in").select_key(lambda value: value)
    keyed.process(Rekeying).group_by_key().count()


def looked_up_in_between(builder: StreamsBuilder) -> None:
    """A global-table join changes values, and with them the serde of a group below."""
    names = builder.global_table("names", key_serde=STRING, value_serde=int)
    keyed = strings(builder, "in").select_key(lambda value: value)
    numbers = keyed.join(names, lambda value, number: number, key_selector=lambda value: value)
    numbers.group_by_key(value_serde=int).count()


def half_of_a_merge(builder: StreamsBuilder) -> None:
    """A stream with its own keys is merged in: only the merge may be repartitioned."""
    rekeyed = strings(builder, "a").select_key(lambda value: value)
    rekeyed.merge(strings(builder, "b")).group_by_key(name="merged").count()
    rekeyed.group_by_key(name="alone").count()


@pytest.mark.parametrize(
    ("program", "topics"),
    [(values_changed, 2), (repartitioned_by_hand, 2), (merged_without_grouping, 0), (half_of_a_merge, 2)],
)  # fmt: skip
def test_repartition_topics_that_cannot_be_shared_are_not_changed(
    program: Callable[[StreamsBuilder], None], topics: int
) -> None:
    builder = StreamsBuilder()
    program(builder)
    optimized = builder.build(config_of())
    assert str(optimized.describe()) == str(builder.build(PLAIN).describe())
    assert len(repartition_topics(optimized)) == topics


def test_a_single_repartitioning_moves_up_too() -> None:
    """As in Kafka Streams."""
    builder = StreamsBuilder()
    strings(builder, "in").select_key(lambda value: value).peek(print).group_by_key().count()
    sub = str(builder.build(config_of()).describe())
    assert "KSTREAM-KEY-SELECT-0000000001 (stores: [])\n      --> KSTREAM-AGGREGATE-STATE-STORE-0000000003-repartition-filter" in sub  # fmt: skip
    assert "-repartition-source (topics: [KSTREAM-AGGREGATE-STATE-STORE-0000000003-repartition])\n      --> KSTREAM-PEEK-0000000002" in sub  # fmt: skip


def test_two_groups_behind_one_filter_share_a_topic() -> None:
    """Kafka Streams fails on this program."""
    builder = StreamsBuilder()
    kept = strings(builder, "in").select_key(lambda value: value).filter(lambda value: value != "")
    kept.group_by_key(name="one").count(store="first")
    kept.group_by_key(name="two").reduce(max, store="second")
    topology = builder.build(config_of())
    assert repartition_topics(topology) == ["one-repartition"]
    with TopologyTestDriver(topology, config_of()) as driver:
        source = driver.create_input_topic("in", key_serde=STRING, value_serde=STRING)
        source.pipe_key_values([("k", "a"), ("k", ""), ("k", "a")])
        assert driver.get_state_store("first").get("a").value == 2
        assert driver.get_state_store("second").get("a").value == "a"


def test_a_build_does_not_change_the_builder() -> None:
    builder = StreamsBuilder()
    grouped_again_and_again(builder)
    plain = str(builder.build(PLAIN).describe())
    optimized = str(builder.build(config_of()).describe())
    assert str(builder.build(PLAIN).describe()) == plain
    strings(builder, "other").to("elsewhere", name="last")
    assert str(builder.build(config_of()).describe()).startswith(optimized.rstrip("\n"))
    assert "KSTREAM-SOURCE-0000000034" in str(builder.build(config_of()).describe()).rpartition("Sub-topology")[2]  # fmt: skip


STEPS = ("filter", "peek", "map_values", "select_key", "map", "merge", "process", "group", "count", "table", "repartition")  # fmt: skip
RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["in", "other"]),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["x", "y", "xy", "z"]),
    ),
    min_size=1,
    max_size=25,
)


MAKERS: dict[str, Callable[[KStream[Any, Any], KStream[Any, Any], int], KStream[Any, Any]]] = {
    "filter": lambda stream, _other, _number: stream.filter(lambda value: len(value) < 4),
    "peek": lambda stream, _other, _number: stream.peek(lambda value: None),
    "map_values": lambda stream, _other, _number: stream.map_values(lambda value: value + "v"),
    "select_key": lambda stream, _other, _number: stream.select_key(lambda value: value[0]),
    "map": lambda stream, _other, _number: stream.map(lambda key, value: (value[-1], key)),
    "merge": lambda stream, other, _number: stream.merge(other),
    "process": lambda stream, _other, number: stream.process(Rekeying, name=f"process-{number}"),
    "repartition": lambda stream, _other, number: stream.repartition(name=f"asked-{number}"),
    "table": lambda stream, _other, number: stream.to_table(store=f"table-{number}").to_stream(),
}


class Rekeying(Processor[str, str, str, str]):
    def process(self, record: Any) -> None:
        self.context.forward(record.replace(key=record.value[-1], value=record.key + record.value))


def random_program(builder: StreamsBuilder, steps: list[tuple[str, int]]) -> None:
    made = [strings(builder, "in"), strings(builder, "other")]
    for number, (step, which) in enumerate(steps):
        stream, other = made[which % len(made)], made[(which * 7 + 1) % len(made)]
        if step in MAKERS:
            made.append(MAKERS[step](stream, other, number))
        else:
            group = stream.group_by_key(name=f"g{number}" if step == "group" else None)
            group.count().to_stream().to(f"out-{number}", value_serde=int)
    for number, stream in enumerate(made):
        stream.to(f"all-{number}")


def results(topology: Topology, records: list[tuple[str, str, str]]) -> dict[str, Any]:
    with TopologyTestDriver(topology, config_of()) as driver:
        inputs = {
            topic: driver.create_input_topic(topic, key_serde=STRING, value_serde=STRING)
            for topic in ("in", "other")
            if topic in topology.source_topics
        }
        for number, (topic, key, value) in enumerate(records):
            if topic in inputs:
                inputs[topic].pipe_input(key, value, number)
        found: dict[str, Any] = {}
        for topic, raws in driver._outputs.items():
            if not topic.endswith("-repartition"):
                rows: dict[Any, list[Any]] = {}
                for raw in raws:
                    rows.setdefault(raw.key, []).append((raw.value, raw.timestamp))
                found[topic] = rows
        return found


@settings(max_examples=15)
@given(
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9)), min_size=2, max_size=9),
    records=RECORDS,
)
def test_results_do_not_depend_on_optimisation(
    steps: list[tuple[str, int]], records: list[tuple[str, str, str]]
) -> None:
    builder = StreamsBuilder()
    random_program(builder, steps)
    plain, optimized = builder.build(PLAIN), builder.build(config_of())
    fewer = len(repartition_topics(plain)) - len(repartition_topics(optimized))
    assert fewer >= 0
    event("fewer topics" if fewer else "as many topics")
    assert results(optimized, records) == results(plain, records)
