"""Tables: the last offset wins, nulls delete, rejected rows become tombstones."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.operators.run import JSON, driver_of, outputs, run
from tidewheel import Materialized, StreamsBuilder, StreamsConfig
from tidewheel.testing import TopologyTestDriver

KEYED: dict[str, Any] = {"key_serde": JSON, "value_serde": JSON}


def table_of(stream: Any, name: str | None = "table") -> Any:
    return stream.to_table(store=None if name is None else Materialized(name, **KEYED), **KEYED)


@pytest.mark.parametrize("record_by_record", [False, True])
def test_the_last_offset_wins_regardless_of_its_timestamp(record_by_record: bool) -> None:
    rows = [("a", 1, 10), (None, 2, 11), ("a", 3, 5), ("b", None, 12), ("a", None, 2)]
    with driver_of(lambda s: table_of(s).to_stream(), record_by_record=record_by_record) as driver:
        driver.create_input_topic("in", **KEYED).pipe_batch(rows)
        assert outputs(driver) == [("a", 1, 10), ("a", 3, 5), ("b", None, 12), ("a", None, 2)]
        assert list(driver.get_state_store("table").all()) == []
        assert driver.metrics()["0_0"]["dropped-records-total"] == 1


@pytest.mark.parametrize("materialised", [False, True])
def test_a_filter_makes_tombstones_of_rejected_rows(materialised: bool) -> None:
    asked: list[Any] = []

    def even(value: int) -> bool:
        asked.append(value)
        return value % 2 == 0

    kept = Materialized("kept", **KEYED) if materialised else None
    rows = [("a", 2, 1), ("a", 3, 2), ("b", None, 3), ("a", 4, 4)]
    with driver_of(lambda s: table_of(s).filter(even, store=kept).to_stream()) as driver:
        driver.create_input_topic("in", **KEYED).pipe_batch(rows)
        assert outputs(driver) == [("a", 2, 1), ("a", None, 2), ("a", 4, 4)]
        if materialised:
            assert [
                (key, row.value, row.timestamp) for key, row in driver.get_state_store("kept").all()
            ] == [("a", 4, 4)]
    # Without a store the filter computes from the old value if downstream has the row.
    assert asked == ([2, 3, 4] if materialised else [2, 3, 2, 4, 3])


def test_a_filter_of_a_table_without_a_store_sends_every_tombstone() -> None:
    rows = [("a", 1, 1), ("a", 2, 2), ("b", None, 3)]
    assert run(lambda s: table_of(s, None).filter(lambda v: v % 2 == 0).to_stream(), rows) == [
        ("a", None, 1),
        ("a", 2, 2),
        ("b", None, 3),
    ]


def test_a_filter_above_a_join_with_a_store_uses_old_values() -> None:
    """As in Kafka Streams: a join always needs old values, so a rejected new row needs no tombstone."""
    builder = StreamsBuilder()
    odd = builder.table("in", **KEYED).filter(lambda value: value % 2 == 1)
    odd.to_stream().to("out", **KEYED)
    other = builder.table("other", **KEYED)
    joined = odd.join(
        other, lambda left, right: left + right, store=Materialized("joined", **KEYED)
    )
    joined.group_by(lambda key, value: (key, value), **KEYED).count()
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in", **KEYED)
        for row in (("a", 2, 1), ("a", 3, 2), ("a", 4, 3)):
            source.pipe_input(*row)
        assert outputs(driver) == [("a", 3, 2), ("a", None, 3)]


def test_filter_not_keeps_the_rows_that_filter_drops() -> None:
    rows = [("a", 2, 1), ("a", 3, 2), ("a", None, 3)]
    assert run(lambda s: table_of(s).filter_not(lambda k, v: v % 2 == 0).to_stream(), rows) == [
        ("a", 3, 2),
        ("a", None, 3),
    ]


@pytest.mark.parametrize("materialised", [False, True])
def test_map_values_maps_rows_and_leaves_deletes(materialised: bool) -> None:
    mapped = Materialized("mapped", **KEYED) if materialised else None
    rows = [("a", 2, 1), ("a", None, 2), ("b", 0, 3), ("c", 5, 4)]
    assert run(
        lambda s: table_of(s).map_values(lambda v: v * 10 or None, store=mapped).to_stream(), rows
    ) == [
        ("a", 20, 1),
        ("a", None, 2),
        ("b", None, 3),
        ("c", 50, 4),
    ]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.integers(-1, 3)), max_size=15),
    st.booleans(),
)
def test_rows_whose_function_fails_are_skipped(
    rows: list[tuple[str, int | None]], as_filter: bool
) -> None:
    def fail(value: int) -> int:
        if value < 0:
            raise ValueError
        return value

    def use(stream: Any) -> Any:
        table = table_of(stream)
        return (
            table.filter(lambda v: fail(v) >= 0) if as_filter else table.map_values(fail)
        ).to_stream()

    changes = [(key, value, time) for time, (key, value) in enumerate(rows)]
    expected: list[tuple[str, int | None, int]] = []
    rows_of: dict[str, int | None] = {}
    for key, value, time in changes:
        unseen = as_filter and value is None and rows_of.get(key) is None
        rows_of[key] = value
        if not unseen and (value is None or value >= 0):
            expected.append((key, value, time))
    assert run(use, changes, processing_exception_handler="continue") == expected


def test_to_stream_may_choose_new_keys() -> None:
    rows = [("a", 2, 1), ("a", None, 2)]
    assert run(lambda s: table_of(s).to_stream(lambda v: f"v{v}"), rows) == [
        ("v2", 2, 1),
        ("vNone", None, 2),
    ]
    assert run(lambda s: table_of(s).to_stream(lambda k, v: k * 2), rows) == [
        ("aa", 2, 1),
        ("aa", None, 2),
    ]


def test_with_a_cache_a_table_forwards_its_last_changes() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", store=Materialized("table", **KEYED), **KEYED)
    table.filter(lambda v: v > 1, store=Materialized("kept", **KEYED)).to_stream().to(
        "out", **KEYED
    )
    config = StreamsConfig(
        application_id="t", bootstrap_servers="unused:9092", statestore_cache_max_bytes=1 << 20
    )
    with TopologyTestDriver(builder.build(config), config) as driver:
        source = driver.create_input_topic("in", **KEYED)
        source.pipe_batch([("a", 1, 1), ("a", 2, 2), ("b", 5, 3), ("a", 3, 4), ("c", 1, 5)])
        assert outputs(driver) == [("b", 5, 3), ("a", 3, 4)]
        source.pipe_batch([("a", 1, 6), ("b", 6, 7), ("b", None, 8)])
        assert outputs(driver) == [("a", None, 6), ("b", None, 8)]


@pytest.mark.parametrize("record_by_record", [False, True])
def test_a_versioned_table_forwards_late_versions_within_its_history(
    record_by_record: bool,
) -> None:
    """KIP-914."""
    versions = Materialized("versions", store_type="versioned", history_retention=20, **KEYED)
    rows = [("a", 1, 50), ("a", 2, 40), ("a", 3, 29), ("a", None, 60), ("b", 4, 39), ("b", 5, 40)]
    with driver_of(
        lambda s: s.to_table(store=versions, **KEYED).to_stream(), record_by_record=record_by_record
    ) as driver:
        driver.create_input_topic("in", **KEYED).pipe_batch(rows)
        assert outputs(driver) == [("a", 1, 50), ("a", 2, 40), ("a", None, 60), ("b", 5, 40)]
        assert driver.metrics()["0_0"]["dropped-records-total"] == 2
        assert driver.get_state_store("versions").get("a", as_of=45).value == 2


def test_a_filter_of_a_versioned_table_passes_tombstones_on() -> None:
    versions = Materialized("versions", store_type="versioned", history_retention=20, **KEYED)
    rows = [("a", 1, 50), ("a", 3, 55), ("a", 2, 60), ("a", 4, 58)]
    assert run(
        lambda s: s.to_table(store=versions, **KEYED).filter(lambda v: v % 2 == 0).to_stream(), rows
    ) == [("a", None, 50), ("a", None, 55), ("a", 2, 60), ("a", 4, 58)]


def test_an_aggregation_may_be_kept_in_a_versioned_store() -> None:
    store = Materialized("counts", store_type="versioned", history_retention=100, key_serde=JSON)
    rows = [("a", 0, 10), ("a", 0, 30), ("a", 0, 20)]
    with driver_of(lambda s: s.group_by_key(**KEYED).count(store=store).to_stream()) as driver:
        driver.create_input_topic("in", **KEYED).pipe_batch(rows)
        assert outputs(driver) == [("a", 1, 10), ("a", 2, 30), ("a", 3, 30)]
        assert driver.get_state_store("counts").get("a", as_of=29).value == 1
