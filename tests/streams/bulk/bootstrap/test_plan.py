"""Stores that can be loaded, their inputs, and the input offsets."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidewheel import (
    BufferConfig,
    ConfigError,
    JoinWindows,
    Materialized,
    Serdes,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    StreamsError,
)
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.bulk.bootstrap.plan import (
    InputOffsets,
    StoreTarget,
    check_offsets,
    parse_input_offsets,
    refusal_of_changelog,
    target_of,
)
from tidewheel.streams.definitions.suppressed import Suppressed
from tidewheel.streams.dsl.kstream import KStream
from tidewheel.tasks.kafka.internal_topics import plan_application

APP = "shop"
TOPICS = {"orders": 2, "clicks": 2, "people": 2}


def stream(builder: StreamsBuilder, topic: str = "orders") -> KStream[str, int]:
    return builder.stream(topic, key_serde=Serdes.string(), value_serde=Serdes.int64())


def target(builder: StreamsBuilder, store: str = "counts") -> StoreTarget:
    spec = builder.build(StreamsConfig(application_id=APP)).spec(None)
    plan = plan_application(spec, APP, TOPICS)
    return target_of(plan, APP, store)


def both(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(2)]


def test_a_store_continues_from_all_its_inputs() -> None:
    builder = StreamsBuilder()
    merged = stream(builder).merge(stream(builder, "clicks"))
    merged.group_by(str, key_serde=Serdes.string()).count(store="counts")
    stream(builder, "people").group_by_key().count(store="others")
    found = target(builder)
    assert list(found.inputs) == both("clicks") + both("orders")
    assert list(found.between) == both("shop-counts-repartition")
    assert found.changelog_partitions == both("shop-counts-changelog")
    assert found.writer_id(1) == "shop-bootstrap-counts-1"
    assert found.driver_id == "shop-bootstrap-counts"
    assert list(target(builder, "others").inputs) == both("people")


def refused(build: Any, store: str = "counts") -> str:
    builder = StreamsBuilder()
    build(builder)
    with pytest.raises(StreamsError) as raised:
        target(builder, store)
    return str(raised.value)


def test_errors_of_stores_that_can_not_be_loaded_name_the_alternative() -> None:
    def table(builder: StreamsBuilder) -> None:
        builder.table("people", key_serde=str, value_serde=str, store="counts")

    def silent(builder: StreamsBuilder) -> None:
        stream(builder).group_by_key().count(store=Materialized("counts", logging=False))

    def joined(builder: StreamsBuilder) -> None:
        windows = JoinWindows(10)
        stream(builder).join(
            stream(builder, "clicks"),
            lambda left, right: left,
            within=windows,
            name="joined",
            store="counts",
        )

    def everywhere(builder: StreamsBuilder) -> None:
        builder.global_table("people", key_serde=str, value_serde=str, store="counts")

    def counted(builder: StreamsBuilder) -> None:
        stream(builder).group_by_key().count(store="counts")

    assert "produce the rows to that topic instead" in refused(table)
    assert "turn logging on" in refused(silent)
    assert "global one, restored from topic people" in refused(everywhere)
    assert "did you mean counts?" in refused(counted, "count")
    names = _stores_of(joined)
    assert names
    for name in names:
        assert "it fills by itself" in refused(joined, name)
    for name in _stores_of(_suppressed):
        if name != "counts":
            assert "it fills by itself" in refused(_suppressed, name)


def _suppressed(builder: StreamsBuilder) -> None:
    table = stream(builder).group_by_key().count(store="counts")
    table.suppress(Suppressed.until_time_limit(10, _buffer()), name="late")


def _buffer() -> Any:

    return BufferConfig.unbounded()


def _stores_of(build: Any) -> list[str]:
    builder = StreamsBuilder()
    build(builder)
    return list(builder.build(StreamsConfig(application_id=APP)).store_names)


def test_a_store_behind_a_custom_partitioner_is_refused() -> None:
    def build(builder: StreamsBuilder) -> None:
        moved = stream(builder).repartition(
            name="moved", partitions=2, partitioner=lambda topic, key, value, count: 0
        )
        moved.group_by_key().count(store="counts")

    assert "shop-moved-repartition is partitioned by a function of its own" in refused(build)


def test_input_offsets_have_four_forms(tmp_path: Path) -> None:
    offsets = {"orders": {"0": 3, "1": 5}}
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps(offsets))
    assert parse_input_offsets("earliest").kind == "earliest"
    assert parse_input_offsets("timestamp:12") == InputOffsets(
        text="timestamp:12", kind="timestamp", timestamp_ms=12
    )
    read = parse_input_offsets(f"file:{file}")
    assert read == parse_input_offsets({"orders": {0: 3, 1: 5}})
    assert read.offsets == {TopicPartition("orders", 0): 3, TopicPartition("orders", 1): 5}


@pytest.mark.parametrize(
    "given",
    [
        "",
        "first",
        "latest:1",
        "timestamp:",
        "timestamp:-1",
        f"timestamp:{1 << 63}",
        "file:",
        "file:/nowhere/offsets.json",
        {"orders": 3},
        {"orders": {"0": -1}},
        {"orders": {"0": True}},
        {"orders": {"first": 1}},
    ],
)
def test_other_input_offsets_are_refused_with_the_valid_forms(given: Any) -> None:
    with pytest.raises(ConfigError, match="write earliest, latest"):
        parse_input_offsets(given)


def test_explicit_offsets_are_of_exactly_the_inputs_and_in_their_logs() -> None:
    builder = StreamsBuilder()
    stream(builder).group_by_key().count(store="counts")
    found = target(builder)
    starts, ends = dict.fromkeys(both("orders"), 2), dict.fromkeys(both("orders"), 9)

    def check(offsets: dict[str, dict[int, int]]) -> dict[TopicPartition, int]:
        return check_offsets(found, parse_input_offsets(offsets), starts, ends)

    assert check({"orders": {0: 2, 1: 9}}) == {
        TopicPartition("orders", 0): 2,
        TopicPartition("orders", 1): 9,
    }
    with pytest.raises(ConfigError, match="none is given for orders-1; clicks-0 is no input"):
        check({"orders": {0: 2}, "clicks": {0: 1}})
    for offset in (1, 10):
        with pytest.raises(ConfigError, match=f"{offset} of orders-0 is outside the log"):
            check({"orders": {0: offset, 1: 5}})


def test_content_is_replaced_only_on_demand_and_versions_never() -> None:
    builder = StreamsBuilder()
    stream(builder).group_by_key().count(store="counts")
    versions = Stores.versioned(
        "versions", history_retention=1_000, key_serde=Serdes.string(), value_serde=Serdes.int64()
    )
    found = target(builder)

    def judge(*, is_empty: bool, replace: bool) -> str | None:
        return refusal_of_changelog(found, is_empty=is_empty, replace=replace, was_loaded=False)

    assert judge(is_empty=True, replace=False) is None
    assert judge(is_empty=True, replace=True) is None
    assert judge(is_empty=False, replace=True) is None
    assert "replace it with --replace" in (judge(is_empty=False, replace=False) or "")
    found = replace(found, spec=versions.spec)
    assert "can't be replaced" in (judge(is_empty=False, replace=True) or "")
