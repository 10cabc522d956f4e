from collections.abc import Callable
from typing import Any

import pytest

from tests.tasks.loop.bench import Bench
from tidewheel import (
    KTable,
    Materialized,
    Serdes,
    StreamsBuilder,
    StreamsConfig,
    StreamsError,
    Topology,
    TopologyError,
)
from tidewheel.tasks.kafka.internal_topics import plan_application

STRING = Serdes.string()
SERDES: dict[str, Any] = {"key_serde": STRING, "value_serde": STRING}

Use = Callable[[KTable[str, str], KTable[str, str]], KTable[str, Any]]


def topology_of(use: Use, config: StreamsConfig | None = None) -> Topology:
    builder = StreamsBuilder()
    use(builder.table("left", **SERDES), builder.table("right", **SERDES)).to_stream().to(
        "out", **SERDES
    )
    return builder.build(config)


def joined(left: str | None, right: str | None) -> str:
    return f"({left},{right})"


def target(value: str) -> str | None:
    return value.partition("|")[2] or None


#: `Topology.describe()` of Kafka Streams 4.3.1.
ON_KEY = """\
Topologies:
   Sub-topology: 0
    Source: KSTREAM-SOURCE-0000000001 (topics: [left])
      --> KTABLE-SOURCE-0000000002
    Source: KSTREAM-SOURCE-0000000004 (topics: [right])
      --> KTABLE-SOURCE-0000000005
    Processor: KTABLE-SOURCE-0000000002 (stores: [left-STATE-STORE-0000000000])
      --> KTABLE-JOINTHIS-0000000008
      <-- KSTREAM-SOURCE-0000000001
    Processor: KTABLE-SOURCE-0000000005 (stores: [right-STATE-STORE-0000000003])
      --> KTABLE-JOINOTHER-0000000009
      <-- KSTREAM-SOURCE-0000000004
    Processor: KTABLE-JOINOTHER-0000000009 (stores: [left-STATE-STORE-0000000000])
      --> KTABLE-MERGE-0000000007
      <-- KTABLE-SOURCE-0000000005
    Processor: KTABLE-JOINTHIS-0000000008 (stores: [right-STATE-STORE-0000000003])
      --> KTABLE-MERGE-0000000007
      <-- KTABLE-SOURCE-0000000002
    Processor: KTABLE-MERGE-0000000007 (stores: [KTABLE-MERGE-STATE-STORE-0000000006])
      --> KTABLE-TOSTREAM-0000000010
      <-- KTABLE-JOINTHIS-0000000008, KTABLE-JOINOTHER-0000000009
    Processor: KTABLE-TOSTREAM-0000000010 (stores: [])
      --> KSTREAM-SINK-0000000011
      <-- KTABLE-MERGE-0000000007
    Sink: KSTREAM-SINK-0000000011 (topic: out)
      <-- KTABLE-TOSTREAM-0000000010"""

ON_FOREIGN_KEY = """\
Topologies:
   Sub-topology: 0
    Source: KTABLE-SOURCE-0000000016 (topics: [KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000014-topic])
      --> KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-RESOLVER-PROCESSOR-0000000017
    Source: KSTREAM-SOURCE-0000000001 (topics: [left])
      --> KTABLE-SOURCE-0000000002
    Processor: KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-RESOLVER-PROCESSOR-0000000017 (stores: [left-STATE-STORE-0000000000])
      --> KTABLE-FK-JOIN-OUTPUT-0000000018
      <-- KTABLE-SOURCE-0000000016
    Processor: KTABLE-FK-JOIN-OUTPUT-0000000018 (stores: [])
      --> KTABLE-TOSTREAM-0000000020
      <-- KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-RESOLVER-PROCESSOR-0000000017
    Processor: KTABLE-SOURCE-0000000002 (stores: [left-STATE-STORE-0000000000])
      --> KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000007
      <-- KSTREAM-SOURCE-0000000001
    Processor: KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000007 (stores: [])
      --> KTABLE-SINK-0000000008
      <-- KTABLE-SOURCE-0000000002
    Processor: KTABLE-TOSTREAM-0000000020 (stores: [])
      --> KSTREAM-SINK-0000000021
      <-- KTABLE-FK-JOIN-OUTPUT-0000000018
    Sink: KSTREAM-SINK-0000000021 (topic: out)
      <-- KTABLE-TOSTREAM-0000000020
    Sink: KTABLE-SINK-0000000008 (topic: KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000006-topic)
      <-- KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000007

  Sub-topology: 1
    Source: KSTREAM-SOURCE-0000000004 (topics: [right])
      --> KTABLE-SOURCE-0000000005
    Source: KTABLE-SOURCE-0000000009 (topics: [KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000006-topic])
      --> KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR-0000000011
    Processor: KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR-0000000011 (stores: [KTABLE-FK-JOIN-SUBSCRIPTION-STATE-STORE-0000000010])
      --> KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR-0000000012
      <-- KTABLE-SOURCE-0000000009
    Processor: KTABLE-SOURCE-0000000005 (stores: [right-STATE-STORE-0000000003])
      --> KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR-0000000013
      <-- KSTREAM-SOURCE-0000000004
    Processor: KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR-0000000012 (stores: [right-STATE-STORE-0000000003])
      --> KTABLE-SINK-0000000015
      <-- KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR-0000000011
    Processor: KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR-0000000013 (stores: [KTABLE-FK-JOIN-SUBSCRIPTION-STATE-STORE-0000000010])
      --> KTABLE-SINK-0000000015
      <-- KTABLE-SOURCE-0000000005
    Sink: KTABLE-SINK-0000000015 (topic: KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000014-topic)
      <-- KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR-0000000012, KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR-0000000013"""


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda left, right: left.join(right, joined, store=Materialized(**SERDES)), ON_KEY),
        (lambda left, right: left.join(right, joined, foreign_key=target), ON_FOREIGN_KEY),
    ],
)
def test_nodes_have_kafka_streams_names(use: Use, expected: str) -> None:
    assert str(topology_of(use).describe()).strip() == expected


