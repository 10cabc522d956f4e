"""Windowed grouped streams: count, reduce and aggregate by key and window."""

from collections.abc import Callable
from typing import Any, ClassVar, Generic, Self, TypeVar, get_args

from tidewheel.state_stores.stores.windowed import Windowed
from tidewheel.streams.definitions.call import Call
from tidewheel.streams.definitions.materialized import StoreArgument
from tidewheel.streams.definitions.misplaced_calls import MisplacedCalls
from tidewheel.streams.dsl.ktable import KTable
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.graph.aggregation_nodes import (
    AGGREGATE,
    REDUCE,
    StreamAggregations,
    aggregate_serde,
    windowed_serde,
)
from tidewheel.streams.graph.logical_graph import AnySerde, TableStore
from tidewheel.streams.operators.windows.session_windows import SessionWindowAggregate
from tidewheel.streams.operators.windows.sliding_windows import SlidingWindowAggregate
from tidewheel.streams.operators.windows.time_windows import TimeWindowAggregate, TimeWindowCount
from tidewheel.streams.operators.windows.windowed import Fold, WindowedOperator, counting, reducing
from tidewheel.streams.serdes import SerdeLike, Serdes
from tidewheel.streams.user_functions import FunctionKind
from tidewheel.streams.windows import (
    EmitStrategy,
    FixedWindows,
    SessionWindows,
    SlidingWindows,
    UnlimitedWindows,
    Windows,
)

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")


class WindowedKStream(MisplacedCalls, Generic[K, V]):
    """Base of time-windowed and session-windowed streams."""

    #: Window types whose `count` advances the name counter for a store without a name, as in Kafka
    #: Streams.
    _numbers_count: ClassVar[tuple[type[Windows], ...]] = (FixedWindows, SessionWindows)

    def __init__(
        self,
        aggregations: StreamAggregations,
        windows: Windows,
        emit: EmitStrategy = "on_window_update",
    ) -> None:
        self._aggregations = aggregations
        self._windows = windows
        self._emit: EmitStrategy = emit

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._aggregations.part.node.name} {self._windows}>"

    def emit_strategy(self, strategy: EmitStrategy) -> Self:
        """Return the same stream with another emit strategy.

        With "on_window_close", records past a window's close trigger its result. Closed windows are
        emitted, ordered by end, at most once per `emit_interval_ms` of wall-clock time.

        Args:
            strategy: "on_window_update" (a result per update, the default) or "on_window_close"
                (one result per window).

        Raises:
            TopologyError: Another strategy, or "on_window_close" for unlimited windows, which never
                close.

        >>> from tidewheel import StreamsBuilder, TimeWindows
        >>> words = StreamsBuilder().stream("words", key_serde=str, value_serde=str)
        >>> minutes = words.group_by_key().windowed_by(TimeWindows(60_000, grace=5_000))
        >>> minutes.emit_strategy("on_window_close").count()
        <KTable KSTREAM-AGGREGATE-0000000002>
        """
        call = Call.here("emit_strategy")
        if strategy not in get_args(EmitStrategy):
            raise TopologyError(
                f"{call.context}: {strategy!r} is not a strategy; give 'on_window_update' or 'on_window_close'"
            )
        if strategy == "on_window_close" and isinstance(self._windows, UnlimitedWindows):
            raise TopologyError(
                f"{call.context}: unlimited windows never close, so there would be no result; "
                "give 'on_window_update', or windows that end"
            )
        return type(self)(self._aggregations, self._windows, strategy)

    def count(
        self, *, store: StoreArgument[K, int] = None, name: str | None = None
    ) -> KTable[Windowed[K], int]:
        """Count the records of each key and window.

        >>> from tidewheel import StreamsBuilder, TimeWindows
        >>> words = StreamsBuilder().stream("words", key_serde=str, value_serde=str)
        >>> hours = words.group_by_key().windowed_by(TimeWindows(3_600_000))
        >>> hours.count(store="words-per-hour").queryable_store_name
        'words-per-hour'
        """
        call = Call.here("count")
        if isinstance(self._windows, self._numbers_count):
            self._aggregations.consume_number(store)
        table_store = self._store(call, store, AGGREGATE, name, Serdes.int64())
        return self._table(call, table_store, AGGREGATE, name, counting(), counts=True)

    def reduce(
        self,
        reducer: Callable[[V, V], V | None],
        *,
        store: StoreArgument[K, V] = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], V]:
        """Combine the values of each key and window; the first value is the first result.

        Args:
            reducer: `f(aggregate, value)` -> new aggregate; None deletes the row. For sessions it
                also merges two aggregates.

        >>> from tidewheel import SlidingWindows, StreamsBuilder
        >>> prices = StreamsBuilder().stream("prices", key_serde=str, value_serde=float)
        >>> prices.group_by_key().windowed_by(SlidingWindows(60_000)).reduce(max)
        <KTable KSTREAM-REDUCE-0000000002>
        """
        call = Call.here("reduce")
        function = call.function(reducer, FunctionKind.REDUCER)
        table_store = self._store(call, store, REDUCE, name, self._aggregations.part.value_serde)
        return self._table(call, table_store, REDUCE, name, reducing(function.call))

    def _fold(self, call: Call, initializer: object, aggregator: object, merger: object) -> Fold:
        start = call.function(initializer, FunctionKind.INITIALIZER)
        step = call.function(aggregator, FunctionKind.AGGREGATOR)
        return Fold(start.call, step.call, check_merger(call, self._windows, merger))

    def _aggregated(
        self,
        call: Call,
        fold: Fold,
        store: StoreArgument[Any, Any],
        value_serde: SerdeLike[Any] | None,
        name: str | None,
    ) -> KTable[Windowed[K], Any]:
        table_store = self._store(
            call, store, AGGREGATE, name, aggregate_serde(call, store, value_serde)
        )
        return self._table(call, table_store, AGGREGATE, name, fold)

    def _store(
        self,
        call: Call,
        store: StoreArgument[Any, Any],
        prefix: str,
        name: str | None,
        value_serde: AnySerde | None,
    ) -> TableStore:
        return self._aggregations.store(
            call, store, prefix, name, value_serde, (self._windows, self._emit)
        )

    def _table(
        self,
        call: Call,
        table_store: TableStore,
        prefix: str,
        name: str | None,
        fold: Fold,
        *,
        counts: bool = False,
    ) -> KTable[Windowed[K], Any]:
        node_name = self._aggregations.part.graph.node_name(prefix, name)
        operator = windowed_operator(self._windows, table_store, fold, counts=counts)
        return KTable(self._aggregations.table(call, table_store, node_name, operator))


