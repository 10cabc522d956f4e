from typing import Any

import pytest

from tidewheel import (
    KGroupedTable,
    KTable,
    Materialized,
    Serdes,
    StreamsBuilder,
    StreamsConfig,
    TopologyError,
)

TEXT: dict[str, Any] = {"key_serde": str, "value_serde": str}


def grouped(builder: StreamsBuilder, **options: Any) -> KGroupedTable[Any, Any]:
    table = builder.table("input-topic", **TEXT)
    return table.group_by(lambda key, value: (value, key), **{**TEXT, **options})


def described(*, store: str | None = None) -> str:
    first = 4 if store is not None else 5
    name = store or "KTABLE-AGGREGATE-STATE-STORE-0000000004"
    sink, source, count = (f"{first + offset:010d}" for offset in range(3))
    return f"""Topologies:
   Sub-topology: 0
    Source: KSTREAM-SOURCE-0000000001 (topics: [input-topic])
      --> KTABLE-SOURCE-0000000002
    Processor: KTABLE-SOURCE-0000000002 (stores: [input-topic-STATE-STORE-0000000000])
      --> KTABLE-SELECT-0000000003
      <-- KSTREAM-SOURCE-0000000001
    Processor: KTABLE-SELECT-0000000003 (stores: [])
      --> KSTREAM-SINK-{sink}
      <-- KTABLE-SOURCE-0000000002
    Sink: KSTREAM-SINK-{sink} (topic: {name}-repartition)
      <-- KTABLE-SELECT-0000000003

  Sub-topology: 1
    Source: KSTREAM-SOURCE-{source} (topics: [{name}-repartition])
      --> KTABLE-AGGREGATE-{count}
    Processor: KTABLE-AGGREGATE-{count} (stores: [{name}])
      --> none
      <-- KSTREAM-SOURCE-{source}

"""


@pytest.mark.parametrize("store", [None, "count-store"])
def test_a_count_is_described_as_in_kafka_streams(store: str | None) -> None:
    builder = StreamsBuilder()
    grouped(builder).count(store=store)
    assert str(builder.build().describe()) == described(store=store)


def test_the_stores_of_all_aggregations_are_named_after_the_first_kind() -> None:
    """Kafka Streams' reduce: store KTABLE-AGGREGATE-, node KTABLE-REDUCE-."""
    builder = StreamsBuilder()
    table = grouped(builder).reduce(lambda total, value: total, lambda total, value: total)
    assert repr(table) == "<KTable KTABLE-REDUCE-0000000007>"
    assert builder.build().store_names == (
        "KTABLE-AGGREGATE-STATE-STORE-0000000004",
        "input-topic-STATE-STORE-0000000000",
    )


def test_names_are_used_for_nodes_and_topics() -> None:
    builder = StreamsBuilder()
    grouped(builder, name="by-value").count(name="counted")
    text = str(builder.build().describe())
    assert "Processor: by-value (stores: [])" in text
    assert "Sink: counted-sink (topic: by-value-repartition)" in text
    assert "Source: counted-source (topics: [by-value-repartition])" in text
    assert "Processor: counted (stores: [counted])" in text


def test_aggregations_of_one_named_group_share_its_topic() -> None:
    named, unnamed = StreamsBuilder(), StreamsBuilder()
    both = grouped(named, name="by-value")
    assert repr(both.count()) == "<KTable KTABLE-AGGREGATE-0000000007>"
    assert repr(both.count()) == "<KTable KTABLE-AGGREGATE-0000000011>"
    assert str(named.build().describe()).count("Sink: ") == 1
    each = grouped(unnamed)
    each.count()
    each.count()
    assert str(unnamed.build().describe()).count("Sink: ") == 2


def test_a_group_without_an_aggregation_needs_no_serdes() -> None:
    builder = StreamsBuilder()
    builder.table("input-topic", **TEXT).group_by(lambda value: (value, value))
    assert "repartition" not in str(builder.build().describe())


def test_missing_serdes_of_a_group_are_refused_at_build() -> None:
    builder = StreamsBuilder()
    table = builder.table("input-topic", **TEXT)
    counts = table.group_by(lambda key, value: (value, 1)).count()
    assert isinstance(counts, KTable)
    with pytest.raises(
        TopologyError, match=r"'KTABLE-SELECT-\d+' .*: no key serde; give .* or grouped"
    ):
        builder.build()
    config = StreamsConfig(
        application_id="t",
        bootstrap_servers="unused:9092",
        default_key_serde=Serdes.string(),
        default_value_serde=Serdes.int64(),
    )
    builder.build(config)


def test_explicit_naming_finds_the_topic_of_a_grouped_table() -> None:
    builder = StreamsBuilder()
    grouped(builder).count()
    config = StreamsConfig(
        application_id="t", bootstrap_servers="unused:9092", ensure_explicit_naming=True
    )
    with pytest.raises(
        TopologyError, match=r"topic KTABLE-AGGREGATE-STATE-STORE-0000000004-repartition \("
    ):
        builder.build(config)


def test_functions_of_the_wrong_form_are_refused_by_the_call() -> None:
    table: Any = StreamsBuilder().table("in", **TEXT)
    with pytest.raises(TopologyError, match=r"group_by \(.*test_kgrouped_table.py:\d+\): mapper"):
        table.group_by(lambda one, two, three: None)
    group: Any = grouped(StreamsBuilder())
    with pytest.raises(
        TopologyError, match=r"reduce \(.*: reducer .* must take \(aggregate, value"
    ):
        group.reduce(lambda one: one, lambda one, two: one)
    with pytest.raises(
        TopologyError, match=r"aggregate \(.*: aggregator .* must take \(key, value"
    ):
        group.aggregate(lambda: 0, lambda one, two, three: 0, lambda one: 0)
    with pytest.raises(TopologyError, match="value_serde is given twice"):
        group.aggregate(
            lambda: 0,
            lambda one, two, three: 0,
            lambda one, two, three: 0,
            store=Materialized(value_serde=int),
            value_serde=int,
        )
