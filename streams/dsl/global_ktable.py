"""`GlobalKTable` and global stores: every worker process reads the whole topic."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from tidewheel.streams.definitions.call import Call
from tidewheel.streams.definitions.default_serdes import KEY_DEFAULT, VALUE_DEFAULT, filled
from tidewheel.streams.definitions.materialized import Materialized, StoreArgument, StoreBuilder
from tidewheel.streams.definitions.names import check_name
from tidewheel.streams.definitions.node_arguments import (
    check_store_builder,
    check_supplier,
    source_spec,
)
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.graph.logical_graph import (
    AnySerde,
    GraphNode,
    LogicalGraph,
    ProcessorGraphNode,
    TableStore,
)
from tidewheel.streams.graph.parts import resolved_serdes
from tidewheel.streams.operators.joins.global_join import GlobalTableJoin
from tidewheel.streams.operators.tables.table import TableSource
from tidewheel.streams.serdes import SerdeLike
from tidewheel.streams.topology.topology import Topology
from tidewheel.streams.user_functions import UserFunction
from tidewheel.tasks.processing.api.processor import Processor
from tidewheel.tasks.processing.api.topology_spec import SourceSpec
from tidewheel.tasks.processing.engine.operator import OperatorSupplier

K = TypeVar("K")
V = TypeVar("V")


class GlobalTablePart(msgspec.Struct, frozen=True, kw_only=True):
    """Graph and node of a global table."""

    graph: LogicalGraph
    node: "GlobalTableNode"


class GlobalKTable(Generic[K, V]):
    """A whole topic as a table in every process; made by `StreamsBuilder.global_table`.

    A stream joins it by any key (`join(table, joiner, key_selector=...)`) without repartitioning. A
    table update triggers no result; it affects records that are processed later, of any timestamp.

    >>> from tidewheel import StreamsBuilder
    >>> StreamsBuilder().global_table("countries", key_serde=str, value_serde=str, store="countries")
    <GlobalKTable KTABLE-SOURCE-0000000001>
    """

    def __init__(self, part: GlobalTablePart) -> None:
        self._part = part

    def __repr__(self) -> str:
        return f"<GlobalKTable {self._part.node.name}>"

    @property
    def queryable_store_name(self) -> str | None:
        """Return the name of the store to query, or None if it has no user-given name.

        >>> from tidewheel import StreamsBuilder
        >>> StreamsBuilder().global_table("rates", key_serde=str, value_serde=float).queryable_store_name
        """
        return self._part.node.store.queryable_name


@dataclass(eq=False, kw_only=True)
class GlobalTableNode(GraphNode):
    """`global_table()`: a source and the table it fills."""

    source: SourceSpec
    store: TableStore

    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None:
        """Add the store, its source, and the operator that fills it."""
        assert not parents
        spec = self.store.materialized.spec(
            self.store.name,
            filled(self.store.key_serde, KEY_DEFAULT),
            filled(self.store.value_serde, VALUE_DEFAULT),
        )
        topology.add_global(
            StoreBuilder(spec=spec, location=self.location, takes_default=self.store.takes_default),
            self.source,
            self.name,
            OperatorSupplier(TableSource, (self.store.name,)),
            table=True,
        )

    def stores(self) -> tuple[TableStore, ...]:
        """Return its store."""
        return (self.store,)


@dataclass(eq=False, kw_only=True)
class GlobalStoreNode(GraphNode):
    """`add_global_store()`: a source and the user's processor that fills the store."""

    source: SourceSpec
    builder: StoreBuilder
    supplier: Callable[[], Any]

    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None:
        """Add the store, its source, and the processor that fills it."""
        assert not parents
        topology.add_global(self.builder, self.source, self.name, self.supplier)


