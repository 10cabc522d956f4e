"""Graphs of any shape: equal records and order in batches and record by record."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewheel import Serdes
from tidewheel.tasks.processing.api.topology_spec import (
    ProcessorSpec,
    SinkSpec,
    SourceSpec,
    SubtopologySpec,
)
from tidewheel.tasks.processing.engine.graph import TaskGraph
from tidewheel.tasks.processing.engine.operator import Operator, OperatorSupplier, Output
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, SourceRecords

BYTES: dict[str, Any] = {"key_serde": Serdes.bytes(), "value_serde": Serdes.bytes()}


class Pass(Operator):
    def process(self, batch: RecordBatch) -> Output:
        return batch


class Third(Operator):
    def process(self, batch: RecordBatch) -> Output:
        return batch.select([sum(value) % 3 != 0 for value in batch.values])


class Twice(Operator):
    expands = True

    def process(self, batch: RecordBatch) -> Output:
        counts = [(sum(value) + len(value)) % 3 for value in batch.values]
        indices = [index for index, count in enumerate(counts) for _ in range(count)]
        numbers = [number for count in counts for number in range(count)]
        spread = batch.take(indices)
        if spread.order is not None:
            spread.order = [
                (*order, number) for order, number in zip(spread.order, numbers, strict=True)
            ]
        return spread.with_values(
            [(*value, number) for value, number in zip(spread.values, numbers, strict=True)]
        )


class Deal(Operator):
    exclusive = True

    def __init__(self, children: tuple[str, ...]) -> None:
        self._children = children

    def process(self, batch: RecordBatch) -> Output:
        places = [sum(value) % (len(self._children) + 1) for value in batch.values]
        return {
            child: batch.select([place == number for place in places])
            for number, child in enumerate(self._children)
        }


class Collecting(Operator):
    def __init__(self, seen: list[Any]) -> None:
        self._seen = seen

    def process(self, batch: RecordBatch) -> Output:
        assert len(batch)
        self._seen += zip(batch.keys, batch.values, batch.timestamps, batch.rows, strict=True)
        return None


@dataclass(frozen=True)
class Shape:
    """Kind and parents of each node (0 is the source)."""

    nodes: tuple[tuple[str, tuple[int, ...]], ...]

    def children(self, number: int) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(
                f"n{child}" for child, (_, parents) in enumerate(self.nodes, 1) if number in parents
            )
        )

    def spec(self) -> SubtopologySpec:
        suppliers: dict[str, Any] = {"pass": Pass, "third": Third, "twice": Twice}
        nodes: list[Any] = [SourceSpec(name="n0", topics=("in",), **BYTES)]
        for number, (kind, parents) in enumerate(self.nodes, 1):
            supplier = (
                OperatorSupplier(Deal, (self.children(number),))
                if kind == "deal"
                else OperatorSupplier(suppliers[kind])
            )
            nodes.append(
                ProcessorSpec(
                    name=f"n{number}", supplier=supplier, parents=tuple(f"n{p}" for p in parents)
                )
            )
        nodes += [
            SinkSpec(name=f"s{number}", topic="t", parents=(f"n{number}",), **BYTES)
            for number, (kind, _) in enumerate(self.nodes, 1)
            if kind != "deal"
        ]
        return SubtopologySpec(id=0, nodes=tuple(nodes), stores=())


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """A node may have several parents, also the same one twice."""
    nodes: list[tuple[str, tuple[int, ...]]] = []
    for number in range(1, draw(st.integers(1, 8)) + 1):
        parents = draw(st.lists(st.integers(0, number - 1), min_size=1, max_size=3))
        if any(nodes[parent - 1][0] == "deal" for parent in parents if parent):
            parents = list(dict.fromkeys(parents))
        nodes.append((draw(st.sampled_from(["pass", "third", "twice", "deal"])), tuple(parents)))
    return Shape(tuple(nodes))


class Host:
    application_id = "app"
    state_dir: ClassVar[Path] = Path()
    stream_time_ms = -1


class Context: ...


def run(shape: Shape, values: list[int], *, record_by_record: bool) -> dict[str, list[Any]]:
    seen: dict[str, list[Any]] = {}
    graph = TaskGraph(
        shape.spec(),
        make_sink=lambda spec: Collecting(seen.setdefault(spec.name, [])),
        make_context=lambda name: Context(),  # type: ignore[arg-type,return-value]
        host=Host(),  # type: ignore[arg-type]
        record_by_record=record_by_record,
    )
    assert graph.batched is not record_by_record
    graph.init()
    count = len(values)
    source = SourceRecords(
        "in", 0, range(count), [None] * count, [None] * count, range(count), None
    )
    graph.run(
        "n0",
        RecordBatch(
            [None] * count,
            [(value,) for value in values],
            list(range(count)),
            None,
            range(count),
            source,
        ),
    )
    graph.close()
    seen["processed"] = [(name, node.counts.processed) for name, node in graph.nodes.items()]
    return seen


@settings(max_examples=200)
@given(shapes(), st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_every_node_sees_the_same_records_in_the_same_order(
    shape: Shape, values: list[int]
) -> None:
    assert run(shape, values, record_by_record=False) == run(shape, values, record_by_record=True)


def test_latencies_are_those_of_sources_and_sinks() -> None:
    now_ms = iter([5_000, 6_000, 7_000])
    spec = SubtopologySpec(
        id=0,
        nodes=(
            SourceSpec(name="in", topics=("in",), **BYTES),
            ProcessorSpec(name="a", supplier=OperatorSupplier(Pass), parents=("in",)),
            SinkSpec(name="out", topic="t", parents=("a",), **BYTES),
        ),
        stores=(),
    )
    graph = TaskGraph(
        spec,
        make_sink=lambda spec: Collecting([]),
        make_context=lambda name: Context(),  # type: ignore[arg-type,return-value]
        host=Host(),  # type: ignore[arg-type]
        latency_now_ms=lambda: next(now_ms),
    )
    graph.init()
    source = SourceRecords("in", 0, range(2), [None] * 2, [None] * 2, range(2), None)
    graph.run("in", RecordBatch([None] * 2, [(1,), (2,)], [900, 950], None, range(2), source))
    found = {name: node.counts.latency.values(9_000) for name, node in graph.nodes.items()}
    assert found == {"in": (4_100.0, 4_100, 4_100), "a": None, "out": (5_100.0, 5_100, 5_100)}


def test_a_stream_merged_with_itself_gives_each_record_twice_in_a_row() -> None:
    shape = Shape((("pass", (0,)), ("pass", (1, 1))))
    for record_by_record in (False, True):
        rows = run(shape, [1, 2], record_by_record=record_by_record)["s2"]
        assert [value for _, value, _, _ in rows] == [(1,), (1,), (2,), (2,)]


def test_an_error_while_closing_is_raised_after_all_were_closed() -> None:
    closed: list[str] = []

    class Fails(Pass):
        def close(self) -> None:
            closed.append("fails")
            raise OSError("first")

    class Fine(Pass):
        def close(self) -> None:
            closed.append("fine")

    spec = SubtopologySpec(
        id=0,
        nodes=(
            SourceSpec(name="n0", topics=("in",), **BYTES),
            ProcessorSpec(name="a", supplier=OperatorSupplier(Fails), parents=("n0",)),
            ProcessorSpec(name="b", supplier=OperatorSupplier(Fine), parents=("a",)),
        ),
        stores=(),
    )
    graph = TaskGraph(
        spec,
        make_sink=lambda spec: Pass(),
        make_context=lambda name: Context(),  # type: ignore[arg-type,return-value]
        host=Host(),  # type: ignore[arg-type]
    )
    graph.init()
    with pytest.raises(OSError, match="first"):
        graph.close()
    graph.close()
    assert closed == ["fails", "fine"]
