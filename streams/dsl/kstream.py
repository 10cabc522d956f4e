"""`KStream`: a stream of records and its operators.

Operators that may change the key drop the key serde and only mark the stream: the next operator
that depends on the key adds the repartition topic. Operators that may change the value drop the
value serde.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar, overload

import msgspec

from tidewheel.streams.definitions.call import Call
from tidewheel.streams.definitions.checks import check_callable
from tidewheel.streams.definitions.default_serdes import serdes_or_default
from tidewheel.streams.definitions.materialized import Materialized, StoreArgument
from tidewheel.streams.definitions.misplaced_calls import MisplacedCalls
from tidewheel.streams.definitions.node_arguments import PARTITIONER, check_target
from tidewheel.streams.dsl.kgrouped_stream import KGroupedStream
from tidewheel.streams.dsl.kstream_joins import KStreamJoins
from tidewheel.streams.dsl.kstream_mappings import KStreamMappings
from tidewheel.streams.dsl.kstream_processors import KStreamProcessors
from tidewheel.streams.dsl.ktable import KTable
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.graph.aggregation_nodes import GroupPart
from tidewheel.streams.graph.logical_graph import (
    AnySerde,
    ExternalSinkNode,
    GraphNode,
    ProcessorGraphNode,
    SinkNode,
    TableNode,
)
from tidewheel.streams.graph.parts import StreamPart, TablePart, resolved_serdes
from tidewheel.streams.operators import stateless
from tidewheel.streams.serdes import PlainT, SerdeInto, SerdeLike, SerdeMethods, SerdeOf
from tidewheel.streams.user_functions import UserFunction
from tidewheel.tasks.kafka.internal_topics import fault_of_repartition_config
from tidewheel.tasks.processing.api.record import RecordContext
from tidewheel.tasks.processing.api.sink import Sink, SinkOrSupplier
from tidewheel.tasks.processing.api.topology_spec import Partitioner, SinkSpec
from tidewheel.tasks.processing.engine.operator import OperatorSupplier

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")
K_contra = TypeVar("K_contra", contravariant=True)
V_contra = TypeVar("V_contra", contravariant=True)


class _OfValue(Protocol[V_contra]):
    """A predicate of the value.

    Not a `Callable`: mypy infers a lambda's parameters only from a union with one `Callable`.
    """

    def __call__(self, value: V_contra, /) -> object: ...


class _OfBoth(Protocol[K_contra, V_contra]):
    """A predicate of key and value; a protocol for the reason given at `_OfValue`."""

    def __call__(self, key: K_contra, value: V_contra, /) -> object: ...


class KStream(KStreamMappings[K, V], KStreamJoins[K, V], KStreamProcessors[K, V], MisplacedCalls):
    """A stream of records.

    Made by `StreamsBuilder.stream` and by its own methods (Kafka Streams' KStream). `build()`
    reports missing serdes. Exceptions of user functions go to `processing_exception_handler`.

    >>> from tidewheel import StreamsBuilder
    >>> builder = StreamsBuilder()
    >>> lines = builder.stream("lines", key_serde=str, value_serde=str)
    >>> lines.filter(lambda line: line != "").map_values(str.upper).to("shouts", value_serde=str)
    >>> print(str(builder.build().describe()).strip())
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [lines])
          --> KSTREAM-FILTER-0000000001
        Processor: KSTREAM-FILTER-0000000001 (stores: [])
          --> KSTREAM-MAPVALUES-0000000002
          <-- KSTREAM-SOURCE-0000000000
        Processor: KSTREAM-MAPVALUES-0000000002 (stores: [])
          --> KSTREAM-SINK-0000000003
          <-- KSTREAM-FILTER-0000000001
        Sink: KSTREAM-SINK-0000000003 (topic: shouts)
          <-- KSTREAM-MAPVALUES-0000000002
    """

    def __init__(self, part: StreamPart) -> None:
        self._part = part

    def __repr__(self) -> str:
        return f"<KStream {self._part.node.name}>"

    @overload
    def split(
        self,
        branches: Mapping[str, Callable[[V], object]],
        default: str | None = None,
        *,
        name: str | None = None,
    ) -> "dict[str, KStream[K, V]]": ...
    @overload
    def split(
        self,
        branches: Mapping[str, Callable[[K, V], object]],
        default: str | None = None,
        *,
        name: str | None = None,
    ) -> "dict[str, KStream[K, V]]": ...
    @overload
    def split(
        self,
        branches: Mapping[str, Callable[[V], object] | _OfBoth[K, V]],
        default: str | None = None,
        *,
        name: str | None = None,
    ) -> "dict[str, KStream[K, V]]": ...
    @overload
    def split(  # type: ignore[overload-cannot-match] # needed: mypy infers lambdas from it
        self,
        branches: Mapping[str, _OfValue[V] | Callable[[K, V], object]],
        default: str | None = None,
        *,
        name: str | None = None,
    ) -> "dict[str, KStream[K, V]]": ...
    def split(
        self,
        branches: Mapping[str, Callable[..., object]],
        default: str | None = None,
        *,
        name: str | None = None,
    ) -> "dict[str, KStream[K, V]]":
        """Send each record to the first branch whose predicate holds.

        Args:
            branches: Branch name -> `predicate(value)` or `predicate(key, value)`, checked in this
                order.
            default: Branch for all other records; without it they are dropped.
            name: Prefix of the branches' node names.

        >>> from tidewheel import StreamsBuilder
        >>> amounts = StreamsBuilder().stream("amounts", key_serde=str, value_serde=int)
        >>> amounts.split({"big": lambda amount: amount > 100}, default="small", name="size-")
        {'big': <KStream size-big>, 'small': <KStream size-small>}
        """
        call = Call.here("split")
        predicates = _branches(branches, default, call)
        graph = self._part.graph
        prefix = graph.node_name("KSTREAM-BRANCH-", call.name(name))
        children = {branch: call.name(f"{prefix}{branch}") or "" for branch in predicates}
        checked = [
            (test, children[branch]) for branch, test in predicates.items() if test is not None
        ]
        otherwise = None if default is None else children[default]
        splitter = ProcessorGraphNode(
            name=prefix,
            location=call.location,
            supplier=OperatorSupplier(stateless.Branch, (checked, otherwise)),
        )
        graph.add(splitter, self._part.node)
        streams: dict[str, KStream[K, V]] = {}
        for branch, child in children.items():
            node = ProcessorGraphNode(
                name=graph.node_name("KSTREAM-BRANCHCHILD-", child),
                location=call.location,
                supplier=OperatorSupplier(stateless.PassThrough),
            )
            graph.add(node, splitter)
            streams[branch] = KStream(msgspec.structs.replace(self._part, node=node))
        return streams

    def merge(self, *others: "KStream[K, V]", name: str | None = None) -> "KStream[K, V]":
        """Merge streams into one; no order is guaranteed between them.

        The result has a serde only if all streams have the same one.

        >>> from tidewheel import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> left = builder.stream("left", key_serde=str, value_serde=str)
        >>> left.merge(builder.stream("right", key_serde=str, value_serde=str))
        <KStream KSTREAM-MERGE-0000000002>
        """
        call = Call.here("merge")
        if not others:
            raise TopologyError(
                f"{call.context}: there is nothing to merge with; give at least one stream"
            )
        merged = self
        for index, other in enumerate(others):
            if not isinstance(other, KStream):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped users
                raise TopologyError(
                    f"{call.context}: an object of type {type(other).__name__} can't be merged; give streams, one argument each"
                )
            last = index == len(others) - 1
            merged = merged._merged_with(other, call, name if last else None)
        return merged

    def repartition(
        self,
        *,
        name: str | None = None,
        partitions: int | None = None,
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        partitioner: Partitioner | None = None,
        topic_config: Mapping[str, str] | None = None,
    ) -> "KStream[K, V]":
        """Send the records through a repartition topic; records with null keys are dropped.

        Args:
            name: Part of the topic name: `<application id>-<name>-repartition`.
            partitions: Partition count; default: that of the source topics.
            partitioner: `f(topic, key, value, partitions)` -> partition, several, or None for
                Kafka's default.
            topic_config: Settings for creating the topic, such as `{"retention.ms": "86400000"}`;
                default: the option `repartition_topic_config`. An existing topic is not changed.

        Raises:
            TopologyError: `partitions` differs from the other side of a join (raised by `build()`),
                or `topic_config` changes a setting that correctness depends on.

        >>> from tidewheel import StreamsBuilder
        >>> lines = StreamsBuilder().stream("lines", key_serde=str, value_serde=str)
        >>> lines.repartition(name="wide", partitions=12)
        <KStream wide-repartition-source>
        """
        call = Call.here("repartition")
        if partitions is not None and (type(partitions) is not int or partitions < 1):
            raise TopologyError(
                f"{call.context}: partitions={partitions!r}; give a whole number from 1"
            )
        fault = "" if topic_config is None else fault_of_repartition_config(topic_config)
        if fault:
            raise TopologyError(f"{call.context}: topic_config {fault}")
        graph = self._part.graph
        key, value = self._serdes(call, key_serde, value_serde)
        node = graph.repartition(
            call.name(name) or graph.node_name("KSTREAM-REPARTITION-"),
            (key, value),
            generated=name is None,
            call=call,
        )
        node.optimizable = False
        node.partitions = partitions
        node.topic_config = dict(topic_config or {})
        node.partitioner = check_callable(partitioner, "partitioner", PARTITIONER, call.context)
        graph.add(node, self._part.node)
        return KStream(
            StreamPart(graph=graph, node=node, key_serde=key, value_serde=value, rekeyed=False)
        )

    def to(
        self,
        topic: str | Callable[[K, V, RecordContext], str],
        *,
        key_serde: SerdeInto[K] | None = None,
        value_serde: SerdeInto[V] | None = None,
        partitioner: Partitioner | None = None,
        name: str | None = None,
    ) -> None:
        """Write the records to a topic.

        Args:
            topic: The topic, or `f(key, value, context)` -> existing topic for each record.

        >>> from tidewheel import StreamsBuilder
        >>> lines = StreamsBuilder().stream("lines", key_serde=str, value_serde=str)
        >>> lines.to(lambda key, line, context: "long" if len(line) > 80 else "short")
        """
        call = Call.here("to")
        key, value = self._serdes(call, key_serde, value_serde)
        serdes = serdes_or_default(key, value, call.context)
        node_name = self._part.graph.node_name("KSTREAM-SINK-", call.name(name))
        spec = SinkSpec(
            name=node_name,
            topic=check_target(topic, call.context),
            parents=(),
            key_serde=serdes[0],
            value_serde=serdes[1],
            partitioner=check_callable(partitioner, "partitioner", PARTITIONER, call.context),
            location=call.location,
        )
        node = SinkNode(name=node_name, location=call.location, spec=spec)
        self._part.graph.add(node, self._part.node)

    def to_sink(
        self,
        sink: SinkOrSupplier,
        *,
        name: str | None = None,
        key_serde: SerdeInto[K] | None = None,
        value_serde: SerdeInto[V] | None = None,
    ) -> None:
        """Write the records outside Kafka, such as to a database; the stream ends here.

        A sink runs in tasks of its own, so a slow one delays nothing else. If anything but
        stateless steps is above it, or the stream has other readers, an internal topic comes before
        the sink: `<application id>-<name>-sink-repartition`. Rows are flushed before their offsets
        are committed.

        Args:
            sink: A sink of `tidewheel.sinks`, one of your own, or a function that returns a new one
                for each task.
            name: Name of the sink's node, and part of the internal topic's name.
            key_serde: Serde of keys in the internal topic, if there is one.

        Raises:
            TopologyError: It is no sink.

        >>> from tidewheel import StreamsBuilder
        >>> from tidewheel.sinks import InMemory
        >>> builder = StreamsBuilder()
        >>> builder.stream("lines", key_serde=str, value_serde=str).to_sink(InMemory(), name="list")
        >>> print(str(builder.build().describe()).strip())
        Topologies:
           Sub-topology: 0
            Source: KSTREAM-SOURCE-0000000000 (topics: [lines])
              --> list
            Sink: list (external: InMemory)
              <-- KSTREAM-SOURCE-0000000000
        """
        call = Call.here("to_sink")
        key, value = self._serdes(call, key_serde, value_serde)
        if not isinstance(sink, Sink) and not callable(sink):
            raise TopologyError(
                f"{call.context}: an object of type {type(sink).__name__} is no sink; give one of tidewheel.sinks, or a "
                "subclass of tidewheel.sinks.Sink"
            )
        node = ExternalSinkNode(
            name=self._part.graph.node_name("KSTREAM-SINK-", call.name(name)),
            location=call.location,
            sink=sink,
            generated=name is None,
            key_serde=key,
            value_serde=value,
        )
        self._part.graph.add(node, self._part.node)

    @overload
    def to_table(
        self: "KStream[K, V2 | None]",
        *,
        store: StoreArgument[K, V2] = None,
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V2] | None = None,
        name: str | None = None,
    ) -> KTable[K, V2]: ...
    @overload
    def to_table(
        self,
        *,
        store: StoreArgument[K, V] = None,
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        name: str | None = None,
    ) -> KTable[K, V]: ...
    def to_table(
        self,
        *,
        store: StoreArgument[Any, Any] = None,
        key_serde: SerdeLike[Any] | None = None,
        value_serde: SerdeLike[Any] | None = None,
        name: str | None = None,
    ) -> KTable[K, Any]:
        """Convert the stream to a table: the newest value of a key is its row, None deletes it.

        Args:
            store: Store of the table; without a name it is created only if an operator needs it.
            name: Name of the node and of a repartition topic, if needed.

        >>> from tidewheel import StreamsBuilder
        >>> lines = StreamsBuilder().stream("lines", key_serde=str, value_serde=str)
        >>> lines.to_table(store="last-lines").queryable_store_name
        'last-lines'
        """
        call = Call.here("to_table")
        graph, parent = self._part.graph, self._part.node
        node_name = graph.node_name("KSTREAM-TOTABLE-", call.name(name))
        materialized = Materialized.of_table(store, call.context)
        table_store = graph.table_store(
            materialized,
            prefix="KSTREAM-TOTABLE-",
            name=name,
            serdes=resolved_serdes(materialized, *self._serdes(call, key_serde, value_serde)),
            needed=False,
        )
        serdes = (table_store.key_serde, table_store.value_serde)
        if self._part.rekeyed:
            parent = graph.repartition(node_name, serdes, generated=name is None, call=call)
            graph.add(parent, self._part.node)
        node = TableNode(name=node_name, location=call.location, store=table_store)
        graph.add(node, parent)
        return KTable(
            TablePart(
                graph=graph,
                node=node,
                store=table_store,
                key_serde=serdes[0],
                value_serde=serdes[1],
            )
        )

    def group_by_key(
        self,
        *,
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        name: str | None = None,
    ) -> KGroupedStream[K, V]:
        """Group the records by key for aggregation.

        Args:
            name: Name of the repartition topic, which is added only if the key may have changed.

        >>> from tidewheel import StreamsBuilder
        >>> StreamsBuilder().stream("lines", key_serde=str, value_serde=str).group_by_key()
        <KGroupedStream KSTREAM-SOURCE-0000000000>
        """
        call = Call.here("group_by_key")
        key, value = self._serdes(call, key_serde, value_serde)
        return KGroupedStream(
            GroupPart(
                graph=self._part.graph,
                node=self._part.node,
                key_serde=key,
                value_serde=value,
                rekeyed=self._part.rekeyed,
                topic_name=call.name(name),
            )
        )

    @overload
    def group_by(
        self,
        mapper: Callable[[V], Coroutine[Any, Any, PlainT | None]],
        *,
        key_serde: type[PlainT],
        value_serde: SerdeOf[V] | None = None,
        name: str | None = None,
    ) -> KGroupedStream[PlainT, V]: ...
    @overload
    def group_by(
        self,
        mapper: Callable[[K, V], Coroutine[Any, Any, PlainT | None]],
        *,
        key_serde: type[PlainT],
        value_serde: SerdeOf[V] | None = None,
        name: str | None = None,
    ) -> KGroupedStream[PlainT, V]: ...
    @overload
    def group_by(
        self,
        mapper: Callable[[V], PlainT | None],
        *,
        key_serde: type[PlainT],
        value_serde: SerdeOf[V] | None = None,
        name: str | None = None,
    ) -> KGroupedStream[PlainT, V]: ...
    @overload
    def group_by(
        self,
        mapper: Callable[[K, V], PlainT | None],
        *,
        key_serde: type[PlainT],
        value_serde: SerdeOf[V] | None = None,
        name: str | None = None,
    ) -> KGroupedStream[PlainT, V]: ...
    @overload
    def group_by(
        self,
        mapper: Callable[[V], Coroutine[Any, Any, K2 | None]],
        *,
        key_serde: SerdeMethods[K2] | None = None,
        value_serde: SerdeOf[V] | None = None,
        name: str | None = None,
    ) -> KGroupedStream[K2, V]: ...
    @overload
    def group_by(
        self,
        mapper: Callable[[K, V], Coroutine[Any, Any, K2 | None]],
        *,
        key_serde: SerdeMethods[K2] | None = None,
        value_serde: SerdeOf[V] | None = None,
        name: str | None = None,
    ) -> KGroupedStream[K2, V]: ...
    @overload
    def group_by(
        self,
        mapper: Callable[[V], K2 | None],
        *,
        key_serde: SerdeMethods[K2] | None = None,
        value_serde: SerdeOf[V] | None = None,
        name: str | None = None,
    ) -> KGroupedStream[K2, V]: ...
    @overload
    def group_by(
        self,
        mapper: Callable[[K, V], K2 | None],
        *,
        key_serde: SerdeMethods[K2] | None = None,
        value_serde: SerdeOf[V] | None = None,
        name: str | None = None,
    ) -> KGroupedStream[K2, V]: ...
    def group_by(
        self,
        mapper: Callable[..., Any],
        *,
        key_serde: SerdeLike[Any] | None = None,
        value_serde: SerdeLike[Any] | None = None,
        name: str | None = None,
    ) -> KGroupedStream[Any, V]:
        """Group the records by a new key, `mapper(value)` or `mapper(key, value)`, for aggregation.

        Args:
            name: Name of the node and of the repartition topic.

        >>> from tidewheel import StreamsBuilder
        >>> words = StreamsBuilder().stream("words", key_serde=str, value_serde=str)
        >>> words.group_by(lambda word: word, key_serde=str)
        <KGroupedStream KSTREAM-KEY-SELECT-0000000001>
        """
        call = Call.here("group_by")
        supplier = OperatorSupplier(stateless.SelectKey, (call.mapper(mapper),))
        below = self._below(call, "KSTREAM-KEY-SELECT-", name, supplier)
        below.node.changes_key = True
        value = call.serde(value_serde, "value_serde")
        return KGroupedStream(
            GroupPart(
                graph=below.graph,
                node=below.node,
                key_serde=call.serde(key_serde, "key_serde"),
                value_serde=below.value_serde if value is None else value,
                rekeyed=True,
                topic_name=name,
            )
        )

    def _stream(self, part: StreamPart) -> "KStream[Any, Any]":
        return KStream(part)

    def _merged_with(self, other: "KStream[K, V]", call: Call, name: str | None) -> "KStream[K, V]":
        own_part, other_part = self._part, other._part  # noqa: SLF001 - same class
        if own_part.graph is not other_part.graph:
            raise TopologyError(
                f"{call.context}: the streams come from different builders; make both with one StreamsBuilder"
            )
        node = ProcessorGraphNode(
            name=own_part.graph.node_name("KSTREAM-MERGE-", call.name(name)),
            location=call.location,
            supplier=OperatorSupplier(stateless.PassThrough),
            merges=True,
        )
        own_part.graph.add(node, own_part.node, other_part.node)
        return KStream(
            StreamPart(
                graph=own_part.graph,
                node=node,
                key_serde=own_part.key_serde
                if own_part.key_serde is other_part.key_serde
                else None,
                value_serde=own_part.value_serde
                if own_part.value_serde is other_part.value_serde
                else None,
                rekeyed=own_part.rekeyed or other_part.rekeyed,
            )
        )

    def _joined(
        self, node: GraphNode, key_serde: AnySerde | None, *, rekeyed: bool = False
    ) -> "KStream[K, Any]":
        graph = self._part.graph
        return KStream(
            StreamPart(
                graph=graph, node=node, key_serde=key_serde, value_serde=None, rekeyed=rekeyed
            )
        )

    def _serdes(
        self, call: Call, key_serde: SerdeLike[Any] | None, value_serde: SerdeLike[Any] | None
    ) -> tuple[AnySerde | None, AnySerde | None]:
        key, value = call.serde(key_serde, "key_serde"), call.serde(value_serde, "value_serde")
        return (
            self._part.key_serde if key is None else key,
            self._part.value_serde if value is None else value,
        )


def _branches(
    branches: Mapping[str, Callable[..., object]], default: str | None, call: Call
) -> dict[str, UserFunction | None]:
    if not isinstance(branches, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped users
        raise TopologyError(
            f"{call.context}: branches is of type {type(branches).__name__}; give a dict of name -> predicate"
        )
    if not branches and default is None:
        raise TopologyError(f"{call.context}: there is no branch; give at least one")
    predicates: dict[str, UserFunction | None] = {}
    for branch, predicate in branches.items():
        call.name(branch)
        predicates[branch] = call.predicate(predicate)
    if default is not None:
        call.name(default)
        if default in predicates:
            raise TopologyError(
                f"{call.context}: {default!r} is a branch and the default; give them different names"
            )
        predicates[default] = None
    return predicates
