"""`cogroup`: aggregates several grouped streams into one table (KIP-150)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

import msgspec

from tidewheel.state_stores.stores.windowed import Windowed
from tidewheel.streams.definitions.call import Call
from tidewheel.streams.definitions.materialized import StoreArgument
from tidewheel.streams.definitions.misplaced_calls import MisplacedCalls
from tidewheel.streams.definitions.names import where
from tidewheel.streams.dsl.ktable import KTable
from tidewheel.streams.dsl.windowed_kstream import (
    check_merger,
    check_time_windows,
    windowed_operator,
)
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.graph.aggregation_nodes import (
    GroupedStream,
    StreamAggregations,
    Windowing,
    aggregate_serde,
    aggregation_store,
    key_serde_of,
)
from tidewheel.streams.graph.logical_graph import (
    AnySerde,
    GraphNode,
    LogicalGraph,
    ProcessorGraphNode,
    TableStore,
)
from tidewheel.streams.graph.parts import TablePart
from tidewheel.streams.operators.aggregate import StreamAggregate
from tidewheel.streams.operators.tables.table import TableSource
from tidewheel.streams.operators.windows.windowed import Fold
from tidewheel.streams.serdes import SerdeLike
from tidewheel.streams.topology.topology import Topology
from tidewheel.streams.user_functions import FunctionKind
from tidewheel.streams.windows import FixedWindows, SessionWindows, SlidingWindows, Windows
from tidewheel.tasks.processing.engine.operator import Operator, OperatorSupplier

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")

_AGGREGATE = "COGROUPKSTREAM-AGGREGATE-"
_MERGE = "COGROUPKSTREAM-MERGE-"

Aggregator = Callable[[Any, Any, Any], Any]


class CogroupPart(msgspec.Struct, frozen=True):
    """The grouped streams of a cogroup, each with its aggregator.

    Attributes:
        parents: Parent node of each stream's aggregation, reused by further `aggregate` calls.
    """

    graph: LogicalGraph
    groups: dict[StreamAggregations, Aggregator]
    parents: dict[StreamAggregations, GraphNode] = msgspec.field(
        default_factory=dict[StreamAggregations, GraphNode]
    )

    @property
    def key_serde(self) -> AnySerde | None:
        """Return the first key serde that a stream declares."""
        serdes = (group.part.key_serde for group in self.groups)
        return next((serde for serde in serdes if serde is not None), None)

    def resolve_parents(self, call: Call, table_store: TableStore) -> None:
        """Set each stream's parent: its own node, or a repartition if its key may have changed."""
        unnamed = [
            group for group in self.groups if group.part.rekeyed and group.part.topic_name is None
        ]
        if len(unnamed) > 1:
            raise TopologyError(
                f"{call.context}: {len(unnamed)} of the streams have to be repartitioned, and their topics would all be "
                f"called {table_store.name}-repartition; give name= to their group_by() or group_by_key()"
            )
        for group in self.groups:
            # Called even if its node is not used: as in Kafka Streams, it advances the counter of
            # generated names.
            repartition = group.repartition(call, table_store) if group.part.rekeyed else None
            if group not in self.parents:
                self.parents[group] = group.part.node if repartition is None else repartition
                if repartition is not None:
                    self.graph.add(repartition, group.part.node)


@dataclass(eq=False, kw_only=True)
class CogroupMergeNode(ProcessorGraphNode):
    """Node that merges the aggregations into one table; their topics must be co-partitioned."""

    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None:
        """Add the node, and the rule that its inputs are co-partitioned."""
        ProcessorGraphNode.write_to(self, topology, parents)
        topology.copartition(parents, where("cogroup", self.location))


