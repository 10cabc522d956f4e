"""`KTable`: a stream read as the newest value of each key.

As in Kafka Streams, a table is stored only if it has a queryable name or an operator reads it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import msgspec

from tidewheel.streams.definitions.call import Call
from tidewheel.streams.definitions.materialized import Materialized, StoreArgument
from tidewheel.streams.definitions.misplaced_calls import MisplacedCalls
from tidewheel.streams.definitions.names import check_names
from tidewheel.streams.definitions.node_arguments import check_supplier, connected_stores
from tidewheel.streams.definitions.suppressed import Suppressed
from tidewheel.streams.dsl.ktable_joins import KTableJoins
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.graph.logical_graph import (
    AnySerde,
    GraphNode,
    ProcessorGraphNode,
    TableStore,
)
from tidewheel.streams.graph.parts import StreamPart, TablePart, resolved_serdes
from tidewheel.streams.graph.suppress_nodes import BufferStore, windows_above
from tidewheel.streams.operators.stateless import PassThrough, ToStream
from tidewheel.streams.operators.tables.suppress import (
    Suppress,
    SuppressedView,
    TimeOf,
    closing_delay_ms,
    first_change,
    window_end,
)
from tidewheel.streams.operators.tables.table import TableFilter, TableMapValues
from tidewheel.streams.operators.tables.table_view import FilterView, MapValuesView, TableView
from tidewheel.streams.operators.tables.transform_values import (
    TableTransformValues,
    TransformValuesView,
)
from tidewheel.streams.serdes import PlainT, SerdeLike, SerdeMethods
from tidewheel.tasks.processing.engine.operator import OperatorSupplier
from tidewheel.tasks.processing.engine.transformer import ValueTransformerWithKey

if TYPE_CHECKING:
    from tidewheel.streams.dsl.kgrouped_table import KGroupedTable
    from tidewheel.streams.dsl.kstream import KStream

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")


class KTable(KTableJoins[K, V], MisplacedCalls, Generic[K, V]):
    """A table of rows by key.

    Made by `StreamsBuilder.table`, `to_table`, or an aggregation (Kafka Streams' KTable). For a
    deleted row, `to_stream` and `transform_values` call your function with value None; other
    methods do not call it.

    >>> from tidewheel import StreamsBuilder
    >>> StreamsBuilder().table("users", store="users", key_serde=str, value_serde=str)
    <KTable KTABLE-SOURCE-0000000001>
    """

    def __init__(self, part: TablePart) -> None:
        self._part = part

    def __repr__(self) -> str:
        return f"<KTable {self._part.node.name}>"

    @property
    def queryable_store_name(self) -> str | None:
        """Return the name of the store to query, or None if it has no user-given name.

        >>> from tidewheel import StreamsBuilder
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
        store: StoreArgument[K, V] = None,
        name: str | None = None,
    ) -> "KTable[K, V]": ...
    @overload
    def filter(
        self,
        predicate: Callable[[K, V], object],
        *,
        store: StoreArgument[K, V] = None,
        name: str | None = None,
    ) -> "KTable[K, V]": ...
    def filter(
        self,
        predicate: Callable[..., object],
        *,
        store: StoreArgument[Any, Any] = None,
        name: str | None = None,
    ) -> "KTable[K, V]":
        """Keep the rows for which a predicate holds; delete the others downstream.

        Args:
            predicate: `f(value)` or `f(key, value)`; not called for deleted rows.

        >>> from tidewheel import StreamsBuilder
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
        store: StoreArgument[K, V] = None,
        name: str | None = None,
    ) -> "KTable[K, V]": ...
    @overload
    def filter_not(
        self,
        predicate: Callable[[K, V], object],
        *,
        store: StoreArgument[K, V] = None,
        name: str | None = None,
    ) -> "KTable[K, V]": ...
    def filter_not(
        self,
        predicate: Callable[..., object],
        *,
        store: StoreArgument[Any, Any] = None,
        name: str | None = None,
    ) -> "KTable[K, V]":
        """Keep the rows for which a predicate does not hold; delete the others downstream.

        >>> from tidewheel import StreamsBuilder
        >>> users = StreamsBuilder().table("users", key_serde=str, value_serde=str)
        >>> users.filter_not(lambda user: user == "root")
        <KTable KTABLE-FILTER-0000000003>
        """
        return self._filter("filter_not", predicate, store, name, negate=True)

    @overload
    def map_values(
        self,
        mapper: Callable[[V], V2 | None],
        *,
        store: StoreArgument[K, V2] = None,
        name: str | None = None,
    ) -> "KTable[K, V2]": ...
    @overload
    def map_values(
        self,
        mapper: Callable[[K, V], V2 | None],
        *,
        store: StoreArgument[K, V2] = None,
        name: str | None = None,
    ) -> "KTable[K, V2]": ...
    def map_values(
        self,
        mapper: Callable[..., Any],
        *,
        store: StoreArgument[Any, Any] = None,
        name: str | None = None,
    ) -> "KTable[K, Any]":
        """Replace each row's value.

        Args:
            mapper: `f(value)` or `f(key, value)`; not called for deleted rows.
            store: Store of the result; its `value_serde` becomes the table's.

        >>> from tidewheel import StreamsBuilder
        >>> users = StreamsBuilder().table("users", key_serde=str, value_serde=str)
        >>> users.map_values(len)
        <KTable KTABLE-MAPVALUES-0000000003>
        """
        call = Call.here("map_values")
        function = call.mapper(mapper)
        table_store = self._result_store("KTABLE-MAPVALUES-", store, call, value_serde=None)
        supplier = OperatorSupplier(TableMapValues, (function, _name_if_created(table_store)))
        node = self._below(call, "KTABLE-MAPVALUES-", name, supplier, table_store)
        computed = partial(MapValuesView, function=function)
        return KTable(self._derived(node, table_store, computed, value_serde=None))

    def transform_values(
        self,
        supplier: Callable[[], ValueTransformerWithKey[K, V, V2]],
        stores: Sequence[str] = (),
        *,
        store: StoreArgument[K, V2] = None,
        name: str | None = None,
    ) -> "KTable[K, V2]":
        """Replace each row's value by a transformer's result; the transformer may use stores.

        The transformer is also called for deleted rows (with None), and for a change's old row if a
        downstream operator needs it and the result has no store.

        Args:
            supplier: `ValueTransformerWithKey` class, or a function that returns a new one at each
                call (one per task). Stores in its attribute `stores` are added and connected.
            stores: Names of further stores, added with `StreamsBuilder.add_state_store`.

        >>> from tidewheel import StreamsBuilder, ValueTransformerWithKey
        >>> class Shout(ValueTransformerWithKey[str, str, str]):
        ...     def transform(self, key, value):
        ...         return None if value is None else f"{key}: {value.upper()}"
        >>> users = StreamsBuilder().table("users", key_serde=str, value_serde=str)
        >>> users.transform_values(Shout)
        <KTable KTABLE-TRANSFORMVALUES-0000000003>
        """
        call = Call.here("transform_values")
        check_supplier(supplier, call.context, ValueTransformerWithKey)
        store_names = check_names(stores, "stores", call.context)
        brought = connected_stores(supplier, call.context)
        graph = self._part.graph
        for builder in brought:
            graph.add_state_store(replace(builder, location=builder.location or call.location))
        names = tuple(dict.fromkeys((*(builder.spec.name for builder in brought), *store_names)))
        table_store = self._result_store("KTABLE-TRANSFORMVALUES-", store, call, value_serde=None)
        operator_supplier = OperatorSupplier(
            TableTransformValues, (supplier, names, _name_if_created(table_store))
        )
        node = self._below(call, "KTABLE-TRANSFORMVALUES-", name, operator_supplier, table_store)
        node.store_names = names
        computed = partial(TransformValuesView, node=node.name)
        part = self._derived(node, table_store, computed, value_serde=None)
        return KTable(msgspec.structs.replace(part, own_stores=names))

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

        >>> from tidewheel import StreamsBuilder
        >>> users = StreamsBuilder().table("users", key_serde=str, value_serde=str)
        >>> users.to_stream()
        <KStream KTABLE-TOSTREAM-0000000003>
        """
        # Imported late: KTable and KStream create each other.
        from tidewheel.streams.dsl.kstream import KStream  # noqa: PLC0415

        part, call = self._part, Call.here("to_stream")
        if key_mapper is not None:
            call.mapper(key_mapper)  # checked here, so the error names to_stream
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

    @overload
    def group_by(
        self,
        selector: Callable[[V], tuple[PlainT | None, V2 | None] | None],
        *,
        key_serde: type[PlainT],
        value_serde: SerdeLike[V2] | None = None,
        name: str | None = None,
    ) -> "KGroupedTable[PlainT, V2]": ...
    @overload
    def group_by(
        self,
        selector: Callable[[K, V], tuple[PlainT | None, V2 | None] | None],
        *,
        key_serde: type[PlainT],
        value_serde: SerdeLike[V2] | None = None,
        name: str | None = None,
    ) -> "KGroupedTable[PlainT, V2]": ...
    @overload
    def group_by(
        self,
        selector: Callable[[V], tuple[K2 | None, V2 | None] | None],
        *,
        key_serde: SerdeMethods[K2] | None = None,
        value_serde: SerdeLike[V2] | None = None,
        name: str | None = None,
    ) -> "KGroupedTable[K2, V2]": ...
    @overload
    def group_by(
        self,
        selector: Callable[[K, V], tuple[K2 | None, V2 | None] | None],
        *,
        key_serde: SerdeMethods[K2] | None = None,
        value_serde: SerdeLike[V2] | None = None,
        name: str | None = None,
    ) -> "KGroupedTable[K2, V2]": ...
    def group_by(
        self,
        selector: Callable[..., Any],
        *,
        key_serde: SerdeLike[Any] | None = None,
        value_serde: SerdeLike[Any] | None = None,
        name: str | None = None,
    ) -> "KGroupedTable[Any, Any]":
        """Group the rows by other keys for aggregation.

        A changed row leaves its old group and enters its new one.

        Args:
            selector: `f(value)` or `f(key, value)` -> (group, value); if it returns None, or None
                as group or value, the row has no group. It must be deterministic, else a changed
                row also stays in its old group.
            value_serde: Serde of the returned values.
            name: Name of the node and of the repartition topic.

        >>> from tidewheel import StreamsBuilder
        >>> users = StreamsBuilder().table("users", key_serde=str, value_serde=str)
        >>> users.group_by(lambda name, city: (city, name), key_serde=str, value_serde=str)
        <KGroupedTable KTABLE-SELECT-0000000003>
        """
        # Imported late: KTable and KGroupedTable create each other.
        from tidewheel.streams.dsl.kgrouped_table import KGroupedTable, TableGroupPart  # noqa: PLC0415

        part, call = self._part, Call.here("group_by")
        function = call.mapper(selector)
        # Placeholder: the first aggregation sets the operator; without one the group does nothing.
        node = self._below(call, "KTABLE-SELECT-", name, OperatorSupplier(PassThrough), None)
        part.send_old_values()
        return KGroupedTable(
            TableGroupPart(
                graph=part.graph,
                node=node,
                function=function,
                versioned=part.versioned,
                key_serde=call.serde(key_serde, "key_serde"),
                value_serde=call.serde(value_serde, "value_serde"),
                topic_name=name,
            )
        )

    def suppress(self, suppressed: Suppressed[K], *, name: str | None = None) -> "KTable[K, V]":
        """Buffer changes, and emit only the last change of a row.

        The buffer survives restarts and is restored like any store. Emission follows stream time:
        without newer records no row is emitted.

        Args:
            suppressed: Time and size limits of the buffer.
            name: Node name; the buffer's store is then `<name>-store`.

        Raises:
            TopologyError: `until_window_closes` on a table without windows, or a versioned table.

        >>> from tidewheel import BufferConfig, StreamsBuilder, Suppressed
        >>> users = StreamsBuilder().table("users", key_serde=str, value_serde=str)
        >>> users.suppress(Suppressed.until_time_limit(5_000, BufferConfig.unbounded()))
        <KTable KTABLE-SUPPRESS-0000000003>
        """
        part, call, graph = self._part, Call.here("suppress"), self._part.graph
        if not isinstance(suppressed, Suppressed):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped users
            raise TopologyError(
                f"{call.context}: suppressed is of type {type(suppressed).__name__}; give "
                "Suppressed.until_window_closes(...) or Suppressed.until_time_limit(...)"
            )
        if part.versioned:
            raise TopologyError(
                f"{call.context}: a versioned table can't be suppressed; keep it in a store without versions before"
            )
        time_of: TimeOf = first_change
        limit_ms = suppressed.limit_ms
        if suppressed.final:
            time_of, limit_ms = window_end, closing_delay_ms(windows_above(part.node, call))
        # As in Kafka Streams, a user-given name here does not advance the name counter.
        node_name = call.name(name) or graph.node_name("KTABLE-SUPPRESS-")
        table_store = BufferStore(
            name=graph.store_name("KTABLE-SUPPRESS-") if name is None else f"{name}-store",
            generated=name is None,
            materialized=Materialized(),
            key_serde=part.key_serde,
            value_serde=part.value_serde,
            needed=True,
        )
        arguments = (table_store.name, time_of, limit_ms, suppressed.buffer, suppressed.final)
        node = ProcessorGraphNode(
            name=node_name,
            location=call.location,
            supplier=OperatorSupplier(Suppress, arguments),
            store=table_store,
        )
        graph.add(node, part.node)
        part.send_old_values()
        return KTable(
            TablePart(
                graph=graph,
                node=node,
                store=None,
                key_serde=part.key_serde,
                value_serde=part.value_serde,
                parents=(part,),
                computed=partial(SuppressedView, store_name=table_store.name),
                own_stores=(table_store.name,),
            )
        )

    def _filter(
        self,
        operator: str,
        predicate: Callable[..., object],
        store: StoreArgument[Any, Any],
        name: str | None,
        *,
        negate: bool,
    ) -> "KTable[K, V]":
        call = Call.here(operator)
        function = call.predicate(predicate)
        value_serde = self._part.value_serde
        table_store = self._result_store("KTABLE-FILTER-", store, call, value_serde=value_serde)
        arguments = (function, negate, _name_if_created(table_store), self._part.versioned)
        supplier = OperatorSupplier(TableFilter, arguments)
        node = self._below(call, "KTABLE-FILTER-", name, supplier, table_store)
        computed = partial(FilterView, predicate=function, negate=negate)
        # If the parent's rows are stored anyway, request old values: with them the filter sends no
        # tombstone for a row that it never forwarded.
        node.old_values = self._part.send_old_values(force=False)
        return KTable(self._derived(node, table_store, computed, value_serde=value_serde))

    def _result_store(
        self,
        prefix: str,
        store: StoreArgument[Any, Any],
        call: Call,
        *,
        value_serde: AnySerde | None,
    ) -> TableStore | None:
        """Return the result's store; it is created only if named or if an operator reads it."""
        if store is None:
            return None
        materialized = Materialized.of_table(store, call.context)
        serdes = resolved_serdes(materialized, self._part.key_serde, value_serde)
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
    ) -> ProcessorGraphNode:
        graph = self._part.graph
        node = ProcessorGraphNode(
            name=graph.node_name(prefix, call.name(name)),
            location=call.location,
            supplier=supplier,
            store=store,
        )
        graph.add(node, self._part.node)
        return node

    def _derived(
        self,
        node: GraphNode,
        table_store: TableStore | None,
        computed: Callable[..., TableView],
        *,
        value_serde: AnySerde | None,
    ) -> TablePart:
        return TablePart(
            graph=self._part.graph,
            node=node,
            store=table_store,
            key_serde=self._part.key_serde if table_store is None else table_store.key_serde,
            value_serde=value_serde if table_store is None else table_store.value_serde,
            parents=(self._part,),
            computed=computed,
        )


def _name_if_created(store: TableStore | None) -> str | None:
    return store.name if store is not None and store.needed else None