def global_table(
    graph: LogicalGraph,
    call: Call,
    topic: str,
    *,
    key_serde: SerdeLike[Any] | None,
    value_serde: SerdeLike[Any] | None,
    store: StoreArgument[Any, Any],
    name: str | None,
) -> GlobalKTable[Any, Any]:
    """Add a global table; names are generated in Kafka Streams' order: store, source, table."""
    check_name(topic, "topic", call.context)
    materialized = Materialized.of_table(store, call.context)
    if materialized.changelog_config:
        raise TopologyError(
            f"{call.context}: a global table is read from its topic and has no changelog; leave changelog_config= out"
        )
    if not materialized.fits_windows:
        raise TopologyError(
            f"{call.context}: a global table can't be of store_type={materialized.store_type!r}; "
            "give 'rocksdb' or 'in_memory'"
        )
    call.name(name)
    table_store = graph.table_store(
        materialized, prefix=f"{topic}-", name=name, serdes=(None, None), needed=True
    )
    key = call.serde(materialized.key_serde if key_serde is None else key_serde, "key_serde")
    value = call.serde(
        materialized.value_serde if value_serde is None else value_serde, "value_serde"
    )
    table_store.key_serde, table_store.value_serde = resolved_serdes(materialized, key, value)
    node = GlobalTableNode(
        source=_source(graph, call, topic, (key, value), name),
        name=graph.node_name("KTABLE-SOURCE-", name),
        location=call.location,
        store=table_store,
    )
    graph.add(node)
    return GlobalKTable(GlobalTablePart(graph=graph, node=node))


def global_store(
    graph: LogicalGraph,
    call: Call,
    builder: StoreBuilder,
    topic: str,
    supplier: Callable[[], Any],
    *,
    key_serde: SerdeLike[Any] | None,
    value_serde: SerdeLike[Any] | None,
) -> None:
    """Add a global store with its processor.

    Names are generated in Kafka Streams' order: source, processor.
    """
    check_name(topic, "topic", call.context)
    check_store_builder(builder, call.context)
    check_supplier(supplier, call.context, Processor)
    serdes = (call.serde(key_serde, "key_serde"), call.serde(value_serde, "value_serde"))
    node = GlobalStoreNode(
        source=_source(graph, call, topic, serdes, None),
        name=graph.node_name("KTABLE-SOURCE-"),
        location=call.location,
        builder=builder,
        supplier=supplier,
    )
    graph.add(node)


def global_join(
    graph: LogicalGraph,
    call: Call,
    table: GlobalKTable[Any, Any],
    joiner: UserFunction,
    key_selector: Callable[..., Any] | None,
    *,
    left: bool,
    name: str | None,
) -> ProcessorGraphNode:
    """Return the node of a stream-global-table join; the caller adds it to the graph.

    As in Kafka Streams, inner joins are named KSTREAM-LEFTJOIN-, too.
    """
    part = table._part  # noqa: SLF001 - a class of this file  # pyright: ignore[reportPrivateUsage]
    if part.graph is not graph:
        raise TopologyError(
            f"{call.context}: the global table comes from a different builder; make both with one StreamsBuilder"
        )
    if key_selector is None:
        raise TopologyError(
            f"{call.context}: a join with a global table needs key_selector=, a function of (value) or (key, value) that "
            "returns the table's key"
        )
    functions = (call.mapper(key_selector), joiner)
    return ProcessorGraphNode(
        name=graph.node_name("KSTREAM-LEFTJOIN-", call.name(name)),
        location=call.location,
        supplier=OperatorSupplier(GlobalTableJoin, (part.node.store.name, *functions, left)),
        # Without it, the optimiser may move a later repartition above the join, as Kafka Streams
        # does; values have another serde there.
        changes_value=True,
    )


def _source(
    graph: LogicalGraph,
    call: Call,
    topic: str,
    serdes: tuple[AnySerde | None, AnySerde | None],
    name: str | None,
) -> SourceSpec:
    source_name = None if name is None else call.name(f"{name}-source")
    return source_spec(
        name=graph.node_name("KSTREAM-SOURCE-", source_name),
        topics=topic,
        serdes=serdes,
        timestamp_extractor=None,
        offset_reset=None,
        call=call.operator,
        location=call.location,
    )
