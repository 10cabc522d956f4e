"""Key placement: misplaced keys are found, and joined topics follow the partitioner."""

import re
from typing import Any

import pytest

from tidewheel import Processor, Record, StreamsBuilder, StreamsConfig, TopologyError
from tidewheel.streams.serdes.partitioning import KEY_PARTITIONERS, KeyPartitioner
from tidewheel.streams.topology.key_placement import KeyCheck, checked_topics
from tidewheel.streams.worker.topic_setup import spec_of
from tidewheel.tasks.kafka.internal_topics import plan_application
from tidewheel.tasks.processing.api.topology_spec import SinkSpec, TopologySpec
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

COUNT = 4
KEYS = [f"key-{number}".encode() for number in range(40)]


def _records(topic: str, name: str, partition: int) -> SourceRecords:
    place = KEY_PARTITIONERS[name]
    keys = [key for key in KEYS if place(key, COUNT) == partition]
    return SourceRecords(topic, partition, range(len(keys)), keys, keys, [0] * len(keys), None)


def _checked(name: str, said: dict[str, str]) -> tuple[KeyCheck, list[str]]:
    warnings: list[str] = []
    check = KeyCheck({"orders": COUNT}, said, warnings.append)
    for partition in range(COUNT):
        check.sample(_records("orders", name, partition))
    return check, warnings


@pytest.mark.parametrize("name", KEY_PARTITIONERS)
def test_a_topic_of_the_expected_partitioner_has_no_warning(name: str) -> None:
    check, warnings = _checked(name, {} if name == "murmur2" else {"orders": name})
    assert warnings == []
    assert check.findings(["orders"]) == ""
    assert check.sampled("orders") >= 30


@pytest.mark.parametrize("name", ["crc32", "fnv1a"])
def test_the_partitioner_of_another_topic_is_detected_by_name(name: str) -> None:
    check, warnings = _checked(name, {})
    assert len(warnings) == 1
    assert "topic orders" in warnings[0]
    assert f'{{"orders": "{name}"}}' in check.finding("orders")


def test_a_wrong_setting_is_detected_and_an_unknown_one_accepted() -> None:
    assert "gives them" in _checked("murmur2", {"orders": "crc32"})[0].finding("orders")
    assert _checked("crc32", {"orders": "unknown"})[1] == []


def test_few_records_of_each_partition_are_sampled() -> None:
    check = KeyCheck({"orders": 1}, {}, lambda _: None)
    none = SourceRecords("orders", 0, range(5), [None] * 5, [b""] * 5, [0] * 5, None)
    check.sample(none)
    assert (check.sampled("orders"), len(check.waiting)) == (0, 1)
    many = SourceRecords("orders", 0, range(40), KEYS, KEYS, [0] * 40, None)
    check.sample(many)
    assert (check.sampled("orders"), check.waiting) == (20, {})


def _joined(other: Any = None) -> StreamsBuilder:
    builder = StreamsBuilder()
    table = builder.table("users", key_serde=str, value_serde=str)
    stream = builder.stream("orders", key_serde=str, value_serde=str)
    stream = stream.select_key(lambda value: value) if other is None else stream
    stream.join(table, lambda left, right: left + right, key_serde=str, value_serde=str).to(
        "out", key_serde=str, value_serde=str
    )
    return builder


def _spec(builder: StreamsBuilder, **said: str) -> TopologySpec:
    config = StreamsConfig(application_id="a", input_partitioners=said)
    return spec_of(builder.build(config), config)


def _internal_sinks(spec: TopologySpec) -> list[Any]:
    nodes = [node for each in spec.subtopologies for node in each.nodes]
    return [node.partitioner for node in nodes if isinstance(node, SinkSpec) and node.internal]


def test_a_repartition_topic_uses_the_partitioner_of_the_other_side() -> None:
    assert _internal_sinks(_spec(_joined())) == [None]
    assert _internal_sinks(_spec(_joined(), users="crc32")) == [KeyPartitioner("crc32")]
    assert _internal_sinks(_spec(_joined(), orders="crc32")) == [None]


def test_the_registrations_of_a_foreign_key_join_follow_the_other_table() -> None:
    builder = StreamsBuilder()
    orders = builder.table("orders", key_serde=str, value_serde=str)
    users = builder.table("users", key_serde=str, value_serde=str)
    orders.join(users, lambda left, right: left + right, foreign_key=lambda value: value)
    assert KeyPartitioner("crc32") in _internal_sinks(_spec(builder, users="crc32"))
    assert KeyPartitioner("crc32") not in _internal_sinks(_spec(builder, orders="crc32"))


def test_two_partitioners_in_one_join_are_refused() -> None:
    with pytest.raises(TopologyError, match="orders by murmur2, users by crc32"):
        _spec(_joined("as it is"), users="crc32")
    _spec(_joined("as it is"), users="crc32", orders="crc32")


def _merged(builder: StreamsBuilder, kind: str) -> None:
    text: dict[str, Any] = {"key_serde": str, "value_serde": str}
    if kind == "merge":
        both = builder.stream("orders", **text).merge(builder.stream("users", **text))
    elif kind == "several topics":
        both = builder.stream(["orders", "users"], **text)
    elif kind == "pattern":
        both = builder.stream(re.compile("orders|users"), **text)
    else:
        builder.table("users", **text, store="rows")
        builder.stream("orders", **text).process(Seeing, stores=["rows"])
        return
    both.group_by_key().count()


class Seeing(Processor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)


@pytest.mark.parametrize("kind", ["merge", "several topics", "pattern", "shared store"])
def test_topics_combined_without_a_join_are_checked(kind: str) -> None:
    counts = {"users": 4, "orders": 4}
    builder = StreamsBuilder()
    _merged(builder, kind)
    assert checked_topics(plan_application(_spec(builder), "a", counts)) == counts


def test_two_partitioners_in_one_aggregation_are_refused() -> None:
    builder = StreamsBuilder()
    _merged(builder, "merge")
    with pytest.raises(TopologyError, match="orders by murmur2, users by crc32"):
        _spec(builder, users="crc32")
    _spec(builder, users="crc32", orders="crc32")


def test_merged_streams_that_are_not_aggregated_are_not_checked() -> None:
    text: dict[str, Any] = {"key_serde": str, "value_serde": str}
    builder = StreamsBuilder()
    builder.stream("orders", **text).merge(builder.stream("users", **text)).to("out")
    plan = plan_application(_spec(builder, users="crc32"), "a", {"users": 4, "orders": 4})
    assert checked_topics(plan) == {}


def test_inputs_of_joins_are_checked() -> None:
    counts = {"users": 4, "orders": 4}
    plan = plan_application(_spec(_joined("as it is")), "a", counts)
    assert checked_topics(plan) == counts
    repartitioned = plan_application(_spec(_joined()), "a", counts)
    assert checked_topics(repartitioned) == {"users": 4}
    lone = plan_application(_spec(_joined("as it is")), "a", dict.fromkeys(counts, 1))
    assert checked_topics(lone) == {}
    builder = StreamsBuilder()
    builder.stream("orders", key_serde=str, value_serde=str).group_by_key().count()
    assert checked_topics(plan_application(_spec(builder), "a", counts)) == {}
