"""`KTable`: a stream read as the newest value of each key.

Rules are Kafka Streams': a null value deletes a row; a row that a filter rejects becomes a deletion downstream; a table
is kept in a store only if it has a name to query it by, or if an operator needs to read it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from streams.call import Call
from streams.logical_graph import AnySerde, GraphNode, LogicalGraph, ProcessorNode, TableStore
from streams.materialized import Materialized
from streams.operators.stateless import ToStream
from streams.operators.table import TableFilter, TableMapValues
from streams.serdes import as_serde
from tasks.processing.operator import OperatorSupplier

if TYPE_CHECKING:
    from streams.kstream import KStream

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")

StoreArgument = str | Materialized | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePart:
    """What a table knows of itself: its node, its store if it has one, and its serdes as far as known."""

    graph: LogicalGraph
    node: GraphNode
    store: TableStore | None
    key_serde: AnySerde | None
    value_serde: AnySerde | None


class KTable(Generic[K, V]):
    """A table of rows by key; made by `StreamsBuilder.table`, `to_table`, or an aggregation.

    >>> from streams import StreamsBuilder
    >>> StreamsBuilder().table("users", store="users", key_serde=str, value_serde=str)
    <KTable KTABLE-SOURCE-0000000001>
    """

    def __init__(self, part: TablePart) -> None:
        self._part = part

    def __repr__(self) -> str:
        return f"<KTable {self._part.node.name}>"

    @property
    def queryable_store_name(self) -> str | None:
        """Return the name of the store to query, or None if the user named none.

        >>> from streams import StreamsBuilder
        >>> lines = StreamsBuilder().stream("lines", key_serde=str, value_serde=str)
        >>> lines.group_by_key().count(store="counts").queryable_store_name
        'counts'
        """
        return None if self._part.store is None else self._part.store.queryable_name

    @overload
    def filter(
        self,
        predicate: Callable[[V], object],
        *,
        store: StoreArgument = None,
        name: str | None = None,
    ) -> "KTable[K, V]": ...
    @overload
    def filter(
        self,
        predicate: Callable[[K, V], object],
        *,
        store: StoreArgument = None,
        name: str | None = None,
    ) -> "KTable[K, V]": ...
    def filter(
        self,
        predicate: Callable[..., object],
        *,
        store: StoreArgument = None,
        name: str | None = None,
    ) -> "KTable[K, V]":
        """Keep the rows for which a predicate holds; the others are deleted downstream.

        Args:
            predicate: `f(value)` or `f(key, value)`; not asked about deleted rows.
            store: Keep the result in a store of this name.
            name: The node's name.

        >>> from streams import StreamsBuilder
        >>> users = StreamsBuilder().table("users", key_serde=str, value_serde=str)
        >>> users.filter(lambda user: user.startswith("a"), store="a-users").queryable_store_name
        'a-users'
        """
        return self._filter("filter", predicate, store, name, negate=False)

    @overload
    def filter_not(
        self,
        predicate: Callable[[V], object],
        *,
        store: StoreArgument = None,
        name: str | None = None,
    ) -> "KTable[K, V]": ...
    @overload
    def filter_not(
        self,
        predicate: Callable[[K, V], object],
        *,
        store: StoreArgument = None,
        name: str | None = None,
    ) -> "KTable[K, V]": ...
    def filter_not(
        self,
        predicate: Callable[..., object],
        *,
        store: StoreArgument = None,
        name: str | None = None,
    ) -> "KTable[K, V]":
        """Keep the rows for which a predicate does not hold; the others are deleted downstream.

        Args:
            predicate: `f(value)` or `f(key, value)`; not asked about deleted rows.
            store: Keep the result in a store of this name.
            name: The node's name.

        >>> from streams import StreamsBuilder
        >>> users = StreamsBuilder().table("users", key_serde=str, value_serde=str)
        >>> users.filter_not(lambda user: user == "root")
        <KTable KTABLE-FILTER-0000000003>
        """
        return self._filter("filter_not", predicate, store, name, negate=True)

    @overload
    def map_values(
        self, mapper: Callable[[V], V2], *, store: StoreArgument = None, name: str | None = None
    ) -> "KTable[K, V2]": ...
    @overload
    def map_values(
        self, mapper: Callable[[K, V], V2], *, store: StoreArgument = None, name: str | None = None
    ) -> "KTable[K, V2]": ...
    def map_values(
        self, mapper: Callable[..., Any], *, store: StoreArgument = None, name: str | None = None
    ) -> "KTable[K, Any]":
        """Replace each row's value.

        Args:
            mapper: `f(value)` or `f(key, value)`; not asked about deleted rows.
            store: Keep the result in a store of this name; its `value_serde` becomes the table's.
            name: The node's name.

        >>> from streams import StreamsBuilder
        >>> users = StreamsBuilder().table("users", key_serde=str, value_serde=str)
        >>> users.map_values(len)
        <KTable KTABLE-MAPVALUES-0000000003>
        """
        call = Call.here("map_values")
        function = call.mapper(mapper)
        kept = self._kept("KTABLE-MAPVALUES-", store, call, value_serde=None)
        supplier = OperatorSupplier(TableMapValues, (function, _name_to_keep(kept)))
        node = self._below(call, "KTABLE-MAPVALUES-", name, supplier, kept)
        return KTable(self._derived(node, kept, value_serde=None))

    @overload
    def to_stream(self, key_mapper: None = None, *, name: str | None = None) -> "KStream[K, V]": ...
    @overload
    def to_stream(
        self, key_mapper: Callable[[V], K2], *, name: str | None = None
    ) -> "KStream[K2, V]": ...
    @overload
    def to_stream(
        self, key_mapper: Callable[[K, V], K2], *, name: str | None = None
    ) -> "KStream[K2, V]": ...
    def to_stream(
        self, key_mapper: Callable[..., Any] | None = None, *, name: str | None = None
    ) -> "KStream[Any, V]":
        """Return the table's changes as a stream; a deleted row is a record with value None.

        Args:
            key_mapper: `f(value)` or `f(key, value)` -> new key.
            name: The node's name.

        >>> from streams import StreamsBuilder
        >>> users = StreamsBuilder().table("users", key_serde=str, value_serde=str)
        >>> users.to_stream()
        <KStream KTABLE-TOSTREAM-0000000003>
        """
        # Tables make streams and streams make tables: one of the two imports has to come late.
        from streams.kstream import KStream, StreamPart  # noqa: PLC0415

        part, call = self._part, Call.here("to_stream")
        if key_mapper is not None:
            call.mapper(key_mapper)  # so that a message names to_stream, not the select_key below
        node = self._below(call, "KTABLE-TOSTREAM-", name, OperatorSupplier(ToStream), None)
        stream: KStream[Any, V] = KStream(
            StreamPart(
                graph=part.graph,
                node=node,
                key_serde=part.key_serde,
                value_serde=part.value_serde,
                rekeyed=False,
            )
        )
        return stream if key_mapper is None else stream.select_key(key_mapper)

    # -- parts -----------------------------------------------------------------------------------------------------

    def _filter(
        self,
        operator: str,
        predicate: Callable[..., object],
        store: StoreArgument,
        name: str | None,
        *,
        negate: bool,
    ) -> "KTable[K, V]":
        call = Call.here(operator)
        function = call.predicate(predicate)
        value_serde = self._part.value_serde
        kept = self._kept("KTABLE-FILTER-", store, call, value_serde=value_serde)
        supplier = OperatorSupplier(TableFilter, (function, negate, _name_to_keep(kept)))
        node = self._below(call, "KTABLE-FILTER-", name, supplier, kept)
        return KTable(self._derived(node, kept, value_serde=value_serde))

    def _kept(
        self, prefix: str, store: StoreArgument, call: Call, *, value_serde: AnySerde | None
    ) -> TableStore | None:
        """Return the store that `store=` speaks of; it is needed only if it has a name."""
        if store is None:
            return None
        materialized = Materialized.of(store, call.context)
        serdes = settled_serdes(materialized, self._part.key_serde, value_serde)
        return self._part.graph.table_store(
            materialized, prefix=prefix, name=None, serdes=serdes, needed=False
        )

    def _below(
        self,
        call: Call,
        prefix: str,
        name: str | None,
        supplier: OperatorSupplier,
        store: TableStore | None,
    ) -> GraphNode:
        graph = self._part.graph
        node = ProcessorNode(
            name=graph.node_name(prefix, call.name(name)),
            location=call.location,
            supplier=supplier,
            store=store,
        )
        graph.add(node, self._part.node)
        return node

    def _derived(
        self, node: GraphNode, kept: TableStore | None, *, value_serde: AnySerde | None
    ) -> TablePart:
        return TablePart(
            graph=self._part.graph,
            node=node,
            store=kept,
            key_serde=self._part.key_serde if kept is None else kept.key_serde,
            value_serde=value_serde if kept is None else kept.value_serde,
        )


def _name_to_keep(store: TableStore | None) -> str | None:
    return store.name if store is not None and store.needed else None


def settled_serdes(
    materialized: Materialized, key_serde: AnySerde | None, value_serde: AnySerde | None
) -> tuple[AnySerde | None, AnySerde | None]:
    """Return the serdes of a table's store: those it names, else those known from before."""
    own_key, own_value = materialized.key_serde, materialized.value_serde
    return (
        key_serde if own_key is None else as_serde(own_key),
        value_serde if own_value is None else as_serde(own_value),
    )
