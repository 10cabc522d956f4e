"""`KGroupedTable`: a table grouped by other keys, to be counted, reduced or aggregated into another table.

A row that changes is taken out of its old group and put into its new one, so an aggregate always stands for the rows
the table has now. The changes go through a repartition topic, which is made with the first aggregation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tidewheel.streams.definitions.call import Call
from tidewheel.streams.definitions.default_serdes import KEY_DEFAULT, filled
from tidewheel.streams.definitions.materialized import StoreArgument
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
    ProcessorNode,
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

#: Kafka Streams names the stores of all three after the first.
_AGGREGATE = "KTABLE-AGGREGATE-"
_REDUCE = "KTABLE-REDUCE-"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableGroupPart:
    """What a grouped table knows of itself.

    Attributes:
        graph: Where its nodes are.
        node: The node that turns changes of rows into changes of groups.
        function: The user's, which gives each row's group and value.
        versioned: Whether the table before is versioned.
        key_serde: Serde of the groups' keys, if given.
        value_serde: Serde of the rows' values, if given.
        topic_name: The `name=` that the repartition topic takes.
    """

    graph: LogicalGraph
    node: ProcessorNode
    function: UserFunction
    versioned: bool
    key_serde: AnySerde | None
    value_serde: AnySerde | None
    topic_name: str | None


class KGroupedTable(Generic[K, V]):
    """A table grouped by other keys; made by `KTable.group_by` (Kafka Streams' KGroupedTable).

    A change of a row takes the old one out of its group and puts the new one in; in the same group that is one step
    (KIP-904). Methods raise `TopologyError` as those of `KStream` do.

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
        #: Shared by all aggregations if the user named it; else each makes its own.
        self._repartition: TableRepartitionNode | None = None

    def __repr__(self) -> str:
        return f"<KGroupedTable {self._part.node.name}>"

    def count(
        self, *, store: StoreArgument[K, int] = None, name: str | None = None
    ) -> KTable[K, int]:
        """Count the rows of each group; a group that has no row left counts 0.

        Args:
            store: The result's store; its values are 64-bit integers unless it names another serde.
            name: The node's name, also that of the store if that has none.

        >>> from tidewheel import StreamsBuilder
        >>> users = StreamsBuilder().table("users", key_serde=str, value_serde=str)
        >>> by_city = users.group_by(lambda name, city: (city, name), key_serde=str, value_serde=str)
        >>> by_city.count(store="users-per-city").queryable_store_name
        'users-per-city'
        """
        call = Call.here("count")
        kept = self._store(call, store, name, Serdes.int64())
        operator = (TableAggregate, (int, add_one, subtract_one))
        return KTable(self._aggregated(call, kept, _AGGREGATE, name, operator))

    def reduce(
        self,
        adder: Callable[[V, V], V | None],
        subtractor: Callable[[V, V], V | None],
        *,
        store: StoreArgument[K, V] = None,
        name: str | None = None,
    ) -> KTable[K, V]:
        """Combine the values of each group; the first one is the first result.

        Args:
            adder: `f(aggregate, value)` -> aggregate with the value; None deletes the group's row.
            subtractor: `f(aggregate, value)` -> aggregate without the value; None starts anew.
            store: The result's store.
            name: The node's name, also that of the store if that has none.

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
        kept = self._store(call, store, name, self._part.value_serde)
        return KTable(self._aggregated(call, kept, _REDUCE, name, (TableReduce, functions)))

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

        Where a row stays in its group, its old value is subtracted and the new one added in one step.

        Args:
            initializer: `f()` -> the aggregate before the first value.
            adder: `f(key, value, aggregate)` -> aggregate with the value; None deletes the group's row.
            subtractor: `f(key, value, aggregate)` -> aggregate without the value; None starts anew.
            store: The result's store.
            value_serde: Serde of aggregates.
            name: The node's name, also that of the store if that has none.

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
        kept = self._store(call, store, name, aggregate_serde(call, store, value_serde))
        return KTable(self._aggregated(call, kept, _AGGREGATE, name, (TableAggregate, functions)))

    # -- parts -----------------------------------------------------------------------------------------------------

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
        kept: TableStore,
        prefix: str,
        name: str | None,
        operator: tuple[type[Operator], tuple[Any, ...]],
    ) -> TablePart:
        graph = self._part.graph
        parent = self._repartitioned(call, kept, name)
        return aggregation_table(call, graph, parent, kept, graph.node_name(prefix, name), operator)

    def _repartitioned(
        self, call: Call, kept: TableStore, name: str | None
    ) -> TableRepartitionNode:
        part, graph = self._part, self._part.graph
        # The numbers are used up for each aggregation, also where the topic is shared.
        sink = graph.node_name("KSTREAM-SINK-", None if name is None else f"{name}-sink")
        source = graph.node_name("KSTREAM-SOURCE-", None if name is None else f"{name}-source")
        if self._repartition is None or part.topic_name is None:
            topic = f"{part.topic_name or kept.name}{REPARTITION_SUFFIX}"
            self._repartition = TableRepartitionNode(
                name=source,
                location=call.location,
                topic=check_name(topic, "repartition topic", call.context),
                generated=part.topic_name is None and kept.generated,
                sink_name=sink,
                key_serde=kept.key_serde if part.key_serde is None else part.key_serde,
                value_serde=part.value_serde,
            )
            if not part.node.children:
                part.node.supplier = group_map(part, self._repartition)
        graph.add(self._repartition, part.node)
        return self._repartition


def group_map(part: TableGroupPart, repartition: TableRepartitionNode) -> OperatorSupplier:
    """Return what makes the operator before a repartition; it tells groups apart by their bytes there."""
    key_serde = filled(repartition.key_serde, KEY_DEFAULT)
    arguments = (part.function, key_serde, repartition.topic, part.versioned)
    return OperatorSupplier(TableGroupMap, arguments)
