"""Shards: sub-topologies that can have them, reasons against, and the plan's tasks."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tasks.key_ranges.test_keyed_analysis import (
    CONFIG,
    FREE,
    KEYED,
    Counter,
    Program,
    Silent,
    joined,
)
from tidewheel import (
    FailOnInvalidTimestamp,
    Materialized,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    TimeWindows,
    Topology,
    WallclockTimestampExtractor,
)
from tidewheel.rebalance.model import HASH_END, ShardInput, TaskId, TopicPartition
from tidewheel.streams.serdes import Serde
from tidewheel.streams.worker.application.configured_plan import configured_plan
from tidewheel.streams.worker.group_membership import task_shapes
from tidewheel.tasks.key_ranges.keyed_analysis import keyedness, reason_against_shards


def reason_of(builder: StreamsBuilder, **partitions: int) -> str:
    (spec,) = builder.build(CONFIG).spec(CONFIG).subtopologies
    assert keyedness(spec).keyed, "the reason is not one against key ranges"
    return reason_against_shards(spec, partitions)


def built_reasons(program: Program) -> list[str]:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=str, value_serde=str)
    other = builder.stream("other", key_serde=str, value_serde=str)
    table = builder.table("rows", key_serde=str, value_serde=str, store="t")
    program(stream, other, table)
    specs = builder.build(CONFIG).spec(CONFIG).subtopologies
    return [reason for spec in specs if (reason := reason_against_shards(spec))]


#: A windowed key's bytes in the changelog are not those that its shard is computed from.
_KEPT_WINDOWS = "a table of windows, kept"


@pytest.mark.parametrize("program", [KEYED[name] for name in KEYED if name != _KEPT_WINDOWS])
def test_keyed_programs_can_have_shards(program: Program) -> None:
    assert built_reasons(program) == []


def test_windowed_keys_in_a_key_value_store_stay_whole() -> None:
    (reason,) = built_reasons(KEYED[_KEPT_WINDOWS])
    assert reason.startswith("store w ")


@pytest.mark.parametrize(("program", "reason"), FREE.values(), ids=FREE)
def test_reasons_against_key_ranges_are_reasons_against_shards(
    program: Program, reason: str
) -> None:
    assert any(reason in given_reason for given_reason in built_reasons(program))


def test_a_store_without_changelog_stays_whole() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=str, value_serde=str)
    stream.group_by_key().count(store=Materialized("c", logging=False))
    assert reason_of(builder).startswith("store c has no changelog")


def test_a_store_with_keys_by_another_serde_stays_whole() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=str, value_serde=str)
    own: Serde[str] = Serde(
        lambda _, key: key.encode("utf-16"), lambda _, data: data.decode("utf-16"), name="own"
    )
    stream.group_by_key().count(store=Materialized("c", key_serde=own))
    assert reason_of(builder).startswith("store c has keys by another serde")


def test_a_pattern_stays_whole() -> None:
    builder = StreamsBuilder()
    builder.stream(re.compile("in.*"), key_serde=str, value_serde=str).to("out")
    assert "a pattern selects them" in reason_of(builder)


def test_several_inputs_need_the_default_timestamp_extractor() -> None:
    assert reason_of(_joined(FailOnInvalidTimestamp())) == ""
    assert "timestamp extractor" in reason_of(_joined(WallclockTimestampExtractor()))


def test_several_inputs_need_the_default_timestamp_extractor_of_the_settings_too() -> None:
    (spec,) = _joined().build(CONFIG).spec(CONFIG).subtopologies
    assert "timestamp extractor" in reason_against_shards(spec, {}, WallclockTimestampExtractor())
    assert reason_against_shards(spec, {}, FailOnInvalidTimestamp()) == ""


def _joined(extractor: Any = None) -> StreamsBuilder:
    builder = StreamsBuilder()
    table = builder.table("rows", key_serde=str, value_serde=str)
    stream = builder.stream("in", key_serde=str, value_serde=str, timestamp_extractor=extractor)
    stream.join(table, joined).to("out")
    return builder


def test_one_input_may_have_a_timestamp_extractor() -> None:
    builder = StreamsBuilder()
    extractor = WallclockTimestampExtractor()
    builder.stream("in", key_serde=str, value_serde=str, timestamp_extractor=extractor).to("out")
    assert reason_of(builder) == ""


def test_several_inputs_need_equal_partition_counts() -> None:
    builder = StreamsBuilder()
    builder.stream(["a", "b"], key_serde=str, value_serde=str).group_by_key().count()
    assert reason_of(builder, a=3, b=3) == ""
    assert reason_of(builder, a=3, b=4) == "its inputs have different partition counts: a 3, b 4"


def test_inputs_whose_partition_counts_may_part_stay_whole() -> None:
    builder = StreamsBuilder()
    builder.stream(["a", "b"], key_serde=str, value_serde=str).to("out")
    assert "may grow to different partition counts" in reason_of(builder, a=3, b=3)


def test_the_description_names_the_reason_against_shards() -> None:
    topology = Topology().add_source("read", "in", key_serde=str, value_serde=str)
    topology.add_processor("own", Counter, parents=["read"])
    assert "    Shards: possible\n" in str(topology.describe(execution=True))
    topology.add_processor("free", Silent, parents=["read"])
    (part,) = topology.describe(execution=True).to_dict()["subtopologies"]
    assert part["shards"] == "whole: free: it doesn't set `keyed = True`"
    assert "Shards" not in str(topology.describe())


def _plan_builder() -> StreamsBuilder:
    """Return a program with two sub-topologies that can have shards, and one that can't."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=str, value_serde=str)
    stream.group_by(lambda value: value, key_serde=str).windowed_by(TimeWindows(5)).count()
    builder.stream("other", key_serde=str, value_serde=str).process(Silent).to("out")
    return builder


