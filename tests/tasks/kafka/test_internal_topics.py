"""Plan of tasks and internal topics."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel import (
    CopartitioningError,
    InternalTopicError,
    MissingSourceTopicError,
    Serdes,
    StreamsError,
)
from tidewheel.rebalance.model import Shard
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.tasks.kafka.internal_topics import (
    ApplicationPlan,
    is_internal,
    limits_too_low,
    missing_source_topics,
    offsets_group,
    plan_application,
    shard_of_group,
    with_message_bytes,
)
from tidewheel.tasks.processing.api.topology_spec import (
    SinkSpec,
    SourceSpec,
    SubtopologySpec,
    TopologySpec,
)

BYTES: dict[str, Any] = {"key_serde": Serdes.bytes(), "value_serde": Serdes.bytes()}


def source(*topics: str, pattern: str | None = None, internal: bool = False) -> SourceSpec:
    return SourceSpec(
        name=f"source-{'-'.join(topics) or pattern}",
        topics=topics,
        pattern=None if pattern is None else re.compile(pattern),
        internal=internal,
        **BYTES,
    )


def sub(
    number: int, sources: list[SourceSpec], sinks: list[Any] | None = None, **more: Any
) -> SubtopologySpec:
    """Return a sub-topology; `~` marks repartition topics among its sinks."""
    if sinks is None:
        sinks = []
    names = tuple(each.name for each in sources)
    return SubtopologySpec(
        id=number,
        nodes=(
            *sources,
            *(
                SinkSpec(
                    name=f"sink-{number}-{index}",
                    topic=topic.removeprefix("~") if isinstance(topic, str) else topic,
                    internal=isinstance(topic, str) and topic.startswith("~"),
                    parents=names,
                    **BYTES,
                )
                for index, topic in enumerate(sinks)
            ),
        ),
        stores=more.pop("stores", ()),
        **more,
    )


def store(name: str, *, logging: bool = True, config: dict[str, str] | None = None) -> StoreSpec:
    return StoreSpec(
        name=name, kind=StoreKind.KEY_VALUE, logging=logging, changelog_config=config or {}, **BYTES
    )


def planned(
    topics: dict[str, int],
    *subtopologies: SubtopologySpec,
    repartition: dict[str, int | None] | None = None,
) -> ApplicationPlan:
    spec = TopologySpec(subtopologies=subtopologies, repartition_topics=repartition or {})
    return plan_application(spec, "app", topics)


def test_the_largest_source_topic_has_a_task_per_partition() -> None:
    plan = planned(
        {"a": 2, "b": 3, "other": 9}, sub(0, [source("a"), source("b")]), sub(1, [source("a")])
    )
    assert [str(task) for task in plan.tasks] == ["0_0", "0_1", "0_2", "1_0", "1_1"]
    assert plan.subtopologies[0].topic_partitions == {"a": 2, "b": 3}


@given(st.integers(1, 20), st.lists(st.none() | st.integers(1, 20), max_size=6))
def test_chains_of_repartitions_inherit_partition_counts(
    count: int, chain: list[int | None]
) -> None:
    names = [f"r{index}" for index in range(len(chain))]
    subtopologies = [
        sub(
            index,
            [source("in") if index == 0 else source(names[index - 1], internal=True)],
            [f"~{names[index]}"] if index < len(chain) else ["out"],
        )
        for index in range(len(chain) + 1)
    ]
    # Written in any order: the first in the topology may depend on the last.
    plan = planned(
        {"in": count}, *reversed(subtopologies), repartition=dict(zip(names, chain, strict=True))
    )
    expected = [count]
    for own in chain:
        expected.append(expected[-1] if own is None else own)
    assert [plan.subtopologies[index].partitions for index in range(len(chain) + 1)] == expected
    assert {topic.name: topic.partitions for topic in plan.repartition_topics} == {
        f"app-{name}": number for name, number in zip(names, expected[1:], strict=True)
    }


def test_a_repartition_topic_has_the_largest_partition_count_of_its_writers_inputs() -> None:
    plan = planned(
        {"small": 2, "in": 7},
        sub(0, [source("in")], ["~first"]),
        sub(1, [source("small"), source("first", internal=True)], ["~second"]),
        sub(2, [source("second", internal=True)]),
        repartition={"first": None, "second": None},
    )
    assert plan.subtopologies[2].partitions == 7


def test_a_loop_has_the_partition_count_of_its_input() -> None:
    plan = planned(
        {"in": 3},
        sub(0, [source("in"), source("loop", internal=True)], ["~loop"]),
        repartition={"loop": None},
    )
    assert plan.subtopologies[0].topic_partitions == {"in": 3, "app-loop": 3}


def test_cyclic_partition_counts_are_an_error() -> None:
    with pytest.raises(StreamsError, match=r"a, b depend on each other.*partitions="):
        planned(
            {},
            sub(0, [source("a", internal=True)], ["~b"]),
            sub(1, [source("b", internal=True)], ["~a"]),
            repartition={"a": None, "b": None},
        )


def test_repartition_topics_have_kafka_streams_settings() -> None:
    (topic,) = planned(
        {"in": 4},
        sub(0, [source("in")], ["~r"]),
        sub(1, [source("r", internal=True)]),
        repartition={"r": None},
    ).repartition_topics
    assert (topic.name, topic.partitions) == ("app-r", 4)
    assert topic.config["cleanup.policy"] == "delete"
    assert topic.config["retention.ms"] == "-1"
    assert topic.config["message.timestamp.type"] == "CreateTime"


def test_own_settings_of_repartition_topics_come_before_common_ones() -> None:
    subtopologies = (sub(0, [source("in")], ["~a", "~b"]), sub(1, [source("a", internal=True)]))
    spec = TopologySpec(
        subtopologies=subtopologies,
        repartition_topics={"a": None, "b": None},
        repartition_configs={"a": {"retention.ms": "5"}},
    )
    every = {"retention.ms": "9", "segment.bytes": "1000000"}
    plan = plan_application(spec, "app", {"in": 1}, repartition_config=every)
    own, other = plan.repartition_topics
    assert (own.config["retention.ms"], other.config["retention.ms"]) == ("5", "9")
    assert own.config["segment.bytes"] == other.config["segment.bytes"] == "1000000"


def test_internal_topics_accept_every_timestamp_and_the_largest_input_records() -> None:
    spec = StoreSpec(
        name="s", kind=StoreKind.KEY_VALUE, **BYTES, changelog_config={"max.message.bytes": "7"}
    )
    plan = planned(
        {"in": 1},
        sub(0, [source("in")], ["~r"]),
        sub(
            1,
            [source("r", internal=True)],
            stores=(spec, StoreSpec(name="t", kind=StoreKind.KEY_VALUE, **BYTES)),
        ),
        repartition={"r": None},
    )
    raised = with_message_bytes(plan, 5_000_000)
    topics = (*raised.repartition_topics, *raised.changelog_topics)
    assert [topic.config["max.message.bytes"] for topic in topics] == ["5065536", "7", "5065536"]
    for topic in topics:
        assert topic.config["message.timestamp.before.max.ms"] == str((1 << 63) - 1)
        assert topic.config["message.timestamp.after.max.ms"] == str((1 << 63) - 1)
        assert limits_too_low(topic, topic.config) == {}
    for smaller in (1_048_588, 200_000):
        assert with_message_bytes(plan, smaller) == plan, (
            "Kafka's own default is left to the cluster"
        )


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (
            {"kind": StoreKind.WINDOW, "retention_ms": 1_000},
            {"cleanup.policy": "compact,delete", "retention.ms": "86401000"},
        ),
        (
            {"kind": StoreKind.SESSION, "retention_ms": (1 << 63) - 1},
            {"cleanup.policy": "compact,delete", "retention.ms": str((1 << 63) - 1)},
        ),
        (
            {"kind": StoreKind.VERSIONED, "history_retention_ms": 5},
            {"cleanup.policy": "compact", "min.compaction.lag.ms": "86400005"},
        ),
        (
            {
                "kind": StoreKind.TIMESTAMPED_WINDOW,
                "retention_ms": 1,
                "changelog_config": {"retention.ms": "7"},
            },
            {"cleanup.policy": "compact,delete", "retention.ms": "7"},
        ),
    ],
)
def test_changelogs_of_expiring_rows_keep_them_a_day_longer(
    limits: dict[str, Any], expected: dict[str, str]
) -> None:
    """As in Kafka Streams."""
    spec = StoreSpec(name="s", **BYTES, **limits)
    plan = planned({"in": 1}, sub(0, [source("in")], stores=(spec,)))
    (topic,) = plan.changelog_topics
    own = {name: topic.config[name] for name in topic.config if "timestamp" not in name}
    assert own == expected
    assert topic.config["message.timestamp.type"] == "CreateTime"


def test_changelogs_are_compacted_and_have_the_settings_of_the_store() -> None:
    stores = (
        store("plain"),
        store("own", config={"min.insync.replicas": "2"}),
        store("lost", logging=False),
    )
    plan = planned({"in": 5}, sub(0, [source("in")], stores=stores))
    assert {topic.name: topic.partitions for topic in plan.changelog_topics} == {
        "app-plain-changelog": 5,
        "app-own-changelog": 5,
    }
    assert all(topic.config["cleanup.policy"] == "compact" for topic in plan.changelog_topics)
    assert plan.changelog_topics[1].config["min.insync.replicas"] == "2"


def test_missing_source_topics_are_all_named() -> None:
    spec = (
        sub(0, [source("b"), source("a"), source("here"), source(pattern="x.*")], ["~r"]),
        sub(1, [source("r", internal=True)]),
    )
    with pytest.raises(MissingSourceTopicError, match=r"a, b not found.*--create-topics"):
        planned({"here": 1}, *spec, repartition={"r": None})
    assert missing_source_topics(TopologySpec(subtopologies=spec), ["here"]) == {"a", "b"}


def test_patterns_match_whole_names_but_no_internal_topics() -> None:
    topics = {
        "app-orders": 3, "app-x-changelog": 9, "app-x-repartition": 9, "app-group-state": 1, "other-x-changelog": 2, "orders": 4,
    }  # fmt: skip
    plan = planned(topics, sub(0, [source(pattern="app-.*|.*-changelog")]))
    assert plan.subtopologies[0].topic_partitions == {"app-orders": 3, "other-x-changelog": 2}
    assert planned(topics, sub(0, [source(pattern="none.*")])).tasks == ()


@pytest.mark.parametrize("topic", ["app-customers-changelog", "app-old-repartition"])
def test_a_named_topic_may_have_the_form_of_an_internal_one(topic: str) -> None:
    plan = planned(
        {topic: 6},
        sub(0, [source(topic)], ["~r"]),
        sub(1, [source("r", internal=True)]),
        repartition={"r": None},
    )
    assert plan.subtopologies[0].topic_partitions == {topic: 6}
    assert plan.subtopologies[1].partitions == 6


@pytest.mark.parametrize("name", ["app-s-changelog", "app-r"])
def test_internal_topics_of_another_size_are_an_error(name: str) -> None:
    subtopologies = (
        sub(0, [source("in")], ["~r"], stores=(store("s"),)),
        sub(1, [source("r", internal=True)]),
    )
    planned({"in": 4, name: 4}, *subtopologies, repartition={"r": None})
    with pytest.raises(
        InternalTopicError, match=rf"{name} has 3 partitions.*needs 4.*tidewheel reset"
    ):
        planned({"in": 4, name: 3}, *subtopologies, repartition={"r": None})


def test_partition_counts_of_copartitioned_topics_are_compared() -> None:
    group = (frozenset({"a", "r"}),)
    inputs = [source("a"), source("r", internal=True)]
    first = sub(0, [source("in")], ["~r"])
    second = sub(1, inputs, copartition_groups=group)
    planned({"a": 3, "in": 3}, first, second, repartition={"r": 3})
    with pytest.raises(CopartitioningError, match="a has 2, r has 3; give them equal counts"):
        planned({"a": 2, "in": 3}, first, second, repartition={"r": 3})


def test_a_repartition_topic_has_as_many_partitions_as_its_join_partner() -> None:
    group = (frozenset({"a", "r"}),)
    inputs = [source("a"), source("r", internal=True)]
    first, second = sub(0, [source("in")], ["~r"]), sub(1, inputs, copartition_groups=group)
    plan = planned({"a": 2, "in": 3}, first, second, repartition={"r": None})
    assert [each.partitions for each in plan.repartition_topics] == [2]


def test_joined_repartition_topics_have_the_largest_partition_count() -> None:
    group = (frozenset({"r", "s"}),)
    inputs = [source("r", internal=True), source("s", internal=True)]
    subtopologies = (
        sub(0, [source("a")], ["~r"]),
        sub(1, [source("b")], ["~q"]),
        sub(2, [source("q", internal=True)], ["~s"]),
        sub(3, inputs, copartition_groups=group),
    )
    for small, large in ((2, 4), (4, 2)):
        topics = dict.fromkeys("qrs")
        plan = planned({"a": small, "b": large}, *subtopologies, repartition=topics)
        assert [each.partitions for each in plan.repartition_topics] == [large, 4, 4]


@pytest.mark.parametrize(
    ("topic", "internal"),
    [
        ("app-counts-changelog", True),
        ("app-counts-repartition", True),
        ("app-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000006-topic", True),
        ("app-KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000014-topic", True),
        ("app-mine-subscription-registration-topic", True),
        ("app-mine-subscription-response-topic", True),
        ("app-news-topic", False),
        ("other-counts-changelog", False),
    ],
)
def test_internal_topics_are_recognised_by_their_names(topic: str, internal: bool) -> None:
    """As Kafka Streams' StreamsResetter lists them."""
    assert is_internal(topic, "app") is internal


def test_dynamic_sinks_need_no_topic_beforehand() -> None:
    plan = planned({"in": 2}, sub(0, [source("in")], [lambda key, value, context: "t", "~r"]),
                   sub(1, [source("r", internal=True)]), repartition={"r": None})  # fmt: skip
    assert plan.subtopologies[1].partitions == 2


def test_K8_shards_of_two_tilings_never_commit_to_one_group() -> None:
    """After a change of N a shard's first commit must not replace offsets of its source."""
    tilings = [1 << power for power in range(7)]
    shards = [shard for count in tilings for shard in Shard.all_of(count)]
    groups = {offsets_group("app", shard): shard for shard in shards}
    assert len(groups) == sum(tilings) == 127
    assert all(
        shard_of_group("app", group) == shard for group, shard in groups.items() if "~" in group
    )
