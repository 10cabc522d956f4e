"""What the DSL's calls add up to, and how it becomes a `Topology`.

Names carry the number of the call that made them, and every call uses up the numbers it uses up in Kafka Streams, also
where a name was given: a program has the same node, store and topic names in both. Nodes are written to the topology
in the order they were made, parents first, which decides the numbers of the sub-topologies. Building changes nothing
here, so a builder may be built again after more calls.
"""

import heapq
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final

from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.spec import StoreSpec
from tidewheel.streams.definitions.call import Call
from tidewheel.streams.definitions.default_serdes import (
    KEY_DEFAULT,
    VALUE_DEFAULT,
    DefaultSerde,
    filled,
)
from tidewheel.streams.definitions.materialized import Materialized, StoreBuilder
from tidewheel.streams.definitions.names import REPARTITION_SUFFIX, check_name, where
from tidewheel.streams.definitions.sameness import is_same
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.operators.stateful import OldValuesSupplier
from tidewheel.streams.operators.stateless import DropNullKeys, PassThrough
from tidewheel.streams.operators.tables.table import TableSource
from tidewheel.streams.serdes import Serde
from tidewheel.streams.serdes.changed import ChangedSerde
from tidewheel.streams.serdes.partitioning import WindowedPartitioner
from tidewheel.streams.serdes.windowed import is_windowed
from tidewheel.streams.topology.topology import Topology
from tidewheel.streams.windows import (
    EmitStrategy,
    FixedWindows,
    SessionWindows,
    SlidingWindows,
    Windows,
)
from tidewheel.tasks.processing.api.topology_spec import (
    Partitioner,
    ProcessorSpec,
    SinkSpec,
    SourceSpec,
)
from tidewheel.tasks.processing.engine.operator import OperatorSupplier

#: A repartition topic named after a store or node with a number gets nodes with numbers of their own.
_NUMBERED: Final = re.compile(r"KSTREAM.*-[0-9]{10}")

AnySerde = Serde[Any]


@dataclass(eq=False, kw_only=True)
class GraphNode(ABC):
    """One call of the DSL.

    Attributes:
        name: The node that children name as their parent.
        location: The user's line.
        priority: Its turn when the topology is written.
        changes_key: It may change keys: what is grouped below it has to be repartitioned.
        changes_value: It may change values, not keys: a repartition topic below it can't be moved above it.
        merges: It brings several streams together.
        old_values: Whether the changes of this table carry the value before, because somebody below asked for it.
        keeps_null_keys: A left or outer join, for which repartition topics above it let null keys through (KIP-962).
        after: Names of nodes that have to be written before this one, besides its parents.
    """

    name: str
    location: str
    parents: list["GraphNode"] = field(default_factory=list["GraphNode"])
    children: list["GraphNode"] = field(default_factory=list["GraphNode"])
    priority: int = -1
    changes_key: bool = False
    changes_value: bool = False
    merges: bool = False
    old_values: bool = False
    keeps_null_keys: bool = False
    after: frozenset[str] = frozenset()

    @property
    def feeds_null_keys(self) -> bool:
        """Return whether any join below wants records with null keys."""
        return any(child.keeps_null_keys or child.feeds_null_keys for child in self.children)

    def add_child(self, child: "GraphNode") -> None:
        """Put a node below this one, unless it is there."""
        if child not in self.children:
            self.children.append(child)
        if self not in child.parents:
            child.parents.append(self)

    def remove_child(self, child: "GraphNode") -> None:
        """Take a node away from below this one."""
        self.children.remove(child)
        child.parents.remove(self)

    @abstractmethod
    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None:
        """Add what this call stands for to the topology."""

    def stores(self) -> Iterable["TableStore"]:
        """Return the stores this call makes."""
        return ()

    def table_windows(self) -> tuple[Windows, ...]:
        """Return the windows this call aggregates in; none for a call that is no windowed aggregation."""
        return tuple(store.windows for store in self.stores() if store.windows is not None)

    def _with_old_values(self, supplier: Callable[[], Any]) -> Callable[[], Any]:
        """Return what makes the operator, told of the old values if they are wanted."""
        if self.old_values and isinstance(supplier, OperatorSupplier):
            return OldValuesSupplier(supplier.operator, supplier.arguments)
        return supplier


