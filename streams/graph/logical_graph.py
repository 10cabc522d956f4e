"""`LogicalGraph`: records the DSL's calls and builds the `Topology` from them.

Generated names contain a counter. Every call advances it as in Kafka Streams, even with a
user-given name, so generated names are equal in both. Nodes are written to the topology in call
order, parents first, which decides sub-topology numbers. Building does not change the graph.
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
from tidewheel.tasks.processing.api.sink import SinkOrSupplier
from tidewheel.tasks.processing.api.topology_spec import (
    ExternalSinkSpec,
    Partitioner,
    ProcessorSpec,
    SinkSpec,
    SourceSpec,
)
from tidewheel.tasks.processing.engine.operator import OperatorSupplier

#: Generated name of a node or store. A repartition topic named after it gets nodes with generated
#: names; nodes of other repartition topics are named after the topic.
_NUMBERED: Final = re.compile(r"KSTREAM.*-[0-9]{10}")

AnySerde = Serde[Any]


@dataclass(eq=False, kw_only=True)
class GraphNode(ABC):
    """One call of the DSL.

    Attributes:
        name: Name of its last node in the topology, the parent of its children's nodes.
        location: The user's file:line.
        priority: Position in call order, in which nodes are written.
        changes_key: True if it may change keys: a grouping below needs a repartition.
        changes_value: True if it may change values, not keys: the optimiser can't move a
            repartition from below it to above it.
        merges: True for `KStream.merge`.
        old_values: True if changes carry the old value, because a node below requested it.
        keeps_null_keys: True for a left or outer join: repartitions above it pass null keys
            (KIP-962).
        after: Names of nodes to write before this one, besides its parents.
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
        return any(child.keeps_null_keys or child.feeds_null_keys for child in self.children)

    def add_child(self, child: "GraphNode") -> None:
        if child not in self.children:
            self.children.append(child)
        if self not in child.parents:
            child.parents.append(self)

    def remove_child(self, child: "GraphNode") -> None:
        self.children.remove(child)
        child.parents.remove(self)

    @abstractmethod
    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None: ...

    def stores(self) -> Iterable["TableStore"]:
        return ()

    def table_windows(self) -> tuple[Windows, ...]:
        return tuple(store.windows for store in self.stores() if store.windows is not None)

    def _with_old_values(self, supplier: Callable[[], Any]) -> Callable[[], Any]:
        if self.old_values and isinstance(supplier, OperatorSupplier):
            return OldValuesSupplier(supplier.operator, supplier.arguments)
        return supplier


@dataclass(eq=False, kw_only=True)
class TableStore:
    """The store of a table, which is created only if needed.

    Attributes:
        name: From `store=`, from `name=`, or generated.
        generated: True if the name contains a generated number.
        needed: True if an operator reads it or the user can query it by name.
        windows: Windows of its rows; None for a table without windows.
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
        """Return True if `dsl_store_suppliers` decides the store type."""
        return self.materialized.store_type is None

    def takes_format(self, spec: StoreSpec) -> bool:
        """Return True if `dsl_store_format` decides the row format."""
        return self.materialized.headers is None and spec.may_keep_headers

    @property
    def queryable_name(self) -> str | None:
        """Return the user-given name, under which the store can be queried, or None."""
        return None if self.generated or not self.needed else self.name

    @property
    def retention_ms(self) -> int:
        """Return a windowed table's retention (ms): the user's, else the time rows may change."""
        assert self.windows is not None, "only windowed tables have a retention"
        return self.materialized.windows_retention_ms(self.windows.retention_ms, self.name)

    def spec(self, context: str) -> StoreSpec:
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
        """Add the store to the topology; a `source_topic` serves as its changelog."""
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
    """`stream()`: two reads of the same topics become one source."""

    spec: SourceSpec

    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None:
        assert not parents
        topology.add_node(self.spec)


@dataclass(eq=False, kw_only=True)
class ProcessorGraphNode(GraphNode):
    """An operator or user processor, with existing stores and an optional store of its own.

    `reads`: the stores of `store_names` that it never writes. `shared_store`: a store that another
    node creates, and both write.
    """

    supplier: Callable[[], Any]
    store_names: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()
    store: TableStore | None = None
    shared_store: TableStore | None = None

    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None:
        names = self.store_names
        if self.store is not None and self.store.needed:
            self.store.add_to(topology, self.location)
            names = (self.store.name, *names)  # own store first, as in Kafka Streams
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
        return () if self.store is None else (self.store,)

    def table_windows(self) -> tuple[Windows, ...]:
        shared = None if self.shared_store is None else self.shared_store.windows
        return GraphNode.table_windows(self) if shared is None else (shared,)


@dataclass(eq=False, kw_only=True)
class TableNode(GraphNode):
    """A stream read as a table: `to_table()`, or `table()` with its own source.

    `reuses_source`: the store is restored from the source topic and has no changelog.
    """

    store: TableStore
    source: SourceSpec | None = None
    reuses_source: bool = False

    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None:
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
        return (self.store,)


@dataclass(eq=False, kw_only=True)
class SinkNode(GraphNode):
    spec: SinkSpec

    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None:
        """Add the sink; without a partitioner, windowed keys are partitioned by the inner key."""
        spec = self.spec
        if spec.partitioner is None and is_windowed(spec.key_serde):
            spec = replace(spec, partitioner=WindowedPartitioner(spec.key_serde))
        topology.add_node(replace(spec, parents=parents))


@dataclass(eq=False, kw_only=True)
class ExternalSinkNode(GraphNode):
    """`to_sink()`; the serdes are used if it needs an internal topic."""

    sink: SinkOrSupplier
    generated: bool
    key_serde: AnySerde | None
    value_serde: AnySerde | None

    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None:
        spec = ExternalSinkSpec(
            name=self.name, sink=self.sink, parents=parents, location=self.location
        )
        topology.add_external_sink(
            spec, filled(self.key_serde, KEY_DEFAULT), filled(self.value_serde, VALUE_DEFAULT)
        )


@dataclass(eq=False, kw_only=True)
class RepartitionNode(GraphNode):
    """A repartition topic: a null-key filter, a sink, and a source under this node's name.

    `optimizable`: the optimiser may merge this topic with others; False for `repartition()`.
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
    """The repartition topic of a grouped table: a sink, and a source under this node's name."""

    topic: str
    generated: bool
    sink_name: str
    key_serde: AnySerde | None
    value_serde: AnySerde | None
    partitioner: Partitioner | None = None

    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None:
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
        return ChangedSerde(values)


