"""Passes of planned topologies: their levels, inputs and outputs."""

import pytest

from tidewheel import StreamsBuilder, StreamsConfig, StreamsError
from tidewheel.streams.worker.topic_setup import spec_of
from tidewheel.tasks.batch.passes import BatchPlan, plan_passes
from tidewheel.tasks.kafka.internal_topics import plan_application

CONFIG = StreamsConfig(
    application_id="app",
    bootstrap_servers="unused:9092",
    default_key_serde="string",
    default_value_serde="string",
)


def planned(builder: StreamsBuilder, *topics: str) -> BatchPlan:
    spec = spec_of(builder.build(CONFIG), CONFIG)
    return plan_passes(plan_application(spec, "app", dict.fromkeys(topics, 2)), "app")


def passes(plan: BatchPlan) -> list[tuple[int, int, set[str], set[str], bool]]:
    return [
        (each.subtopology, each.level, set(each.reads), set(each.keeps), each.is_last)
        for each in plan.passes
    ]


def test_a_sub_topology_runs_once_after_those_whose_records_it_reads() -> None:
    builder = StreamsBuilder()
    words = builder.stream("lines").select_key(lambda key, value: value).repartition(name="words")
    words.join(builder.table("rows"), lambda left, right: left + right).to("out")
    plan = planned(builder, "lines", "rows")
    topic = "app-words-repartition"
    assert passes(plan) == [
        (0, 0, {"lines"}, {topic}, True),
        (1, 1, {topic, "rows"}, set(), True),
    ]
    assert plan.levels == {"lines": 0, "rows": 0, topic: 1}
    assert plan.written == {topic}
    assert not plan.circular


def test_a_foreign_key_join_runs_the_left_side_before_and_after_the_right_one() -> None:
    builder = StreamsBuilder()
    left, right = builder.table("left"), builder.table("right")
    joined = left.join(right, lambda a, b: a + b, foreign_key=lambda value: value)
    joined.to_stream().select_key(lambda key, value: value).group_by_key().count()
    plan = planned(builder, "left", "right")
    registration, response = sorted(plan.circular)
    assert (plan.levels[registration], plan.levels[response]) == (1, 2)
    (after,) = plan.written - plan.circular
    assert plan.levels[after] == 3
    left_side, right_side = plan.passes[0].subtopology, plan.passes[1].subtopology
    assert passes(plan)[:3] == [
        (left_side, 0, {"left"}, {registration}, False),
        (right_side, 1, {"right", registration}, {response}, True),
        (left_side, 2, {"left", response}, {after}, True),
    ]


def test_a_store_orders_topics_like_an_edge() -> None:
    """Rows of a store come from the topics above its writers."""
    builder = StreamsBuilder()
    late = builder.stream("late").select_key(lambda key, value: value).repartition(name="again")
    table = late.to_table(store="rows")
    joined = builder.stream("early").join(table, lambda left, right: left + right)
    joined.select_key(lambda key, value: value).repartition(name="last").to("out")
    levels = planned(builder, "late", "early").levels
    assert levels["app-again-repartition"] == 1
    assert levels["app-last-repartition"] == 2


def test_a_topic_that_is_written_and_read_again_is_no_external_input() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("between")
    builder.stream("between").to("out")
    assert planned(builder, "in", "between").levels == {"in": 0, "between": 1}


def test_records_that_cause_each_other_are_refused() -> None:
    builder = StreamsBuilder()
    builder.stream("a").to("b")
    builder.stream("b").to("a")
    with pytest.raises(StreamsError, match=r"a -> b -> a|b -> a -> b"):
        planned(builder, "a", "b")
