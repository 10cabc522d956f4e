"""Stores filled from a topic: global stores and a task's read-only stores (KIP-813)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from inspect import isclass, iscoroutinefunction
from typing import Any, Final, NamedTuple, Self

from tidewheel.state_stores.spec import StoreKind
from tidewheel.streams.definitions.materialized import StoreBuilder
from tidewheel.streams.definitions.names import check_name, where
from tidewheel.streams.definitions.node_arguments import (
    check_store_builder,
    check_supplier,
    source_spec,
)
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.serdes import SerdeLike
from tidewheel.streams.user_functions import caller_location
from tidewheel.tasks.processing.api.processor import Processor
from tidewheel.tasks.processing.api.topology_spec import (
    ExternalSinkSpec,
    GlobalStoreSpec,
    NodeSpec,
    ProcessorSpec,
    SinkSpec,
    SourceSpec,
    TimestampExtractor,
)

#: Store kinds that may be read-only: those of tables.
_READ_ONLY_KINDS: Final = (
    StoreKind.KEY_VALUE,
    StoreKind.TIMESTAMPED_KEY_VALUE,
    StoreKind.VERSIONED,
)


class TopologyStores(ABC):
    """Adds `add_global_store` and `add_read_only_state_store` to a topology."""

    _nodes: dict[str, NodeSpec]
    _stores: dict[str, StoreBuilder]

    def __init__(self) -> None:
        #: Names of the source and processor that fill each global store, by store name.
        self._global_stores: dict[str, _GlobalNodes] = {}
        #: Processor that fills each read-only store, by store name.
        self._read_only_stores: dict[str, str] = {}

    @abstractmethod
    def add_node(self, node: NodeSpec) -> None: ...

    @abstractmethod
    def add_store(self, builder: StoreBuilder) -> None: ...

    def add_global_store(
        self,
        builder: StoreBuilder,
        source_name: str,
        topic: str,
        processor_name: str,
        supplier: Callable[[], Processor[Any, Any, Any, Any]],
        *,
        key_serde: SerdeLike[Any] | None = None,
        value_serde: SerdeLike[Any] | None = None,
    ) -> Self:
        """Add a store that every process fills from all partitions of a topic.

        Every processor may read it.

        Args:
            builder: A key-value store builder. The topic replaces a changelog.
            topic: The topic; no other node may read it.
            supplier: `Processor` class that fills the store. It must not forward or schedule.

        >>> from tidewheel import Stores, Topology
        >>> rates = Stores.key_value("rates", key_serde=str, value_serde=float, logging=False)
        >>> Topology().add_global_store(rates, "read", "rates", "keep", Processor).store_names
        ('rates',)
        """
        location = caller_location()
        context = where(f"add_global_store {processor_name!r}", location)
        check_name(topic, "topic", context)
        check_name(processor_name, "processor_name", context)
        check_supplier(supplier, context, Processor)
        source = source_spec(
            name=check_name(source_name, "source_name", context),
            topics=topic,
            serdes=(key_serde, value_serde),
            timestamp_extractor=None,
            offset_reset=None,
            call="add_global_store",
            location=location,
        )
        self.add_global(check_store_builder(builder, context), source, processor_name, supplier)
        return self

    def add_read_only_state_store(
        self,
        builder: StoreBuilder,
        source_name: str,
        topic: str,
        processor_name: str,
        supplier: Callable[[], Processor[Any, Any, Any, Any]],
        *,
        key_serde: SerdeLike[Any] | None = None,
        value_serde: SerdeLike[Any] | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
    ) -> Self:
        """Add a store that each task fills from its topic partition, which is also its changelog.

        KIP-813. The topic is read from its beginning. Only this processor writes the store; other
        connected ones read it. A lost store is restored by replaying records up to the committed
        offset through the processor. So the processor's results must depend on these records
        only, and the topic should be compacted.

        Args:
            builder: Builder of a key-value store, with or without timestamps or versions.
            supplier: `Processor` class that fills the store. It must not forward; its schedules
                don't run during a restore.
            timestamp_extractor: `f(record, partition_time) -> ms`; default: the record's timestamp.

        Raises:
            TopologyError: A store that expires rows (windows, sessions, ttl or `max_entries`), or a
                processor whose `process` is a coroutine function.

        >>> from tidewheel import Stores, Topology
        >>> rates = Stores.key_value("rates", key_serde=str, value_serde=float)
        >>> Topology().add_read_only_state_store(rates, "read", "rates", "keep", Processor).store_names
        ('rates',)
        """
        location = caller_location()
        context = where(f"add_read_only_state_store {processor_name!r}", location)
        check_name(topic, "topic", context)
        check_name(processor_name, "processor_name", context)
        check_supplier(supplier, context, Processor)
        _check_plain(supplier, context)
        source = source_spec(
            name=check_name(source_name, "source_name", context),
            topics=topic,
            serdes=(key_serde, value_serde),
            timestamp_extractor=timestamp_extractor,
            offset_reset="earliest",
            call="add_read_only_state_store",
            location=location,
        )
        spec = check_store_builder(builder, context).spec
        if spec.kind not in _READ_ONLY_KINDS or spec.ttl_ms or spec.max_entries:
            raise TopologyError(
                f"{context}: store {spec.name!r} can't be read-only: that is for stores of keys and values, with or without "
                "timestamps or versions, which forget nothing by themselves; keep a window, a session or a store with ttl "
                "or max_entries in a store of a processor (add_state_store)"
            )
        without_log = replace(spec, logging=False, changelog_config={}, source_topic=topic)
        self.add_node(source)
        self.add_store(StoreBuilder(spec=without_log, location=builder.location or location))
        self._read_only_stores[spec.name] = processor_name
        self.add_node(
            ProcessorSpec(
                name=processor_name,
                supplier=supplier,
                parents=(source.name,),
                stores=(spec.name,),
                location=location,
            )
        )
        return self

    def add_global(
        self,
        builder: StoreBuilder,
        source: SourceSpec,
        processor: str,
        supplier: Callable[[], Any],
        *,
        table: bool = False,
    ) -> None:
        """Add a global store with its two nodes; `table`: its rows are the records unchanged."""
        context = where(repr(processor), source.location)
        spec = builder.spec
        if spec.kind not in (StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE):
            raise TopologyError(
                f"{context}: store {spec.name!r} is of kind {spec.kind}, but global stores hold keys and values; make it "
                "with Stores.key_value() or Stores.timestamped_key_value()"
            )
        if spec.ttl_ms is not None:
            raise TopologyError(
                f"{context}: store {spec.name!r} has a ttl, but a global store has no stream time; leave ttl= out and let "
                "the topic's retention delete old records"
            )
        if spec.keeps_headers:
            raise TopologyError(
                f"{context}: store {spec.name!r} keeps headers, which cannot be read from a global store; leave headers= "
                "out, or make it with Stores.timestamped_key_value()"
            )
        global_spec = replace(spec, logging=False, caching=False, changelog_config={})
        self.add_node(source)
        self.add_store(
            replace(builder, spec=global_spec, location=builder.location or source.location)
        )
        self.add_node(
            ProcessorSpec(
                name=processor,
                supplier=supplier,
                parents=(source.name,),
                stores=(spec.name,),
                location=source.location,
            )
        )
        self._global_stores[spec.name] = _GlobalNodes(source.name, processor, table)

    def reads_only(self, processor: str, store: str, context: str) -> frozenset[str]:
        """Return a set of the store if this processor may only read it, else an empty set.

        Raise `TopologyError` if the processor can't use the store.
        """
        filled = {name: filled_store for filled_store, name in self._read_only_stores.items()}.get(
            processor, store
        )
        if filled != store:
            raise TopologyError(
                f"{context}: {processor!r} fills the read-only store {filled!r}, which is restored by running it again, so it "
                f"can't use store {store!r} too; use another processor"
            )
        reads = self._read_only_stores.get(store, processor) != processor
        return frozenset((store,)) if reads else frozenset()

    def _global_spec(self, index: int, store: str) -> GlobalStoreSpec:
        nodes = self._global_stores[store]
        source, processor = self._nodes[nodes.source], self._nodes[nodes.processor]
        assert isinstance(source, SourceSpec)
        assert isinstance(processor, ProcessorSpec)
        return GlobalStoreSpec(
            id=index,
            source=source,
            processor=processor,
            store=self._stores[store].spec,
            table=nodes.table,
        )

    def check_parents_forward(
        self, node: ProcessorSpec | SinkSpec | ExternalSinkSpec, context: str
    ) -> None:
        for store, nodes in self._global_stores.items():
            for parent in {nodes.source, nodes.processor}.intersection(node.parents):
                raise TopologyError(
                    f"{context}: parent {parent!r} belongs to the global store {store!r}, which gives nothing on; read "
                    "the store with get_state_store(), or read the topic as a stream of another topology"
                )
        for store, processor in self._read_only_stores.items():
            if processor in node.parents:
                raise TopologyError(
                    f"{context}: parent {processor!r} fills the read-only store {store!r} and gives nothing on; take its "
                    "source as the parent, or read the store with get_state_store()"
                )


def _check_plain(supplier: Callable[[], Any], context: str) -> None:
    processor: Any = supplier if isclass(supplier) else supplier()
    if iscoroutinefunction(processor.process):
        raise TopologyError(
            f"{context}: the processor of a read-only store is run again to restore it, so its `process` must be a plain "
            "function, not an async one"
        )


class _GlobalNodes(NamedTuple):
    source: str
    processor: str
    #: True if the rows are the topic's records, unchanged.
    table: bool
