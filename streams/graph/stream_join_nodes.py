"""What the joins of a stream stand for in the graph: their nodes and stores, under Kafka Streams' names.

Each side of a stream-stream join has a node that keeps its records in a window store, one that looks for partners in the
other side's, and both results go to one node (KStreamImplJoin, StreamStreamJoinNode).
"""

from dataclasses import dataclass

from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.streams.definitions.default_serdes import (
    KEY_DEFAULT,
    VALUE_DEFAULT,
    DefaultSerde,
    filled,
)
from tidewheel.streams.definitions.names import where
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.graph.logical_graph import (
    AnySerde,
    GraphNode,
    LogicalGraph,
    ProcessorNode,
    TableStore,
)
from tidewheel.streams.operators.joins.non_joined import NonJoinedSettings, SharedTime
from tidewheel.streams.operators.joins.stream_join import JoinSide, SelfJoin, StreamJoin
from tidewheel.streams.operators.joins.stream_table_join import (
    BufferedStreamTableJoin,
    StreamTableJoin,
)
from tidewheel.streams.operators.stateless import PassThrough
from tidewheel.streams.operators.tables.table_view import TableView
from tidewheel.streams.serdes import Serdes
from tidewheel.streams.topology.topology import Topology
from tidewheel.streams.user_functions import UserFunction
from tidewheel.streams.windows import JoinWindows
from tidewheel.tasks.processing.api.topology_spec import ProcessorSpec
from tidewheel.tasks.processing.engine.operator import OperatorSupplier


@dataclass(eq=False, kw_only=True)
class JoinStore(TableStore):
    """The window store of one side. Its changelog is not compacted, because all values of a key and time are kept."""

    join_windows: JoinWindows
    #: What stands for serdes that nobody gave.
    placeholders: tuple[DefaultSerde, DefaultSerde]

    def values_serde(self) -> SerdePort:
        """Return the serde of its values, or what stands for it."""
        return filled(self.value_serde, self.placeholders[1])

    def spec(self, context: str) -> StoreSpec:  # noqa: ARG002 - the signature of a table's store
        """Return the store as it is to be."""
        wishes = self.materialized
        return StoreSpec(
            name=self.name,
            kind=StoreKind.WINDOW,
            key_serde=filled(self.key_serde, self.placeholders[0]),
            value_serde=self.values_serde(),
            persistent=wishes.persistent,
            logging=wishes.logging,
            changelog_config={**wishes.changelog_config, "cleanup.policy": "delete"},
            retention_ms=self.join_windows.retention_ms,
            window_size_ms=self.join_windows.size_ms,
            retain_duplicates=True,
        )


@dataclass(eq=False, kw_only=True)
class BytesStore(TableStore):
    """A store whose rows an operator writes and reads itself: what waits for a partner, or for rows of a table."""

    def spec(self, context: str) -> StoreSpec:  # noqa: ARG002 - the signature of a table's store
        """Return the store as it is to be."""
        wishes = self.materialized
        return StoreSpec(
            name=self.name,
            kind=StoreKind.KEY_VALUE,
            key_serde=Serdes.bytes(),
            value_serde=Serdes.bytes(),
            persistent=wishes.persistent,
            logging=wishes.logging,
            changelog_config=dict(wishes.changelog_config),
            internal_rows=(
                "its rows wait for a join in the order of time, and are deleted when their grace is over"
            ),
        )


@dataclass(eq=False, kw_only=True)
class StreamJoinNode(GraphNode):
    """A join of two streams, below the two nodes that keep their records; its parents are the streams themselves.

    Attributes:
        this_window: The node that keeps the left side's records.
        other_window: The node that keeps the right side's records.
        this_name: The node that finds partners for the left side's records.
        other_name: The node that finds partners for the right side's records.
        this_store: The left side's records.
        other_store: The right side's records.
        non_joined: Records without a partner, in a left or outer join.
        is_outer: Whether the right side's records come out without a partner, too.
        windows: How near each other records must be.
        joiner: The user's function.
        with_itself: Both sides are one stream, and one store is enough.
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

    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None:  # noqa: ARG002 - those are further up
        """Add the two sides and what brings their results together, or the join of a stream with itself."""
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
        """Return the store of records without a partner, which a stream joined with itself does without."""
        return () if self.non_joined is None or self.with_itself else (self.non_joined,)

    @property
    def may_be_with_itself(self) -> bool:
        """Return whether one store gives the same results, if both sides are one stream.

        A record always finds itself, then, so none waits for a partner. Kafka Streams does not ask: there
        a join whose window leaves the record itself out gives other results once it is optimised.
        """
        return self.windows.before_ms >= 0 and self.windows.after_ms >= 0


def single_store_self_join(graph: LogicalGraph) -> None:
    """Let joins of a stream with itself keep its records once (Kafka Streams' single.store.self.join)."""
    stand_ins = graph.stand_ins()
    by_name = {node.name: node for node in graph.nodes}
    for node in graph.nodes:
        if not isinstance(node, StreamJoinNode) or not node.may_be_with_itself:
            continue
        if len({stand_ins.get(parent, parent) for parent in node.parents}) > 1:
            continue
        node.with_itself = True
        kept, spare = by_name[node.this_window], by_name[node.other_window]
        assert isinstance(kept, ProcessorNode)
        # The join puts the records into the store, once it has looked for those before them.
        kept.supplier = OperatorSupplier(PassThrough)
        kept.reads = frozenset((node.this_store.name,))
        for parent in list(spare.parents):
            parent.remove_child(spare)
        graph.drop(spare)


@dataclass(eq=False, kw_only=True)
class StreamTableJoinNode(GraphNode):
    """A join of a stream with a table.

    Attributes:
        table: The table's node.
        view: How its rows are looked up.
        view_stores: The stores that takes.
        joiner: The user's function.
        left: Whether records without a row have a result.
        grace_ms: How long records wait for rows that come late; None: not at all.
        buffer: Where they wait.
        key_serde: Serde of the stream's keys, as far as known.
        value_serde: Serde of its values, likewise.
    """

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
        """Add the join and its buffer."""
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
        """Return the buffer."""
        return () if self.buffer is None else (self.buffer,)