@dataclass(eq=False, kw_only=True)
class TableStore:
    """The store of a table, which may turn out not to be needed.

    Attributes:
        name: Its name, from `store=`, from `name=`, or generated.
        generated: Whether the name has a number of Kafka Streams' counting in it.
        materialized: The user's wishes.
        key_serde: Serde of keys, as far as known.
        value_serde: Serde of values, as far as known.
        needed: Whether anybody reads it: the user by its name, or an operator.
        windows: The windows its rows are in; None for a table without windows.
        emit: When the results of those windows are forwarded.
    """

    name: str
    generated: bool
    materialized: Materialized[Any, Any]
    key_serde: AnySerde | None
    value_serde: AnySerde | None
    needed: bool
    windows: Windows | None = None
    emit: EmitStrategy = "on_window_update"

    @property
    def takes_default(self) -> bool:
        """Return whether the setting `dsl_store_suppliers` says how it is kept, because the user didn't."""
        return self.materialized.store_type is None

    def takes_format(self, spec: StoreSpec) -> bool:
        """Return whether the setting `dsl_store_format` says what its rows keep."""
        return self.materialized.headers is None and spec.may_keep_headers

    @property
    def queryable_name(self) -> str | None:
        """Return the name under which it can be queried: one the user gave."""
        return None if self.generated or not self.needed else self.name

    @property
    def retention_ms(self) -> int:
        """Return how long a windowed table's rows are seen: as long as the user wants, or as they may change (ms)."""
        assert self.windows is not None, "only windowed tables have a retention"
        return self.materialized.windows_retention_ms(self.windows.retention_ms, self.name)

    def spec(self, context: str) -> StoreSpec:
        """Return the store as it is to be; raises `TopologyError` with this context if it can't be."""
        windows = self.windows
        serdes = filled(self.key_serde, KEY_DEFAULT), filled(self.value_serde, VALUE_DEFAULT)
        if windows is None:
            return self.materialized.spec(self.name, *serdes, context=context)
        needed = windows.retention_ms
        if isinstance(windows, SessionWindows):
            spec = self.materialized.session_spec(
                self.name, *serdes, needed_retention_ms=needed, context=context
            )
        else:
            assert isinstance(windows, FixedWindows | SlidingWindows)
            spec = self.materialized.window_spec(
                self.name,
                *serdes,
                needed_retention_ms=needed,
                window_size_ms=windows.longest_ms,
                window_end=windows.end_of,
                context=context,
            )
        return replace(spec, retention_ms=max(spec.retention_ms, windows.kept_ms(self.emit)))

    def add_to(self, topology: Topology, location: str, *, source_topic: str | None = None) -> None:
        """Add the store to the topology; with a `source_topic` that topic is its changelog."""
        spec = self.spec(where(f"store {self.name!r}", location))
        if source_topic is not None:
            spec = replace(spec, logging=False, changelog_config={}, source_topic=source_topic)
        builder = StoreBuilder(
            spec=spec,
            location=location,
            takes_default=self.takes_default,
            takes_format=self.takes_format(spec),
        )
        topology.add_store(builder)


@dataclass(eq=False, kw_only=True)
class StreamSourceNode(GraphNode):
    """`stream()`: two of the same topics become one source."""

    spec: SourceSpec

    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None:
        """Add the source."""
        assert not parents
        topology.add_node(self.spec)


@dataclass(eq=False, kw_only=True)
class ProcessorNode(GraphNode):
    """An operator or a processor of the user's, with stores that exist already and perhaps one of its own.

    `reads` names those of `store_names` that it never writes. `shared_store` is made by another
    node, and this one writes it too.
    """

    supplier: Callable[[], Any]
    store_names: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()
    store: TableStore | None = None
    shared_store: TableStore | None = None

    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None:
        """Add the processor and its store."""
        names = self.store_names
        if self.store is not None and self.store.needed:
            self.store.add_to(topology, self.location)
            names = (self.store.name, *names)  # as Kafka Streams connects them
        if self.shared_store is not None:
            names = (*names, self.shared_store.name)
        topology.add_node(
            ProcessorSpec(
                name=self.name,
                supplier=self._with_old_values(self.supplier),
                parents=parents,
                stores=names,
                reads=self.reads,
                location=self.location,
            )
        )

    def stores(self) -> Iterable[TableStore]:
        """Return its own store."""
        return () if self.store is None else (self.store,)

    def table_windows(self) -> tuple[Windows, ...]:
        """Return the windows of its own store, or of the one it shares."""
        shared = None if self.shared_store is None else self.shared_store.windows
        return GraphNode.table_windows(self) if shared is None else (shared,)


