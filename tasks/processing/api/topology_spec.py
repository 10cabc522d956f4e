"""Topologies as plain values: the builder's result, the tasks' input.

Names of internal topics get the application id when the topology runs.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from tidewheel.state_stores.errors import InvalidStateStoreError
from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.spec import StoreSpec
from tidewheel.tasks.processing.api.record import ConsumedRecord, RecordContext
from tidewheel.tasks.processing.api.sink import Sink, SinkOrSupplier

#: (record, partition time in ms) -> timestamp in ms; a negative one drops the record.
TimestampExtractor = Callable[[ConsumedRecord, int], int]

#: (topic, key, value, partition count) -> partition, several (multicast), or None (Kafka's choice).
Partitioner = Callable[[str, Any, Any, int], int | Iterable[int] | None]

#: Start of an input without a committed offset; a `timedelta` is the maximum age of its records,
#: "none" an error.
OffsetReset = Literal["earliest", "latest", "none"] | timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """A node that reads topics; `location` is the user's line ("app.py:12")."""

    name: str
    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    key_serde: SerdePort
    value_serde: SerdePort
    timestamp_extractor: TimestampExtractor | None = None
    offset_reset: OffsetReset | None = None
    internal: bool = False
    location: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorSpec:
    """A node with an `Operator` or a user's `Processor`; `supplier()` makes one per task.

    The node never writes stores in `reads`. `wrap` wraps an operator's `process`.
    """

    name: str
    supplier: Callable[[], Any]
    parents: tuple[str, ...]
    stores: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    location: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSpec:
    """A node that writes to a topic, or to one named by a function of (key, value, context)."""

    name: str
    topic: str | Callable[[Any, Any, RecordContext], str]
    parents: tuple[str, ...]
    key_serde: SerdePort
    value_serde: SerdePort
    partitioner: Partitioner | None = None
    internal: bool = False
    location: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalSinkSpec:
    """A node that writes outside Kafka; its sub-topology has only sources and stateless steps."""

    name: str
    sink: SinkOrSupplier
    parents: tuple[str, ...]
    location: str = ""

    def make(self) -> Sink:
        """Return the sink of one task."""
        return copy(self.sink) if isinstance(self.sink, Sink) else self.sink()


NodeSpec = SourceSpec | ProcessorSpec | SinkSpec | ExternalSinkSpec


def node_locations(nodes: Iterable[NodeSpec]) -> dict[str, str]:
    """Return the user's line that defined each node, by the node's name."""
    return {node.name: node.location for node in nodes if node.location}


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtopologySpec:
    """Nodes connected by edges or stores, in topological order; one task per partition."""

    id: int
    nodes: tuple[NodeSpec, ...]
    stores: tuple[StoreSpec, ...]
    #: Source topics that need equal partition counts.
    copartition_groups: tuple[frozenset[str], ...] = ()

    @property
    def sources(self) -> tuple[SourceSpec, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SourceSpec))

    @property
    def sinks(self) -> tuple[SinkSpec, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SinkSpec))

    @property
    def external_sink(self) -> ExternalSinkSpec | None:
        return next((node for node in self.nodes if isinstance(node, ExternalSinkSpec)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalStoreSpec:
    """A store that every process fills from all partitions of one topic; no task runs its nodes.

    The topic serves as changelog. `table`: True if no user's processor transforms its records.
    """

    id: int
    source: SourceSpec
    processor: ProcessorSpec
    store: StoreSpec
    table: bool

    @property
    def topic(self) -> str:
        return self.source.topics[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologySpec:
    """The sub-topologies, their repartition topics, and the global stores.

    A repartition topic's partition count None means the largest one among the source topics of the
    sub-topology that writes it.
    """

    subtopologies: tuple[SubtopologySpec, ...]
    repartition_topics: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    global_stores: tuple[GlobalStoreSpec, ...] = ()
    repartition_configs: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict[str, Mapping[str, str]]
    )

    def place_of(self, store: str) -> SubtopologySpec | None:
        """Return the store's sub-topology; None for a global store.

        Raises:
            InvalidStateStoreError: Unknown store.
        """
        everywhere = [store_spec.store.name for store_spec in self.global_stores]
        if store in everywhere:
            return None
        for subtopology in self.subtopologies:
            if any(store_spec.name == store for store_spec in subtopology.stores):
                return subtopology
        stores = [
            store_spec.name
            for subtopology in self.subtopologies
            for store_spec in subtopology.stores
        ]
        names = ", ".join(sorted(everywhere + stores)) or "none"
        raise InvalidStateStoreError(f"the topology has no store {store} (stores: {names})")
