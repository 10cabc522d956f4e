"""`Topology`: named sources, processors, sinks and stores, checked to be runnable.

Parents must exist before their children, so a graph has no cycles. `spec()` returns plain values
for the tasks.
"""

import hashlib
import json
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self

from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.spec import StoreSpec
from tidewheel.streams.definitions.checks import check_callable, check_flag
from tidewheel.streams.definitions.default_serdes import (
    DefaultSerdes,
    resolved_node,
    resolved_store,
    serdes_or_default,
)
from tidewheel.streams.definitions.materialized import StoreBuilder
from tidewheel.streams.definitions.names import REPARTITION_SUFFIX, check_name, did_you_mean, where
from tidewheel.streams.definitions.node_arguments import (
    PARTITIONER,
    TopicChooser,
    check_parents,
    check_store_builder,
    check_supplier,
    check_target,
    configured_wrapper,
    connected_stores,
    one_or_more,
    source_spec,
    wrapped_node,
)
from tidewheel.streams.definitions.store_suppliers import with_default_store_type
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.serdes import SerdeLike
from tidewheel.streams.topology.description import TopologyDescription
from tidewheel.streams.topology.filled_stores import TopologyStores
from tidewheel.streams.topology.nodes import (
    check_external_sink,
    check_parents_exist,
    check_read_once,
    connected_groups,
    location_suffix,
    only_feeds_sink,
    parents_of,
)
from tidewheel.streams.user_functions import caller_location
from tidewheel.tasks.processing.api.processor import Processor
from tidewheel.tasks.processing.api.topology_spec import (
    ExternalSinkSpec,
    GlobalStoreSpec,
    NodeSpec,
    OffsetReset,
    Partitioner,
    ProcessorSpec,
    SinkSpec,
    SourceSpec,
    SubtopologySpec,
    TimestampExtractor,
    TopologySpec,
)