@dataclass(eq=False, kw_only=True)
class TableNode(GraphNode):
    """A stream read as a table: `to_table()`, or `table()` with a source of its own.

    `reuses_source`: the store is restored from the source's topic and has no changelog.
    """

    store: TableStore
    source: SourceSpec | None = None
    reuses_source: bool = False

    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None:
        """Add the source if there is one, then the table and its store, if anybody reads that."""
        if self.source is not None:
            topology.add_node(self.source)
            parents = (self.source.name,)
        needed = self.store.needed
        if needed:
            reused = self.source if self.reuses_source else None
            self.store.add_to(
                topology, self.location, source_topic=None if reused is None else reused.topics[0]
            )
        store_name = self.store.name if needed else None
        topology.add_node(
            ProcessorSpec(
                name=self.name,
                supplier=self._with_old_values(OperatorSupplier(TableSource, (store_name,))),
                parents=parents,
                stores=(self.store.name,) if needed else (),
                location=self.location,
            )
        )

    def stores(self) -> Iterable[TableStore]:
        """Return the table's store."""
        return (self.store,)


@dataclass(eq=False, kw_only=True)
class SinkNode(GraphNode):
    """`to()`."""

    spec: SinkSpec

    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None:
        """Add the sink; windowed keys go where the key inside goes, unless there is a partitioner."""
        spec = self.spec
        if spec.partitioner is None and is_windowed(spec.key_serde):
            spec = replace(spec, partitioner=WindowedPartitioner(spec.key_serde))
        topology.add_node(replace(spec, parents=parents))


@dataclass(eq=False, kw_only=True)
class RepartitionNode(GraphNode):
    """A trip through an internal topic: a filter, a sink, and a source under this node's name.

    `optimizable`: the user did not ask for this very topic, so that several may become one.
    """

    topic: str
    generated: bool
    filter_name: str
    sink_name: str
    key_serde: AnySerde | None
    value_serde: AnySerde | None
    partitions: int | None = None
    partitioner: Partitioner | None = None
    topic_config: Mapping[str, str] = field(default_factory=dict[str, str])
    optimizable: bool = True
    placeholders: tuple[DefaultSerde, DefaultSerde] = (KEY_DEFAULT, VALUE_DEFAULT)

    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None:
        """Add the topic and the nodes at its two ends."""
        key = filled(self.key_serde, self.placeholders[0])
        value = filled(self.value_serde, self.placeholders[1])
        topology.add_repartition_topic(self.topic, self.partitions, self.topic_config)
        topology.add_node(
            ProcessorSpec(
                name=self.filter_name,
                supplier=OperatorSupplier(PassThrough if self.feeds_null_keys else DropNullKeys),
                parents=parents,
                location=self.location,
            )
        )
        topology.add_node(
            SinkSpec(
                name=self.sink_name,
                topic=self.topic,
                parents=(self.filter_name,),
                key_serde=key,
                value_serde=value,
                partitioner=self.partitioner,
                internal=True,
                location=self.location,
            )
        )
        topology.add_node(
            SourceSpec(
                name=self.name,
                topics=(self.topic,),
                key_serde=key,
                value_serde=value,
                internal=True,
                location=self.location,
            )
        )


@dataclass(eq=False, kw_only=True)
class TableRepartitionNode(GraphNode):
    """A trip of a grouped table's changes through an internal topic: a sink, and a source under this node's name."""

    topic: str
    generated: bool
    sink_name: str
    key_serde: AnySerde | None
    value_serde: AnySerde | None
    partitioner: Partitioner | None = None

    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None:
        """Add the topic and the nodes at its two ends."""
        key = filled(self.key_serde, KEY_DEFAULT)
        messages = self._messages(filled(self.value_serde, VALUE_DEFAULT))
        topology.add_repartition_topic(self.topic, None)
        sink = SinkSpec(
            name=self.sink_name,
            topic=self.topic,
            parents=parents,
            key_serde=key,
            value_serde=messages,
            partitioner=self.partitioner,
            internal=True,
            location=self.location,
        )
        topology.add_node(sink)
        source = SourceSpec(
            name=self.name,
            topics=(self.topic,),
            key_serde=key,
            value_serde=messages,
            internal=True,
            location=self.location,
        )
        topology.add_node(source)

    def _messages(self, values: SerdePort) -> SerdePort:
        """Return the serde of what travels, given that of the table's values."""
        return ChangedSerde(values)