def _config(shards: int) -> StreamsConfig:
    return CONFIG.replace(partition_shards=shards)


@given(
    shards=st.sampled_from([1, 2, 4, 8, 16, 32, 64]),
    counts=st.tuples(st.integers(1, 5), st.integers(1, 5)),
)
def test_tasks_tile_every_partition_and_hash_exactly_once(
    shards: int, counts: tuple[int, int]
) -> None:
    config = _config(shards)
    spec = _plan_builder().build(config).spec(config)
    plan = configured_plan(spec, config, {"in": counts[0], "other": counts[1]})
    tasks_by_partition: dict[tuple[int, int], list[TaskId]] = {}
    for task in plan.tasks:
        tasks_by_partition.setdefault((task.subtopology, task.partition), []).append(task)
    # The windows read a repartition topic, which has the partitions of its source.
    partitions = {0: counts[0], 1: counts[0], 2: counts[1]}
    assert set(tasks_by_partition) == {
        (number, partition) for number, count in partitions.items() for partition in range(count)
    }
    for (number, _), tasks in tasks_by_partition.items():
        assert len(tasks) == (1 if number == 2 else shards)
        first = 0
        for task in tasks:
            assert task.shard.first_hash == first
            first = task.shard.end_hash
        assert first == HASH_END


def test_shards_have_the_inputs_and_the_changelog_of_their_partition() -> None:
    config = _config(4)
    spec = _plan_builder().build(config).spec(config)
    plan = configured_plan(spec, config, {"in": 2, "other": 1})
    task = TaskId.parse("1_1/3of4")
    (topic,) = plan.subtopologies[1].topic_partitions
    assert plan.inputs(task) == {ShardInput.of(TopicPartition(topic, 1), task.shard)}
    shapes = task_shapes(plan, "app")
    assert shapes[task].changelogs == ("app-KSTREAM-AGGREGATE-STATE-STORE-0000000002-changelog",)
    assert [topic.partitions for topic in plan.changelog_topics] == [2]
    assert set(shapes) == set(plan.tasks)


def test_a_processor_store_can_have_shards() -> None:
    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value("s", key_serde=str, value_serde=str))
    stream = builder.stream("in", key_serde=str, value_serde=str)
    stream.process(Counter, stores=["s"]).to("out")
    assert reason_of(builder) == ""
