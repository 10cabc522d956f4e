"""`KGroupedTable`: a table grouped by other keys, for count, reduce and aggregate."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tidewheel.streams.definitions.call import Call
from tidewheel.streams.definitions.default_serdes import KEY_DEFAULT, filled
from tidewheel.streams.definitions.materialized import StoreArgument
from tidewheel.streams.definitions.misplaced_calls import MisplacedCalls
from tidewheel.streams.definitions.names import REPARTITION_SUFFIX, check_name
from tidewheel.streams.dsl.ktable import KTable
from tidewheel.streams.graph.aggregation_nodes import (
    aggregate_serde,
    aggregation_store,
    aggregation_table,
)
from tidewheel.streams.graph.logical_graph import (
    AnySerde,
    LogicalGraph,
    ProcessorGraphNode,
    TableRepartitionNode,
    TableStore,
)
from tidewheel.streams.graph.parts import TablePart
from tidewheel.streams.operators.tables.table_groups import (
    TableAggregate,
    TableGroupMap,
    TableReduce,
    add_one,
    subtract_one,
)
from tidewheel.streams.serdes import SerdeLike, Serdes
from tidewheel.streams.user_functions import FunctionKind, UserFunction
from tidewheel.tasks.processing.engine.operator import Operator, OperatorSupplier

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")

#: As in Kafka Streams, stores of count, reduce and aggregate share this prefix.
_AGGREGATE = "KTABLE-AGGREGATE-"
_REDUCE = "KTABLE-REDUCE-"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableGroupPart:
    """Graph node, serdes and grouping function of a grouped table.

    Attributes:
        function: User function: row -> group and value.
        topic_name: `name=` of `group_by`, which names the repartition topic.
    """

    graph: LogicalGraph
    node: ProcessorGraphNode
    function: UserFunction
    versioned: bool
    key_serde: AnySerde | None
    value_serde: AnySerde | None
    topic_name: str | None


class KGroupedTable(MisplacedCalls, Generic[K, V]):
    """A table grouped by other keys; made by `KTable.group_by` (Kafka Streams' KGroupedTable).

    A changed row's old value is subtracted from its old group, and its new value added to its new
    one; within one group this is one update (KIP-904).

    >>> from tidewheel import StreamsBuilder
    >>> from tidewheel.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> cities = builder.table("users", key_serde=str, value_serde=str)
    >>> living = cities.group_by(lambda user, city: (city, user), key_serde=str, value_serde=str).count()
    >>> living.to_stream().foreach(lambda city, users: print(city, users))
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     source = driver.create_input_topic("users", key_serde=str, value_serde=str)
    ...     source.pipe_key_values([("ann", "Ulm"), ("bob", "Ulm"), ("ann", "Bonn")])
    Ulm 1
    Ulm 2
    Ulm 1
    Bonn 1

    >>> from tidewheel import StreamsBuilder
    >>> users = StreamsBuilder().table("users", key_serde=str, value_serde=str)
    >>> users.group_by(lambda name, city: (city, name), key_serde=str, value_serde=str).count()
    <KTable KTABLE-AGGREGATE-0000000007>
    """

    def __init__(self, part: TableGroupPart) -> None:
        self._part = part
        #: Repartition node of the newest aggregation. All share one node if the user named the
        #: grouping (`name=` of `group_by`), which names the topic; else each has its own.
        self._repartition: TableRepartitionNode | None = None

    def __repr__(self) -> str:
        return f"<KGroupedTable {self._part.node.name}>"

    def count(
        self, *, store: StoreArgument[K, int] = None, name: str | None = None
    ) -> KTable[K, int]:
        """Count the rows of each group; an emptied group has count 0.

        Args:
            store: Store of the result; default value serde: 64-bit integers.

        >>> from tidewheel import StreamsBuilder
        >>> users = StreamsBuilder().table("users", key_serde=str, value_serde=str)
        >>> by_city = users.group_by(lambda name, city: (city, name), key_serde=str, value_serde=str)
        >>> by_city.count(store="users-per-city").queryable_store_name
        'users-per-city'
        """
        call = Call.here("count")
        table_store = self._store(call, store, name, Serdes.int64())
        operator = (TableAggregate, (int, add_one, subtract_one))
        return KTable(self._aggregated(call, table_store, _AGGREGATE, name, operator))

    def reduce(
        self,
        adder: Callable[[V, V], V | None],
        subtractor: Callable[[V, V], V | None],
        *,
        store: StoreArgument[K, V] = None,
        name: str | None = None,
    ) -> KTable[K, V]:
        """Combine the values of each group; the first value is the first result.

        Args:
            adder: `f(aggregate, value)` -> aggregate including the value.
            subtractor: `f(aggregate, value)` -> aggregate without the value.

        If either returns None, the group's row is deleted; the next value is its first result.

        >>> from operator import add, sub
        >>> from tidewheel import StreamsBuilder
        >>> stock = StreamsBuilder().table("stock", key_serde=str, value_serde=int)
        >>> by_kind = stock.group_by(lambda item, pieces: (item[:2], pieces), key_serde=str, value_serde=int)
        >>> by_kind.reduce(add, sub)
        <KTable KTABLE-REDUCE-0000000007>
        """
        call = Call.here("reduce")
        functions = (
            call.function(adder, FunctionKind.REDUCER).call,
            call.function(subtractor, FunctionKind.REDUCER).call,
        )
        table_store = self._store(call, store, name, self._part.value_serde)
        return KTable(self._aggregated(call, table_store, _REDUCE, name, (TableReduce, functions)))

    def aggregate(
        self,
        initializer: Callable[[], A],
        adder: Callable[[K, V, A], A | None],
        subtractor: Callable[[K, V, A], A | None],
        *,
        store: StoreArgument[K, A] = None,
        value_serde: SerdeLike[A] | None = None,
        name: str | None = None,
    ) -> KTable[K, A]:
        """Fold the values of each group into an aggregate.

        Args:
            adder: `f(key, value, aggregate)` -> aggregate including the value.
            subtractor: `f(key, value, aggregate)` -> aggregate without the value.

        If either returns None, the group's row is deleted; its next value starts from
        `initializer()`.

        >>> from tidewheel import StreamsBuilder
        >>> carts = StreamsBuilder().table("carts", key_serde=str, value_serde=int)
        >>> by_country = carts.group_by(lambda user, cents: (user[:2], cents), key_serde=str, value_serde=int)
        >>> by_country.aggregate(
        ...     lambda: 0,
        ...     lambda country, cents, total: total + cents,
        ...     lambda country, cents, total: total - cents,
        ...     value_serde=int,
        ... )
        <KTable KTABLE-AGGREGATE-0000000007>
        """
        call = Call.here("aggregate")
        functions = (
            call.function(initializer, FunctionKind.INITIALIZER).call,
            call.function(adder, FunctionKind.AGGREGATOR).call,
            call.function(subtractor, FunctionKind.AGGREGATOR).call,
        )
        table_store = self._store(call, store, name, aggregate_serde(call, store, value_serde))
        return KTable(
            self._aggregated(call, table_store, _AGGREGATE, name, (TableAggregate, functions))
        )

    def _store(
        self,
        call: Call,
        store: StoreArgument[Any, Any],
        name: str | None,
        value_serde: AnySerde | None,
    ) -> TableStore:
        serdes = (self._part.key_serde, value_serde)
        return aggregation_store(call, self._part.graph, store, _AGGREGATE, name, serdes, None)

    def _aggregated(
        self,
        call: Call,
        table_store: TableStore,
        prefix: str,
        name: str | None,
        operator: tuple[type[Operator], tuple[Any, ...]],
    ) -> TablePart:
        graph = self._part.graph
        parent = self._repartitioned(call, table_store, name)
        return aggregation_table(
            call, graph, parent, table_store, graph.node_name(prefix, name), operator
        )

    def _repartitioned(
        self, call: Call, table_store: TableStore, name: str | None
    ) -> TableRepartitionNode:
        part, graph = self._part, self._part.graph
        # Generated even if the topic is shared: as in Kafka Streams, it advances the name counter.
        sink = graph.node_name("KSTREAM-SINK-", None if name is None else f"{name}-sink")
        source = graph.node_name("KSTREAM-SOURCE-", None if name is None else f"{name}-source")
        if self._repartition is None or part.topic_name is None:
            topic = f"{part.topic_name or table_store.name}{REPARTITION_SUFFIX}"
            self._repartition = TableRepartitionNode(
                name=source,
                location=call.location,
                topic=check_name(topic, "repartition topic", call.context),
                generated=part.topic_name is None and table_store.generated,
                sink_name=sink,
                key_serde=table_store.key_serde if part.key_serde is None else part.key_serde,
                value_serde=part.value_serde,
            )
            if not part.node.children:
                part.node.supplier = group_map(part, self._repartition)
        graph.add(self._repartition, part.node)
        return self._repartition


def group_map(part: TableGroupPart, repartition: TableRepartitionNode) -> OperatorSupplier:
    """Return a supplier of the operator that maps rows to groups before the repartition."""
    key_serde = filled(repartition.key_serde, KEY_DEFAULT)
    arguments = (part.function, key_serde, repartition.topic, part.versioned)
    return OperatorSupplier(TableGroupMap, arguments)
