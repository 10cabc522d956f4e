"""Table joins by key: results, times, caches, versions; batches and single records."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewheel import KTable, Materialized, Serdes, StreamsBuilder, StreamsConfig
from tidewheel.streams.operators.joins.table_join import INNER, LEFT, OUTER, JoinType
from tidewheel.testing import TopologyTestDriver

STRING = Serdes.string()
SERDES: dict[str, Any] = {"key_serde": STRING, "value_serde": STRING}
KINDS = {"join": INNER, "left_join": LEFT, "outer_join": OUTER}

#: (topic, key, value, timestamp)
Change = tuple[str, str | None, str | None, int]
#: (key, value, timestamp)
Result = tuple[str, str | None, int]


def joined(left: str | None, right: str | None) -> str:
    return f"{left}+{right}"


def driver_of(
    use: Callable[[KTable[str, str], KTable[str, str]], KTable[str, Any]],
    *,
    record_by_record: bool = False,
    tables: Materialized | None = None,
    **settings: Any,
) -> TopologyTestDriver:
    builder = StreamsBuilder()
    left = builder.table("left", **SERDES, store=tables)
    right = builder.table("right", **SERDES, store=tables)
    use(left, right).to_stream().to("out", **SERDES)
    config = StreamsConfig(
        **{
            "application_id": "joins",
            "bootstrap_servers": "unused:9092",
            "statestore_cache_max_bytes": 0,
            **settings,
        }
    )
    return TopologyTestDriver(builder.build(config), config, record_by_record=record_by_record)


def pipe(driver: TopologyTestDriver, changes: Iterable[Change]) -> list[Result]:
    for topic, key, value, timestamp in changes:
        driver.create_input_topic(topic, **SERDES).pipe_input(key, value, timestamp)
    return results(driver)


def results(driver: TopologyTestDriver) -> list[Result]:
    output = driver.create_output_topic("out", **SERDES)
    return [(record.key, record.value, record.timestamp) for record in output.read_records()]


def rows(topic: str, value: str, timestamps: Sequence[int]) -> list[Change]:
    return [(topic, f"{key}", f"{value}{key}", time) for key, time in enumerate(timestamps)]


@pytest.mark.parametrize("record_by_record", [False, True])
def test_a_left_join_as_in_kafka_streams(record_by_record: bool) -> None:
    with driver_of(
        lambda left, right: left.left_join(right, joined), record_by_record=record_by_record
    ) as driver:
        assert pipe(driver, rows("left", "X", [5, 6])) == [("0", "X0+None", 5), ("1", "X1+None", 6)]
        assert pipe(driver, rows("right", "Y", [0, 10])) == [("0", "X0+Y0", 5), ("1", "X1+Y1", 10)]
        assert pipe(driver, rows("left", "XX", [7, 7, 7])) == [
            ("0", "XX0+Y0", 7),
            ("1", "XX1+Y1", 10),
            ("2", "XX2+None", 7),
        ]
        assert pipe(driver, [("right", "0", None, 5), ("right", "1", None, 8)]) == [
            ("0", "XX0+None", 7),
            ("1", "XX1+None", 8),
        ]
        assert pipe(driver, rows("right", "YY", [0, 0, 10])) == [
            ("0", "XX0+YY0", 7),
            ("1", "XX1+YY1", 7),
            ("2", "XX2+YY2", 10),
        ]
        # A deleted row deletes its result; the time is the later one of both rows.
        assert pipe(driver, [("left", "0", None, 0), ("left", "2", None, 5)]) == [
            ("0", None, 0),
            ("2", None, 10),
        ]
        assert pipe(driver, [("right", "0", "Z", 50), ("right", "2", None, 51)]) == []


def test_an_inner_join_as_in_kafka_streams() -> None:
    with driver_of(lambda left, right: left.join(right, joined)) as driver:
        assert pipe(driver, rows("left", "X", [5, 6])) == []
        assert pipe(driver, rows("right", "Y", [0, 10])) == [("0", "X0+Y0", 5), ("1", "X1+Y1", 10)]
        assert pipe(driver, rows("left", "XX", [7, 7, 7])) == [
            ("0", "XX0+Y0", 7),
            ("1", "XX1+Y1", 10),
        ]
        assert pipe(driver, [("right", "0", None, 5), ("right", "1", None, 8)]) == [
            ("0", None, 7),
            ("1", None, 8),
        ]
        assert pipe(driver, rows("left", "XXX", [13, 13])) == []
        assert pipe(driver, [("left", "0", None, 0), ("left", "3", None, 0)]) == []


def test_an_outer_join_as_in_kafka_streams() -> None:
    with driver_of(lambda left, right: left.outer_join(right, joined)) as driver:
        assert pipe(driver, rows("right", "Y", [3])) == [("0", "None+Y0", 3)]
        assert pipe(driver, rows("left", "X", [5])) == [("0", "X0+Y0", 5)]
        assert pipe(driver, [("right", "0", None, 1)]) == [("0", "X0+None", 5)]
        assert pipe(driver, [("left", "0", None, 2)]) == [("0", None, 2)]
        assert pipe(driver, [("left", "0", None, 3), ("right", "0", None, 4)]) == []


@pytest.mark.parametrize("operator", KINDS)
def test_null_keys_are_dropped(operator: str) -> None:
    with driver_of(lambda left, right: getattr(left, operator)(right, joined)) as driver:
        assert pipe(driver, [("left", None, "x", 1), ("right", None, "y", 2)]) == []
        assert driver.metrics()["0_0"]["dropped-records-total"] == 2


def test_a_joiner_may_receive_the_key() -> None:
    with driver_of(
        lambda left, right: left.join(right, lambda key, mine, theirs: f"{key}:{mine}{theirs}")
    ) as driver:
        assert pipe(driver, [("left", "k", "a", 1), ("right", "k", "b", 2)]) == [("k", "k:ab", 2)]


def test_a_failing_joiner_skips_its_record_and_no_other() -> None:
    def join(left: str, right: str) -> str:
        if left == "bad":
            raise ValueError
        return left + right

    with driver_of(
        lambda left, right: left.join(right, join), processing_exception_handler="continue"
    ) as driver:
        pipe(driver, [("right", key, "y", 1) for key in "abc"])
        source = driver.create_input_topic("left", **SERDES)
        source.pipe_batch([("a", "x", 1), ("b", "bad", 2), ("c", "x", 3)])
        assert results(driver) == [("a", "xy", 1), ("c", "xy", 3)]
        assert driver.metrics()["0_0"]["skipped-records-total"] == 1
        assert pipe(driver, [("left", "b", "x", 4)]) == [("b", "xy", 4)]


def test_a_result_of_none_deletes() -> None:
    with driver_of(
        lambda left, right: left.join(right, lambda mine, theirs: mine if theirs == "y" else None)
    ) as driver:
        changes = [("left", "a", "x", 1), ("right", "a", "y", 2), ("right", "a", "n", 3)]
        assert pipe(driver, changes) == [("a", "x", 2), ("a", None, 3)]


def test_the_results_of_a_store_with_a_cache_are_forwarded_once_a_commit() -> None:
    store = Materialized("results", value_serde=STRING)
    with driver_of(
        lambda left, right: left.outer_join(right, joined, store=store),
        statestore_cache_max_bytes=1 << 20,
        tables=Materialized(caching=False),
    ) as driver:
        source = driver.create_input_topic("left", **SERDES)
        source.pipe_batch([("a", "1", 1), ("b", "1", 2), ("a", "2", 3), ("b", None, 4)])
        assert results(driver) == [("a", "2+None", 3)]
        found = {key: row.value for key, row in driver.get_state_store("results").all()}
        assert found == {"a": "2+None"}


def test_out_of_order_changes_of_versioned_tables_are_not_joined() -> None:
    """KIP-914: the join, not the table, drops an out-of-order change."""
    versioned = Materialized(store_type="versioned", history_retention=1_000)
    with driver_of(lambda left, right: left.left_join(right, joined), tables=versioned) as driver:
        changes = [("left", "a", "new", 20), ("left", "a", "old", 10), ("right", "a", "y", 30)]
        assert pipe(driver, [*changes, ("right", "a", None, 25)]) == [
            ("a", "new+None", 20),
            ("a", "new+y", 30),
        ]
        assert driver.metrics()["0_0"]["dropped-records-total"] == 2


# -- laws --------------------------------------------------------------------------------------------------------------

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["left", "right"]),
        st.sampled_from(["a", "b"]),
        st.none() | st.sampled_from(["x", "y", "z"]),
        st.integers(0, 20),
    ),
    max_size=14,
)


class Model:
    def __init__(self, kind: JoinType) -> None:
        self.kind = kind
        self.tables: dict[str, dict[str, tuple[str, int]]] = {"left": {}, "right": {}}

    def change(self, topic: str, key: str, value: str | None, timestamp: int) -> list[Result]:
        own, other = self.tables[topic], self.tables["right" if topic == "left" else "left"]
        existed = own.pop(key, None) is not None
        if value is not None:
            own[key] = value, timestamp
        there = other.get(key)
        if there is None:
            needed = self.kind.needs_right if topic == "left" else self.kind.needs_left
            if needed or not (existed or value is not None):
                return []
        return [(key, self.result(key), max(timestamp, -1 if there is None else there[1]))]

    def result(self, key: str) -> str | None:
        left, right = (self.tables[topic].get(key, (None,))[0] for topic in ("left", "right"))
        needs_left, needs_right = self.kind
        missing = (left is None and needs_left) or (right is None and needs_right)
        return None if missing or (left is None and right is None) else joined(left, right)


@pytest.mark.slow
@settings(max_examples=15)
@given(st.sampled_from(sorted(KINDS)), CHANGES, st.booleans(), st.booleans())
def test_every_change_has_the_results_of_the_model(
    operator: str, changes: list[Any], kept: bool, record_by_record: bool
) -> None:
    store = Materialized("results", value_serde=STRING) if kept else None
    model = Model(KINDS[operator])
    with driver_of(
        lambda left, right: getattr(left, operator)(right, joined, store=store),
        record_by_record=record_by_record,
    ) as driver:
        for change in changes:
            assert pipe(driver, [change]) == model.change(*change)
        if kept:
            found = {key: row.value for key, row in driver.get_state_store("results").all()}
            ends = {key: model.result(key) for key in "ab"}
            assert found == {key: value for key, value in ends.items() if value is not None}


@pytest.mark.slow
@settings(max_examples=15)
@given(
    st.sampled_from(sorted(KINDS)),
    st.sampled_from(sorted(KINDS)),
    st.lists(st.tuples(st.sampled_from(["left", "right"]), CHANGES), max_size=4),
)
def test_batches_have_the_results_of_single_records(
    first: str, second: str, batches: list[tuple[str, list[Change]]]
) -> None:
    def use(left: KTable[str, str], right: KTable[str, str]) -> KTable[str, Any]:
        upper = right.map_values(str.upper).filter(lambda value: value != "Z")
        both: KTable[str, str] = getattr(left, first)(upper, joined)
        mapped = both.map_values(lambda value: f"<{value}>")
        result: KTable[str, Any] = getattr(right, second)(mapped, joined)
        return result

    seen = []
    for record_by_record in (False, True):
        with driver_of(use, record_by_record=record_by_record) as driver:
            for topic, changes in batches:
                records = [(key, value, time) for _, key, value, time in changes]
                if records:
                    driver.create_input_topic(topic, **SERDES).pipe_batch(records)
            seen.append(results(driver))
    assert seen[0] == seen[1]


@pytest.mark.slow
@settings(max_examples=15)
@given(CHANGES)
def test_a_table_joined_with_itself_sees_each_change_on_both_sides(changes: list[Any]) -> None:
    with driver_of(lambda left, right: left.outer_join(left, joined)) as driver:
        out = pipe(driver, [("left", key, value, time) for _, key, value, time in changes])
    rows_at_end = {key: value for _, key, value, _ in changes}
    last = {key: value for key, value, _ in out}
    for key, value in rows_at_end.items():
        assert last.get(key) == (None if value is None else joined(value, value))
