"""Execution mode of sub-topologies."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tidewheel import (
    BufferConfig,
    JoinWindows,
    KStream,
    KTable,
    Materialized,
    Processor,
    Serdes,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    Suppressed,
    TimeWindows,
)
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.streams.operators.stateless import PassThrough
from tidewheel.tasks.processing.api.topology_spec import ProcessorSpec, SourceSpec, SubtopologySpec
from tidewheel.tasks.processing.engine.execution import execution_mode
from tidewheel.tasks.processing.engine.operator import OperatorSupplier

Text = KStream[str, str]
Rows = KTable[str, str]
Apply = Callable[[Text], Any]

SETTINGS: dict[str, Any] = {
    "application_id": "modes",
    "bootstrap_servers": "unused:9092",
    "default_key_serde": "string",
    "default_value_serde": "string",
}

BATCHED: dict[str, Apply] = {
    "filter": lambda s: s.filter(lambda v: v != ""),
    "filter_not": lambda s: s.filter_not(lambda v: v != ""),
    "map": lambda s: s.map(lambda k, v: (v, k)),
    "map_values": lambda s: s.map_values(lambda v: v),
    "flat_map": lambda s: s.flat_map(lambda k, v: [(k, v)]),
    "flat_map_values": lambda s: s.flat_map_values(lambda v: [v]),
    "select_key": lambda s: s.select_key(lambda v: v),
    "peek": lambda s: s.peek(lambda v: None),
    "foreach": lambda s: s.foreach(lambda v: None),
    "print": lambda s: s.print(label="x"),
    "merge": lambda s: s.merge(s.map_values(lambda v: v)),
    "split": lambda s: s.split({"a": lambda v: True}, default="b"),
    "repartition": lambda s: s.repartition(name="r"),
    "to": lambda s: s.to("out"),
    "to_table": lambda s: s.to_table(store="t"),
    "table filter": lambda s: s.to_table(store="t").filter(lambda v: True, store="f"),
    "table map_values": lambda s: s.to_table(store="t").map_values(
        lambda v: v, store=Materialized("m", value_serde=str)
    ),
    "to_stream": lambda s: s.to_table(store="t").to_stream(),
    "group_by": lambda s: s.group_by(lambda v: v, key_serde=str).count(store="c"),
    "count": lambda s: (
        s.group_by_key().count(store="c").to_stream().to("out", value_serde=Serdes.int64())
    ),
    "reduce": lambda s: s.group_by_key().reduce(lambda a, b: a, store="c").to_stream().to("out"),
    "aggregate": lambda s: (
        s.group_by_key()
        .aggregate(str, lambda k, v, a: a, store="c", value_serde=str)
        .to_stream()
        .to("out")
    ),
}

#: Windows and operators with two inputs: (stream, other stream, table).
JOINING: dict[str, Callable[[Text, Text, Rows], Any]] = {
    "tumbling": lambda s, o, t: s.group_by_key().windowed_by(TimeWindows(5)).count(),
    "hopping": lambda s, o, t: s.group_by_key().windowed_by(TimeWindows(5, advance=2)).count(),
    "sliding": lambda s, o, t: s.group_by_key().windowed_by(SlidingWindows(5)).count(),
    "session": lambda s, o, t: s.group_by_key().windowed_by(SessionWindows(5)).count(),
    "on close": lambda s, o, t: (
        s.group_by_key().windowed_by(TimeWindows(5)).emit_strategy("on_window_close").count()
    ),
    "cogroup": lambda s, o, t: (
        s.group_by_key().cogroup(_added).cogroup(o.group_by_key(), _added).aggregate(str)
    ),
    "stream-table join": lambda s, o, t: s.join(t, _joined),
    "stream-table left join": lambda s, o, t: s.left_join(t.map_values(str.upper), _joined),
    "stream-stream join": lambda s, o, t: s.join(o, _joined, within=JoinWindows(5)),
    "stream-stream outer join": lambda s, o, t: s.outer_join(o, _joined, within=JoinWindows(5)),
    "table-table join": lambda s, o, t: t.join(s.to_table(), _joined),
    "foreign-key join": lambda s, o, t: t.join(s.to_table(), _joined, foreign_key=lambda v: v),
    "grouped table": lambda s, o, t: t.group_by(lambda v: (v, v)).count(),
    "suppress": lambda s, o, t: t.suppress(
        Suppressed.until_time_limit(5, BufferConfig.unbounded())
    ),
}


def _added(key: str, value: str, aggregate: str) -> str:
    return aggregate + key + value


def _joined(left: object, right: object) -> str:
    return f"{left}{right}"


def modes(apply: Apply) -> list[str]:
    builder = StreamsBuilder()
    apply(builder.stream("in", key_serde=str, value_serde=str))
    text = str(builder.build().describe(execution=True))
    return [
        line.strip().removeprefix("Execution: ")
        for line in text.splitlines()
        if "Execution:" in line
    ]


@pytest.mark.parametrize("operator", BATCHED)
def test_operators_of_the_dsl_run_on_batches(operator: str) -> None:
    found = modes(BATCHED[operator])
    assert found
    assert set(found) == {"batch"}


@pytest.mark.parametrize("operator", JOINING)
def test_windows_and_joins_run_on_batches(operator: str) -> None:
    builder = StreamsBuilder()
    left, right = (
        builder.stream(topic, key_serde=str, value_serde=str) for topic in ("left", "right")
    )
    rows = builder.table("rows", key_serde=str, value_serde=str, store="rows-store")
    JOINING[operator](left, right, rows)
    text = str(builder.build(StreamsConfig(**SETTINGS)).describe(execution=True))
    found = {line.strip() for line in text.splitlines() if "Execution:" in line}
    assert found == {"Execution: batch"}


def test_a_user_processor_runs_record_by_record_with_a_reason() -> None:
    (mode,) = modes(lambda s: s.process(Processor, name="mine"))
    assert mode == "record by record: mine is a processor of the Processor API"


def test_nodes_that_share_a_store_run_record_by_record() -> None:
    def apply(stream: KStream[str, str]) -> None:
        stream.group_by_key().count(store="shared")
        stream.process(Processor, stores=["shared"])

    (mode,) = modes(apply)
    assert mode.startswith("record by record: ")


def test_a_processor_elsewhere_does_not_slow_other_sub_topologies_down() -> None:
    store = Stores.key_value("seen", key_serde=str, value_serde=str)
    builder = StreamsBuilder()
    builder.add_state_store(store)
    builder.stream("a", key_serde=str, value_serde=str).process(Processor, stores=["seen"])
    builder.stream("b", key_serde=str, value_serde=str).to("out")
    lines = str(builder.build().describe(execution=True)).splitlines()
    modes_seen = [line.strip() for line in lines if "Execution:" in line]
    assert [mode == "Execution: batch" for mode in modes_seen] == [False, True]


def subtopology(*, right_parent: str, right_reads: bool) -> SubtopologySpec:
    """One node below source "a", one below `right_parent`."""
    serde = Serdes.string()
    shared = StoreSpec(name="shared", kind=StoreKind.KEY_VALUE, key_serde=serde, value_serde=serde)
    sources = [
        SourceSpec(name=name, topics=(name,), key_serde=serde, value_serde=serde) for name in "ab"
    ]
    supplier = OperatorSupplier(PassThrough)
    left = ProcessorSpec(name="left", supplier=supplier, parents=("a",), stores=("shared",))
    right = ProcessorSpec(
        name="right",
        supplier=supplier,
        parents=(right_parent,),
        stores=("shared",),
        reads=frozenset({"shared"} if right_reads else ()),
    )
    return SubtopologySpec(id=0, nodes=(*sources, left, right), stores=(shared,))


def test_nodes_below_different_inputs_may_share_a_store_on_batches() -> None:
    assert execution_mode(subtopology(right_parent="b", right_reads=False)).batch


def test_a_writer_and_a_reader_below_one_input_run_record_by_record() -> None:
    mode = execution_mode(subtopology(right_parent="a", right_reads=True))
    assert str(mode) == (
        "record by record: left and right share the store shared, and one batch of a reaches them"
    )
    both_read = subtopology(right_parent="a", right_reads=True)
    *rest, left, right = both_read.nodes
    assert isinstance(left, ProcessorSpec)
    readers = (*rest, replace(left, reads=frozenset({"shared"})), right)
    assert execution_mode(replace(both_read, nodes=readers)).batch
