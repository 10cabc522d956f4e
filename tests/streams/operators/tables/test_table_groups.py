"""Grouped tables: an aggregate equals the current rows, for any history."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streams.operators.run import JSON, driver_of, outputs, run
from tidewheel import Materialized, StreamsBuilder, StreamsConfig, ValueAndTimestamp
from tidewheel.testing import TopologyTestDriver

KEYED: dict[str, Any] = {"key_serde": JSON, "value_serde": JSON}
IN_MEMORY = Materialized(store_type="in_memory")


def strings(stream: Any, selector: Any, store: Materialized | None = None) -> Any:
    table = stream.to_table(store=store, **KEYED)
    return (
        table.group_by(selector, **KEYED)
        .aggregate(
            lambda: "0",
            lambda key, value, total: f"{total}+{value}",
            lambda key, value, total: f"{total}-{value}",
            value_serde=JSON,
            store=IN_MEMORY,
        )
        .to_stream()
    )


@pytest.mark.parametrize("record_by_record", [False, True])
def test_a_row_that_stays_in_its_group_has_one_result(record_by_record: bool) -> None:
    """KIP-904."""
    rows = [("k", ["a", 1], 1), ("k", ["a", 2], 2), ("k", ["b", 3], 3), ("k", None, 4)]
    with driver_of(lambda s: strings(s, tuple), record_by_record=record_by_record) as driver:
        driver.create_input_topic("in", **KEYED).pipe_batch(rows)
        assert outputs(driver) == [
            ("a", "0+1", 1),
            ("a", "0+1-1+2", 2),
            ("a", "0+1-1+2-2", 3),
            ("b", "0+3", 3),
            ("b", "0+3-3", 4),
        ]


def test_groups_are_distinguished_by_their_bytes() -> None:
    selected = {1: (1, "x"), 2: (1.0, "y"), 3: (True, "z")}
    rows = [("k", 1, 1), ("k", 2, 2), ("k", 3, 3)]
    assert run(lambda s: strings(s, selected.get), rows) == [
        (1, "0+x", 1),
        (1, "0+x-x", 2),
        (1.0, "0+y", 2),
        (1.0, "0+y-y", 3),
        (True, "0+z", 3),
    ]


def test_rows_with_a_null_key_or_value_belong_to_no_group() -> None:
    rows = [
        ("k", ["a", 1], 1),
        ("k", [None, 2], 2),
        ("k", ["a", 3], 3),
        ("k", ["a", None], 4),
        ("k", [], 5),
    ]
    assert run(lambda s: strings(s, lambda v: tuple(v) or None), rows) == [
        ("a", "0+1", 1),
        ("a", "0+1-1", 2),
        ("a", "0+1-1+3", 3),
        ("a", "0+1-1+3-3", 4),
    ]


def test_the_selector_may_receive_the_key() -> None:
    rows = [("k", 1, 1), ("l", 2, 2)]
    assert run(lambda s: strings(s, lambda k, v: ("all", f"{k}{v}")), rows) == [
        ("all", "0+k1", 1),
        ("all", "0+k1+l2", 2),
    ]


def test_a_result_has_the_timestamp_of_its_newest_record() -> None:
    rows = [("k", ["a", 1], 9), ("k", None, 5), ("l", ["a", 2], 3)]
    assert run(lambda s: strings(s, tuple), rows) == [
        ("a", "0+1", 9),
        ("a", "0+1-1", 9),
        ("a", "0+1-1+2", 9),
    ]


def test_a_result_of_none_deletes_the_row_and_the_next_value_starts_again() -> None:
    with driver_of(
        lambda s: (
            s.to_table(**KEYED)
            .group_by(tuple, **KEYED)
            .reduce(
                lambda total, value: total + value,
                lambda total, value: None if total == value else total - value,
                store="sums",
            )
            .to_stream()
        )
    ) as driver:
        source = driver.create_input_topic("in", **KEYED)
        source.pipe_batch([("k", ["a", 1], 1), ("l", ["a", 2], 2), ("k", None, 3), ("l", None, 4)])
        assert outputs(driver) == [("a", 1, 1), ("a", 3, 2), ("a", 2, 3), ("a", None, 4)]
        assert list(driver.get_state_store("sums").all()) == []
        source.pipe_input("m", ["a", 5], 5)
        assert outputs(driver) == [("a", 5, 5)]


def test_a_group_without_rows_has_count_zero() -> None:
    """As in Kafka Streams."""
    rows = [("k", "a", 1), ("l", "a", 2), ("k", "b", 3), ("l", None, 4)]
    counted = run(
        lambda s: (
            s.to_table(**KEYED)
            .group_by(lambda k, v: (v, k), **KEYED)
            .count(store="counts")
            .to_stream()
        ),
        rows,
    )
    assert counted == [("a", 1, 1), ("a", 2, 2), ("a", 1, 3), ("b", 1, 3), ("a", 0, 4)]


def test_old_values_pass_filters_and_mappers_without_stores() -> None:
    rows = [("k", 2, 1), ("k", 3, 2), ("k", 4, 3), ("k", 6, 4), ("k", None, 5)]

    def use(stream: Any) -> Any:
        table = stream.to_table(**KEYED).filter(lambda v: v % 2 == 0).map_values(lambda v: v * 10)
        return (
            table.group_by(lambda k, v: ("all", v), **KEYED)
            .reduce(lambda total, v: total + v, lambda total, v: total - v)
            .to_stream()
        )

    assert run(use, rows) == [
        ("all", 20, 1),
        ("all", 0, 2),
        ("all", 40, 3),
        ("all", 60, 4),
        ("all", 0, 5),
    ]


def test_a_row_on_which_the_function_fails_is_skipped() -> None:
    rows = [("k", ["a", 1], 1), ("k", 7, 2), ("k", ["a", 3], 3)]
    with driver_of(lambda s: strings(s, tuple), processing_exception_handler="continue") as driver:
        driver.create_input_topic("in", **KEYED).pipe_batch(rows)
        assert outputs(driver) == [("a", "0+1", 1), ("a", "0+1+3", 3)]


def test_out_of_order_records_of_a_versioned_table_are_ignored() -> None:
    versioned = Materialized(store_type="versioned", history_retention=300_000, **KEYED)

    def by_value(key: str, value: str) -> tuple[str | None, str] | None:
        return None if key == "NULL" else (None if key == "null" else value, value)

    rows = [
        ("A", "1", 10),
        ("A", None, 15),
        ("A", "1", 12),
        ("B", "2", 20),
        ("null", "3", 25),
        ("B", "4", 23),
    ]
    rows += [("NULL", "5", 24), ("B", "7", 22)]
    assert run(lambda s: strings(s, by_value, versioned), rows) == [
        ("1", "0+1", 10),
        ("1", "0+1-1", 15),
        ("2", "0+2", 20),
        ("2", "0+2-2", 23),
        ("4", "0+4", 23),
    ]


def test_old_is_removed_before_new_is_added() -> None:
    def use(stream: Any) -> Any:
        grouped = stream.to_table(**KEYED).group_by(lambda key, _: (key[0], key[1]), **KEYED)
        return grouped.aggregate(
            lambda: "",
            lambda key, value, text: text + value,
            lambda key, value, text: text.replace(value, ""),
            value_serde=JSON,
        ).to_stream()

    rows = [("11", "A", 10), ("12", "B", 8), ("11", None, 12), ("12", "C", 6)]
    assert run(use, rows) == [("1", "1", 10), ("1", "12", 10), ("1", "2", 12), ("1", "2", 12)]


ROWS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.none() | st.tuples(st.sampled_from(["x", "y", None]), st.integers(0, 3)).map(list),
        st.integers(0, 20),
    ),
    min_size=5,
    max_size=25,
)


def sums(stream: Any) -> Any:
    grouped = stream.to_table(**KEYED).group_by(lambda v: None if v is None else tuple(v), **KEYED)
    return grouped.reduce(
        lambda total, value: total + value, lambda total, value: total - value, store="sums"
    ).to_stream()


@settings(max_examples=20)
@given(ROWS, st.booleans(), st.integers(0, 25))
def test_the_aggregate_equals_that_of_the_current_rows(
    rows: list[Any], cached: bool, cut: int
) -> None:
    table = {key: value for key, value, _ in rows}
    expected: Counter[str] = Counter()
    for value in table.values():
        if value is not None and value[0] is not None:
            expected[value[0]] += value[1]
    cache_bytes = 1 << 20 if cached else 0
    with driver_of(sums, statestore_cache_max_bytes=cache_bytes) as driver:
        source = driver.create_input_topic("in", **KEYED)
        source.pipe_batch(rows[:cut])
        source.pipe_batch(rows[cut:])
        found = {key: row.value for key, row in driver.get_state_store("sums").all()}
    assert {group: total for group, total in found.items() if total} == {
        group: total for group, total in expected.items() if total
    }


@settings(max_examples=20)
@given(ROWS)
def test_a_batch_has_the_results_of_single_records(rows: list[Any]) -> None:
    seen: list[Any] = []
    for record_by_record in (False, True):
        with driver_of(
            lambda s: strings(s, tuple, IN_MEMORY), record_by_record=record_by_record
        ) as driver:
            driver.create_input_topic("in", **KEYED).pipe_batch(rows)
            seen.append(outputs(driver))
    assert seen[0] == seen[1]


def test_with_a_cache_the_old_value_is_the_one_that_was_forwarded_last() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", store=Materialized("table", **KEYED), **KEYED)
    table.group_by(lambda k, v: ("all", v), **KEYED).aggregate(
        lambda: "0",
        lambda key, value, total: f"{total}+{value}",
        lambda key, value, total: f"{total}-{value}",
        store=Materialized("all", value_serde=JSON, caching=False),
    ).to_stream().to("out", **KEYED)
    config = StreamsConfig(
        application_id="t", bootstrap_servers="unused:9092", statestore_cache_max_bytes=1 << 20
    )
    with TopologyTestDriver(builder.build(config), config) as driver:
        source = driver.create_input_topic("in", **KEYED)
        source.pipe_batch([("k", 1, 1), ("k", 2, 2)])
        assert outputs(driver) == [("all", "0+2", 2)]
        source.pipe_batch([("k", 3, 3), ("k", None, 4), ("k", 4, 5)])
        assert outputs(driver) == [("all", "0+2-2+4", 5)]


def test_aggregations_of_a_versioned_table_count_the_latest_versions_only() -> None:
    """KIP-914."""
    versioned = Materialized(
        "prices", store_type="versioned", history_retention=1_000, key_serde=JSON, value_serde=JSON
    )

    def use(stream: Any) -> Any:
        table = stream.to_table(store=versioned, **KEYED).filter(lambda v: v != [])
        return (
            table.group_by(tuple, **KEYED)
            .reduce(lambda total, v: total + v, lambda total, v: total - v)
            .to_stream()
        )

    rows = [("k", ["a", 1], 10), ("k", ["a", 5], 4), ("k", ["a", 7], 12), ("k", None, 11)]
    with driver_of(use) as driver:
        driver.create_input_topic("in", **KEYED).pipe_batch(rows)
        assert outputs(driver) == [("a", 1, 10), ("a", 7, 12)]
        assert driver.get_state_store("prices").get("k", as_of=5).value == ["a", 5]


def summing(builder: StreamsBuilder, *, counted: bool) -> None:
    stream = builder.stream("in", **KEYED)
    store = Materialized("table", **KEYED)
    if counted:
        table: Any = stream.group_by_key(**KEYED).count(store=Materialized("table", key_serde=JSON))
    else:
        table = stream.to_table(store=store, **KEYED)
    table.group_by(lambda k, v: ("all", v), **KEYED).reduce(
        lambda total, value: total + value,
        lambda total, value: total - value,
        store=Materialized("all", caching=False),
    ).to_stream().to("out", **KEYED)


def cached_driver(*, counted: bool, cache_bytes: int) -> TopologyTestDriver:
    builder = StreamsBuilder()
    summing(builder, counted=counted)
    config = StreamsConfig(
        application_id="t", bootstrap_servers="unused:9092", statestore_cache_max_bytes=cache_bytes
    )
    return TopologyTestDriver(builder.build(config), config)


def test_values_that_a_processor_wrote_into_a_cached_table_are_subtracted_too() -> None:
    with cached_driver(counted=False, cache_bytes=1 << 20) as driver:
        source, store = driver.create_input_topic("in", **KEYED), driver.get_state_store("table")
        source.pipe_batch([("a", 1, 1), ("b", 10, 1)])
        store.put("a", ValueAndTimestamp(5, 2))
        store.put("c", ValueAndTimestamp(100, 2))
        source.pipe_input("b", 20, 3)
        assert [value for _, value, _ in outputs(driver)][-1] == 5 + 20 + 100


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_counts_send_an_old_value_with_every_change(cache_bytes: int) -> None:
    batches = [
        [("a", 0, 5), ("b", 0, 6), ("a", 0, 7)],
        [("a", 0, 3), ("c", 0, 9), ("c", 0, 8)],
        [("b", 0, 10), ("c", 0, 11)],
    ]
    with cached_driver(counted=True, cache_bytes=cache_bytes) as driver:
        source = driver.create_input_topic("in", **KEYED)
        for records, total in zip(batches, (3, 6, 8), strict=True):
            source.pipe_batch(records)
            assert [value for _, value, _ in outputs(driver)][-1] == total