@dataclass(eq=False, kw_only=True)
class ForeignKeyTopicNode(TableRepartitionNode):
    """Topic of a foreign-key join, with the partition count of `joined_with`'s topic."""

    joined_with: str

    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None:
        TableRepartitionNode.write_to(self, topology, parents)
        topology.copartition((self.name, self.joined_with), where("join", self.location))

    def _messages(self, values: SerdePort) -> SerdePort:
        return values


class LogicalGraph:
    """All DSL calls on one builder: generates names, collects nodes, builds the topology."""

    def __init__(self) -> None:
        self._number = count()
        self._priority = count()
        self._roots: list[GraphNode] = []
        self._nodes: dict[GraphNode, None] = {}
        self._state_stores: list[StoreBuilder] = []

    def node_name(self, prefix: str, given: str | None = None) -> str:
        """Return the given name or the next generated one; both advance the counter."""
        generated = f"{prefix}{next(self._number):010d}"
        return generated if given is None else given

    def store_name(self, prefix: str) -> str:
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

    def add(self, node: GraphNode, *parents: GraphNode) -> None:
        node.priority = next(self._priority)
        self._nodes.setdefault(node)
        if not parents and node not in self._roots:
            self._roots.append(node)
        for parent in parents:
            parent.add_child(node)

    def drop(self, node: GraphNode) -> None:
        del self._nodes[node]

    @property
    def nodes(self) -> tuple[GraphNode, ...]:
        return tuple(self._nodes)

    def copy(self) -> "LogicalGraph":
        """Return a copied graph that can be rewired before it is built."""
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
        self._state_stores.append(builder)

    def repartition(
        self,
        prefix: str,
        serdes: tuple[AnySerde | None, AnySerde | None],
        *,
        generated: bool,
        call: Call,
    ) -> RepartitionNode:
        """Return a repartition node, which the caller may add."""
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

    def replaced_sources(self) -> Mapping[GraphNode, GraphNode]:
        """Map each source that reads the same topics as an earlier source to the earlier one."""
        return _replaced_sources(self._roots)

    def build(self) -> Topology:
        topology = Topology()
        for builder in self._state_stores:
            topology.add_store(builder)
        replaced_sources = self.replaced_sources()
        heirs = {
            main: [child for node, replacement in replaced_sources.items() if replacement is main for child in node.children]
            for main in set(replaced_sources.values())
        }  # fmt: skip
        written: set[GraphNode] = set()
        names: set[str] = set()
        early: list[GraphNode] = []
        turns = count()
        ready = [
            (node.priority, next(turns), node)
            for node in self._roots
            if node not in replaced_sources
        ]
        heapq.heapify(ready)
        while ready:
            node = heapq.heappop(ready)[-1]
            parents = _parents(node, replaced_sources)
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
        topology.separate_external_sinks()
        return topology

    def check_names_are_given(self) -> None:
        unnamed: list[str] = []
        for node in self._nodes:
            unnamed += [
                where(f"store {store.name}", node.location)
                for store in node.stores()
                if store.needed and store.generated
            ]
            if isinstance(node, RepartitionNode | TableRepartitionNode) and node.generated:
                unnamed.append(where(f"repartition topic {node.topic}", node.location))
            if isinstance(node, ExternalSinkNode) and node.generated:
                unnamed.append(where(f"sink {node.name}", node.location))
        if unnamed:
            raise TopologyError(
                "ensure_explicit_naming is set, but these names are generated and would change with the program: "
                f"{', '.join(unnamed)}; name stores with store=... and repartition topics with name=..."
            )


def _parents(node: GraphNode, replaced_sources: Mapping[GraphNode, GraphNode]) -> list[GraphNode]:
    """Return a node's parents; sources that replace others come last, as in Kafka Streams."""
    remaining = [parent for parent in node.parents if parent not in replaced_sources]
    replacements = [main for source, main in replaced_sources.items() if source in node.parents]
    return list(dict.fromkeys([*remaining, *replacements]))


def _replaced_sources(roots: Iterable[GraphNode]) -> Mapping[GraphNode, GraphNode]:
    by_topic: dict[object, StreamSourceNode] = {}
    replaced_sources: dict[GraphNode, GraphNode] = {}
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
                replaced_sources[node] = main
    return replaced_sources


def _check_alike(main: SourceSpec, other: SourceSpec, key: object) -> None:
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