class CogroupedKStream(MisplacedCalls, Generic[K, A]):
    """Several grouped streams to aggregate into one table.

    Made by `KGroupedStream.cogroup` (KIP-150).

    >>> from tidewheel import StreamsBuilder
    >>> builder = StreamsBuilder()
    >>> carts = builder.stream("carts", key_serde=str, value_serde=str).group_by_key()
    >>> visits = builder.stream("visits", key_serde=str, value_serde=str).group_by_key()
    >>> both = carts.cogroup(lambda key, item, total: total + 1)
    >>> both = both.cogroup(visits, lambda key, page, total: total + 1)
    >>> both.aggregate(lambda: 0, store="actions", value_serde=int).queryable_store_name
    'actions'
    """

    def __init__(self, part: CogroupPart) -> None:
        self._part = part

    def __repr__(self) -> str:
        names = ", ".join(group.part.node.name for group in self._part.groups)
        return f"<{type(self).__name__} {names}>"

    def cogroup(
        self, grouped: GroupedStream[K, V], aggregator: Callable[[K, V, A], A | None]
    ) -> "CogroupedKStream[K, A]":
        """Return this cogroup with another stream added.

        Args:
            grouped: A `KGroupedStream` with the same keys.
            aggregator: `f(key, value, aggregate)` -> new aggregate, for this stream's records; None
                deletes the row.

        >>> from tidewheel import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> one = builder.stream("one", key_serde=str, value_serde=str).group_by_key()
        >>> two = builder.stream("two", key_serde=str, value_serde=str).group_by_key()
        >>> one.cogroup(lambda key, text, all: all + text).cogroup(two, lambda key, text, all: text + all)
        <CogroupedKStream KSTREAM-SOURCE-0000000000, KSTREAM-SOURCE-0000000001>
        """
        call, part = Call.here("cogroup"), self._part
        if not isinstance(grouped, GroupedStream):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped users
            raise TopologyError(
                f"{call.context}: the stream is of type {type(grouped).__name__}; give a KGroupedStream, "
                "as group_by_key() returns it"
            )
        group = grouped.aggregations()
        if group.part.graph is not part.graph:
            raise TopologyError(
                f"{call.context}: the streams come from different builders; make both with one StreamsBuilder"
            )
        if group in part.groups:
            raise TopologyError(
                f"{call.context}: this grouped stream is in the cogroup already; do both steps in one aggregator"
            )
        step = call.function(aggregator, FunctionKind.AGGREGATOR)
        return CogroupedKStream(
            CogroupPart(part.graph, {**part.groups, group: step.call}, part.parents)
        )

    @overload
    def windowed_by(self, windows: SessionWindows) -> "SessionWindowedCogroupedKStream[K, A]": ...
    @overload
    def windowed_by(
        self, windows: FixedWindows | SlidingWindows
    ) -> "TimeWindowedCogroupedKStream[K, A]": ...
    def windowed_by(
        self, windows: SessionWindows | FixedWindows | SlidingWindows
    ) -> "SessionWindowedCogroupedKStream[K, A] | TimeWindowedCogroupedKStream[K, A]":
        """Window the groups by time.

        >>> from tidewheel import StreamsBuilder, TimeWindows
        >>> words = StreamsBuilder().stream("words", key_serde=str, value_serde=str).group_by_key()
        >>> words.cogroup(lambda key, word, all: all + word).windowed_by(TimeWindows(60_000))
        <TimeWindowedCogroupedKStream KSTREAM-SOURCE-0000000000>
        """
        if isinstance(windows, SessionWindows):
            return SessionWindowedCogroupedKStream(self._part, windows)
        checked = check_time_windows(Call.here("windowed_by"), windows)
        return TimeWindowedCogroupedKStream(self._part, checked)

    def aggregate(
        self,
        initializer: Callable[[], A],
        *,
        merger: None = None,
        store: StoreArgument[K, A] = None,
        value_serde: SerdeLike[A] | None = None,
        name: str | None = None,
    ) -> KTable[K, A]:
        """Fold the values of all streams by key into an aggregate.

        Args:
            merger: Rejected here; only session windows have one.

        >>> from tidewheel import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> one = builder.stream("one", key_serde=str, value_serde=int).group_by_key()
        >>> one.cogroup(lambda key, n, total: total + n).aggregate(lambda: 0, value_serde=int)
        <KTable COGROUPKSTREAM-MERGE-0000000003>
        """
        call = Call.here("aggregate")
        start = call.function(initializer, FunctionKind.INITIALIZER).call
        check_merger(call, None, merger)
        table_store = _store(call, self._part, store, value_serde, name, None)
        operators = [
            (StreamAggregate, (start, aggregator)) for aggregator in self._part.groups.values()
        ]
        return KTable(_table(call, self._part, table_store, name, operators))


class _WindowedCogroup(MisplacedCalls, Generic[K, A]):
    def __init__(self, part: CogroupPart, windows: Windows) -> None:
        self._part = part
        self._windows = windows

    def __repr__(self) -> str:
        names = ", ".join(group.part.node.name for group in self._part.groups)
        return f"<{type(self).__name__} {names}>"

    def _aggregated(
        self,
        call: Call,
        initializer: object,
        merger: object | None,
        store: StoreArgument[Any, Any],
        value_serde: SerdeLike[Any] | None,
        name: str | None,
    ) -> KTable[Windowed[K], A]:
        start = call.function(initializer, FunctionKind.INITIALIZER).call
        merge = check_merger(call, self._windows, merger)
        table_store = _store(call, self._part, store, value_serde, name, self._windows)
        operators = [
            windowed_operator(self._windows, table_store, Fold(start, aggregator, merge))
            for aggregator in self._part.groups.values()
        ]
        return KTable(_table(call, self._part, table_store, name, operators))


