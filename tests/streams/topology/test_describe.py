"""`describe()` equals Kafka Streams' text.

Expected texts are from Kafka Streams' documentation and tests (see `source`), the tutorial's in
today's layout.
"""

from collections.abc import Callable
from functools import partial
from operator import add
from textwrap import dedent
from typing import Any

import pytest

from tidewheel.streams.definitions.materialized import Materialized
from tidewheel.streams.definitions.stores import Stores
from tidewheel.streams.dsl.builder import StreamsBuilder
from tidewheel.streams.dsl.kstream import KStream
from tidewheel.streams.serdes import Serdes
from tidewheel.streams.topology.topology import Topology
from tidewheel.streams.windows import TimeWindows
from tidewheel.tasks.processing.api.processor import Processor

Program = Callable[[StreamsBuilder], object]
CASES: dict[str, tuple[Program, str]] = {}


def case(expected: str) -> Callable[[Program], Program]:
    def register(program: Program) -> Program:
        CASES[program.__name__] = (program, dedent(expected).strip("\n") + "\n\n")
        return program

    return register


def text_stream(builder: StreamsBuilder, topic: str = "input") -> KStream[str, str]:
    return builder.stream(topic, key_serde=str, value_serde=str)


@case("""
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [streams-plaintext-input])
          --> KSTREAM-SINK-0000000001
        Sink: KSTREAM-SINK-0000000001 (topic: streams-pipe-output)
          <-- KSTREAM-SOURCE-0000000000
    """)
def tutorial_pipe(builder: StreamsBuilder) -> None:
    text_stream(builder, "streams-plaintext-input").to("streams-pipe-output")


@case("""
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [streams-plaintext-input])
          --> KSTREAM-FLATMAPVALUES-0000000001
        Processor: KSTREAM-FLATMAPVALUES-0000000001 (stores: [])
          --> KSTREAM-SINK-0000000002
          <-- KSTREAM-SOURCE-0000000000
        Sink: KSTREAM-SINK-0000000002 (topic: streams-linesplit-output)
          <-- KSTREAM-FLATMAPVALUES-0000000001
    """)
def tutorial_line_split(builder: StreamsBuilder) -> None:
    lines = text_stream(builder, "streams-plaintext-input")
    lines.flat_map_values(str.split).to("streams-linesplit-output", value_serde=str)


@case("""
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [streams-plaintext-input])
          --> KSTREAM-FLATMAPVALUES-0000000001
        Processor: KSTREAM-FLATMAPVALUES-0000000001 (stores: [])
          --> KSTREAM-KEY-SELECT-0000000002
          <-- KSTREAM-SOURCE-0000000000
        Processor: KSTREAM-KEY-SELECT-0000000002 (stores: [])
          --> counts-store-repartition-filter
          <-- KSTREAM-FLATMAPVALUES-0000000001
        Processor: counts-store-repartition-filter (stores: [])
          --> counts-store-repartition-sink
          <-- KSTREAM-KEY-SELECT-0000000002
        Sink: counts-store-repartition-sink (topic: counts-store-repartition)
          <-- counts-store-repartition-filter

      Sub-topology: 1
        Source: counts-store-repartition-source (topics: [counts-store-repartition])
          --> KSTREAM-AGGREGATE-0000000003
        Processor: KSTREAM-AGGREGATE-0000000003 (stores: [counts-store])
          --> KTABLE-TOSTREAM-0000000007
          <-- counts-store-repartition-source
        Processor: KTABLE-TOSTREAM-0000000007 (stores: [])
          --> KSTREAM-SINK-0000000008
          <-- KSTREAM-AGGREGATE-0000000003
        Sink: KSTREAM-SINK-0000000008 (topic: streams-wordcount-output)
          <-- KTABLE-TOSTREAM-0000000007
    """)
def tutorial_word_count(builder: StreamsBuilder) -> None:
    lines = text_stream(builder, "streams-plaintext-input")
    words = lines.flat_map_values(str.split)
    groups = words.group_by(lambda word: word, key_serde=str, value_serde=str)
    groups.count(store="counts-store").to_stream().to("streams-wordcount-output")


@case("""
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [input])
          --> KSTREAM-FILTER-0000000001
        Processor: KSTREAM-FILTER-0000000001 (stores: [])
          --> KSTREAM-MAPVALUES-0000000002
          <-- KSTREAM-SOURCE-0000000000
        Processor: KSTREAM-MAPVALUES-0000000002 (stores: [])
          --> KSTREAM-SINK-0000000003
          <-- KSTREAM-FILTER-0000000001
        Sink: KSTREAM-SINK-0000000003 (topic: output)
          <-- KSTREAM-MAPVALUES-0000000002
    """)
