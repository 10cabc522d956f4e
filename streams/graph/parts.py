"""Graph nodes, serdes and stores behind `KStream` and `KTable`."""

from collections.abc import Callable
from typing import Any

import msgspec

from tidewheel.streams.definitions.materialized import Materialized
from tidewheel.streams.graph.logical_graph import AnySerde, GraphNode, LogicalGraph, TableStore
from tidewheel.streams.operators.tables.table_view import StoreView, TableView
from tidewheel.streams.serdes import as_serde
from tidewheel.streams.topology.description import hash_order


class StreamPart(msgspec.Struct, frozen=True, kw_only=True):
    """Node and serdes of a stream.

    `rekeyed`: its records may be in the wrong partition for their keys.
    """

    graph: LogicalGraph
    node: GraphNode
    key_serde: AnySerde | None
    value_serde: AnySerde | None
    rekeyed: bool


class TablePart(msgspec.Struct, frozen=True, kw_only=True):
    """Node, serdes and store of a table.

    Attributes:
        parents: Tables it is computed from; none for a source or an aggregation, which need a
            store.
        computed: Makes its `TableView` from one view per parent; used if it has no store.
        inner: Nodes of the same DSL call above `node`; they send old values when `node` does.
        loses_versions: True for a join: its rows have no versions even if its parents' rows do
            (KIP-914).
        own_stores: Stores that `computed` reads besides those of the parents' views.
    """

    graph: LogicalGraph
    node: GraphNode
    store: TableStore | None
    key_serde: AnySerde | None
    value_serde: AnySerde | None
    parents: tuple["TablePart", ...] = ()
    computed: Callable[..., TableView] | None = None
    inner: tuple[GraphNode, ...] = ()
    loses_versions: bool = False
    own_stores: tuple[str, ...] = ()

    def _created_store(self, *, force: bool) -> TableStore | None:
        """Return the store if it will be created, else None.

        `force` makes it needed if the table can't be computed from parents.
        """
        if self.store is None or not (self.store.needed or (force and not self.parents)):
            return None
        self.store.needed = True
        return self.store

    @property
    def versioned(self) -> bool:
        """Return True if rows can be read as of a timestamp, from its store or its parents'."""
        if self.store is not None and (self.store.needed or not self.parents):
            return self.store.materialized.store_type == "versioned"
        if self.loses_versions or not self.parents:
            return False
        return all(parent.versioned for parent in self.parents)

    def view(self) -> tuple[TableView, tuple[str, ...]]:
        """Return the view of its rows, and the stores to connect for reading.

        A source table gets a store; a table without a store is computed at each read (Kafka
        Streams' KTableValueGetterSupplier).
        """
        table_store = self._created_store(force=True)
        if table_store is not None:
            return StoreView(table_store.name), (table_store.name,)
        assert self.computed is not None, "a table has a store or is computed from others"
        views, names = zip(*(parent.view() for parent in self.parents), strict=True)
        stores = [name for some in names for name in some]
        if len(names) > 1:  # stores of a join's tables, in the order of Kafka Streams' HashSet
            stores = hash_order(stores, len(stores))
        return self.computed(*views), tuple(dict.fromkeys((*self.own_stores, *stores)))

    def send_old_values(self, *, force: bool = True) -> bool:
        """Request old values in its changes; return True if they will be sent.

        Kafka Streams' enableSendingOldValues. A table without a store needs its parents' old
        values; a source needs a store, created only with `force`. A join always requests its
        parents' old values: filters above it then send no deletion of a row they never forwarded.
        """
        if self.loses_versions:
            for parent in self.parents:
                parent.send_old_values()
        if self._created_store(force=force) is None:
            sends = [parent.send_old_values(force=force) for parent in self.parents]
            if not sends or not all(sends):
                return False
        for node in (*self.inner, self.node):
            node.old_values = True
        return True


def resolved_serdes(
    materialized: Materialized[Any, Any], key_serde: AnySerde | None, value_serde: AnySerde | None
) -> tuple[AnySerde | None, AnySerde | None]:
    own_key, own_value = materialized.key_serde, materialized.value_serde
    return (
        key_serde if own_key is None else as_serde(own_key),
        value_serde if own_value is None else as_serde(own_value),
    )
