"""Graph nodes and stores of stream joins, under Kafka Streams' names.

Each side has a node that stores its records and a node that searches the other side's store; one
node merges the results (KStreamImplJoin, StreamStreamJoinNode).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.streams.definitions.call import Call
from tidewheel.streams.definitions.default_serdes import (
    KEY_DEFAULT,
    VALUE_DEFAULT,
    DefaultSerde,
    filled,
)
from tidewheel.streams.definitions.materialized import Materialized, StoreArgument
from tidewheel.streams.definitions.names import where
from tidewheel.streams.durations import to_ms
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.graph.logical_graph import (
    AnySerde,
    GraphNode,
    LogicalGraph,
    ProcessorGraphNode,
    TableStore,
)
from tidewheel.streams.graph.parts import StreamPart, TablePart
from tidewheel.streams.operators.joins.non_joined import NonJoinedSettings, SharedTime
from tidewheel.streams.operators.joins.stream_join import JoinSide, JoinWindow, SelfJoin, StreamJoin
from tidewheel.streams.operators.joins.stream_table_join import (
    BufferedStreamTableJoin,
    StreamTableJoin,
)
from tidewheel.streams.operators.stateless import PassThrough
from tidewheel.streams.operators.tables.table_view import TableView
from tidewheel.streams.serdes import SerdeLike, Serdes
from tidewheel.streams.topology.topology import Topology
from tidewheel.streams.user_functions import FunctionKind, UserFunction
from tidewheel.streams.windows import JoinWindows
from tidewheel.tasks.durations import Duration
from tidewheel.tasks.processing.api.topology_spec import ProcessorSpec
from tidewheel.tasks.processing.engine.operator import OperatorSupplier


@dataclass(eq=False, kw_only=True)
class JoinStore(TableStore):
    """Window store of one side's records.

    Its changelog is not compacted, because one key and time may have several values.
    """

    join_windows: JoinWindows
    #: Placeholders for a missing key and value serde.
    placeholders: tuple[DefaultSerde, DefaultSerde]

    def values_serde(self) -> SerdePort:
        return filled(self.value_serde, self.placeholders[1])

    def spec(self, context: str) -> StoreSpec:  # noqa: ARG002 - the signature of a table's store
        materialized = self.materialized
        return StoreSpec(
            name=self.name,
            kind=StoreKind.WINDOW,
            key_serde=filled(self.key_serde, self.placeholders[0]),
            value_serde=self.values_serde(),
            persistent=materialized.persistent,
            logging=materialized.logging,
            changelog_config={**materialized.changelog_config, "cleanup.policy": "delete"},
            retention_ms=self.join_windows.retention_ms,
            window_size_ms=self.join_windows.size_ms,
            retain_duplicates=True,
        )


@dataclass(eq=False, kw_only=True)
class BytesStore(TableStore):
    """A store of rows that the operator encodes itself: buffered records or unmatched ones."""

    def spec(self, context: str) -> StoreSpec:  # noqa: ARG002 - the signature of a table's store
        materialized = self.materialized
        return StoreSpec(
            name=self.name,
            kind=StoreKind.KEY_VALUE,
            key_serde=Serdes.bytes(),
            value_serde=Serdes.bytes(),
            persistent=materialized.persistent,
            logging=materialized.logging,
            changelog_config=dict(materialized.changelog_config),
            internal_rows=(
                "its rows wait for a join in the order of time, and are deleted when their grace is over"
            ),
        )


@dataclass(eq=False, kw_only=True)
class StreamJoinNode(GraphNode):
    """A stream-stream join.

    `this_` is the left side, `other_` the right. `_window` names the node that stores the side's
    records, `_name` the node that finds their partners.

    Attributes:
        non_joined: Store of unmatched records in a left or outer join.
        is_outer: True if unmatched right records are emitted, too.
        with_itself: True if both sides are one stream, so one store is enough.
    """

    this_window: str
    other_window: str
    this_name: str
    other_name: str
    this_store: JoinStore
    other_store: JoinStore
    non_joined: BytesStore | None
    is_outer: bool
    windows: JoinWindows
    joiner: UserFunction
    with_itself: bool = False

    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None:  # noqa: ARG002 - its parents are the window nodes
        topology.copartition(
            (self.this_window, self.other_window)[: 1 if self.with_itself else 2],
            where("join", self.location),
        )
        if self.with_itself:
            self._write_self_join(topology)
            return
        waiting = self._add_waiting(topology)
        before, after, grace = (
            self.windows.before_ms,
            self.windows.after_ms,
            self.windows.grace_ms,
        )
        left = JoinSide(is_left=True, before_ms=before, after_ms=after, grace_ms=grace)
        right = JoinSide(is_left=False, before_ms=after, after_ms=before, grace_ms=grace)
        sides = (
            (self.this_name, self.this_window, self.other_store, left, waiting is not None),
            (self.other_name, self.other_window, self.this_store, right, self.is_outer),
        )
        serdes = tuple(store.values_serde() for store in (self.this_store, self.other_store))
        for name, parent, store, side, keeps in sides:
            arguments = (store.name, self.joiner, side, keeps, waiting, *serdes)
            topology.add_node(
                ProcessorSpec(
                    name=name,
                    supplier=OperatorSupplier(StreamJoin, arguments),
                    parents=(parent,),
                    stores=(store.name, *(() if waiting is None else (waiting.store_name,))),
                    reads=frozenset((store.name,)),
                    location=self.location,
                )
            )
        topology.add_node(
            ProcessorSpec(
                name=self.name,
                supplier=OperatorSupplier(PassThrough),
                parents=(self.this_name, self.other_name),
                location=self.location,
            )
        )

    def _add_waiting(self, topology: Topology) -> NonJoinedSettings | None:
        if self.non_joined is None:
            return None
        self.non_joined.add_to(topology, self.location)
        windows = self.windows
        return NonJoinedSettings(
            self.non_joined.name,
            SharedTime(),
            left_wait_ms=windows.after_ms + windows.grace_ms,
            right_wait_ms=windows.before_ms + windows.grace_ms,
            is_outer=self.is_outer,
        )

    def _write_self_join(self, topology: Topology) -> None:
        windows, store = self.windows, self.this_store.name
        arguments = (
            store,
            self.joiner,
            windows.before_ms,
            windows.after_ms,
            windows.retention_ms,
            self.non_joined is not None,
            self.is_outer,
        )
        topology.add_node(
            ProcessorSpec(
                name=self.name,
                supplier=OperatorSupplier(SelfJoin, arguments),
                parents=(self.this_window,),
                stores=(store,),
                location=self.location,
            )
        )

    def stores(self) -> tuple[TableStore, ...]:
        return () if self.non_joined is None or self.with_itself else (self.non_joined,)

    @property
    def may_be_with_itself(self) -> bool:
        """Return True if a self-join gives the same results with one store.

        The window must contain the record itself, so no record waits for a partner. Kafka Streams
        omits this check: there the optimisation changes the results of other windows.
        """
        return self.windows.before_ms >= 0 and self.windows.after_ms >= 0


def single_store_self_join(graph: LogicalGraph) -> None:
    """Let self-joins store records once (Kafka Streams' single.store.self.join)."""
    replaced_sources = graph.replaced_sources()
    by_name = {node.name: node for node in graph.nodes}
    for node in graph.nodes:
        if not isinstance(node, StreamJoinNode) or not node.may_be_with_itself:
            continue
        if len({replaced_sources.get(parent, parent) for parent in node.parents}) > 1:
            continue
        node.with_itself = True
        window, spare = by_name[node.this_window], by_name[node.other_window]
        assert isinstance(window, ProcessorGraphNode)
        # The `SelfJoin` operator stores each record itself, after it has read the earlier ones.
        window.supplier = OperatorSupplier(PassThrough)
        window.reads = frozenset((node.this_store.name,))
        for parent in list(spare.parents):
            parent.remove_child(spare)
        graph.drop(spare)


@dataclass(eq=False, kw_only=True)
class StreamTableJoinNode(GraphNode):
    table: str
    view: TableView
    view_stores: tuple[str, ...]
    joiner: UserFunction
    left: bool
    grace_ms: int | None
    buffer: BytesStore | None
    key_serde: AnySerde | None
    value_serde: AnySerde | None

    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None:
        operator: type[StreamTableJoin] = StreamTableJoin
        arguments: tuple[object, ...] = (self.view, self.view_stores, self.joiner, self.left)
        stores = self.view_stores
        if self.buffer is not None:
            assert self.grace_ms is not None, "who waits has a grace"
            self._check_history(topology, self.grace_ms)
            self.buffer.add_to(topology, self.location)
            operator, stores = BufferedStreamTableJoin, (self.buffer.name, *stores)
            key = filled(self.key_serde, KEY_DEFAULT)
            value = filled(self.value_serde, VALUE_DEFAULT)
            arguments = (*arguments, self.buffer.name, self.grace_ms, key, value)
        topology.add_node(
            ProcessorSpec(
                name=self.name,
                supplier=OperatorSupplier(operator, arguments),
                parents=parents,
                stores=stores,
                reads=frozenset(self.view_stores),
                location=self.location,
            )
        )
        topology.copartition((*parents, self.table), where("join", self.location))

    def _check_history(self, topology: Topology, grace_ms: int) -> None:
        for name in self.view_stores:
            history_ms = topology.store_spec(name).history_retention_ms
            if history_ms < grace_ms:
                raise TopologyError(
                    f"{where(repr(self.name), self.location)}: grace is {grace_ms} ms, but the table's store {name!r} has "
                    f"a history of {history_ms} ms; give history_retention= at least the grace"
                )

    def stores(self) -> tuple[TableStore, ...]:
        return () if self.buffer is None else (self.buffer,)


class JoinOptions(msgspec.Struct, frozen=True):
    call: Call
    joiner: Callable[..., Any]
    within: object
    grace: Duration | None
    key_serde: SerdeLike[Any] | None
    value_serde: SerdeLike[Any] | None
    other_value_serde: SerdeLike[Any] | None
    store: StoreArgument[Any, Any]
    name: str | None
    keeps_left: bool
    keeps_right: bool
    key_selector: Callable[..., Any] | None = None


class JoinCall:
    def __init__(self, options: JoinOptions, kind: FunctionKind = FunctionKind.JOINER) -> None:
        call = options.call
        self.options = options
        self.call = call
        self.keeps_left = options.keeps_left
        self.keeps_right = options.keeps_right
        self.joiner: UserFunction = call.function(options.joiner, kind)
        self.key = call.serde(options.key_serde, "key_serde")
        self.value = call.serde(options.value_serde, "value_serde")
        self.other_value = call.serde(options.other_value_serde, "other_value_serde")
        self.name = call.name(options.name)
        self.materialized = Materialized.of(options.store, call.context)
        self._check_materialized()

    def _check_materialized(self) -> None:
        materialized = self.materialized
        if materialized.key_serde is not None or materialized.value_serde is not None:
            raise TopologyError(
                f"{self.call.context}: a join's serdes are given with key_serde=, value_serde= and other_value_serde=; leave "
                "them out of Materialized"
            )
        if not materialized.fits_windows:
            raise TopologyError(
                f"{self.call.context}: a join can't keep its records in a store of type {materialized.store_type!r}; give 'rocksdb' or 'in_memory'"
            )
        if materialized.headers:
            raise TopologyError(
                f"{self.call.context}: a join's store of waiting records keeps no headers; leave headers= out"
            )
        if materialized.retention is not None or materialized.ttl is not None:
            raise TopologyError(
                f"{self.call.context}: how long a join keeps its records follows from its windows and grace; leave "
                "retention= and ttl= out"
            )

    @property
    def store_base(self) -> str | None:
        return self.name if self.options.store is None else self.materialized.name

    def windows(self) -> JoinWindows:
        within, context = self.options.within, self.call.context
        if self.options.grace is not None:
            raise TopologyError(
                f"{context}: grace= belongs to joins with a table; give two streams' grace to JoinWindows(..., grace=...)"
            )
        if isinstance(within, JoinWindows):
            return within
        what = "no within=" if within is None else f"within= of type {type(within).__name__}"
        raise TopologyError(
            f"{context}: a join of two streams needs the largest time difference of its records, but there is {what}; give "
            "within=JoinWindows(...)"
        )

    def check_table(self, table: TablePart) -> None:
        context, grace_ms = self.call.context, self.grace_ms()
        if self.keeps_right:
            raise TopologyError(
                f"{context}: a stream has no outer join with a table, whose rows are no events; use left_join()"
            )
        if self.options.within is not None:
            raise TopologyError(
                f"{context}: within= belongs to joins of two streams, a table has one row per key; leave it out"
            )
        if grace_ms is not None and not table.versioned:
            raise TopologyError(
                f"{context}: grace= looks rows up as of a past time, but the table is not versioned; make it with "
                'store=Materialized(store_type="versioned", history_retention=...), or leave grace out'
            )
        if grace_ms is None and self.options.store is not None:
            raise TopologyError(
                f"{context}: a join with a table keeps nothing unless it has a grace; leave store= out"
            )

    def grace_ms(self) -> int | None:
        grace = self.options.grace
        return None if grace is None else to_ms(grace, f"{self.call.context}: grace")

    def check_graph(self, own_graph: object, other_graph: object, what: str) -> None:
        if own_graph is not other_graph:
            raise TopologyError(
                f"{self.call.context}: the {what} comes from a different builder; make both with one StreamsBuilder"
            )

    def placeholders(self, *, other: bool) -> tuple[DefaultSerde, DefaultSerde]:
        """Return placeholders for one side's missing serdes; their errors name the argument."""
        to, option, side = f"to {self.call.operator}()", "value_serde=", "this stream"
        if other:
            option, side = "other_value_serde=", "the other stream"
        return (
            DefaultSerde("key", f"key_serde= {to}"),
            DefaultSerde("value", f"{option} {to}, for the values of {side}"),
        )

    def bytes_store(self, name: str, *, generated: bool) -> BytesStore:
        return BytesStore(
            name=name,
            generated=generated,
            materialized=self.materialized,
            key_serde=None,
            value_serde=None,
            needed=True,
        )


def suffixed(name: str | None, suffix: str) -> str | None:
    """Return the name with the suffix, or None.

    >>> suffixed("pairs", "-merge"), suffixed(None, "-merge")
    ('pairs-merge', None)
    """
    return None if name is None else name + suffix


class _Names:
    """Names of a stream-stream join's nodes and stores: from `name=` and `store=`, or generated.

    They advance the counter of generated names in Kafka Streams' order.
    """

    def __init__(self, join: JoinCall, graph: LogicalGraph) -> None:
        self._join = join
        self._base = join.store_base
        self._this_suffix = "-outer-this-join" if join.keeps_right else "-this-join"
        self._other_suffix = "-outer-other-join" if join.keeps_left else "-other-join"
        this_prefix = "KSTREAM-OUTERTHIS-" if join.keeps_right else "KSTREAM-JOINTHIS-"
        other_prefix = "KSTREAM-OUTEROTHER-" if join.keeps_left else "KSTREAM-JOINOTHER-"
        name, named = join.name, graph.node_name
        self.this_window = named("KSTREAM-WINDOWED-", suffixed(name, "-this-windowed"))
        self.other_window = named("KSTREAM-WINDOWED-", suffixed(name, "-other-windowed"))
        this_generated, other_generated = named(this_prefix), named(other_prefix)
        self.merge = named("KSTREAM-MERGE-", suffixed(name, "-merge"))
        self.this = suffixed(name, self._this_suffix) or this_generated
        self.other = suffixed(name, self._other_suffix) or other_generated
        self.this_store = self._store(this_generated, self._this_suffix)
        self.other_store = self._store(other_generated, self._other_suffix)
        self.waiting = self._store(
            f"KSTREAM-OUTERSHARED-{this_generated.removeprefix(this_prefix)}",
            "-outer-shared-join" if join.keeps_right else "-left-shared-join",
        )

    def _store(self, generated: str, suffix: str) -> str:
        return f"{suffixed(self._base, suffix) or generated}-store"


def join_streams(join: JoinCall, left: StreamPart, right: StreamPart) -> GraphNode:
    graph, windows, location = left.graph, join.windows(), join.call.location
    names = _Names(join, graph)
    this_value, other_value = (
        join.value or left.value_serde,
        join.other_value or right.value_serde,
    )
    sides = (
        (names.this_window, left.node, names.this_store, this_value),
        (names.other_window, right.node, names.other_store, other_value),
    )
    stores: list[JoinStore] = []
    for window, parent, store_name, value_serde in sides:
        store = JoinStore(
            name=store_name,
            generated=join.store_base is None,
            materialized=join.materialized,
            key_serde=join.key or left.key_serde or right.key_serde,
            value_serde=value_serde,
            needed=True,
            join_windows=windows,
            placeholders=join.placeholders(other=store_name == names.other_store),
        )
        node = ProcessorGraphNode(
            name=window,
            location=location,
            supplier=OperatorSupplier(JoinWindow, (store_name,)),
            store=store,
        )
        graph.add(node, parent)
        stores.append(store)
    result = StreamJoinNode(
        name=names.merge,
        location=location,
        this_window=names.this_window,
        other_window=names.other_window,
        this_name=names.this,
        other_name=names.other,
        this_store=stores[0],
        other_store=stores[1],
        non_joined=join.bytes_store(names.waiting, generated=join.store_base is None)
        if join.keeps_left
        else None,
        is_outer=join.keeps_right,
        windows=windows,
        joiner=join.joiner,
        keeps_null_keys=join.keeps_left,
    )
    graph.add(result, left.node, right.node)
    return result


def join_table(join: JoinCall, left: StreamPart, table: TablePart) -> GraphNode:
    graph, grace_ms = left.graph, join.grace_ms()
    prefix = "KSTREAM-LEFTJOIN-" if join.keeps_left else "KSTREAM-JOIN-"
    name = graph.node_name(prefix, join.name)
    buffer: BytesStore | None = None
    if grace_ms is not None:
        buffer_name = join.materialized.name or f"{name}-Buffer"
        generated = join.name is None and join.materialized.name is None
        buffer = join.bytes_store(buffer_name, generated=generated)
    view, stores = table.view()
    node = StreamTableJoinNode(
        name=name,
        location=join.call.location,
        table=table.node.name,
        after=frozenset((table.node.name,)),
        view=view,
        view_stores=stores,
        joiner=join.joiner,
        left=join.keeps_left,
        grace_ms=grace_ms,
        buffer=buffer,
        key_serde=join.key or left.key_serde,
        value_serde=join.value or left.value_serde,
        keeps_null_keys=join.keeps_left,
    )
    graph.add(node, left.node)
    return node