def naming_guide_unnamed(builder: StreamsBuilder) -> None:
    stream = text_stream(builder)
    valid = stream.filter(lambda value: value != "invalid_txn")
    valid.map_values(lambda value: value[:5]).to("output", value_serde=str)


@case("""
    Topologies:
       Sub-topology: 0
        Source: Customer_transactions_input_topic (topics: [input])
          --> filter_out_invalid_txns
        Processor: filter_out_invalid_txns (stores: [])
          --> Map_values_to_first_6_characters
          <-- Customer_transactions_input_topic
        Processor: Map_values_to_first_6_characters (stores: [])
          --> Mapped_transactions_output_topic
          <-- filter_out_invalid_txns
        Sink: Mapped_transactions_output_topic (topic: output)
          <-- Map_values_to_first_6_characters
    """)
def naming_guide_named(builder: StreamsBuilder) -> None:
    stream = builder.stream(
        "input", key_serde=str, value_serde=str, name="Customer_transactions_input_topic"
    )
    valid = stream.filter(lambda value: value != "invalid_txn", name="filter_out_invalid_txns")
    short = valid.map_values(lambda value: value[:5], name="Map_values_to_first_6_characters")
    short.to("output", value_serde=str, name="Mapped_transactions_output_topic")


@case("""
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [input])
          --> KSTREAM-AGGREGATE-0000000002
        Processor: KSTREAM-AGGREGATE-0000000002 (stores: [KSTREAM-AGGREGATE-STATE-STORE-0000000001])
          --> KTABLE-TOSTREAM-0000000003
          <-- KSTREAM-SOURCE-0000000000
        Processor: KTABLE-TOSTREAM-0000000003 (stores: [])
          --> KSTREAM-SINK-0000000004
          <-- KSTREAM-AGGREGATE-0000000002
        Sink: KSTREAM-SINK-0000000004 (topic: output)
          <-- KTABLE-TOSTREAM-0000000003
    """)
def naming_guide_count(builder: StreamsBuilder) -> None:
    text_stream(builder).group_by_key().count().to_stream().to("output")


@case("""
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [input])
          --> KSTREAM-FILTER-0000000001
        Processor: KSTREAM-FILTER-0000000001 (stores: [])
          --> KSTREAM-AGGREGATE-0000000003
          <-- KSTREAM-SOURCE-0000000000
        Processor: KSTREAM-AGGREGATE-0000000003 (stores: [KSTREAM-AGGREGATE-STATE-STORE-0000000002])
          --> KTABLE-TOSTREAM-0000000004
          <-- KSTREAM-FILTER-0000000001
        Processor: KTABLE-TOSTREAM-0000000004 (stores: [])
          --> KSTREAM-SINK-0000000005
          <-- KSTREAM-AGGREGATE-0000000003
        Sink: KSTREAM-SINK-0000000005 (topic: output)
          <-- KTABLE-TOSTREAM-0000000004
    """)
def naming_guide_filtered_count(builder: StreamsBuilder) -> None:
    long = text_stream(builder).filter(lambda value: len(value) >= 6)
    long.group_by_key().count().to_stream().to("output")


@case("""
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [input])
          --> KSTREAM-FILTER-0000000001
        Processor: KSTREAM-FILTER-0000000001 (stores: [])
          --> KSTREAM-AGGREGATE-0000000002
          <-- KSTREAM-SOURCE-0000000000
        Processor: KSTREAM-AGGREGATE-0000000002 (stores: [Purchase_count_store])
          --> KTABLE-TOSTREAM-0000000003
          <-- KSTREAM-FILTER-0000000001
        Processor: KTABLE-TOSTREAM-0000000003 (stores: [])
          --> KSTREAM-SINK-0000000004
          <-- KSTREAM-AGGREGATE-0000000002
        Sink: KSTREAM-SINK-0000000004 (topic: output)
          <-- KTABLE-TOSTREAM-0000000003
    """)
def naming_guide_named_store(builder: StreamsBuilder) -> None:
    long = text_stream(builder).filter(lambda value: len(value) >= 6)
    long.group_by_key().count(store="Purchase_count_store").to_stream().to("output")


@case("""
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [input-topic])
          --> KSTREAM-AGGREGATE-0000000003
        Processor: KSTREAM-AGGREGATE-0000000003 (stores: [KSTREAM-AGGREGATE-STATE-STORE-0000000002])
          --> none
          <-- KSTREAM-SOURCE-0000000000
    """)
