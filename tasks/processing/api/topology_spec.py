"""A topology as plain values: what the builder hands to the tasks.

Names of internal topics (repartition topics, changelogs) stand here without the application id, which is put in
front when the topology runs.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from tidewheel.state_stores.errors import InvalidStateStoreError
from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.spec import StoreSpec
from tidewheel.tasks.processing.api.record import ConsumedRecord, RecordContext

#: (record, the largest timestamp of the partition so far or -1) -> timestamp in ms; a negative one drops the record.
TimestampExtractor = Callable[[ConsumedRecord, int], int]

#: (topic, key, value, number of partitions) -> partition, several (multicast), or None for the default.
Partitioner = Callable[[str, Any, Any, int], int | Iterable[int] | None]

#: Where a source begins without a committed offset: at the first record that is at most as old as a `timedelta`, or, by
#: "none", nowhere, which is an error.
OffsetReset = Literal["earliest", "latest", "none"] | timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """A node that reads topics.

    `location` is the user's line that made the node ("app.py:12"), for error messages.
    """

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
    """A node that computes: `supplier()` gives an `Operator` (DSL) or a `Processor` (user's own), one per task.

    `stores` are those it is connected to; `reads` names those among them that it never writes. `wrap` puts something
    around an operator's `process` (see `ProcessorWrapper`).
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
    """A node that writes to a topic, or to the topic a function of (key, value, context) names."""

    name: str
    topic: str | Callable[[Any, Any, RecordContext], str]
    parents: tuple[str, ...]
    key_serde: SerdePort
    value_serde: SerdePort
    partitioner: Partitioner | None = None
    internal: bool = False
    location: str = ""


NodeSpec = SourceSpec | ProcessorSpec | SinkSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtopologySpec:
    """Nodes that are connected by edges or shared stores; one task per partition runs all of them.

    `nodes` are in the order they were added, which is topological: parents stand before their children.
    """

    id: int
    nodes: tuple[NodeSpec, ...]
    stores: tuple[StoreSpec, ...]
    #: Groups of source topics (without prefix) that must have equal partition counts.
    copartition_groups: tuple[frozenset[str], ...] = ()

    @property
    def sources(self) -> tuple[SourceSpec, ...]:
        """Return the nodes that read topics."""
        return tuple(node for node in self.nodes if isinstance(node, SourceSpec))

    @property
    def sinks(self) -> tuple[SinkSpec, ...]:
        """Return the nodes that write topics."""
        return tuple(node for node in self.nodes if isinstance(node, SinkSpec))


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalStoreSpec:
    """A store that every process fills from all partitions of one topic; no task runs its two nodes.

    Attributes:
        id: Its number among the sub-topologies.
        source: The node that reads the topic.
        processor: The node that writes the store.
        store: The store; it has no changelog, its topic is one.
        table: The newest value of a key is its row. Otherwise the processor is the user's own.
    """

    id: int
    source: SourceSpec
    processor: ProcessorSpec
    store: StoreSpec
    table: bool

    @property
    def topic(self) -> str:
        """Return the one topic it is read from."""
        return self.source.topics[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologySpec:
    """All sub-topologies, the repartition topics between them, and the global stores beside them.

    `repartition_topics` maps the bare topic name to its partition count, or None to take the largest count among
    the source topics of the sub-topology that writes it. `repartition_configs` has topic settings by the same names.
    """

    subtopologies: tuple[SubtopologySpec, ...]
    repartition_topics: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    global_stores: tuple[GlobalStoreSpec, ...] = ()
    repartition_configs: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict[str, Mapping[str, str]]
    )

    def place_of(self, store: str) -> SubtopologySpec | None:
        """Return the sub-topology that has a store; None for a global store.

        Raises:
            InvalidStateStoreError: There is no such store.
        """
        everywhere = [each.store.name for each in self.global_stores]
        if store in everywhere:
            return None
        for subtopology in self.subtopologies:
            if any(each.name == store for each in subtopology.stores):
                return subtopology
        stores = [each.name for subtopology in self.subtopologies for each in subtopology.stores]
        known = ", ".join(sorted(everywhere + stores)) or "none"
        raise InvalidStateStoreError(f"the topology has no store {store} (stores: {known})")
