from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streams.operators.run import JSON, outputs
from tidewheel import KStream, KTable, Materialized, StreamsBuilder, StreamsConfig, Windowed
from tidewheel.streams.graph.logical_graph import ProcessorGraphNode
from tidewheel.streams.graph.parts import TablePart
from tidewheel.streams.operators.tables.table_view import BoundView, TableView, look_up
from tidewheel.streams.windows import SessionWindows, SlidingWindows, TimeWindows
from tidewheel.tasks.processing.engine.operator import (
    NodeContext,
    Operator,
    OperatorSupplier,
    Output,
)
from tidewheel.tasks.processing.engine.record_batch import RecordBatch
from tidewheel.testing import TopologyTestDriver

KEYED: dict[str, Any] = {"key_serde": JSON, "value_serde": JSON}
CONFIG: dict[str, Any] = {
    "application_id": "views",
    "bootstrap_servers": "unused:9092",
    "statestore_cache_max_bytes": 0,
}


class LookUp(Operator):
    def __init__(self, view: TableView, as_of: bool) -> None:
        self._view = view
        self._as_of = as_of

    def init(self, context: NodeContext) -> None:
        super().init(context)
        self._table: BoundView = self._view.init(context)

    def process(self, batch: RecordBatch) -> Output:
        if self._as_of:
            assert self._table.versioned
            values, times = self._table.get_as_of(batch.keys, batch.timestamps)
        else:
            batch, values, times = look_up(self, self._table, batch)
        return batch.with_values([list(row) for row in zip(values, times, strict=True)])


def looking_up(
    make_table: Callable[[KTable[Any, Any]], Any],
    *,
    store: Materialized | None = None,
    as_of: bool = False,
    new_key: Callable[[Any, Any], Any] = lambda key, value: key,
    **settings: Any,
) -> TopologyTestDriver:
    builder = StreamsBuilder()
    part: TablePart = make_table(builder.table("table", store=store, **KEYED))._part
    view, names = part.view()
    records: Any = builder.stream("in", **KEYED).select_key(new_key)
    node = ProcessorGraphNode(
        name="look-up",
        location="",
        supplier=OperatorSupplier(LookUp, (view, as_of)),
        store_names=names,
        reads=frozenset(names),
    )
    part.graph.add(node, records._part.node)
    found = KStream[Any, Any](msgspec.structs.replace(records._part, node=node))
    found.map(lambda key, row: (str(key), row)).to("out", **KEYED)
    config = StreamsConfig(**{**CONFIG, **settings})
    return TopologyTestDriver(builder.build(config), config)


def even_times_ten(table: KTable[Any, Any], store: Materialized | None = None) -> Any:
    return table.filter(lambda value: value % 2 == 0).map_values(
        lambda value: value * 10, store=store
    )


def test_a_chain_without_stores_is_computed_from_the_source() -> None:
    with looking_up(even_times_ten) as driver:
        assert set(driver.get_all_state_stores()) == {"table-STATE-STORE-0000000000"}
        table = driver.create_input_topic("table", **KEYED)
        table.pipe_batch([("a", 2, 5), ("b", 3, 6), ("c", 4, 7), ("c", None, 8)])
        records = [("a", 0, 1), (None, 0, 2), ("b", 0, 3), ("a", 0, 4), ("c", 0, 5), ("d", 0, 6)]
        driver.create_input_topic("in", **KEYED).pipe_batch(records)
        nothing = [None, -1]
        assert [row for _, row, _ in outputs(driver)] == [
            [20, 5], nothing, nothing, [20, 5], nothing, nothing
        ]  # fmt: skip


def test_a_table_with_a_store_is_read_from_it() -> None:
    asked: list[Any] = []

    def make(table: KTable[Any, Any]) -> Any:
        def one_more(value: Any) -> Any:
            asked.append(value)
            return value + 1

        return table.map_values(one_more, store=Materialized("kept", **KEYED))

    with looking_up(make) as driver:
        assert set(driver.get_all_state_stores()) == {"kept"}
        driver.create_input_topic("table", **KEYED).pipe_input("a", 1, 5)
        driver.create_input_topic("in", **KEYED).pipe_batch([("a", 0, 9), ("a", 0, 9)])
        assert [row for _, row, _ in outputs(driver)] == [[2, 5], [2, 5]]
    assert asked == [1]


def test_a_failing_lookup_is_passed_to_the_exception_handler() -> None:
    with looking_up(
        lambda table: table.map_values(lambda value: 10 // value if value < 5 else value),
        processing_exception_handler="continue",
    ) as driver:
        driver.create_input_topic("table", **KEYED).pipe_batch([("a", 2, 1), ("b", 0, 2)])
        records = [("a", 0, 1), ("b", 0, 2), ("c", 0, 3)]
        driver.create_input_topic("in", **KEYED).pipe_batch(records)
        assert [(key, row) for key, row, _ in outputs(driver)] == [("a", [5, 1]), ("c", [None, -1])]


CHANGES = st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 5)), max_size=12)


