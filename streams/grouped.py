"""`KGroupedStream`: a stream grouped by key, to be counted, reduced or aggregated into a table.

If the key may have changed since the stream was read, the records first go through a repartition topic, which is made
with the first aggregation (a group that nobody aggregates makes none). Records with a null key or value don't count.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from streams.call import Call
from streams.errors import TopologyError
from streams.functions import FunctionKind
from streams.ktable import KTable, StoreArgument, TablePart, settled_serdes
from streams.logical_graph import (
    AnySerde,
    GraphNode,
    LogicalGraph,
    ProcessorNode,
    RepartitionNode,
    TableStore,
)
from streams.materialized import Materialized
from streams.names import check_name
from streams.operators.aggregate import StreamAggregate, StreamCount, StreamReduce
from streams.serdes import SerdeLike, Serdes
from tasks.processing.operator import OperatorSupplier

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")

_AGGREGATE = "KSTREAM-AGGREGATE-"
_REDUCE = "KSTREAM-REDUCE-"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPart:
    """What a grouped stream knows of itself; `topic_name` is the `name=` its repartition topic takes."""

    graph: LogicalGraph
    node: GraphNode
    key_serde: AnySerde | None
    value_serde: AnySerde | None
    rekeyed: bool
    topic_name: str | None


class KGroupedStream(Generic[K, V]):
    """A stream grouped by key; made by `group_by_key` or `group_by`.

    >>> from streams import StreamsBuilder
    >>> words = StreamsBuilder().stream("words", key_serde=str, value_serde=str)
    >>> words.group_by_key().count()
    <KTable KSTREAM-AGGREGATE-0000000002>
    """

    def __init__(self, part: GroupPart) -> None:
        self._part = part
        #: Shared by all aggregations if the user named it; else each makes its own.
        self._repartition: RepartitionNode | None = None

    def __repr__(self) -> str:
        return f"<KGroupedStream {self._part.node.name}>"

    def count(self, *, store: StoreArgument = None, name: str | None = None) -> KTable[K, int]:
        """Count the records of each key.

        Args:
            store: The table's store; its values are 64-bit integers unless it names another serde.
            name: The node's name, also that of the store if that has none.

        >>> from streams import StreamsBuilder
        >>> words = StreamsBuilder().stream("words", key_serde=str, value_serde=str)
        >>> words.group_by(lambda word: word).count(store="counts").queryable_store_name
        'counts'
        """
        call = Call.here("count")
        if isinstance(store, Materialized) and store.name is None:
            # Kafka Streams uses up a number here, so we do; names after it would differ otherwise.
            self._part.graph.store_name(_AGGREGATE)
        kept = self._store(call, store, _AGGREGATE, name, Serdes.int64())
        return KTable(self._aggregated(call, kept, _AGGREGATE, name, (StreamCount, ())))

    def reduce(
        self,
        reducer: Callable[[V, V], V | None],
        *,
        store: StoreArgument = None,
        name: str | None = None,
    ) -> KTable[K, V]:
        """Combine the values of each key; the first one is the first result.

        Args:
            reducer: `f(aggregate, value)` -> new aggregate; None deletes the row.
            store: The table's store.
            name: The node's name, also that of the store if that has none.

        >>> from streams import StreamsBuilder
        >>> prices = StreamsBuilder().stream("prices", key_serde=str, value_serde=float)
        >>> prices.group_by_key().reduce(max)
        <KTable KSTREAM-REDUCE-0000000002>
        """
        call = Call.here("reduce")
        function = call.function(reducer, FunctionKind.REDUCER)
        kept = self._store(call, store, _REDUCE, name, self._part.value_serde)
        return KTable(self._aggregated(call, kept, _REDUCE, name, (StreamReduce, (function.call,))))

    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A | None],
        *,
        store: StoreArgument = None,
        value_serde: SerdeLike[Any] | None = None,
        name: str | None = None,
    ) -> KTable[K, A]:
        """Fold the values of each key into an aggregate.

        Args:
            initializer: `f()` -> the aggregate before the first value.
            aggregator: `f(key, value, aggregate)` -> new aggregate; None deletes the row.
            store: The table's store.
            value_serde: Serde of aggregates.
            name: The node's name, also that of the store if that has none.

        >>> from streams import StreamsBuilder
        >>> words = StreamsBuilder().stream("words", key_serde=str, value_serde=str)
        >>> words.group_by_key().aggregate(
        ...     lambda: 0, lambda key, word, total: total + len(word), value_serde=int
        ... )
        <KTable KSTREAM-AGGREGATE-0000000002>
        """
        call = Call.here("aggregate")
        start = call.function(initializer, FunctionKind.INITIALIZER)
        step = call.function(aggregator, FunctionKind.AGGREGATOR)
        if (
            value_serde is not None
            and isinstance(store, Materialized)
            and store.value_serde is not None
        ):
            raise TopologyError(
                f"{call.context}: value_serde is given twice, here and in Materialized; leave one out"
            )
        serde = call.serde(value_serde, "value_serde")
        kept = self._store(call, store, _AGGREGATE, name, serde)
        operator = (StreamAggregate, (start.call, step.call))
        return KTable(self._aggregated(call, kept, _AGGREGATE, name, operator))

    # -- parts -----------------------------------------------------------------------------------------------------

    def _store(
        self,
        call: Call,
        store: StoreArgument,
        prefix: str,
        name: str | None,
        value_serde: AnySerde | None,
    ) -> TableStore:
        """Return the store of an aggregation, which is always needed."""
        materialized = Materialized.of(store, call.context)
        if materialized.name is None and name is not None:
            check_name(name, "store", call.context)
        return self._part.graph.table_store(
            materialized,
            prefix=prefix,
            name=call.name(name),
            serdes=settled_serdes(materialized, self._part.key_serde, value_serde),
            needed=True,
        )

    def _aggregated(
        self,
        call: Call,
        kept: TableStore,
        prefix: str,
        name: str | None,
        operator: tuple[type[Any], tuple[Any, ...]],
    ) -> TablePart:
        graph = self._part.graph
        node_name = graph.node_name(prefix, name)
        parent = self._part.node
        if self._part.rekeyed:
            parent = self._repartitioned(call, kept)
        made, arguments = operator
        node = ProcessorNode(
            name=node_name,
            location=call.location,
            supplier=OperatorSupplier(made, (kept.name, *arguments)),
            store=kept,
        )
        graph.add(node, parent)
        return TablePart(
            graph=graph,
            node=node,
            store=kept,
            key_serde=kept.key_serde,
            value_serde=kept.value_serde,
        )

    def _repartitioned(self, call: Call, kept: TableStore) -> RepartitionNode:
        part = self._part
        # The numbers are used up for each aggregation, also where the topic is shared.
        made = part.graph.repartition(
            part.topic_name or kept.name,
            (kept.key_serde if part.key_serde is None else part.key_serde, part.value_serde),
            generated=part.topic_name is None and kept.generated,
            call=call,
        )
        if self._repartition is None or part.topic_name is None:
            self._repartition = made
        part.graph.add(self._repartition, part.node)
        return self._repartition