def test_a_join_s_name_is_in_the_names_of_its_parts() -> None:
    """As in Kafka Streams' Named and TableJoined."""
    named = topology_of(lambda left, right: left.outer_join(right, joined, name="mine"))
    names = {node.name for sub in named.spec().subtopologies for node in sub.nodes}
    assert {"mine", "mine-join-this", "mine-join-other", "KTABLE-TOSTREAM-0000000009"} <= names
    named = topology_of(
        lambda left, right: left.join(right, joined, foreign_key=target, name="mine")
    )
    assert {node.name for sub in named.spec().subtopologies for node in sub.nodes} >= {
        "mine-subscription-registration-processor",
        "mine-subscription-registration-sink",
        "mine-subscription-registration-source",
        "mine-subscription-receive",
        "mine-subscription-join-foreign",
        "mine-foreign-join-subscription",
        "mine-subscription-response-sink",
        "mine-subscription-response-source",
        "mine-subscription-response-resolver",
        "mine-result",
        "KTABLE-TOSTREAM-0000000020",
    }
    assert named.spec().repartition_topics.keys() == {
        "mine-subscription-registration-topic",
        "mine-subscription-response-topic",
    }
    assert "mine-subscription-store" in named.store_names


def test_a_join_result_has_a_store_only_if_one_is_given() -> None:
    builder = StreamsBuilder()
    left, right = builder.table("left", **SERDES), builder.table("right", **SERDES)
    assert left.join(right, joined, store="kept").queryable_store_name == "kept"
    assert left.join(right, joined).queryable_store_name is None
    assert left.join(right, joined, store=Materialized()).queryable_store_name is None
    kept = left.join(right, joined, foreign_key=target, store="by-target")
    assert kept.queryable_store_name == "by-target"


def test_explicit_naming_requires_names_for_all_parts_of_a_foreign_key_join() -> None:
    config = StreamsConfig(
        application_id="app", bootstrap_servers="unused:9092", ensure_explicit_naming=True
    )

    def tables(builder: StreamsBuilder) -> tuple[KTable[str, str], KTable[str, str]]:
        return (
            builder.table("left", **SERDES, store="left"),
            builder.table("right", **SERDES, store="right"),
        )

    builder = StreamsBuilder()
    left, right = tables(builder)
    left.join(right, joined, foreign_key=target)
    with pytest.raises(TopologyError) as caught:
        builder.build(config)
    for part in ("REGISTRATION-0000000004-topic", "RESPONSE-0000000012-topic", "STATE-STORE"):
        assert part in str(caught.value)
    builder = StreamsBuilder()
    left, right = tables(builder)
    left.join(right, joined, foreign_key=target, name="mine")
    assert builder.build(config).store_names == ("left", "mine-subscription-store", "right")


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (lambda left, right: left.join("right", joined), "of type str is no table.*give a KTable"),
        (
            lambda left, right: left.outer_join(StreamsBuilder().table("x"), joined),
            "different builders; make both with one StreamsBuilder",
        ),
        (lambda left, right: left.left_join(right, str.upper), "joiner.*must take"),
        (
            lambda left, right: left.join(right, joined, foreign_key=lambda a, b, c: a),
            "must take .value. or .key, value.",
        ),
        (
            lambda left, right: left.join(right, joined, other_partitioner=lambda *all_: 0),
            "other_partitioner is for joins on a foreign key",
        ),
        (
            lambda left, right: left.join(
                right, joined, foreign_key=target, other_partitioner=lambda key: 0
            ),
            "other_partitioner must take 4 parameters",
        ),
        (
            lambda left, right: left.outer_join(right, joined, foreign_key=target),
            r"joins on a foreign key are inner and left only; use join\(\) or left_join\(\)",
        ),
    ],
)
def test_wrong_arguments_are_refused(use: Use, reason: str) -> None:
    with pytest.raises(TopologyError, match=rf"join \(.*test_ktable_joins\.py:\d+\).*{reason}"):
        topology_of(use)


