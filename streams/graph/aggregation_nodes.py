"""How a grouped stream becomes a table: its store, a trip through a repartition topic if it needs one, its node.

All aggregations of one grouped stream, with windows or without, go through one `StreamAggregations`, which lets them
share the repartition topic that the user named (Kafka Streams' GroupedStreamAggregateBuilder).
"""

from typing import Any, Generic, TypeVar

import msgspec

from tidewheel.streams.definitions.call import Call
from tidewheel.streams.definitions.default_serdes import KEY_DEFAULT, filled
from tidewheel.streams.definitions.materialized import Materialized, StoreArgument
from tidewheel.streams.definitions.names import check_name
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.graph.logical_graph import (
    AnySerde,
    GraphNode,
    LogicalGraph,
    ProcessorNode,
    RepartitionNode,
    TableStore,
)
from tidewheel.streams.graph.parts import TablePart, settled_serdes
from tidewheel.streams.serdes import SerdeLike
from tidewheel.streams.serdes.windowed import SessionWindowedSerde, TimeWindowedSerde, WindowedSerde
from tidewheel.streams.windows import (
    EmitStrategy,
    FixedWindows,
    SessionWindows,
    SlidingWindows,
    Windows,
)
from tidewheel.tasks.processing.engine.operator import Operator, OperatorSupplier

K = TypeVar("K")
V = TypeVar("V")

#: The windows of an aggregation, and when their results are forwarded.
Cut = tuple[Windows, EmitStrategy]

AGGREGATE = "KSTREAM-AGGREGATE-"
REDUCE = "KSTREAM-REDUCE-"


class GroupPart(msgspec.Struct, frozen=True, kw_only=True):
    """What a grouped stream knows of itself; `topic_name` is the `name=` its repartition topic takes."""

    graph: LogicalGraph
    node: GraphNode
    key_serde: AnySerde | None
    value_serde: AnySerde | None
    rekeyed: bool
    topic_name: str | None


class StreamAggregations:
    """Adds the aggregations of one grouped stream to the graph."""

    def __init__(self, part: GroupPart) -> None:
        self.part = part
        #: Shared by all aggregations if the user named it; else each makes its own.
        self._repartition: RepartitionNode | None = None

    def use_up_a_number(self, store: StoreArgument[Any, Any], prefix: str = AGGREGATE) -> None:
        """Use up a number for a store that is settled but has no name, as Kafka Streams' count does.

        Names after it would differ otherwise.
        """
        if isinstance(store, Materialized) and store.name is None:
            self.part.graph.store_name(prefix)

    def store(
        self,
        call: Call,
        store: StoreArgument[Any, Any],
        prefix: str,
        name: str | None,
        value_serde: AnySerde | None,
        cut: Cut | None = None,
    ) -> TableStore:
        """Return the store of an aggregation, which is always needed."""
        part = self.part
        return aggregation_store(
            call, part.graph, store, prefix, name, (part.key_serde, value_serde), cut
        )

    def table(
        self,
        call: Call,
        kept: TableStore,
        name: str,
        operator: tuple[type[Operator], tuple[Any, ...]],
    ) -> TablePart:
        """Add the node of an aggregation, and return its table.

        Args:
            call: What asked for it.
            kept: Its store.
            name: The node's name.
            operator: The operator's class, and its arguments after the store's name.
        """
        return aggregation_table(
            call, self.part.graph, self.parent(call, kept), kept, name, operator
        )

    def parent(self, call: Call, kept: TableStore) -> GraphNode:
        """Return the node an aggregation goes below: the stream's own, or the repartition before it."""
        part = self.part
        if not part.rekeyed:
            return part.node
        made = self.repartition(call, kept)
        if self._repartition is None or part.topic_name is None:
            self._repartition = made
        part.graph.add(self._repartition, part.node)
        return self._repartition

    def repartition(self, call: Call, kept: TableStore) -> RepartitionNode:
        """Return a repartition before an aggregation, not added yet.

        Its numbers are used up for each aggregation, also where another one's is used.
        """
        part = self.part
        return part.graph.repartition(
            part.topic_name or kept.name,
            (kept.key_serde if part.key_serde is None else part.key_serde, part.value_serde),
            generated=part.topic_name is None and kept.generated,
            call=call,
        )


class GroupedStream(Generic[K, V]):
    """A stream whose records are grouped by key, as `cogroup` takes it."""

    def __init__(self, part: GroupPart) -> None:
        self._part = part
        self._aggregations = StreamAggregations(part)

    def aggregations(self) -> StreamAggregations:
        """Return what adds its aggregations to the graph."""
        return self._aggregations


def aggregation_store(
    call: Call,
    graph: LogicalGraph,
    store: StoreArgument[Any, Any],
    prefix: str,
    name: str | None,
    serdes: tuple[AnySerde | None, AnySerde | None],
    cut: Cut | None,
) -> TableStore:
    """Return the store of an aggregation; raises `TopologyError` if it can't keep the table."""
    materialized = Materialized.of(store, call.context)
    if materialized.name is None and name is not None:
        check_name(name, "store", call.context)
    kept = graph.table_store(
        materialized,
        prefix=prefix,
        name=call.name(name),
        serdes=settled_serdes(materialized, *serdes),
        needed=True,
    )
    if cut is not None:
        kept.windows, kept.emit = cut
    kept.spec(call.context)  # so that a store that can't be is refused here, not at build()
    return kept


def aggregation_table(
    call: Call,
    graph: LogicalGraph,
    parent: GraphNode,
    kept: TableStore,
    name: str,
    operator: tuple[type[Operator], tuple[Any, ...]],
) -> TablePart:
    """Add the node of an aggregation below `parent`, and return its table; see `StreamAggregations.table`."""
    made, arguments = operator
    node = ProcessorNode(
        name=name,
        location=call.location,
        supplier=OperatorSupplier(made, (kept.name, *arguments)),
        store=kept,
    )
    graph.add(node, parent)
    return TablePart(
        graph=graph,
        node=node,
        store=kept,
        key_serde=key_serde_of(kept),
        value_serde=kept.value_serde,
    )


def aggregate_serde(
    call: Call, store: StoreArgument[Any, Any], value_serde: SerdeLike[Any] | None
) -> AnySerde | None:
    """Return the serde of aggregates from `value_serde=`, which must not be given twice."""
    if (
        value_serde is not None
        and isinstance(store, Materialized)
        and store.value_serde is not None
    ):
        raise TopologyError(
            f"{call.context}: value_serde is given twice, here and in Materialized; leave one out"
        )
    return call.serde(value_serde, "value_serde")


def key_serde_of(kept: TableStore) -> AnySerde | None:
    """Return the serde of a table's keys: with windows that of `Windowed` keys."""
    return kept.key_serde if kept.windows is None else windowed_serde(kept)


def windowed_serde(kept: TableStore) -> WindowedSerde[Any]:
    """Return the serde of the keys of a windowed table."""
    inner, windows = filled(kept.key_serde, KEY_DEFAULT), kept.windows
    if isinstance(windows, SessionWindows):
        return SessionWindowedSerde(inner)
    assert isinstance(windows, FixedWindows | SlidingWindows)
    return TimeWindowedSerde(inner, windows.end_of)