@settings(max_examples=30)
@given(CHANGES, CHANGES)
def test_a_computed_row_is_the_one_a_store_would_have(first: list[Any], second: list[Any]) -> None:
    seen: list[Any] = []
    memory = Materialized("source", store_type="in_memory", **KEYED)
    kept = Materialized("kept", store_type="in_memory", **KEYED)
    for result in (None, kept):
        make = partial(even_times_ten, store=result)
        with looking_up(make, store=memory) as driver:
            table = driver.create_input_topic("table", **KEYED)
            source = driver.create_input_topic("in", **KEYED)
            for time, changes in enumerate((first, second)):
                table.pipe_batch([(key, value, time) for key, value in changes])
                source.pipe_batch([(key, 0, time) for key in "abcd"])
            seen.append(outputs(driver))
    assert seen[0] == seen[1]


VERSIONED = Materialized("versions", store_type="versioned", history_retention=1_000, **KEYED)


def test_a_versioned_table_is_looked_up_as_of_a_time() -> None:
    with looking_up(even_times_ten, store=VERSIONED, as_of=True) as driver:
        table = driver.create_input_topic("table", **KEYED)
        table.pipe_batch([("a", 2, 10), ("a", 4, 30), ("a", 3, 20), ("a", None, 40)])
        source = driver.create_input_topic("in", **KEYED)
        source.pipe_batch([("a", 0, time) for time in (9, 10, 19, 20, 30, 39, 40)])
        nothing = [None, -1]
        assert [row for _, row, _ in outputs(driver)] == [
            nothing, [20, 10], [20, 10], nothing, [40, 30], [40, 30], nothing
        ]  # fmt: skip


def test_a_lookup_without_a_time_returns_the_newest_version() -> None:
    with looking_up(even_times_ten, store=VERSIONED) as driver:
        driver.create_input_topic("table", **KEYED).pipe_batch([("a", 2, 10), ("a", 4, 5)])
        driver.create_input_topic("in", **KEYED).pipe_batch([("a", 0, 1), ("b", 0, 1)])
        assert [row for _, row, _ in outputs(driver)] == [[20, 10], [None, -1]]


def test_versions_are_those_of_the_nearest_store() -> None:
    """KIP-914."""
    table: Any = StreamsBuilder().table("in", store=VERSIONED, **KEYED)
    assert table._part.versioned
    assert table.filter(bool)._part.versioned
    assert not table.filter(bool, store="plain")._part.versioned
    assert not table.filter(bool, store="plain").map_values(str)._part.versioned
    again = Materialized("again", store_type="versioned", history_retention=5)
    assert table.filter(bool, store="plain").filter(bool, store=again)._part.versioned
    assert not StreamsBuilder().table("in", **KEYED)._part.versioned


@pytest.mark.parametrize(
    ("windows", "window"),
    [
        (TimeWindows(10), (0, 10)),
        (SlidingWindows(10), (0, 10)),
        (SessionWindows(10), (3, 4)),
    ],
)
def test_rows_of_windowed_tables_are_looked_up_by_windowed_keys(
    windows: Any, window: tuple[int, int]
) -> None:
    def make(table: KTable[Any, Any]) -> Any:
        return table.to_stream().group_by_key(**KEYED).windowed_by(windows).count()

    def windowed(key: Any, value: Any) -> Windowed[Any]:
        return Windowed(key, *value)

    with looking_up(make, new_key=windowed) as driver:
        driver.create_input_topic("table", **KEYED).pipe_batch([("a", 1, 3), ("a", 1, 4)])
        source = driver.create_input_topic("in", **KEYED)
        source.pipe_batch([("a", list(window), 1), ("b", list(window), 1), ("a", [50, 60], 1)])
        found = {key: row for key, row, _ in outputs(driver)}
    assert found.pop(str(Windowed("a", *window))) == [2, 4]
    assert list(found.values()) == [[None, -1], [None, -1]]


# -- old values --------------------------------------------------------------------------------------------------------


def test_old_values_are_sent_only_if_a_child_node_requests_them() -> None:
    builder = StreamsBuilder()
    table: Any = builder.table("in", **KEYED)
    mapped = table.map_values(str)
    assert not mapped._part.send_old_values(force=False)
    assert not table._part.node.old_values
    assert not mapped._part.node.old_values
    assert not table._part.store.needed
    assert mapped._part.send_old_values()
    assert table._part.node.old_values
    assert mapped._part.node.old_values
    assert table._part.store.needed


def test_a_table_with_its_own_store_requests_nothing_from_its_parent() -> None:
    table: Any = StreamsBuilder().table("in", **KEYED)
    kept = table.map_values(str, store=Materialized("kept", value_serde=str))
    assert kept._part.send_old_values(force=False)
    assert kept._part.node.old_values
    assert not table._part.node.old_values
    assert not table._part.store.needed


def test_a_filter_uses_old_values_of_a_stored_table() -> None:
    builder = StreamsBuilder()
    kept: Any = builder.table("kept", store="kept", **KEYED)
    other: Any = builder.table("other", **KEYED)
    assert kept.filter(bool)._part.node.old_values
    assert kept._part.node.old_values
    assert not other.filter(bool)._part.node.old_values
    assert not other._part.store.needed