@dataclass(eq=False, kw_only=True)
class ForeignKeyTopicNode(TableRepartitionNode):
    """One of the two topics of a join on a foreign key; it has as many partitions as what `joined_with` reads."""

    joined_with: str

    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None:
        """Add the topic and the nodes at its two ends."""
        TableRepartitionNode.write_to(self, topology, parents)
        topology.copartition((self.name, self.joined_with), where("join", self.location))

    def _messages(self, values: SerdePort) -> SerdePort:
        """Return the serde of messages, which the node was given."""
        return values


class LogicalGraph:
    """All calls on one builder: counts names, keeps the nodes, writes the topology."""

    def __init__(self) -> None:
        self._number = count()
        self._priority = count()
        self._roots: list[GraphNode] = []
        self._nodes: dict[GraphNode, None] = {}
        self._state_stores: list[StoreBuilder] = []

    # -- names -----------------------------------------------------------------------------------------------------

    def node_name(self, prefix: str, given: str | None = None) -> str:
        """Return the given name, or the next generated one; a number is used up either way."""
        generated = f"{prefix}{next(self._number):010d}"
        return generated if given is None else given

    def store_name(self, prefix: str) -> str:
        """Return the next generated store name."""
        return f"{prefix}STATE-STORE-{next(self._number):010d}"

    def table_store(
        self,
        materialized: Materialized[Any, Any],
        *,
        prefix: str,
        name: str | None,
        serdes: tuple[AnySerde | None, AnySerde | None],
        needed: bool,
    ) -> TableStore:
        """Return the store of a table.

        Args:
            materialized: What `store=` said.
            prefix: Of its generated name.
            name: The operator's own `name=`, which a store without one takes.
            serdes: Of keys and values, as far as known.
            needed: Whether there is a store even if it has no name to query it by.
        """
        generated = self.store_name(prefix) if materialized.name is None else None
        store_name = materialized.name or name or generated
        assert store_name is not None
        return TableStore(
            name=store_name,
            generated=store_name == generated,
            materialized=materialized,
            key_serde=serdes[0],
            value_serde=serdes[1],
            needed=needed or materialized.name is not None,
        )

    # -- nodes -----------------------------------------------------------------------------------------------------

    def add(self, node: GraphNode, *parents: GraphNode) -> None:
        """Add a node below its parents, or as a root; a node that was added before only gets more parents."""
        node.priority = next(self._priority)
        self._nodes.setdefault(node)
        if not parents and node not in self._roots:
            self._roots.append(node)
        for parent in parents:
            parent.add_child(node)

    def drop(self, node: GraphNode) -> None:
        """Forget a node that nothing is connected to any more."""
        del self._nodes[node]

    @property
    def nodes(self) -> tuple[GraphNode, ...]:
        """Return all nodes, in the order they were added."""
        return tuple(self._nodes)

    def copy(self) -> "LogicalGraph":
        """Return a graph of copies of the nodes, which can be wired otherwise before it is built."""
        twins = {node: copy(node) for node in self._nodes}
        for node, twin in twins.items():
            twin.parents = [twins[parent] for parent in node.parents]
            twin.children = [twins[child] for child in node.children]
        graph = LogicalGraph()
        graph._nodes = dict.fromkeys(twins.values())
        graph._roots = [twins[root] for root in self._roots]
        graph._state_stores = list(self._state_stores)
        return graph

    def add_state_store(self, builder: StoreBuilder) -> None:
        """Add a store for the user's processors."""
        self._state_stores.append(builder)

    def repartition(
        self,
        prefix: str,
        serdes: tuple[AnySerde | None, AnySerde | None],
        *,
        generated: bool,
        call: Call,
    ) -> RepartitionNode:
        """Return a trip through an internal topic, not added yet.

        Args:
            prefix: What the topic is named after.
            serdes: Of keys and values, as far as known.
            generated: Whether `prefix` has a number of the counting in it.
            call: What asked for it.
        """
        topic = prefix if prefix.endswith(REPARTITION_SUFFIX) else f"{prefix}{REPARTITION_SUFFIX}"
        check_name(topic, "repartition topic", call.context)
        sink = self.node_name("KSTREAM-SINK-")
        keyed = self.node_name("KSTREAM-FILTER-")
        source = self.node_name("KSTREAM-SOURCE-")
        if not _NUMBERED.fullmatch(prefix):
            sink, keyed, source = f"{topic}-sink", f"{topic}-filter", f"{topic}-source"
        return RepartitionNode(
            name=source,
            location=call.location,
            topic=topic,
            generated=generated,
            filter_name=keyed,
            sink_name=sink,
            key_serde=serdes[0],
            value_serde=serdes[1],
        )

    # -- building --------------------------------------------------------------------------------------------------

    def stand_ins(self) -> Mapping[GraphNode, GraphNode]:
        """Return for each stream that reads what an earlier one reads the stream that stands in for it."""
        return _stand_ins(self._roots)

    def build(self) -> Topology:
        """Return the topology of all calls so far."""
        topology = Topology()
        for builder in self._state_stores:
            topology.add_store(builder)
        stand_ins = self.stand_ins()
        heirs = {
            main: [child for node, stand_in in stand_ins.items() if stand_in is main for child in node.children]
            for main in set(stand_ins.values())
        }  # fmt: skip
        written: set[GraphNode] = set()
        names: set[str] = set()
        early: list[GraphNode] = []
        turns = count()
        ready = [
            (node.priority, next(turns), node) for node in self._roots if node not in stand_ins
        ]
        heapq.heapify(ready)
        while ready:
            node = heapq.heappop(ready)[-1]
            parents = _parents(node, stand_ins)
            if node in written or not written.issuperset(parents):
                continue
            if not names.issuperset(node.after):
                early.append(node)
                continue
            node.write_to(topology, tuple(parent.name for parent in parents))
            written.add(node)
            names.add(node.name)
            for child in (*node.children, *heirs.get(node, ()), *early):
                if child not in written:
                    heapq.heappush(ready, (child.priority, next(turns), child))
            early.clear()
        return topology

    def check_names_are_given(self) -> None:
        """Raise `TopologyError` listing every store and topic whose name would change with the program."""
        found: list[str] = []
        for node in self._nodes:
            found += [
                where(f"store {store.name}", node.location)
                for store in node.stores()
                if store.needed and store.generated
            ]
            if isinstance(node, RepartitionNode | TableRepartitionNode) and node.generated:
                found.append(where(f"repartition topic {node.topic}", node.location))
        if found:
            raise TopologyError(
                "ensure_explicit_naming is set, but these names are generated and would change with the program: "
                f"{', '.join(found)}; name stores with store=... and repartition topics with name=..."
            )


