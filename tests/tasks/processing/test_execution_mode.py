"""Which sub-topologies run on whole batches."""

from collections.abc import Callable
from typing import Any

import pytest

from streams import KStream, Materialized, Processor, Serdes, Stores, StreamsBuilder

Apply = Callable[[KStream[str, str]], Any]

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


def modes(apply: Apply) -> list[str]:
    """Return the execution line of each sub-topology."""
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
    """Every stateless operator and count, reduce and aggregate run on whole batches."""
    found = modes(BATCHED[operator])
    assert found
    assert set(found) == {"batch"}


def test_a_users_processor_runs_record_by_record_and_says_why() -> None:
    """A processor of the user's own may schedule and commit at any moment, so its sub-topology takes single records."""
    (mode,) = modes(lambda s: s.process(Processor, name="mine"))
    assert mode == "record by record: mine is a processor of the Processor API"


def test_nodes_that_share_a_store_run_record_by_record() -> None:
    """Where one node could see how far another one has come, batches would show."""

    def apply(stream: KStream[str, str]) -> None:
        stream.group_by_key().count(store="shared")
        stream.process(Processor, stores=["shared"])

    (mode,) = modes(apply)
    assert mode.startswith("record by record: ")


def test_a_processor_elsewhere_does_not_slow_other_sub_topologies_down() -> None:
    """The mode is decided per sub-topology."""
    store = Stores.key_value("seen", key_serde=str, value_serde=str)
    builder = StreamsBuilder()
    builder.add_state_store(store)
    builder.stream("a", key_serde=str, value_serde=str).process(Processor, stores=["seen"])
    builder.stream("b", key_serde=str, value_serde=str).to("out")
    lines = str(builder.build().describe(execution=True)).splitlines()
    modes_seen = [line.strip() for line in lines if "Execution:" in line]
    assert [mode == "Execution: batch" for mode in modes_seen] == [False, True]
