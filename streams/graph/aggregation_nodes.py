"""Aggregation nodes: store, repartition topic if needed, and operator of a grouped stream.

Kafka Streams' GroupedStreamAggregateBuilder.
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
    ProcessorGraphNode,
    RepartitionNode,
    TableStore,
)
from tidewheel.streams.graph.parts import TablePart, resolved_serdes
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

#: Windows of an aggregation and its emit strategy.
Windowing = tuple[Windows, EmitStrategy]

AGGREGATE = "KSTREAM-AGGREGATE-"
REDUCE = "KSTREAM-REDUCE-"


class GroupPart(msgspec.Struct, frozen=True, kw_only=True):
    """Graph node and serdes of a grouped stream; `topic_name` names its repartition topic."""

    graph: LogicalGraph
    node: GraphNode
    key_serde: AnySerde | None
    value_serde: AnySerde | None
    rekeyed: bool
    topic_name: str | None


class StreamAggregations:
    def __init__(self, part: GroupPart) -> None:
        self.part = part
        #: Repartition node of the newest aggregation. All share one node if the user named the
        #: grouping, which names the topic; else each has its own.
        self._repartition: RepartitionNode | None = None

    def consume_number(self, store: StoreArgument[Any, Any], prefix: str = AGGREGATE) -> None:
        """Advance the counter of generated names for a `Materialized` without a name.

        Kafka Streams' count does so; otherwise later generated names would differ.
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
        windowing: Windowing | None = None,
    ) -> TableStore:
        part = self.part
        return aggregation_store(
            call, part.graph, store, prefix, name, (part.key_serde, value_serde), windowing
        )

    def table(
        self,
        call: Call,
        table_store: TableStore,
        name: str,
        operator: tuple[type[Operator], tuple[Any, ...]],
    ) -> TablePart:
        return aggregation_table(
            call, self.part.graph, self.parent(call, table_store), table_store, name, operator
        )

    def parent(self, call: Call, table_store: TableStore) -> GraphNode:
        """Return the aggregation's parent: the stream's node, or a repartition for changed keys."""
        part = self.part
        if not part.rekeyed:
            return part.node
        repartition = self.repartition(call, table_store)
        if self._repartition is None or part.topic_name is None:
            self._repartition = repartition
        part.graph.add(self._repartition, part.node)
        return self._repartition

    def repartition(self, call: Call, table_store: TableStore) -> RepartitionNode:
        """Return the repartition node before an aggregation, which the caller may add.

        Each aggregation advances the counter of generated names, even if it reuses a topic.
        """
        part = self.part
        return part.graph.repartition(
            part.topic_name or table_store.name,
            (table_store.key_serde if part.key_serde is None else part.key_serde, part.value_serde),
            generated=part.topic_name is None and table_store.generated,
            call=call,
        )


class GroupedStream(Generic[K, V]):
    """A stream grouped by key, accepted by `cogroup`."""

    def __init__(self, part: GroupPart) -> None:
        self._part = part
        self._aggregations = StreamAggregations(part)

    def aggregations(self) -> StreamAggregations:
        return self._aggregations


def aggregation_store(
    call: Call,
    graph: LogicalGraph,
    store: StoreArgument[Any, Any],
    prefix: str,
    name: str | None,
    serdes: tuple[AnySerde | None, AnySerde | None],
    windowing: Windowing | None,
) -> TableStore:
    materialized = Materialized.of(store, call.context)
    if materialized.name is None and name is not None:
        check_name(name, "store", call.context)
    table_store = graph.table_store(
        materialized,
        prefix=prefix,
        name=call.name(name),
        serdes=resolved_serdes(materialized, *serdes),
        needed=True,
    )
    if windowing is not None:
        table_store.windows, table_store.emit = windowing
    table_store.spec(call.context)  # rejects invalid options here, not in build()
    return table_store


def aggregation_table(
    call: Call,
    graph: LogicalGraph,
    parent: GraphNode,
    table_store: TableStore,
    name: str,
    operator: tuple[type[Operator], tuple[Any, ...]],
) -> TablePart:
    operator_class, arguments = operator
    node = ProcessorGraphNode(
        name=name,
        location=call.location,
        supplier=OperatorSupplier(operator_class, (table_store.name, *arguments)),
        store=table_store,
    )
    graph.add(node, parent)
    return TablePart(
        graph=graph,
        node=node,
        store=table_store,
        key_serde=key_serde_of(table_store),
        value_serde=table_store.value_serde,
    )


def aggregate_serde(
    call: Call, store: StoreArgument[Any, Any], value_serde: SerdeLike[Any] | None
) -> AnySerde | None:
    if (
        value_serde is not None
        and isinstance(store, Materialized)
        and store.value_serde is not None
    ):
        raise TopologyError(
            f"{call.context}: value_serde is given twice, here and in Materialized; leave one out"
        )
    return call.serde(value_serde, "value_serde")


def key_serde_of(table_store: TableStore) -> AnySerde | None:
    return table_store.key_serde if table_store.windows is None else windowed_serde(table_store)


def windowed_serde(table_store: TableStore) -> WindowedSerde[Any]:
    inner, windows = filled(table_store.key_serde, KEY_DEFAULT), table_store.windows
    if isinstance(windows, SessionWindows):
        return SessionWindowedSerde(inner)
    assert isinstance(windows, FixedWindows | SlidingWindows)
    return TimeWindowedSerde(inner, windows.end_of)