def test_a_foreign_key_join_needs_the_serdes_of_both_tables() -> None:
    def use(left: KTable[str, str], right: KTable[str, str]) -> KTable[str, Any]:
        lengths: KTable[str, Any] = left.map_values(len)
        return lengths.join(right, joined, foreign_key=str)

    builder = StreamsBuilder()
    use(builder.table("left", **SERDES), builder.table("right", **SERDES))
    with pytest.raises(TopologyError, match=r"REGISTRATION.*no value serde; give value_serde="):
        builder.build().spec()
    config = StreamsConfig(
        application_id="app", bootstrap_servers="unused:9092", default_value_serde=Serdes.int64()
    )
    assert builder.build(config).spec().subtopologies


@pytest.mark.parametrize("operator", ["join", "left_join", "outer_join"])
def test_tables_joined_on_keys_need_equal_partition_counts(operator: str) -> None:
    spec = topology_of(lambda left, right: getattr(left, operator)(right, joined)).spec()
    assert plan_application(spec, "app", {"left": 3, "right": 3}).subtopologies[0].partitions == 3
    with pytest.raises(StreamsError, match="left has 3, right has 2"):
        plan_application(spec, "app", {"left": 3, "right": 2})


def test_tables_joined_on_a_foreign_key_may_have_any_partition_counts() -> None:
    spec = topology_of(lambda left, right: left.join(right, joined, foreign_key=target)).spec()
    for counts in ({"left": 3, "right": 2}, {"left": 1, "right": 5}):
        plan = plan_application(spec, "app", counts)
        prefix = "app-KTABLE-FK-JOIN-SUBSCRIPTION"
        assert {topic.name: topic.partitions for topic in plan.repartition_topics} == {
            f"{prefix}-REGISTRATION-0000000006-topic": counts["right"],
            f"{prefix}-RESPONSE-0000000014-topic": counts["left"],
        }
        assert {topic.config["cleanup.policy"] for topic in plan.repartition_topics} == {"delete"}
        assert [plan.subtopologies[n].partitions for n in (0, 1)] == list(counts.values())


LEFT = {f"l{number}": f"value{number}|r{number % 5}" for number in range(12)}
RIGHT = {f"r{number}": f"row{number}" for number in range(4)}


def play(bench: Bench, **life: Any) -> bool:
    for key in RIGHT:
        bench.send("right", key, "before")
    for key, value in LEFT.items():
        bench.send("left", key, value.replace("|r", "|r1"))
        bench.send("left", key, value)
    for key, value in RIGHT.items():
        bench.send("right", key, value)
    bench.send("left", "l0", None)
    return bench.live(**life)


def last_values(bench: Bench) -> dict[str | None, str | None]:
    return {key: None if value is None else value.decode() for key, value in bench.outputs("out")}


def expected(*, outer: bool) -> dict[str | None, str | None]:
    rows = {key: RIGHT.get(target(value) or "") for key, value in LEFT.items()}
    results: dict[str | None, str | None] = {
        key: joined(LEFT[key], row) if row is not None or outer else None
        for key, row in rows.items()
    }
    results["l0"] = None
    return results


def bench_of(operator: str, **settings: Any) -> Bench:
    topology = topology_of(
        lambda left, right: getattr(left, operator)(right, joined, foreign_key=target)
    )
    return Bench(topology, {"left": 3, "right": 2, "out": 3}, **settings)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("operator", ["join", "left_join"])
def test_subscriptions_and_responses_match_across_partitions(operator: str, guarantee: str) -> None:
    bench = bench_of(operator, guarantee=guarantee, commit_interval_ms=20)
    assert play(bench)
    found = last_values(bench)
    assert {key: found.get(key) for key in LEFT} == expected(outer=operator == "left_join")


@pytest.mark.parametrize("steps", range(2, 60, 8))
def test_a_crash_loses_no_subscription_and_no_response(steps: int) -> None:
    bench = bench_of("left_join", commit_interval_ms=20)
    play(bench, crash_after=steps)
    assert bench.live()
    found = last_values(bench)
    assert {key: found.get(key) for key in LEFT} == expected(outer=True)


def test_subscriptions_use_the_partitioner_of_the_other_table() -> None:
    def to_last(topic: str, key: str, value: object, partitions: int) -> int:
        assert (topic.endswith("-topic"), value, key[:1]) == (True, None, "r")
        return partitions - 1

    topology = topology_of(
        lambda left, right: left.join(right, joined, foreign_key=target, other_partitioner=to_last)
    )
    bench = Bench(topology, {"left": 1, "right": 3, "out": 1})
    for key, value in RIGHT.items():
        bench.send("right", key, value, partition=2)
    bench.send("left", "a", "x|r3")
    assert bench.live()
    assert last_values(bench) == {"a": "(x|r3,row3)"}