class TimeWindowedKStream(WindowedKStream[K, V], Generic[K, V]):
    """A grouped stream in time windows (tumbling, hopping, sliding, calendar, unlimited).

    Made by `windowed_by`. Kafka Streams' TimeWindowedKStream. Records with a null key and late
    records are dropped and counted.

    >>> from tidewheel import CalendarWindows, StreamsBuilder
    >>> words = StreamsBuilder().stream("words", key_serde=str, value_serde=str)
    >>> words.group_by_key().windowed_by(CalendarWindows("day", tz="Europe/Berlin")).count()
    <KTable KSTREAM-AGGREGATE-0000000002>
    """

    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A | None],
        *,
        merger: None = None,
        store: StoreArgument[K, A] = None,
        value_serde: SerdeLike[A] | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], A]:
        """Fold the values of each key and window into an aggregate.

        Args:
            aggregator: `f(key, value, aggregate)` -> new aggregate; None deletes the row.

        >>> from tidewheel import StreamsBuilder, TimeWindows
        >>> words = StreamsBuilder().stream("words", key_serde=str, value_serde=str)
        >>> words.group_by_key().windowed_by(TimeWindows(60_000, advance=10_000)).aggregate(
        ...     lambda: 0, lambda key, word, total: total + len(word), value_serde=int
        ... )
        <KTable KSTREAM-AGGREGATE-0000000002>
        """
        call = Call.here("aggregate")
        fold = self._fold(call, initializer, aggregator, merger)
        return self._aggregated(call, fold, store, value_serde, name)


