"""`topology_optimization`: source topics as changelogs, and self joins with one store."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.streams.graph.test_optimization import (
    PLAIN,
    STRING,
    config_of,
    results,
    strings,
)
from tidewheel import (
    JoinWindows,
    KStream,
    StreamsBuilder,
    Topology,
)
from tidewheel.tasks.kafka.internal_topics import plan_application


def changelogs(topology: Topology) -> list[str]:
    plan = plan_application(topology.spec(), "app", {"topic": 2, "topic2": 2})
    return [topic.name for topic in plan.changelog_topics]


def test_a_table_reuses_its_source_topic() -> None:
    builder = StreamsBuilder()
    builder.table("topic", key_serde=STRING, value_serde=STRING, store="store")
    optimized = builder.build(config_of())
    assert changelogs(optimized) == []
    (store,) = optimized.spec().subtopologies[0].stores
    assert (store.name, store.logging, store.source_topic) == ("store", False, "topic")
    assert str(optimized.describe()) == str(builder.build(PLAIN).describe())
    assert optimized.hash() != builder.build(PLAIN).hash()


def test_a_table_has_a_changelog_without_optimisation() -> None:
    builder = StreamsBuilder()
    builder.table("topic", key_serde=STRING, value_serde=STRING, store="store")
    assert changelogs(builder.build()) == ["app-store-changelog"]
    assert changelogs(builder.build(PLAIN)) == ["app-store-changelog"]
    assert changelogs(builder.build(config_of({"merge.repartition.topics"}))) == [
        "app-store-changelog"
    ]


def test_tables_made_of_streams_keep_their_changelog() -> None:
    builder = StreamsBuilder()
    strings(builder, "topic").to_table(store="made")
    strings(builder, "topic2").group_by_key().count(store="counted")
    assert changelogs(builder.build(config_of())) == ["app-made-changelog", "app-counted-changelog"]


def joined(first: KStream[str, str], second: KStream[str, str]) -> KStream[str, str]:
    return first.join(second, lambda left, right: left + right, within=JoinWindows(100))


def nodes_that_keep_windows(topology: Topology) -> int:
    return str(topology.describe()).count("Processor: KSTREAM-WINDOWED-")


SELF_JOINS: dict[str, tuple[int, Callable[[StreamsBuilder], Any]]] = {
    "SingleStream": (1, lambda b: joined(s := strings(b, "t1"), s)),
    "TwoStreams": (1, lambda b: joined(strings(b, "t1"), strings(b, "t1"))),
    "MergeTwoStreams": (1, lambda b: joined(s := strings(b, "t1").merge(strings(b, "t2")), s)),
    "3WayJoin": (3, lambda b: joined(joined(strings(b, "t1"), strings(b, "t1")), strings(b, "t3"))),
    "AllJoins": (2, lambda b: joined(strings(b, "t1"), strings(b, "t1")).merge(joined(strings(b, "t2"), strings(b, "t2")))),
    "NwaySameSource": (3, lambda b: joined(joined(strings(b, "t1"), strings(b, "t1")), strings(b, "t1"))),
    "TwoJoinsSameSource": (2, lambda b: [joined(strings(b, "t1"), strings(b, "t1")) for _ in range(2)]),
    "WithFilter": (2, lambda b: joined(strings(b, "t1").filter(bool), strings(b, "t1"))),
    "WithMap": (2, lambda b: joined(strings(b, "t1").map_values(str), strings(b, "t1"))),
    "MultipleSources": (2, lambda b: joined(strings(b, "t1"), strings(b, "t2"))),
}  # fmt: skip


@pytest.mark.parametrize("name", SELF_JOINS)
def test_a_stream_joined_with_itself_is_kept_once(name: str) -> None:
    kept, program = SELF_JOINS[name]
    builder = StreamsBuilder()
    program(builder)
    assert nodes_that_keep_windows(builder.build(config_of())) == kept
    assert nodes_that_keep_windows(builder.build(config_of({"single_store_self_join"}))) == kept
    assert nodes_that_keep_windows(builder.build(PLAIN)) % 2 == 0


def test_self_joins_have_the_same_results() -> None:
    builder = StreamsBuilder()
    joined(stream := strings(builder, "in"), stream).to("out")
    records = [("in", "k", str(number)) for number in range(6)]
    assert results(builder.build(config_of()), records) == results(builder.build(PLAIN), records)
