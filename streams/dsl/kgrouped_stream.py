"""`KGroupedStream`: a stream grouped by key, for count, reduce and aggregate."""

from collections.abc import Callable
from typing import Generic, TypeVar, overload

from tidewheel.streams.definitions.call import Call
from tidewheel.streams.definitions.materialized import StoreArgument
from tidewheel.streams.definitions.misplaced_calls import MisplacedCalls
from tidewheel.streams.dsl.cogrouped_kstream import CogroupedKStream, CogroupPart
from tidewheel.streams.dsl.ktable import KTable
from tidewheel.streams.dsl.windowed_kstream import (
    SessionWindowedKStream,
    TimeWindowedKStream,
    windowed_by,
)
from tidewheel.streams.graph.aggregation_nodes import (
    AGGREGATE,
    REDUCE,
    GroupedStream,
    aggregate_serde,
)
from tidewheel.streams.operators.aggregate import StreamAggregate, StreamCount, StreamReduce
from tidewheel.streams.serdes import SerdeLike, Serdes
from tidewheel.streams.user_functions import FunctionKind
from tidewheel.streams.windows import FixedWindows, SessionWindows, SlidingWindows

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")


class KGroupedStream(GroupedStream[K, V], MisplacedCalls, Generic[K, V]):
    """A stream grouped by key.

    Made by `group_by_key` or `group_by` (Kafka Streams' KGroupedStream). Records with a None key or
    value are dropped and counted. A result has the larger timestamp of the old result and the
    record.

    >>> from tidewheel import StreamsBuilder
    >>> from tidewheel.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> grouped = builder.stream("in", key_serde=str, value_serde=int).group_by_key()
    >>> grouped.reduce(max).to_stream().foreach(lambda key, largest: print(key, largest))
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     source = driver.create_input_topic("in", key_serde=str, value_serde=int)
    ...     source.pipe_key_values([("a", 3), ("b", 1), ("a", 5), (None, 9), ("b", None), ("a", 4)])
    a 3
    b 1
    a 5
    a 5

    >>> from tidewheel import StreamsBuilder
    >>> words = StreamsBuilder().stream("words", key_serde=str, value_serde=str)
    >>> words.group_by_key().count()
    <KTable KSTREAM-AGGREGATE-0000000002>
    """

    def __repr__(self) -> str:
        return f"<KGroupedStream {self._part.node.name}>"

    def count(
        self, *, store: StoreArgument[K, int] = None, name: str | None = None
    ) -> KTable[K, int]:
        """Count the records of each key.

        >>> from tidewheel import StreamsBuilder
        >>> words = StreamsBuilder().stream("words", key_serde=str, value_serde=str)
        >>> words.group_by(lambda word: word).count(store="counts").queryable_store_name
        'counts'
        """
        call = Call.here("count")
        self._aggregations.consume_number(store)
        table_store = self._aggregations.store(call, store, AGGREGATE, name, Serdes.int64())
        node_name = self._part.graph.node_name(AGGREGATE, name)
        return KTable(self._aggregations.table(call, table_store, node_name, (StreamCount, ())))

    def reduce(
        self,
        reducer: Callable[[V, V], V | None],
        *,
        store: StoreArgument[K, V] = None,
        name: str | None = None,
    ) -> KTable[K, V]:
        """Combine the values of each key; the first value is the first result.

        Args:
            reducer: `f(aggregate, value)` -> new aggregate; None deletes the row.

        >>> from tidewheel import StreamsBuilder
        >>> prices = StreamsBuilder().stream("prices", key_serde=str, value_serde=float)
        >>> prices.group_by_key().reduce(max)
        <KTable KSTREAM-REDUCE-0000000002>
        """
        call = Call.here("reduce")
        function = call.function(reducer, FunctionKind.REDUCER)
        table_store = self._aggregations.store(call, store, REDUCE, name, self._part.value_serde)
        node_name = self._part.graph.node_name(REDUCE, name)
        operator = (StreamReduce, (function.call,))
        return KTable(self._aggregations.table(call, table_store, node_name, operator))

    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A | None],
        *,
        store: StoreArgument[K, A] = None,
        value_serde: SerdeLike[A] | None = None,
        name: str | None = None,
    ) -> KTable[K, A]:
        """Fold the values of each key into an aggregate.

        Args:
            aggregator: `f(key, value, aggregate)` -> new aggregate; None deletes the row.

        >>> from tidewheel import StreamsBuilder
        >>> words = StreamsBuilder().stream("words", key_serde=str, value_serde=str)
        >>> words.group_by_key().aggregate(
        ...     lambda: 0, lambda key, word, total: total + len(word), value_serde=int
        ... )
        <KTable KSTREAM-AGGREGATE-0000000002>
        """
        call = Call.here("aggregate")
        start = call.function(initializer, FunctionKind.INITIALIZER)
        step = call.function(aggregator, FunctionKind.AGGREGATOR)
        serde = aggregate_serde(call, store, value_serde)
        table_store = self._aggregations.store(call, store, AGGREGATE, name, serde)
        node_name = self._part.graph.node_name(AGGREGATE, name)
        operator = (StreamAggregate, (start.call, step.call))
        return KTable(self._aggregations.table(call, table_store, node_name, operator))

    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedKStream[K, V]: ...
    @overload
    def windowed_by(self, windows: FixedWindows | SlidingWindows) -> TimeWindowedKStream[K, V]: ...
    def windowed_by(
        self, windows: SessionWindows | FixedWindows | SlidingWindows
    ) -> SessionWindowedKStream[K, V] | TimeWindowedKStream[K, V]:
        """Window the groups by time.

        >>> from tidewheel import StreamsBuilder, TimeWindows
        >>> words = StreamsBuilder().stream("words", key_serde=str, value_serde=str)
        >>> words.group_by_key().windowed_by(TimeWindows(60_000)).count()
        <KTable KSTREAM-AGGREGATE-0000000002>
        """
        return windowed_by(Call.here("windowed_by"), self._aggregations, windows)

    def cogroup(self, aggregator: Callable[[K, V, A], A | None]) -> CogroupedKStream[K, A]:
        """Start a cogroup: an aggregation of several grouped streams into one table.

        >>> from tidewheel import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> carts = builder.stream("carts", key_serde=str, value_serde=str).group_by_key()
        >>> visits = builder.stream("visits", key_serde=str, value_serde=str).group_by_key()
        >>> customers = carts.cogroup(lambda key, item, seen: [*seen, item])
        >>> customers.cogroup(visits, lambda key, page, seen: [*seen, page]).aggregate(list)
        <KTable COGROUPKSTREAM-MERGE-0000000005>
        """
        call = Call.here("cogroup")
        step = call.function(aggregator, FunctionKind.AGGREGATOR)
        return CogroupedKStream(CogroupPart(self._part.graph, {self._aggregations: step.call}))