class SessionWindowedKStream(WindowedKStream[K, V], Generic[K, V]):
    """A grouped stream in sessions; made by `windowed_by(SessionWindows(...))`.

    Kafka Streams' SessionWindowedKStream. A record that merges sessions deletes them and writes the
    merged one; without a cache, downstream first receives a None for each deleted session.

    >>> from tidewheel import SessionWindows, StreamsBuilder
    >>> from tidewheel.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> clicks = builder.stream("clicks", key_serde=str, value_serde=str).group_by_key()
    >>> visits = clicks.windowed_by(SessionWindows(10, grace=30)).reduce(lambda one, two: one + two)
    >>> visits.to_stream().foreach(lambda key, pages: print(key.key, key.start, key.end, pages))
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     source = driver.create_input_topic("clicks", key_serde=str, value_serde=str)
    ...     for page, time_ms in (("x", 0), ("y", 20), ("z", 10)):
    ...         source.pipe_input("ann", page, time_ms)
    ann 0 0 x
    ann 20 20 y
    ann 0 0 None
    ann 20 20 None
    ann 0 20 xyz
    """

    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A | None],
        *,
        merger: Callable[[K, A, A], A] | None = None,
        store: StoreArgument[K, A] = None,
        value_serde: SerdeLike[A] | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], A]:
        """Fold the values of each key and session into an aggregate.

        Args:
            merger: `f(key, aggregate1, aggregate2)` -> merged aggregate; required for sessions. It
                is called for each session that a record merges, earliest first: `aggregate1` is the
                result so far (at first the initial aggregate), `aggregate2` the session's.

        >>> from tidewheel import SessionWindows, StreamsBuilder
        >>> clicks = StreamsBuilder().stream("clicks", key_serde=str, value_serde=str)
        >>> clicks.group_by_key().windowed_by(SessionWindows(60_000)).aggregate(
        ...     lambda: "",
        ...     lambda key, page, path: f"{path}/{page}",
        ...     merger=lambda key, one, two: one + two,
        ...     value_serde=str,
        ... )
        <KTable KSTREAM-AGGREGATE-0000000002>
        """
        call = Call.here("aggregate")
        fold = self._fold(call, initializer, aggregator, merger)
        return self._aggregated(call, fold, store, value_serde, name)


def windowed_by(
    call: Call, aggregations: StreamAggregations, windows: object
) -> "SessionWindowedKStream[Any, Any] | TimeWindowedKStream[Any, Any]":
    """Return the windowed stream of a group."""
    if isinstance(windows, SessionWindows):
        return SessionWindowedKStream(aggregations, windows)
    return TimeWindowedKStream(aggregations, check_time_windows(call, windows))


def check_time_windows(call: Call, windows: object) -> FixedWindows | SlidingWindows:
    """Return `windows`; raise `TopologyError` for other types."""
    if isinstance(windows, FixedWindows | SlidingWindows):
        return windows
    raise TopologyError(
        f"{call.context}: the windows are of type {type(windows).__name__}; give TimeWindows, SlidingWindows, "
        "SessionWindows, CalendarWindows, CustomWindows or UnlimitedWindows"
    )


def check_merger(
    call: Call, windows: Windows | None, merger: object | None
) -> Callable[[Any, Any, Any], Any] | None:
    """Return the merger, which session windows need and others reject."""
    if isinstance(windows, SessionWindows):
        if merger is None:
            raise TopologyError(
                f"{call.context}: sessions merge when a record comes between them; "
                "give merger=f(key, aggregate1, aggregate2)"
            )
        return call.function(merger, FunctionKind.MERGER).call
    if merger is not None:
        raise TopologyError(f"{call.context}: only sessions merge; leave merger out")
    return None


def windowed_operator(
    windows: Windows, table_store: TableStore, fold: Fold, *, counts: bool = False
) -> tuple[type[WindowedOperator], tuple[Any, ...]]:
    """Return the window operator and its arguments.

    `counts`: `fold` is a count, so the faster `TimeWindowCount` may be used.
    """
    arguments = (windows, fold, table_store.emit, windowed_serde(table_store))
    if isinstance(windows, SessionWindows):
        return SessionWindowAggregate, (*arguments, table_store.retention_ms)
    if isinstance(windows, SlidingWindows):
        return SlidingWindowAggregate, arguments
    return TimeWindowCount if counts else TimeWindowAggregate, arguments