class TimeWindowedCogroupedKStream(_WindowedCogroup[K, A], Generic[K, A]):
    """Cogrouped streams in time windows; made by `CogroupedKStream.windowed_by`.

    >>> from tidewheel import SlidingWindows, StreamsBuilder
    >>> words = StreamsBuilder().stream("words", key_serde=str, value_serde=str).group_by_key()
    >>> words.cogroup(lambda key, word, all: all + word).windowed_by(SlidingWindows(60_000))
    <TimeWindowedCogroupedKStream KSTREAM-SOURCE-0000000000>
    """

    def aggregate(
        self,
        initializer: Callable[[], A],
        *,
        merger: None = None,
        store: StoreArgument[K, A] = None,
        value_serde: SerdeLike[A] | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], A]:
        """Fold the values of all streams by key and window into an aggregate.

        >>> from tidewheel import StreamsBuilder, TimeWindows
        >>> words = StreamsBuilder().stream("words", key_serde=str, value_serde=str).group_by_key()
        >>> minutes = words.cogroup(lambda key, word, all: all + word).windowed_by(TimeWindows(60_000))
        >>> minutes.aggregate(str, value_serde=str)
        <KTable COGROUPKSTREAM-MERGE-0000000003>
        """
        call = Call.here("aggregate")
        return self._aggregated(call, initializer, merger, store, value_serde, name)


class SessionWindowedCogroupedKStream(_WindowedCogroup[K, A], Generic[K, A]):
    """Cogrouped streams in sessions; made by `CogroupedKStream.windowed_by(SessionWindows(...))`.

    >>> from tidewheel import SessionWindows, StreamsBuilder
    >>> words = StreamsBuilder().stream("words", key_serde=str, value_serde=str).group_by_key()
    >>> words.cogroup(lambda key, word, all: all + word).windowed_by(SessionWindows(60_000))
    <SessionWindowedCogroupedKStream KSTREAM-SOURCE-0000000000>
    """

    def aggregate(
        self,
        initializer: Callable[[], A],
        *,
        merger: Callable[[K, A, A], A] | None = None,
        store: StoreArgument[K, A] = None,
        value_serde: SerdeLike[A] | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], A]:
        """Fold the values of all streams by key and session into an aggregate.

        Args:
            merger: `f(key, aggregate1, aggregate2)` -> merged aggregate; required for sessions.

        >>> from tidewheel import SessionWindows, StreamsBuilder
        >>> words = StreamsBuilder().stream("words", key_serde=str, value_serde=str).group_by_key()
        >>> visits = words.cogroup(lambda key, word, all: all + word).windowed_by(SessionWindows(60_000))
        >>> visits.aggregate(str, merger=lambda key, one, two: one + two, value_serde=str)
        <KTable COGROUPKSTREAM-MERGE-0000000003>
        """
        call = Call.here("aggregate")
        return self._aggregated(call, initializer, merger, store, value_serde, name)


def _store(
    call: Call,
    part: CogroupPart,
    store: StoreArgument[Any, Any],
    value_serde: SerdeLike[Any] | None,
    name: str | None,
    windows: Windows | None,
) -> TableStore:
    serdes = part.key_serde, aggregate_serde(call, store, value_serde)
    windowing: Windowing | None = None if windows is None else (windows, "on_window_update")
    return aggregation_store(call, part.graph, store, _AGGREGATE, name, serdes, windowing)


def _table(
    call: Call,
    part: CogroupPart,
    table_store: TableStore,
    name: str | None,
    operators: Sequence[tuple[type[Operator], tuple[Any, ...]]],
) -> TablePart:
    """Add one aggregation per stream on a shared store, and the merge node."""
    graph = part.graph
    part.resolve_parents(call, table_store)
    nodes: list[GraphNode] = []
    for index, (group, (operator, arguments)) in enumerate(
        zip(part.groups, operators, strict=True)
    ):
        node = ProcessorGraphNode(
            name=graph.node_name(
                _AGGREGATE, None if name is None else f"{name}-cogroup-agg-{index}"
            ),
            location=call.location,
            supplier=OperatorSupplier(operator, (table_store.name, *arguments)),
            store=None if nodes else table_store,
            shared_store=table_store if nodes else None,
        )
        graph.add(node, part.parents[group])
        nodes.append(node)
    merge = CogroupMergeNode(
        name=graph.node_name(_MERGE, None if name is None else f"{name}-cogroup-merge"),
        location=call.location,
        supplier=OperatorSupplier(TableSource, (None,)),  # forwards changes unchanged
    )
    graph.add(merge, *nodes)
    return TablePart(
        graph=graph,
        node=merge,
        store=table_store,
        key_serde=key_serde_of(table_store),
        value_serde=table_store.value_serde,
        inner=tuple(nodes),
    )
