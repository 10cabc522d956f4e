"""`KStream`: a stream of records, and what can be done to it one record at a time.

Operators that may change the key (`map`, `flat_map`, `select_key`, `process`, `group_by`) only mark the stream; a trip
through a repartition topic is added by what needs the key in its place, such as a count. They also forget the key's
serde, and operators that may change the value forget the value's, because the old one need not fit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from streams.call import Call
from streams.default_serdes import serdes_or_default
from streams.errors import TopologyError
from streams.functions import UserFunction
from streams.grouped import GroupPart, KGroupedStream
from streams.ktable import KTable, StoreArgument, TablePart, settled_serdes
from streams.logical_graph import (
    AnySerde,
    GraphNode,
    LogicalGraph,
    ProcessorNode,
    SinkNode,
    TableNode,
)
from streams.materialized import Materialized
from streams.names import check_names
from streams.node_arguments import check_callable, check_supplier, check_target
from streams.operators import stateless
from streams.printer import Printer
from streams.serdes import SerdeLike
from tasks.processing.operator import Operator, OperatorSupplier
from tasks.processing.processor import Processor
from tasks.processing.record import RecordContext
from tasks.processing.topology_spec import Partitioner, SinkSpec

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPart:
    """What a stream knows of itself; `rekeyed` says that its keys may not be where their partition is."""

    graph: LogicalGraph
    node: GraphNode
    key_serde: AnySerde | None
    value_serde: AnySerde | None
    rekeyed: bool


class KStream(Generic[K, V]):
    """A stream of records; made by `StreamsBuilder.stream` and by its own methods.

    >>> from streams import StreamsBuilder
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

    # -- one record to at most one ---------------------------------------------------------------------------------

    @overload
    def filter(
        self, predicate: Callable[[V], object], *, name: str | None = None
    ) -> "KStream[K, V]": ...
    @overload
    def filter(
        self, predicate: Callable[[K, V], object], *, name: str | None = None
    ) -> "KStream[K, V]": ...
    def filter(
        self, predicate: Callable[..., object], *, name: str | None = None
    ) -> "KStream[K, V]":
        """Keep the records for which `predicate(value)` or `predicate(key, value)` holds.

        >>> from streams import StreamsBuilder
        >>> StreamsBuilder().stream("in", key_serde=str, value_serde=int).filter(lambda n: n > 0)
        <KStream KSTREAM-FILTER-0000000001>
        """
        call = Call.here("filter")
        supplier = OperatorSupplier(stateless.Filter, (call.predicate(predicate), False))
        return KStream(self._below(call, "KSTREAM-FILTER-", name, supplier))

    @overload
    def filter_not(
        self, predicate: Callable[[V], object], *, name: str | None = None
    ) -> "KStream[K, V]": ...
    @overload
    def filter_not(
        self, predicate: Callable[[K, V], object], *, name: str | None = None
    ) -> "KStream[K, V]": ...
    def filter_not(
        self, predicate: Callable[..., object], *, name: str | None = None
    ) -> "KStream[K, V]":
        """Keep the records for which `predicate(value)` or `predicate(key, value)` does not hold.

        >>> from streams import StreamsBuilder
        >>> StreamsBuilder().stream("in", key_serde=str, value_serde=int).filter_not(lambda n: n > 0)
        <KStream KSTREAM-FILTER-0000000001>
        """
        call = Call.here("filter_not")
        supplier = OperatorSupplier(stateless.Filter, (call.predicate(predicate), True))
        return KStream(self._below(call, "KSTREAM-FILTER-", name, supplier))

    @overload
    def map(
        self, mapper: Callable[[V], tuple[K2, V2]], *, name: str | None = None
    ) -> "KStream[K2, V2]": ...
    @overload
    def map(
        self, mapper: Callable[[K, V], tuple[K2, V2]], *, name: str | None = None
    ) -> "KStream[K2, V2]": ...
    def map(
        self, mapper: Callable[..., tuple[Any, Any]], *, name: str | None = None
    ) -> "KStream[Any, Any]":
        """Replace each record by the `(key, value)` that `mapper(value)` or `mapper(key, value)` returns.

        The key may change: give `map_values` the preference where it does not.

        >>> from streams import StreamsBuilder
        >>> orders = StreamsBuilder().stream("orders", key_serde=str, value_serde=int)
        >>> orders.map(lambda order_id, cents: (order_id.lower(), cents / 100))
        <KStream KSTREAM-MAP-0000000001>
        """
        return KStream(self._mapped("map", mapper, name, stateless.Map, key=True, value=True))

    @overload
    def map_values(
        self, mapper: Callable[[V], V2], *, name: str | None = None
    ) -> "KStream[K, V2]": ...
    @overload
    def map_values(
        self, mapper: Callable[[K, V], V2], *, name: str | None = None
    ) -> "KStream[K, V2]": ...
    def map_values(
        self, mapper: Callable[..., Any], *, name: str | None = None
    ) -> "KStream[K, Any]":
        """Replace each value by what `mapper(value)` or `mapper(key, value)` returns.

        >>> from streams import StreamsBuilder
        >>> StreamsBuilder().stream("in", key_serde=str, value_serde=str).map_values(len)
        <KStream KSTREAM-MAPVALUES-0000000001>
        """
        return KStream(self._mapped("map_values", mapper, name, stateless.MapValues, value=True))

    @overload
    def select_key(
        self, mapper: Callable[[V], K2], *, name: str | None = None
    ) -> "KStream[K2, V]": ...
    @overload
    def select_key(
        self, mapper: Callable[[K, V], K2], *, name: str | None = None
    ) -> "KStream[K2, V]": ...
    def select_key(
        self, mapper: Callable[..., Any], *, name: str | None = None
    ) -> "KStream[Any, V]":
        """Replace each key by what `mapper(value)` or `mapper(key, value)` returns.

        >>> from streams import StreamsBuilder
        >>> StreamsBuilder().stream("in", key_serde=str, value_serde=str).select_key(lambda v: v[0])
        <KStream KSTREAM-KEY-SELECT-0000000001>
        """
        return KStream(self._mapped("select_key", mapper, name, stateless.SelectKey, key=True))

    # -- one record to many ----------------------------------------------------------------------------------------

    @overload
    def flat_map(
        self, mapper: Callable[[V], Iterable[tuple[K2, V2]]], *, name: str | None = None
    ) -> "KStream[K2, V2]": ...
    @overload
    def flat_map(
        self, mapper: Callable[[K, V], Iterable[tuple[K2, V2]]], *, name: str | None = None
    ) -> "KStream[K2, V2]": ...
    def flat_map(
        self, mapper: Callable[..., Iterable[tuple[Any, Any]]], *, name: str | None = None
    ) -> "KStream[Any, Any]":
        """Replace each record by all the `(key, value)` that `mapper(value)` or `mapper(key, value)` returns.

        >>> from streams import StreamsBuilder
        >>> lines = StreamsBuilder().stream("lines", key_serde=str, value_serde=str)
        >>> lines.flat_map(lambda line: [(word, 1) for word in line.split()])
        <KStream KSTREAM-FLATMAP-0000000001>
        """
        operator = stateless.FlatMap
        return KStream(self._mapped("flat_map", mapper, name, operator, key=True, value=True))

    @overload
    def flat_map_values(
        self, mapper: Callable[[V], Iterable[V2]], *, name: str | None = None
    ) -> "KStream[K, V2]": ...
    @overload
    def flat_map_values(
        self, mapper: Callable[[K, V], Iterable[V2]], *, name: str | None = None
    ) -> "KStream[K, V2]": ...
    def flat_map_values(
        self, mapper: Callable[..., Iterable[Any]], *, name: str | None = None
    ) -> "KStream[K, Any]":
        """Replace each value by all those that `mapper(value)` or `mapper(key, value)` returns.

        >>> from streams import StreamsBuilder
        >>> lines = StreamsBuilder().stream("lines", key_serde=str, value_serde=str)
        >>> lines.flat_map_values(str.split)
        <KStream KSTREAM-FLATMAPVALUES-0000000001>
        """
        operator = stateless.FlatMapValues
        return KStream(self._mapped("flat_map_values", mapper, name, operator, value=True))

    # -- side effects ----------------------------------------------------------------------------------------------

    @overload
    def peek(
        self, action: Callable[[V], object], *, name: str | None = None
    ) -> "KStream[K, V]": ...
    @overload
    def peek(
        self, action: Callable[[K, V], object], *, name: str | None = None
    ) -> "KStream[K, V]": ...
    def peek(self, action: Callable[..., object], *, name: str | None = None) -> "KStream[K, V]":
        """Call `action(value)` or `action(key, value)` for each record and go on with the same records.

        >>> from streams import StreamsBuilder
        >>> StreamsBuilder().stream("in", key_serde=str, value_serde=str).peek(print)
        <KStream KSTREAM-PEEK-0000000001>
        """
        call = Call.here("peek")
        supplier = OperatorSupplier(stateless.Peek, (call.mapper(action),))
        return KStream(self._below(call, "KSTREAM-PEEK-", name, supplier))

    @overload
    def foreach(self, action: Callable[[V], object], *, name: str | None = None) -> None: ...
    @overload
    def foreach(self, action: Callable[[K, V], object], *, name: str | None = None) -> None: ...
    def foreach(self, action: Callable[..., object], *, name: str | None = None) -> None:
        """Call `action(value)` or `action(key, value)` for each record; the stream ends here.

        >>> from streams import StreamsBuilder
        >>> StreamsBuilder().stream("in", key_serde=str, value_serde=str).foreach(print)
        """
        call = Call.here("foreach")
        supplier = OperatorSupplier(stateless.Foreach, (call.mapper(action),))
        self._below(call, "KSTREAM-FOREACH-", name, supplier)

    def print(
        self, label: str = "", to: str | Path | None = None, *, name: str | None = None
    ) -> None:
        """Write each record as "[label]: key, value"; the stream ends here.

        Args:
            label: What to write before each record; the node's name if empty.
            to: A file to append to; standard output if not given.
            name: The node's name.

        >>> from streams import StreamsBuilder
        >>> StreamsBuilder().stream("in", key_serde=str, value_serde=str).print("seen")
        """
        call = Call.here("print")
        printer = Printer(label or self._part.node.name, None if to is None else Path(to))
        function = UserFunction(call=printer, takes_key=True, name="print")
        supplier = OperatorSupplier(stateless.Foreach, (function,))
        self._below(call, "KSTREAM-PRINTER-", name, supplier)

    # -- several streams -------------------------------------------------------------------------------------------

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
        branches: Mapping[str, Callable[[V], object] | Callable[[K, V], object]],
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
            branches: Name of the branch -> `predicate(value)` or `predicate(key, value)`, asked in this order.
            default: Name of the branch for all other records; without one they are dropped.
            name: What the names of the branches' nodes begin with.

        >>> from streams import StreamsBuilder
        >>> amounts = StreamsBuilder().stream("amounts", key_serde=str, value_serde=int)
        >>> amounts.split({"big": lambda amount: amount > 100}, default="small", name="size-")
        {'big': <KStream size-big>, 'small': <KStream size-small>}
        """
        call = Call.here("split")
        predicates = _branches(branches, default, call)
        graph = self._part.graph
        prefix = graph.node_name("KSTREAM-BRANCH-", call.name(name))
        children = {branch: call.name(f"{prefix}{branch}") or "" for branch in predicates}
        known = [
            (test, children[branch]) for branch, test in predicates.items() if test is not None
        ]
        otherwise = None if default is None else children[default]
        splitter = ProcessorNode(
            name=prefix,
            location=call.location,
            supplier=OperatorSupplier(stateless.Branch, (known, otherwise)),
        )
        graph.add(splitter, self._part.node)
        streams: dict[str, KStream[K, V]] = {}
        for branch, child in children.items():
            node = ProcessorNode(
                name=graph.node_name("KSTREAM-BRANCHCHILD-", child),
                location=call.location,
                supplier=OperatorSupplier(stateless.PassThrough),
            )
            graph.add(node, splitter)
            streams[branch] = KStream(replace(self._part, node=node))
        return streams

    def merge(self, *others: "KStream[K, V]", name: str | None = None) -> "KStream[K, V]":
        """Return one stream of the records of several; the order between them is free.

        A serde is kept only where all have the same.

        >>> from streams import StreamsBuilder
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
            if not isinstance(other, KStream):  # pyright: ignore[reportUnnecessaryIsInstance] - users without a type checker
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
        key_serde: SerdeLike[Any] | None = None,
        value_serde: SerdeLike[Any] | None = None,
        partitioner: Partitioner | None = None,
    ) -> "KStream[K, V]":
        """Send the records through an internal topic, so that each is where its key belongs; null keys are dropped.

        Args:
            name: What the topic is named after: `<application id>-<name>-repartition`.
            partitions: How many; as many as the topics this is made of have, if not given.
            key_serde: Serde of keys; the stream's if not given.
            value_serde: Serde of values, likewise.
            partitioner: `f(topic, key, value, partitions)` -> partition, several, or None for Kafka's default.

        >>> from streams import StreamsBuilder
        >>> lines = StreamsBuilder().stream("lines", key_serde=str, value_serde=str)
        >>> lines.repartition(name="wide", partitions=12)
        <KStream wide-repartition-source>
        """
        call = Call.here("repartition")
        if partitions is not None and (type(partitions) is not int or partitions < 1):
            raise TopologyError(
                f"{call.context}: partitions={partitions!r}; give a whole number from 1"
            )
        graph = self._part.graph
        key, value = self._serdes(call, key_serde, value_serde)
        node = graph.repartition(
            call.name(name) or graph.node_name("KSTREAM-REPARTITION-"),
            (key, value),
            generated=name is None,
            call=call,
        )
        node.partitions = partitions
        node.partitioner = check_callable(partitioner, "partitioner", 4, call.context)
        graph.add(node, self._part.node)
        return KStream(
            StreamPart(graph=graph, node=node, key_serde=key, value_serde=value, rekeyed=False)
        )

    # -- away from the stream --------------------------------------------------------------------------------------

    def to(
        self,
        topic: str | Callable[[K, V, RecordContext], str],
        *,
        key_serde: SerdeLike[Any] | None = None,
        value_serde: SerdeLike[Any] | None = None,
        partitioner: Partitioner | None = None,
        name: str | None = None,
    ) -> None:
        """Write the records to a topic.

        Args:
            topic: The topic, or `f(key, value, context)` that names an existing one for each record.
            key_serde: Serde of keys; the stream's if not given.
            value_serde: Serde of values, likewise.
            partitioner: `f(topic, key, value, partitions)` -> partition, several, or None for Kafka's default.
            name: The node's name.

        >>> from streams import StreamsBuilder
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
            partitioner=check_callable(partitioner, "partitioner", 4, call.context),
            location=call.location,
        )
        node = SinkNode(name=node_name, location=call.location, spec=spec)
        self._part.graph.add(node, self._part.node)

    def to_table(
        self,
        *,
        store: StoreArgument = None,
        key_serde: SerdeLike[Any] | None = None,
        value_serde: SerdeLike[Any] | None = None,
        name: str | None = None,
    ) -> KTable[K, V]:
        """Read the stream as a table: the newest value of a key is its row, None deletes it.

        Args:
            store: Keep the table in a store of this name; without one it is kept only if an operator needs it.
            key_serde: Serde of keys; the stream's if not given.
            value_serde: Serde of values, likewise.
            name: The node's name, also that of a repartition topic if one is needed.

        >>> from streams import StreamsBuilder
        >>> lines = StreamsBuilder().stream("lines", key_serde=str, value_serde=str)
        >>> lines.to_table(store="last-lines").queryable_store_name
        'last-lines'
        """
        call = Call.here("to_table")
        graph, parent = self._part.graph, self._part.node
        node_name = graph.node_name("KSTREAM-TOTABLE-", call.name(name))
        materialized = Materialized.of(store, call.context)
        kept = graph.table_store(
            materialized,
            prefix="KSTREAM-TOTABLE-",
            name=name,
            serdes=settled_serdes(materialized, *self._serdes(call, key_serde, value_serde)),
            needed=False,
        )
        serdes = (kept.key_serde, kept.value_serde)
        if self._part.rekeyed:
            parent = graph.repartition(node_name, serdes, generated=name is None, call=call)
            graph.add(parent, self._part.node)
        node = TableNode(name=node_name, location=call.location, store=kept)
        graph.add(node, parent)
        return KTable(
            TablePart(
                graph=graph, node=node, store=kept, key_serde=serdes[0], value_serde=serdes[1]
            )
        )

    def group_by_key(
        self,
        *,
        key_serde: SerdeLike[Any] | None = None,
        value_serde: SerdeLike[Any] | None = None,
        name: str | None = None,
    ) -> KGroupedStream[K, V]:
        """Group the records by their key, to aggregate them.

        Args:
            key_serde: Serde of keys; the stream's if not given.
            value_serde: Serde of values, likewise.
            name: What a repartition topic is named after, if one is needed because the key may have changed.

        >>> from streams import StreamsBuilder
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
        mapper: Callable[[V], K2],
        *,
        key_serde: SerdeLike[Any] | None = None,
        value_serde: SerdeLike[Any] | None = None,
        name: str | None = None,
    ) -> KGroupedStream[K2, V]: ...
    @overload
    def group_by(
        self,
        mapper: Callable[[K, V], K2],
        *,
        key_serde: SerdeLike[Any] | None = None,
        value_serde: SerdeLike[Any] | None = None,
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
        """Group the records by the key that `mapper(value)` or `mapper(key, value)` returns, to aggregate them.

        Args:
            mapper: Returns the new key.
            key_serde: Serde of the new keys; the configured default if not given.
            value_serde: Serde of values; the stream's if not given.
            name: The node's name, and what the repartition topic is named after.

        >>> from streams import StreamsBuilder
        >>> words = StreamsBuilder().stream("words", key_serde=str, value_serde=str)
        >>> words.group_by(lambda word: word, key_serde=str)
        <KGroupedStream KSTREAM-KEY-SELECT-0000000001>
        """
        call = Call.here("group_by")
        supplier = OperatorSupplier(stateless.SelectKey, (call.mapper(mapper),))
        below = self._below(call, "KSTREAM-KEY-SELECT-", name, supplier)
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

    def process(
        self,
        supplier: Callable[[], Processor[K, V, K2, V2]],
        *,
        stores: Sequence[str] = (),
        name: str | None = None,
    ) -> "KStream[K2, V2]":
        """Hand each record to a processor of your own; what it forwards goes on.

        Args:
            supplier: The `Processor` class, or a function that makes a new one at each call (one per task).
            stores: Names of the stores it uses, added with `StreamsBuilder.add_state_store`.
            name: The node's name.

        >>> from streams import Processor, StreamsBuilder
        >>> class Shout(Processor[str, str, str, str]):
        ...     def process(self, record):
        ...         self.context.forward(record.replace(value=record.value.upper()))
        >>> StreamsBuilder().stream("lines", key_serde=str, value_serde=str).process(Shout)
        <KStream KSTREAM-PROCESSOR-0000000001>
        """
        call = Call.here("process")
        check_supplier(supplier, call.context)
        names = check_names(stores, "stores", call.context)
        graph = self._part.graph
        node = ProcessorNode(
            # Unlike all other operators, a named one uses up no number.
            name=call.name(name) or graph.node_name("KSTREAM-PROCESSOR-"),
            location=call.location,
            supplier=supplier,
            store_names=names,
        )
        graph.add(node, self._part.node)
        return KStream(
            StreamPart(graph=graph, node=node, key_serde=None, value_serde=None, rekeyed=True)
        )

    # -- parts -----------------------------------------------------------------------------------------------------

    def _below(
        self, call: Call, prefix: str, name: str | None, supplier: OperatorSupplier
    ) -> StreamPart:
        """Add an operator below this stream; return a stream like this one that begins there."""
        node = ProcessorNode(
            name=self._part.graph.node_name(prefix, call.name(name)),
            location=call.location,
            supplier=supplier,
        )
        self._part.graph.add(node, self._part.node)
        return replace(self._part, node=node)

    def _mapped(
        self,
        operator: str,
        mapper: Callable[..., Any],
        name: str | None,
        made: type[Operator],
        *,
        key: bool = False,
        value: bool = False,
    ) -> StreamPart:
        """Add an operator that may change the key, the value or both."""
        call = Call.here(operator)
        supplier = OperatorSupplier(made, (call.mapper(mapper),))
        part = self._below(call, _PREFIXES[operator], name, supplier)
        return replace(
            part,
            key_serde=None if key else part.key_serde,
            value_serde=None if value else part.value_serde,
            rekeyed=key or part.rekeyed,
        )

    def _merged_with(self, other: "KStream[K, V]", call: Call, name: str | None) -> "KStream[K, V]":
        mine, theirs = self._part, other._part  # noqa: SLF001 - its own class
        if mine.graph is not theirs.graph:
            raise TopologyError(
                f"{call.context}: the streams come from different builders; make both with one StreamsBuilder"
            )
        node = ProcessorNode(
            name=mine.graph.node_name("KSTREAM-MERGE-", call.name(name)),
            location=call.location,
            supplier=OperatorSupplier(stateless.PassThrough),
        )
        mine.graph.add(node, mine.node, theirs.node)
        return KStream(
            StreamPart(
                graph=mine.graph,
                node=node,
                key_serde=mine.key_serde if mine.key_serde is theirs.key_serde else None,
                value_serde=mine.value_serde if mine.value_serde is theirs.value_serde else None,
                rekeyed=mine.rekeyed or theirs.rekeyed,
            )
        )

    def _serdes(
        self, call: Call, key_serde: SerdeLike[Any] | None, value_serde: SerdeLike[Any] | None
    ) -> tuple[AnySerde | None, AnySerde | None]:
        """Return the serdes that were given, else the stream's."""
        key, value = call.serde(key_serde, "key_serde"), call.serde(value_serde, "value_serde")
        return (
            self._part.key_serde if key is None else key,
            self._part.value_serde if value is None else value,
        )


_PREFIXES = {
    "map": "KSTREAM-MAP-",
    "map_values": "KSTREAM-MAPVALUES-",
    "select_key": "KSTREAM-KEY-SELECT-",
    "flat_map": "KSTREAM-FLATMAP-",
    "flat_map_values": "KSTREAM-FLATMAPVALUES-",
}


def _branches(
    branches: Mapping[str, Callable[..., object]], default: str | None, call: Call
) -> dict[str, UserFunction | None]:
    """Return the predicate of each branch, None for the default one."""
    if not isinstance(branches, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - users without a type checker
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