def anonymous_materialized_count(builder: StreamsBuilder) -> None:
    store = Materialized(store_type="in_memory")
    text_stream(builder, "input-topic").group_by_key().count(store=store)


@case("""
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [input])
          --> KSTREAM-TOTABLE-0000000001
        Processor: KSTREAM-TOTABLE-0000000001 (stores: [])
          --> KTABLE-TOSTREAM-0000000003
          <-- KSTREAM-SOURCE-0000000000
        Processor: KTABLE-TOSTREAM-0000000003 (stores: [])
          --> KSTREAM-SINK-0000000004
          <-- KSTREAM-TOTABLE-0000000001
        Sink: KSTREAM-SINK-0000000004 (topic: output)
          <-- KTABLE-TOSTREAM-0000000003
    """)
def to_table_is_not_kept(builder: StreamsBuilder) -> None:
    text_stream(builder).to_table().to_stream().to("output")


@case("""
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [input])
          --> KSTREAM-TOTABLE-0000000001
        Processor: KSTREAM-TOTABLE-0000000001 (stores: [store])
          --> none
          <-- KSTREAM-SOURCE-0000000000
    """)
def to_table_is_kept(builder: StreamsBuilder) -> None:
    text_stream(builder).to_table(store=Materialized("store", store_type="in_memory"))


@case("""
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [input])
          --> KSTREAM-MAP-0000000001
        Processor: KSTREAM-MAP-0000000001 (stores: [])
          --> KSTREAM-FILTER-0000000005
          <-- KSTREAM-SOURCE-0000000000
        Processor: KSTREAM-FILTER-0000000005 (stores: [])
          --> KSTREAM-SINK-0000000004
          <-- KSTREAM-MAP-0000000001
        Sink: KSTREAM-SINK-0000000004 (topic: KSTREAM-TOTABLE-0000000002-repartition)
          <-- KSTREAM-FILTER-0000000005

      Sub-topology: 1
        Source: KSTREAM-SOURCE-0000000006 (topics: [KSTREAM-TOTABLE-0000000002-repartition])
          --> KSTREAM-TOTABLE-0000000002
        Processor: KSTREAM-TOTABLE-0000000002 (stores: [])
          --> KTABLE-TOSTREAM-0000000007
          <-- KSTREAM-SOURCE-0000000006
        Processor: KTABLE-TOSTREAM-0000000007 (stores: [])
          --> KSTREAM-SINK-0000000008
          <-- KSTREAM-TOTABLE-0000000002
        Sink: KSTREAM-SINK-0000000008 (topic: output)
          <-- KTABLE-TOSTREAM-0000000007
    """)
def to_table_after_a_changed_key(builder: StreamsBuilder) -> None:
    mapped = text_stream(builder).map(lambda key, value: (ord(key[0]), value))
    mapped.to_table(store=Materialized(key_serde=Serdes.int32()), value_serde=str).to_stream().to(
        "output"
    )


@case("""
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [input])
          --> p
        Processor: p (stores: [sum])
          --> none
          <-- KSTREAM-SOURCE-0000000000
    """)
def process_with_a_store(builder: StreamsBuilder) -> None:
    builder.add_state_store(Stores.key_value("sum", key_serde=str, value_serde=int))
    text_stream(builder).process(Processor[str, str, str, str], stores=["sum"], name="p")


@case("""
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [input])
          --> p
        Processor: p (stores: [])
          --> KSTREAM-SINK-0000000001
          <-- KSTREAM-SOURCE-0000000000
        Sink: KSTREAM-SINK-0000000001 (topic: output)
          <-- p
    """)
def named_process_uses_up_no_number(builder: StreamsBuilder) -> None:
    made = text_stream(builder).process(Processor[str, str, str, int], name="p")
    made.to("output", key_serde=str, value_serde=int)


