"""Parts of streams and tables: the nodes, serdes and stores behind a `KStream` or a `KTable`."""

from collections.abc import Callable
from typing import Any

import msgspec

from tidewheel.streams.definitions.materialized import Materialized
from tidewheel.streams.graph.logical_graph import AnySerde, GraphNode, LogicalGraph, TableStore
from tidewheel.streams.operators.tables.table_view import StoreView, TableView
from tidewheel.streams.serdes import as_serde
from tidewheel.streams.topology.description import hash_order


class StreamPart(msgspec.Struct, frozen=True, kw_only=True):
    """A stream: its node and serdes; `rekeyed` says that its keys may not be where their partition is."""

    graph: LogicalGraph
    node: GraphNode
    key_serde: AnySerde | None
    value_serde: AnySerde | None
    rekeyed: bool


class TablePart(msgspec.Struct, frozen=True, kw_only=True):
    """What a table knows of itself.

    Attributes:
        graph: Where its nodes are.
        node: The node its changes come from.
        store: Its store, if it has one; that may turn out not to be needed.
        key_serde: Serde of keys, as far as known.
        value_serde: Serde of values, as far as known.
        parents: The tables it is computed from; none for a source or an aggregation, which can only be kept.
        computed: Makes its view from one view per parent; asked only where it is not kept in a store.
        inner: Nodes of the same call in front of `node`, which must send old values if it does.
        loses_versions: Its rows have no versions though those of its parents have: a join (KIP-914).
        own_stores: Stores that `computed` reads beside those of the parents' views.
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

    def _kept(self, *, force: bool) -> TableStore | None:
        """Return the store it is kept in; with `force` one that nobody needed so far, too, if it can't be computed."""
        if self.store is None or not (self.store.needed or (force and not self.parents)):
            return None
        self.store.needed = True
        return self.store

    @property
    def versioned(self) -> bool:
        """Return whether rows can be looked up as of a timestamp, here or in the tables it is computed from."""
        if self.store is not None and (self.store.needed or not self.parents):
            return self.store.materialized.store_type == "versioned"
        if self.loses_versions or not self.parents:
            return False
        return all(parent.versioned for parent in self.parents)

    def view(self) -> tuple[TableView, tuple[str, ...]]:
        """Return how to look up its rows, and the stores to connect for it (and never to write).

        A source is kept in its store from now on; a table that is computed from others is computed at each look-up
        (Kafka Streams' KTableValueGetterSupplier).
        """
        kept = self._kept(force=True)
        if kept is not None:
            return StoreView(kept.name), (kept.name,)
        assert self.computed is not None, "a table has a store or is computed from others"
        views, names = zip(*(parent.view() for parent in self.parents), strict=True)
        stores = [name for some in names for name in some]
        if len(names) > 1:  # Kafka Streams puts the stores of a join's two tables into a HashSet
            stores = hash_order(stores, len(stores))
        return self.computed(*views), tuple(dict.fromkeys((*self.own_stores, *stores)))

    def send_old_values(self, *, force: bool = True) -> bool:
        """Have its changes carry the value before, and return whether they will.

        Kafka Streams' enableSendingOldValues: a table that is computed from others and not kept needs their old
        values; a source must be kept, which only happens with `force`. A join asks its tables in any case, so that filters
        among them send no deletion of a row that they have dropped.
        """
        if self.loses_versions:
            for parent in self.parents:
                parent.send_old_values()
        if self._kept(force=force) is None:
            asked = [parent.send_old_values(force=force) for parent in self.parents]
            if not asked or not all(asked):
                return False
        for node in (*self.inner, self.node):
            node.old_values = True
        return True


def settled_serdes(
    materialized: Materialized[Any, Any], key_serde: AnySerde | None, value_serde: AnySerde | None
) -> tuple[AnySerde | None, AnySerde | None]:
    """Return the serdes of a table's store: those it names, else those known from before."""
    own_key, own_value = materialized.key_serde, materialized.value_serde
    return (
        key_serde if own_key is None else as_serde(own_key),
        value_serde if own_value is None else as_serde(own_value),
    )
