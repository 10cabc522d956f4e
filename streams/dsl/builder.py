"""`StreamsBuilder`: declares streams and tables and builds the `Topology`."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar, overload

from tidewheel.streams.definitions.call import Call
from tidewheel.streams.definitions.materialized import Materialized, StoreArgument, StoreBuilder
from tidewheel.streams.definitions.names import check_name
from tidewheel.streams.definitions.node_arguments import check_store_builder, source_spec
from tidewheel.streams.dsl.global_ktable import GlobalKTable, global_store, global_table
from tidewheel.streams.dsl.kstream import KStream
from tidewheel.streams.dsl.ktable import KTable
from tidewheel.streams.graph.logical_graph import LogicalGraph, StreamSourceNode, TableNode
from tidewheel.streams.graph.optimization import optimized
from tidewheel.streams.graph.parts import StreamPart, TablePart, resolved_serdes
from tidewheel.streams.serdes import SerdeLike
from tidewheel.streams.topology.topology import Topology
from tidewheel.tasks.processing.api.processor import Processor
from tidewheel.tasks.processing.api.topology_spec import OffsetReset, TimestampExtractor

if TYPE_CHECKING:
    from tidewheel.streams.config import StreamsConfig

K = TypeVar("K")
V = TypeVar("V")

#: Topics that `stream` accepts.
Topics = str | Sequence[str] | re.Pattern[str]


class StreamsBuilder:
    """Builder of a topology (Kafka Streams' StreamsBuilder).

    All methods of the DSL raise `TopologyError` with the caller's line for an invalid argument or
    function signature, a duplicate name, and conflicting reads of one topic.

    `name` names the node, and its store if `store` gives no name. `store` is a store name or a
    `Materialized`. Without a serde argument the stream's serde is used, else the configured
    default.

    >>> from tidewheel import StreamsBuilder
    >>> builder = StreamsBuilder()
    >>> words = builder.stream("words", key_serde=str, value_serde=str)
    >>> words.group_by(lambda word: word, key_serde=str).count(store="counts").to_stream().to("totals")
    >>> builder.build().store_names
    ('counts',)
    """

    def __init__(self) -> None:
        self._graph = LogicalGraph()

    @overload
    def stream(
        self,
        topics: Topics,
        *,
        key_serde: SerdeLike[K],
        value_serde: SerdeLike[V],
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: OffsetReset | None = None,
        name: str | None = None,
    ) -> KStream[K, V]: ...
    @overload
    def stream(
        self,
        topics: Topics,
        *,
        key_serde: SerdeLike[K],
        value_serde: None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: OffsetReset | None = None,
        name: str | None = None,
    ) -> KStream[K, Any]: ...
    @overload
    def stream(
        self,
        topics: Topics,
        *,
        key_serde: None = None,
        value_serde: SerdeLike[V],
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: OffsetReset | None = None,
        name: str | None = None,
    ) -> KStream[Any, V]: ...
    @overload
    def stream(
        self,
        topics: Topics,
        *,
        key_serde: None = None,
        value_serde: None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: OffsetReset | None = None,
        name: str | None = None,
    ) -> KStream[Any, Any]: ...
    def stream(
        self,
        topics: Topics,
        *,
        key_serde: SerdeLike[Any] | None = None,
        value_serde: SerdeLike[Any] | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: OffsetReset | None = None,
        name: str | None = None,
    ) -> KStream[Any, Any]:
        """Read topics as a stream. A topic that is read several times is consumed once.

        Args:
            topics: A topic, a list of topics, or a regular expression that matches whole names.
            timestamp_extractor: `f(record, partition_time) -> ms`; default: the record's timestamp.
            offset_reset: Start offset if none is committed: "earliest", "latest", a `timedelta`
                (first record of at most that age), or "none" (raise an error).

        >>> StreamsBuilder().stream(["orders", "returns"], key_serde=str, value_serde=bytes)
        <KStream KSTREAM-SOURCE-0000000000>
        """
        call = Call.here("stream")
        key, value = call.serde(key_serde, "key_serde"), call.serde(value_serde, "value_serde")
        spec = source_spec(
            name=self._graph.node_name("KSTREAM-SOURCE-", call.name(name)),
            topics=topics,
            serdes=(key, value),
            timestamp_extractor=timestamp_extractor,
            offset_reset=offset_reset,
            call=call.operator,
            location=call.location,
        )
        node = StreamSourceNode(name=spec.name, location=call.location, spec=spec)
        self._graph.add(node)
        return KStream(
            StreamPart(
                graph=self._graph, node=node, key_serde=key, value_serde=value, rekeyed=False
            )
        )

    @overload
    def table(
        self,
        topic: str,
        *,
        key_serde: SerdeLike[K],
        value_serde: SerdeLike[V],
        store: StoreArgument[K, V] = None,
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: OffsetReset | None = None,
        name: str | None = None,
    ) -> KTable[K, V]: ...
    @overload
    def table(
        self,
        topic: str,
        *,
        key_serde: SerdeLike[K],
        value_serde: None = None,
        store: StoreArgument[K, Any] = None,
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: OffsetReset | None = None,
        name: str | None = None,
    ) -> KTable[K, Any]: ...
    @overload
    def table(
        self,
        topic: str,
        *,
        key_serde: None = None,
        value_serde: SerdeLike[V],
        store: StoreArgument[Any, V] = None,
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: OffsetReset | None = None,
        name: str | None = None,
    ) -> KTable[Any, V]: ...
    @overload
    def table(
        self,
        topic: str,
        *,
        key_serde: None = None,
        value_serde: None = None,
        store: str | Materialized[Any, Never] | Materialized[Never, Any] | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: OffsetReset | None = None,
        name: str | None = None,
    ) -> KTable[Any, Any]: ...
    @overload
    def table(
        self,
        topic: str,
        *,
        key_serde: None = None,
        value_serde: None = None,
        store: Materialized[K, V],
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: OffsetReset | None = None,
        name: str | None = None,
    ) -> KTable[K, V]: ...
    def table(
        self,
        topic: str,
        *,
        key_serde: SerdeLike[Any] | None = None,
        value_serde: SerdeLike[Any] | None = None,
        store: StoreArgument[Any, Any] = None,
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: OffsetReset | None = None,
        name: str | None = None,
    ) -> KTable[Any, Any]:
        """Read a topic as a table: the newest value of a key is its row, a null value deletes it.

        Args:
            key_serde: Serde of keys; default: that of `store`, then the configured one.
            store: Store of the table; without a name it is created only if an operator needs it.
            name: Node name; the source gets `<name>-source`.

        >>> StreamsBuilder().table("users", key_serde=str, value_serde=str, store="users")
        <KTable KTABLE-SOURCE-0000000001>
        """
        call = Call.here("table")
        check_name(topic, "topic", call.context)
        materialized = Materialized.of_table(store, call.context)
        call.name(name)
        table_store = self._graph.table_store(
            materialized, prefix=f"{topic}-", name=name, serdes=(None, None), needed=False
        )
        key = call.serde(materialized.key_serde if key_serde is None else key_serde, "key_serde")
        value = call.serde(
            materialized.value_serde if value_serde is None else value_serde, "value_serde"
        )
        table_store.key_serde, table_store.value_serde = resolved_serdes(materialized, key, value)
        source_name = None if name is None else call.name(f"{name}-source")
        spec = source_spec(
            name=self._graph.node_name("KSTREAM-SOURCE-", source_name),
            topics=topic,
            serdes=(key, value),
            timestamp_extractor=timestamp_extractor,
            offset_reset=offset_reset,
            call=call.operator,
            location=call.location,
        )
        node = TableNode(
            name=self._graph.node_name("KTABLE-SOURCE-", name),
            location=call.location,
            store=table_store,
            source=spec,
        )
        self._graph.add(node)
        return KTable(
            TablePart(
                graph=self._graph, node=node, store=table_store, key_serde=key, value_serde=value
            )
        )

    def add_state_store(self, builder: StoreBuilder) -> Self:
        """Add a store for processors, which request it by `process(..., stores=[...])`.

        >>> from tidewheel import Stores
        >>> seen = Stores.key_value("seen", key_serde=str, value_serde=int)
        >>> _ = StreamsBuilder().add_state_store(seen)
        """
        self._graph.add_state_store(
            check_store_builder(builder, Call.here("add_state_store").context)
        )
        return self

    @overload
    def global_table(
        self,
        topic: str,
        *,
        key_serde: SerdeLike[K],
        value_serde: SerdeLike[V],
        store: StoreArgument[K, V] = None,
        name: str | None = None,
    ) -> GlobalKTable[K, V]: ...
    @overload
    def global_table(
        self,
        topic: str,
        *,
        key_serde: SerdeLike[K],
        value_serde: None = None,
        store: StoreArgument[K, Any] = None,
        name: str | None = None,
    ) -> GlobalKTable[K, Any]: ...
    @overload
    def global_table(
        self,
        topic: str,
        *,
        key_serde: None = None,
        value_serde: SerdeLike[V],
        store: StoreArgument[Any, V] = None,
        name: str | None = None,
    ) -> GlobalKTable[Any, V]: ...
    @overload
    def global_table(
        self,
        topic: str,
        *,
        key_serde: None = None,
        value_serde: None = None,
        store: str | Materialized[Any, Never] | Materialized[Never, Any] | None = None,
        name: str | None = None,
    ) -> GlobalKTable[Any, Any]: ...
    @overload
    def global_table(
        self,
        topic: str,
        *,
        key_serde: None = None,
        value_serde: None = None,
        store: Materialized[K, V],
        name: str | None = None,
    ) -> GlobalKTable[K, V]: ...
    def global_table(
        self,
        topic: str,
        *,
        key_serde: SerdeLike[Any] | None = None,
        value_serde: SerdeLike[Any] | None = None,
        store: StoreArgument[Any, Any] = None,
        name: str | None = None,
    ) -> GlobalKTable[Any, Any]:
        """Read all partitions of a topic as a table in every worker process.

        Each process restores the table before it starts, then follows the topic with
        read_committed; there is no changelog. N workers read the topic N times and store N copies
        (in memory with `Materialized(store_type="in_memory")`). Rows have the records' timestamps;
        there is no extractor. A record that fails to deserialise goes to the deserialisation
        handler, but is not written to the dead letter topic.

        Args:
            topic: The topic, ideally compacted; no other node may read it.
            store: Name and type of the store; versioned stores are rejected.

        >>> StreamsBuilder().global_table("rates", key_serde=str, value_serde=float, store="rates").queryable_store_name
        'rates'
        """
        return global_table(
            self._graph,
            Call.here("global_table"),
            topic,
            key_serde=key_serde,
            value_serde=value_serde,
            store=store,
            name=name,
        )

    def add_global_store(
        self,
        builder: StoreBuilder,
        topic: str,
        processor: Callable[[], Processor[K, V, Any, Any]],
        *,
        key_serde: SerdeLike[K] | None = None,
        value_serde: SerdeLike[V] | None = None,
    ) -> Self:
        """Add a store that your processor fills from a whole topic, in every worker process.

        Other processors read it with `get_state_store(name)` without connecting it. A batch of the
        topic's records becomes visible to them as a whole. There is no changelog: a restore replays
        every record through the processor.

        Args:
            builder: A key-value store builder of `Stores`; caching and logging are disabled.
            topic: The topic; no other node may read it.
            processor: `Processor` class that writes the store. It must not forward or schedule.

        >>> from tidewheel import Processor, Stores
        >>> class Newest(Processor[str, float, None, None]):
        ...     def process(self, record):
        ...         self.context.get_state_store("rates").put(record.key, record.value)
        >>> rates = Stores.key_value("rates", key_serde=str, value_serde=float)
        >>> _ = StreamsBuilder().add_global_store(rates, "rates", Newest, key_serde=str, value_serde=float)
        """
        global_store(
            self._graph,
            Call.here("add_global_store"),
            builder,
            topic,
            processor,
            key_serde=key_serde,
            value_serde=value_serde,
        )
        return self

    def build(self, config: "StreamsConfig | None" = None) -> Topology:
        """Return the checked topology of all calls so far.

        Args:
            config: Only `topology_optimization`, the default serdes and `ensure_explicit_naming`
                are read. Without a config nothing is optimised.

        Raises:
            TopologyError: The definitions conflict; the message names the node and the line that
                made it.

        >>> builder = StreamsBuilder()
        >>> builder.stream("in", key_serde=str, value_serde=str).to("out")
        >>> builder.build().source_topics
        ('in',)
        """
        if config is not None:
            # Imported late: a program without a config starts faster.
            from tidewheel.streams.config.streams_config import checked_config  # noqa: PLC0415 - as above

            config = checked_config(config, Call.here("build").context)
        if config is not None and config.ensure_explicit_naming:
            self._graph.check_names_are_given()
        topology = optimized(self._graph, config).build()
        topology.check()
        topology.resolve_serdes(config)
        return topology