class Topology(TopologyStores):
    """A graph of named sources, processors, sinks and shared stores (Kafka Streams' Topology).

    Methods that add return the topology. They raise `TopologyError` with the caller's line for a
    duplicate name, a missing parent or store, and an invalid serde, builder or supplier.

    >>> from tidewheel import Processor, Topology
    >>> class Shout(Processor[str, str, str, str]):
    ...     def process(self, record):
    ...         self.context.forward(record.replace(value=record.value.upper()))
    >>> topology = Topology()
    >>> _ = topology.add_source("lines", "text", key_serde=str, value_serde=str)
    >>> _ = topology.add_processor("shout", Shout, ["lines"])
    >>> _ = topology.add_sink("loud", "shouted", ["shout"], key_serde=str, value_serde=str)
    >>> print(str(topology.describe()).strip())
    Topologies:
       Sub-topology: 0
        Source: lines (topics: [text])
          --> shout
        Processor: shout (stores: [])
          --> loud
          <-- lines
        Sink: loud (topic: shouted)
          <-- shout
    """

    def __init__(self) -> None:
        #: Nodes in insertion order, so parents come before children.
        self._nodes: dict[str, NodeSpec] = {}
        self._stores: dict[str, StoreBuilder] = {}
        super().__init__()
        #: Repartition topics: unprefixed names with partition counts (None: decided at start).
        self._repartition_topics: dict[str, int | None] = {}
        self._repartition_configs: dict[str, Mapping[str, str]] = {}
        #: Serdes of the internal topics of external sinks, used for those that need one.
        self._external_serdes: dict[str, tuple[SerdePort, SerdePort]] = {}
        #: Groups of sources that a join reads: their topics need equal partition counts.
        self._copartitioned: list[frozenset[str]] = []

    def add_source(
        self,
        name: str,
        topics: str | Sequence[str] | re.Pattern[str],
        *,
        key_serde: SerdeLike[Any] | None = None,
        value_serde: SerdeLike[Any] | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: OffsetReset | None = None,
    ) -> Self:
        """Add a node that reads topics.

        Args:
            topics: A topic, a list of topics, or a regular expression that matches whole names.
            timestamp_extractor: `f(record, partition_time) -> ms`; default: the record's timestamp.
            offset_reset: First record to read without a committed offset: "earliest", "latest", a
                `timedelta` (first record of at most that age), or "none" (an error).

        >>> Topology().add_source("read", ["a", "b"]).source_topics
        ('a', 'b')
        """
        location = caller_location()
        self.add_node(
            source_spec(
                name=check_name(name, "name", where("add_source", location)),
                topics=topics,
                serdes=(key_serde, value_serde),
                timestamp_extractor=timestamp_extractor,
                offset_reset=offset_reset,
                call="add_source",
                location=location,
            )
        )
        return self

    def add_processor(
        self,
        name: str,
        supplier: Callable[[], Processor[Any, Any, Any, Any]],
        parents: str | Sequence[str],
    ) -> Self:
        """Add a processor node.

        Args:
            name: The node's name; `context.forward(record, child=name)` sends to it.
            supplier: `Processor` class, or a function that returns a new one at each call (one per
                task). Its `stores` are added and connected.

        >>> _ = Topology().add_source("read", "in").add_processor("work", Processor, ["read"])
        """
        location = caller_location()
        context = where(f"add_processor {name!r}", location)
        check_name(name, "name", context)
        check_supplier(supplier, context, Processor)
        spec = ProcessorSpec(
            name=name, supplier=supplier, parents=check_parents(parents, context), location=location
        )
        brought = connected_stores(supplier, context)
        self.add_node(spec)
        for builder in brought:
            self.add_store(replace(builder, location=builder.location or location))
            self._connect(name, builder.spec.name, context)
        return self

    def add_sink(
        self,
        name: str,
        topic: str | TopicChooser,
        parents: str | Sequence[str],
        *,
        key_serde: SerdeLike[Any] | None = None,
        value_serde: SerdeLike[Any] | None = None,
        partitioner: Partitioner | None = None,
    ) -> Self:
        """Add a node that writes to a topic.

        Args:
            topic: The topic, or `f(key, value, context)` -> topic for each record.
            partitioner: `f(topic, key, value, partitions)` -> partition, several, or None for
                Kafka's default.

        >>> _ = Topology().add_source("read", "in").add_sink("write", "out", ["read"])
        """
        location = caller_location()
        context = where(f"add_sink {name!r}", location)
        check_name(name, "name", context)
        key, value = serdes_or_default(key_serde, value_serde, context)
        spec = SinkSpec(
            name=name,
            topic=check_target(topic, context),
            parents=check_parents(parents, context),
            key_serde=key,
            value_serde=value,
            partitioner=check_callable(partitioner, "partitioner", PARTITIONER, context),
            location=location,
        )
        self.add_node(spec)
        return self

    def add_state_store(self, builder: StoreBuilder, processors: str | Sequence[str] = ()) -> Self:
        """Add a store and connect it to processors; more can be connected later.

        >>> from tidewheel import Stores
        >>> counts = Stores.key_value("counts", key_serde=str, value_serde=int)
        >>> topology = Topology().add_source("read", "in").add_processor("work", Processor, ["read"])
        >>> topology.add_state_store(counts, ["work"]).store_names
        ('counts',)
        """
        location = caller_location()
        context = where("add_state_store", location)
        builder = check_store_builder(builder, context)
        self.add_store(replace(builder, location=builder.location or location))
        for processor in one_or_more(processors, "processors", context):
            self._connect(processor, builder.spec.name, context)
        return self

    def connect_processor_and_state_stores(
        self, processor: str, stores: str | Sequence[str]
    ) -> Self:
        """Connect a processor to existing stores.

        Global stores need no connection and are rejected.

        >>> from tidewheel import Stores
        >>> topology = Topology().add_source("read", "in").add_processor("work", Processor, ["read"])
        >>> _ = topology.add_state_store(Stores.key_value("seen", key_serde=str, value_serde=int))
        >>> _ = topology.connect_processor_and_state_stores("work", ["seen"])
        """
        context = where("connect_processor_and_state_stores", caller_location())
        names = one_or_more(stores, "stores", context)
        if not names:
            raise TopologyError(f"{context}: no store is named; give at least one")
        for store in names:
            self._connect(processor, store, context)
        return self

    def add_node(self, node: NodeSpec) -> None:
        context = where(repr(node.name), node.location)
        if (other := self._nodes.get(node.name)) is not None:
            raise TopologyError(
                f"{context}: the topology has a node of this name already"
                f"{location_suffix(other.location)}; give one of the two another name="
            )
        if isinstance(node, SourceSpec):
            check_read_once(node, self._nodes.values(), context)
        else:
            check_parents_exist(node, self._nodes, context)
            self.check_parents_forward(node, context)
        if not isinstance(node, ProcessorSpec):
            self._nodes[node.name] = node
            return
        self._nodes[node.name] = replace(node, stores=())
        for store in node.stores:
            self._connect(node.name, store, context)

    def add_store(self, builder: StoreBuilder) -> None:
        """Add a store; adding the same store twice has no effect."""
        name = builder.spec.name
        other = self._stores.get(name)
        if other is not None and other.spec is not builder.spec:
            raise TopologyError(
                f"{where(f'store {name!r}', builder.location)}: there is another store of this name"
                f"{location_suffix(other.location)}; give one of the two another name"
            )
        self._stores.setdefault(name, builder)

    def add_repartition_topic(
        self, name: str, partitions: int | None, config: Mapping[str, str] | None = None
    ) -> None:
        """Declare an internal topic by its unprefixed name.

        `partitions` None: decided at start.
        """
        self._repartition_topics[name] = partitions
        if config:
            self._repartition_configs[name] = dict(config)

    def add_external_sink(
        self, node: ExternalSinkSpec, key_serde: SerdePort, value_serde: SerdePort
    ) -> None:
        """Add a sink outside Kafka; the serdes are those of its internal topic, if it needs one."""
        self.add_node(node)
        self._external_serdes[node.name] = (key_serde, value_serde)

    def separate_external_sinks(self) -> None:
        """Put an internal topic before each external sink that other nodes share a task with."""
        for names in connected_groups(self._nodes):
            group = [self._nodes[name] for name in names]
            sinks = [node for node in group if isinstance(node, ExternalSinkSpec)]
            if sinks and not only_feeds_sink(group):
                for sink in sinks:
                    self._separate(sink)

    def _separate(self, sink: ExternalSinkSpec) -> None:
        topic = f"{sink.name}-sink{REPARTITION_SUFFIX}"
        check_name(topic, "repartition topic", where(f"to_sink {sink.name!r}", sink.location))
        key, value = self._external_serdes[sink.name]
        del self._nodes[sink.name]
        self.add_repartition_topic(topic, None)
        location = sink.location
        self.add_node(
            SinkSpec(
                name=f"{topic}-sink",
                topic=topic,
                parents=sink.parents,
                key_serde=key,
                value_serde=value,
                internal=True,
                location=location,
            )
        )
        self.add_node(
            SourceSpec(
                name=f"{topic}-source",
                topics=(topic,),
                key_serde=key,
                value_serde=value,
                internal=True,
                location=location,
            )
        )
        self.add_node(replace(sink, parents=(f"{topic}-source",)))

    def store_spec(self, name: str) -> StoreSpec:
        return self._stores[name].spec

    def copartition(self, nodes: Iterable[str], context: str) -> None:
        """Require equal partition counts of all topics above these nodes.

        Raises `TopologyError`, starting with `context`, if two declared counts differ.
        """
        above = set(nodes)
        for name, node in reversed(self._nodes.items()):
            if name in above and not isinstance(node, SourceSpec):
                above.update(node.parents)
        sources = {
            name: node
            for name, node in self._nodes.items()
            if name in above and isinstance(node, SourceSpec)
        }
        self._copartitioned.append(frozenset(sources))
        topics = {topic for node in sources.values() if node.internal for topic in node.topics}
        counts = {topic: self._repartition_topics.get(topic) for topic in sorted(topics)}
        known_counts = {topic: count for topic, count in counts.items() if count is not None}
        if len(set(known_counts.values())) > 1:
            counts_text = ", ".join(f"{topic}: {count}" for topic, count in known_counts.items())
            raise TopologyError(
                f"{context}: topics whose keys come together need equal partition counts, but partitions= differ "
                f"({counts_text}); give all the same"
            )

    def resolve_serdes(self, defaults: DefaultSerdes | None) -> None:
        key = None if defaults is None else defaults.default_key_serde
        value = None if defaults is None else defaults.default_value_serde
        suppliers = None if defaults is None else defaults.dsl_store_suppliers
        store_format = None if defaults is None else defaults.dsl_store_format
        self._nodes = {name: resolved_node(node, key, value) for name, node in self._nodes.items()}
        users = {
            store: node
            for node in self._nodes.values()
            if isinstance(node, ProcessorSpec)
            for store in node.stores
        }
        self._stores = {
            name: with_default_store_type(
                replace(builder, spec=resolved_store(builder, users.get(name), key, value)),
                suppliers,
                store_format,
            )
            for name, builder in self._stores.items()
        }

    def wrap_processors(self, config: object) -> None:
        wrapper = configured_wrapper(config)
        if wrapper is not None:
            self._nodes = {name: wrapped_node(node, wrapper) for name, node in self._nodes.items()}

    def check(self) -> None:
        """Raise `TopologyError` if no topic is read."""
        if not self._nodes:
            raise TopologyError(
                "the topology is empty: nothing is read from any topic; start with stream() or table() of a "
                "StreamsBuilder, or with Topology.add_source()"
            )

    @property
    def source_topics(self) -> tuple[str, ...]:
        """Return the external input topics, sorted (no internal ones, no patterns).

        >>> Topology().add_source("read", "in").source_topics
        ('in',)
        """
        sources = (node for node in self._nodes.values() if isinstance(node, SourceSpec))
        return tuple(
            sorted(topic for node in sources if not node.internal for topic in node.topics)
        )

    @property
    def store_names(self) -> tuple[str, ...]:
        """Return the names of all stores, sorted.

        >>> Topology().store_names
        ()
        """
        return tuple(sorted(self._stores))

    def _repr_mimebundle_(
        self, include: Container[str] | None = None, exclude: Container[str] | None = None
    ) -> dict[str, str]:
        """Return the forms of `describe()` that a notebook shows."""
        return self.describe()._repr_mimebundle_(include, exclude)

    def describe(self, execution: bool = False) -> TopologyDescription:
        """Return the description of the topology; its `str()` is Kafka Streams' text.

        Args:
            execution: Also describe how each sub-topology runs: in batches or record by record, and
                divisible into key ranges and shards or not, with the reasons.

        >>> topology = Topology().add_source("read", "in", key_serde=str, value_serde=str)
        >>> print(str(topology.describe(execution=True)).strip())
        Topologies:
           Sub-topology: 0
            Execution: batch
            Key ranges: keyed
            Shards: possible
            Source: read (topics: [in])
              --> none
        """
        check_flag(execution, "execution", "describe")
        return TopologyDescription.of(self.draft(), execution=execution)

    def spec(self, config: DefaultSerdes | None = None) -> TopologySpec:
        """Return the topology for the tasks, complete and checked.

        Args:
            config: Provides default serdes (those set by `build(config)` stay) and the processor
                wrapper.

        >>> topology = Topology().add_source("read", "in", key_serde=str, value_serde=str)
        >>> topology.spec().subtopologies[0].sources[0].topics
        ('in',)
        """
        self.check()
        settled = copy(self)
        settled.resolve_serdes(config)
        settled.wrap_processors(config)
        return settled.draft()

    def hash(self) -> str:
        """Return a hash of the structure, the same everywhere for equal nodes, topics and stores.

        Excludes serdes, functions, caches and topic settings.

        >>> Topology().add_source("a", "in").hash() == Topology().add_source("a", "in").hash()
        True
        """
        structure = self.describe().to_dict()
        for sub in structure["subtopologies"]:
            for node in sub["nodes"]:
                node.pop("extractor", None)
                node.pop("external", None)
                # Members compare hashes during an upgrade: these orders must not change.
                node["predecessors"] = list(dict.fromkeys(parents_of(self._nodes[node["name"]])))
                if "topics" in node:
                    node["topics"].sort()
        structure["stores"] = [
            [name, self._stores[name].spec.kind, self._stores[name].spec.logging]
            for name in self.store_names
        ]
        structure["repartition_topics"] = sorted(self._repartition_topics.items())
        text = json.dumps(structure, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def draft(self) -> TopologySpec:
        subtopologies: list[SubtopologySpec] = []
        global_stores: list[GlobalStoreSpec] = []
        store_by_source = {nodes.source: store for store, nodes in self._global_stores.items()}
        for index, names in enumerate(connected_groups(self._nodes)):
            if names[0] in store_by_source:  # has a sub-topology number, but no tasks
                global_stores.append(self._global_spec(index, store_by_source[names[0]]))
                continue
            nodes = tuple(self._nodes[name] for name in names)
            check_external_sink(nodes)
            used = {
                store for node in nodes if isinstance(node, ProcessorSpec) for store in node.stores
            }
            stores = tuple(builder.spec for name, builder in self._stores.items() if name in used)
            subtopologies.append(
                SubtopologySpec(
                    id=index,
                    nodes=nodes,
                    stores=stores,
                    copartition_groups=self._copartition_groups(nodes),
                )
            )
        return TopologySpec(
            subtopologies=tuple(subtopologies),
            repartition_topics=dict(self._repartition_topics),
            global_stores=tuple(global_stores),
            repartition_configs=dict(self._repartition_configs),
        )

    def _copartition_groups(self, nodes: Sequence[NodeSpec]) -> tuple[frozenset[str], ...]:
        topics = {node.name: node.topics for node in nodes if isinstance(node, SourceSpec)}
        groups = [
            frozenset(topic for source in group for topic in topics[source])
            for group in self._copartitioned
            if group <= topics.keys()
        ]
        return tuple(dict.fromkeys(group for group in groups if len(group) > 1))

    def _connect(self, processor: str, store: str, context: str) -> None:
        if store not in self._stores:
            raise TopologyError(
                f"{context}: store {store!r} is not in the topology{did_you_mean(store, self._stores)} "
                "(stores are added with add_state_store())"
            )
        if store in self._global_stores:
            raise TopologyError(
                f"{context}: store {store!r} is global, which every processor can read; don't connect it"
            )
        node = self._nodes.get(processor)
        if node is None:
            raise TopologyError(
                f"{context}: processor {processor!r} is not in the topology"
                f"{did_you_mean(processor, self._nodes)}"
            )
        if not isinstance(node, ProcessorSpec):
            kind = "source" if isinstance(node, SourceSpec) else "sink"
            raise TopologyError(
                f"{context}: {processor!r} is a {kind}, which can't use store {store!r}; name a processor"
            )
        if store not in node.stores:
            reads = self.reads_only(processor, store, context)
            self._nodes[processor] = replace(
                node, stores=(*node.stores, store), reads=node.reads | reads
            )


def checked_topology(topology: object, what: str) -> Topology:
    """Return the topology passed to `what`.

    Raise `TopologyError` for other types, such as a builder.
    """
    if isinstance(topology, Topology):
        return topology
    step = "give builder.build()"
    if not hasattr(topology, "build"):
        step = "give the result of StreamsBuilder.build(), or a Topology of your own"
    raise TopologyError(f"{what}: the topology is of type {type(topology).__name__}; {step}")