def _parents(node: GraphNode, stand_ins: Mapping[GraphNode, GraphNode]) -> list[GraphNode]:
    """Return a node's parents; those that stand in for another come last, as Kafka Streams lists them."""
    own = [parent for parent in node.parents if parent not in stand_ins]
    others = [main for source, main in stand_ins.items() if source in node.parents]
    return list(dict.fromkeys([*own, *others]))


def _stand_ins(roots: Iterable[GraphNode]) -> Mapping[GraphNode, GraphNode]:
    """Return for each stream that reads what an earlier one reads the stream that stands in for it."""
    by_topic: dict[object, StreamSourceNode] = {}
    stand_ins: dict[GraphNode, GraphNode] = {}
    for node in roots:
        if not isinstance(node, StreamSourceNode):
            continue
        keys: Iterable[object] = node.spec.topics
        if node.spec.pattern is not None:
            keys = [(node.spec.pattern.pattern, node.spec.pattern.flags)]
        for key in keys:
            main = by_topic.setdefault(key, node)
            if main is not node:
                _check_alike(main.spec, node.spec, key)
                stand_ins[node] = main
    return stand_ins


def _check_alike(main: SourceSpec, other: SourceSpec, key: object) -> None:
    """Raise `TopologyError` unless one source can serve both."""
    context = where(f"stream {other.name!r}", other.location)
    first = f"{main.name!r} ({main.location})" if main.location else repr(main.name)
    if set(main.topics) != set(other.topics):
        raise TopologyError(
            f"{context}: topic {key!r} is read by {first} too, but together with other topics; read it in one stream() "
            "and use that twice"
        )
    for option in ("offset_reset", "timestamp_extractor", "key_serde", "value_serde"):
        if not is_same(getattr(main, option), getattr(other, option)):
            raise TopologyError(
                f"{context}: it reads what {first} reads, but with another {option}; give both the same"
            )