@case("""
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [input_topic])
          --> KSTREAM-KEY-SELECT-0000000001
        Processor: KSTREAM-KEY-SELECT-0000000001 (stores: [])
          --> KSTREAM-MAPVALUES-0000000002, KSTREAM-MAPVALUES-0000000003, KSTREAM-MAPVALUES-0000000004
          <-- KSTREAM-SOURCE-0000000000
        Processor: KSTREAM-MAPVALUES-0000000002 (stores: [])
          --> KSTREAM-MERGE-0000000005
          <-- KSTREAM-KEY-SELECT-0000000001
        Processor: KSTREAM-MAPVALUES-0000000003 (stores: [])
          --> KSTREAM-MERGE-0000000005
          <-- KSTREAM-KEY-SELECT-0000000001
        Processor: KSTREAM-MAPVALUES-0000000004 (stores: [])
          --> KSTREAM-MERGE-0000000006
          <-- KSTREAM-KEY-SELECT-0000000001
        Processor: KSTREAM-MERGE-0000000005 (stores: [])
          --> KSTREAM-MERGE-0000000006
          <-- KSTREAM-MAPVALUES-0000000002, KSTREAM-MAPVALUES-0000000003
        Processor: KSTREAM-MERGE-0000000006 (stores: [])
          --> KSTREAM-SINK-0000000007
          <-- KSTREAM-MERGE-0000000005, KSTREAM-MAPVALUES-0000000004
        Sink: KSTREAM-SINK-0000000007 (topic: output_topic)
          <-- KSTREAM-MERGE-0000000006
    """)
def merges_in_a_row(builder: StreamsBuilder) -> None:
    numbers = builder.stream("input_topic", key_serde=int, value_serde=int)
    parent = numbers.select_key(lambda key, value: key + value)
    first, second, third = (parent.map_values(partial(add, n)) for n in (1, 2, 3))
    first.merge(second, third).to("output_topic", key_serde=int, value_serde=int)


@case("""
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000001 (topics: [input-topic])
          --> KTABLE-SOURCE-0000000002
        Processor: KTABLE-SOURCE-0000000002 (stores: [])
          --> KTABLE-MAPVALUES-0000000003
          <-- KSTREAM-SOURCE-0000000001
        Processor: KTABLE-MAPVALUES-0000000003 (stores: [])
          --> none
          <-- KTABLE-SOURCE-0000000002
    """)
def table_map_values(builder: StreamsBuilder) -> None:
    builder.table("input-topic", key_serde=str, value_serde=str).map_values(lambda value: None)


@case("""
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000001 (topics: [input-topic])
          --> KTABLE-SOURCE-0000000002
        Processor: KTABLE-SOURCE-0000000002 (stores: [])
          --> KTABLE-MAPVALUES-0000000004
          <-- KSTREAM-SOURCE-0000000001
        Processor: KTABLE-MAPVALUES-0000000004 (stores: [])
          --> none
          <-- KTABLE-SOURCE-0000000002
    """)
def table_map_values_anonymous_store(builder: StreamsBuilder) -> None:
    table = builder.table("input-topic", key_serde=str, value_serde=str)
    table.map_values(lambda value: None, store=Materialized(store_type="in_memory"))


@case("""
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000001 (topics: [input-topic])
          --> KTABLE-SOURCE-0000000002
        Processor: KTABLE-SOURCE-0000000002 (stores: [])
          --> KTABLE-FILTER-0000000003
          <-- KSTREAM-SOURCE-0000000001
        Processor: KTABLE-FILTER-0000000003 (stores: [store-name])
          --> none
          <-- KTABLE-SOURCE-0000000002
    """)
def table_filter_named_store(builder: StreamsBuilder) -> None:
    table = builder.table("input-topic", key_serde=str, value_serde=str)
    table.filter(lambda key, value: False, store="store-name")


@case("""
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [input-topic])
          --> KSTREAM-SINK-0000000001
        Sink: KSTREAM-SINK-0000000001 (extractor class: topic_by_key)
          <-- KSTREAM-SOURCE-0000000000
    """)
def dynamic_topic(builder: StreamsBuilder) -> None:
    text_stream(builder, "input-topic").to(topic_by_key)


def topic_by_key(key: str, value: str, context: Any) -> str:
    return f"{context.topic}-{key}"


@case("""
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000001 (topics: [in2])
          --> KSTREAM-AGGREGATE-0000000006, KSTREAM-AGGREGATE-0000000010, KSTREAM-MERGE-0000000013
        Processor: KSTREAM-AGGREGATE-0000000006 (stores: [KSTREAM-AGGREGATE-STATE-STORE-0000000005])
          --> KTABLE-TOSTREAM-0000000007
          <-- KSTREAM-SOURCE-0000000001
        Processor: KSTREAM-AGGREGATE-0000000010 (stores: [KSTREAM-AGGREGATE-STATE-STORE-0000000009])
          --> KTABLE-TOSTREAM-0000000011
          <-- KSTREAM-SOURCE-0000000001
        Source: KSTREAM-SOURCE-0000000000 (topics: [in1])
          --> KSTREAM-MERGE-0000000013
        Processor: KTABLE-TOSTREAM-0000000007 (stores: [])
          --> KSTREAM-KEY-SELECT-0000000008
          <-- KSTREAM-AGGREGATE-0000000006
        Processor: KTABLE-TOSTREAM-0000000011 (stores: [])
          --> KSTREAM-KEY-SELECT-0000000012
          <-- KSTREAM-AGGREGATE-0000000010
        Processor: KSTREAM-KEY-SELECT-0000000008 (stores: [])
          --> none
          <-- KTABLE-TOSTREAM-0000000007
        Processor: KSTREAM-KEY-SELECT-0000000012 (stores: [])
          --> none
          <-- KTABLE-TOSTREAM-0000000011
        Processor: KSTREAM-MERGE-0000000013 (stores: [])
          --> none
          <-- KSTREAM-SOURCE-0000000001, KSTREAM-SOURCE-0000000000

      Sub-topology: 1
        Source: KSTREAM-SOURCE-0000000003 (topics: [t])
          --> KTABLE-SOURCE-0000000004
        Processor: KTABLE-SOURCE-0000000004 (stores: [])
          --> none
          <-- KSTREAM-SOURCE-0000000003
    """)
def parents_are_ordered_by_what_is_below_them(builder: StreamsBuilder) -> None:
    one, two = text_stream(builder, "in1"), text_stream(builder, "in2")
    builder.table("t", key_serde=str, value_serde=str)
    for _ in range(2):
        counts = two.group_by_key().windowed_by(TimeWindows(5)).count()
        counts.to_stream().select_key(lambda key, _: key.start)
    one.merge(two)


@case("""
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [in1])
          --> f9j
        Source: KSTREAM-SOURCE-0000000001 (topics: [in2])
          --> KSTREAM-TOTABLE-0000000002
        Processor: KSTREAM-TOTABLE-0000000002 (stores: [f9])
          --> none
          <-- KSTREAM-SOURCE-0000000001
        Processor: f9j (stores: [f9j-Buffer, f9])
          --> none
          <-- KSTREAM-SOURCE-0000000000
    """)
def a_buffer_is_connected_before_the_table(builder: StreamsBuilder) -> None:
    stream, other = text_stream(builder, "in1"), text_stream(builder, "in2")
    table = other.to_table(store=Materialized("f9", store_type="versioned", history_retention=100))
    stream.join(table, lambda left, right: left + right, grace=5, name="f9j")


@case("""
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [q, a, b])
          --> KSTREAM-PROCESSOR-0000000001
        Processor: KSTREAM-PROCESSOR-0000000001 (stores: [a, q, b])
          --> none
          <-- KSTREAM-SOURCE-0000000000
    """)
def topics_and_stores_in_the_order_of_a_hash_set(builder: StreamsBuilder) -> None:
    for name in "aqb":
        builder.add_state_store(Stores.key_value(name, key_serde=str, value_serde=str))
    source = builder.stream(["b", "q", "a"], key_serde=str, value_serde=str)
    source.process(Processor, stores=["a", "q", "b"])


@case("""
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [in1])
          --> KSTREAM-MERGE-0000000003
        Source: KSTREAM-SOURCE-0000000001 (topics: [in2])
          --> KSTREAM-MERGE-0000000003
        Processor: KSTREAM-MERGE-0000000003 (stores: [])
          --> none
          <-- KSTREAM-SOURCE-0000000001, KSTREAM-SOURCE-0000000000
    """)
def a_source_that_stands_in_for_another_is_the_last_parent(builder: StreamsBuilder) -> None:
    _, two, again = (text_stream(builder, topic) for topic in ("in1", "in2", "in1"))
    again.merge(two)


@pytest.mark.parametrize("name", CASES)
def test_text_is_that_of_kafka_streams(name: str) -> None:
    program, expected = CASES[name]
    builder = StreamsBuilder()
    program(builder)
    assert str(builder.build().describe()) == expected


def test_empty_topology() -> None:
    """As in Kafka Streams."""
    assert str(Topology().describe()) == "Topologies:\n "


def test_the_execution_mode_is_printed_below_the_number() -> None:
    builder = StreamsBuilder()
    text_stream(builder).group_by(lambda value: value, key_serde=str).count(store="counts")
    text_stream(builder, "other").process(Processor[str, str, str, str], name="own")
    lines = str(builder.build().describe(execution=True)).splitlines()
    modes = [line for line in lines if "Sub-topology" in line or "Execution" in line]
    assert modes == [
        "   Sub-topology: 0",
        "    Execution: batch",
        "  Sub-topology: 1",
        "    Execution: batch",
        "  Sub-topology: 2",
        "    Execution: record by record: own is a processor of the Processor API",
    ]
