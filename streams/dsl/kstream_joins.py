"""`join`, `left_join` and `outer_join` of a stream with a stream, table or global table.

Generated names are those of Kafka Streams' KStreamImpl and KStreamImplJoin.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeGuard, TypeVar, overload

import msgspec

from tidewheel.streams.definitions.call import Call
from tidewheel.streams.definitions.materialized import StoreArgument
from tidewheel.streams.dsl.global_ktable import GlobalKTable, global_join
from tidewheel.streams.dsl.ktable import KTable
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.graph.logical_graph import AnySerde, GraphNode, RepartitionNode
from tidewheel.streams.graph.parts import StreamPart
from tidewheel.streams.graph.stream_join_nodes import (
    JoinCall,
    JoinOptions,
    join_streams,
    join_table,
    suffixed,
)
from tidewheel.streams.serdes import SerdeLike, SerdeOf
from tidewheel.streams.user_functions import FunctionKind
from tidewheel.streams.windows import JoinWindows
from tidewheel.tasks.durations import Duration

if TYPE_CHECKING:
    from tidewheel.streams.dsl.kstream import KStream

K = TypeVar("K")
V = TypeVar("V")
V2 = TypeVar("V2")
GK = TypeVar("GK")
R = TypeVar("R")


class KStreamJoins(ABC, Generic[K, V]):
    """The joins of a `KStream`."""

    _part: StreamPart
    #: Repartition node of this stream's last join; an unnamed join reuses it.
    _repartition: RepartitionNode | None = None

    @abstractmethod
    def _joined(
        self, node: GraphNode, key_serde: AnySerde | None, *, rekeyed: bool = False
    ) -> "KStream[K, Any]":
        """Return the stream of a join's results."""

    @overload
    def join(
        self,
        other: "KStream[K, V2]",
        joiner: Callable[[V, V2], R],
        *,
        within: JoinWindows,
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        other_value_serde: SerdeOf[V2] | None = None,
        store: StoreArgument[Any, Any] = None,
        name: str | None = None,
    ) -> "KStream[K, R]": ...
    @overload
    def join(
        self,
        other: "KStream[K, V2]",
        joiner: Callable[[K, V, V2], R],
        *,
        within: JoinWindows,
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        other_value_serde: SerdeOf[V2] | None = None,
        store: StoreArgument[Any, Any] = None,
        name: str | None = None,
    ) -> "KStream[K, R]": ...
    @overload
    def join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[V, V2], R],
        *,
        grace: Duration | None = None,
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        other_value_serde: SerdeOf[V2] | None = None,
        store: StoreArgument[Any, Any] = None,
        name: str | None = None,
    ) -> "KStream[K, R]": ...
    @overload
    def join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[K, V, V2], R],
        *,
        grace: Duration | None = None,
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        other_value_serde: SerdeOf[V2] | None = None,
        store: StoreArgument[Any, Any] = None,
        name: str | None = None,
    ) -> "KStream[K, R]": ...
    @overload
    def join(
        self,
        other: GlobalKTable[GK, V2],
        joiner: Callable[[V, V2], R],
        *,
        key_selector: Callable[[V], GK | None],
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        other_value_serde: SerdeOf[V2] | None = None,
        name: str | None = None,
    ) -> "KStream[K, R]": ...
    @overload
    def join(
        self,
        other: GlobalKTable[GK, V2],
        joiner: Callable[[V, V2], R],
        *,
        key_selector: Callable[[K, V], GK | None],
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        other_value_serde: SerdeOf[V2] | None = None,
        name: str | None = None,
    ) -> "KStream[K, R]": ...
    @overload
    def join(
        self,
        other: GlobalKTable[GK, V2],
        joiner: Callable[[K, V, V2], R],
        *,
        key_selector: Callable[[V], GK | None],
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        other_value_serde: SerdeOf[V2] | None = None,
        name: str | None = None,
    ) -> "KStream[K, R]": ...
    @overload
    def join(
        self,
        other: GlobalKTable[GK, V2],
        joiner: Callable[[K, V, V2], R],
        *,
        key_selector: Callable[[K, V], GK | None],
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        other_value_serde: SerdeOf[V2] | None = None,
        name: str | None = None,
    ) -> "KStream[K, R]": ...
    @overload
    def join(
        self,
        other: GlobalKTable[GK, V2],
        joiner: Callable[[K, GK, V, V2], R],
        *,
        key_selector: Callable[[V], GK | None],
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        other_value_serde: SerdeOf[V2] | None = None,
        name: str | None = None,
    ) -> "KStream[K, R]": ...
    @overload
    def join(
        self,
        other: GlobalKTable[GK, V2],
        joiner: Callable[[K, GK, V, V2], R],
        *,
        key_selector: Callable[[K, V], GK | None],
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        other_value_serde: SerdeOf[V2] | None = None,
        name: str | None = None,
    ) -> "KStream[K, R]": ...
    def join(
        self,
        other: Any,
        joiner: Callable[..., Any],
        *,
        within: JoinWindows | None = None,
        grace: Duration | None = None,
        key_selector: Callable[..., Any] | None = None,
        key_serde: SerdeLike[Any] | None = None,
        value_serde: SerdeLike[Any] | None = None,
        other_value_serde: SerdeLike[Any] | None = None,
        store: StoreArgument[Any, Any] = None,
        name: str | None = None,
    ) -> "KStream[K, Any]":
        """Join with another stream's records near in time, or with the row of a table.

        Null keys and null values are dropped. Two streams give one result per pair, with the larger
        timestamp; a record later than `JoinWindows` allows finds no partner. A table join needs a
        row of the key: the current row, or the row at the record's time if the table is versioned.
        A global table is read at the key that `key_selector` returns; null stream keys are allowed,
        records with a null selected key are dropped.

        Args:
            other: A stream or table with the same keys, or a global table.
            joiner: `f(left, right)` or `f(key, left, right)` -> result value; this stream is the
                left side. With a global table also `f(key, mapped_key, left, right)`.
            within: Maximum time difference between two streams' records.
            grace: Time to buffer records for late rows of a versioned table; results are then in
                timestamp order. Default: no buffering.
            key_selector: `f(value)` or `f(key, value)` -> the global table's key.
            other_value_serde: Serde of the other stream's values; default: that stream's. A table
                has a value serde of its own.
            store: Name prefix or `Materialized` of the stores; a table join has a store only with
                `grace`. With a `Materialized` without a name, store names are generated.
            name: Prefix of nodes, repartition topics and, without `store`, stores.

        >>> from tidewheel import JoinWindows, StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> clicks = builder.stream("clicks", key_serde=str, value_serde=str)
        >>> views = builder.stream("views", key_serde=str, value_serde=str)
        >>> clicks.join(views, lambda click, view: f"{view} > {click}", within=JoinWindows(60_000))
        <KStream KSTREAM-MERGE-0000000006>
        >>> users = builder.table("users", key_serde=str, value_serde=str)
        >>> clicks.join(users, lambda click, user: f"{user}: {click}")
        <KStream KSTREAM-JOIN-0000000010>
        """
        return self._join(
            JoinOptions(
                Call.here("join"), joiner, within, grace, key_serde, value_serde,
                other_value_serde, store, name, keeps_left=False, keeps_right=False,
                key_selector=key_selector,
            ),
            other,
        )  # fmt: skip

    @overload
    def left_join(
        self,
        other: "KStream[K, V2]",
        joiner: Callable[[V, V2 | None], R],
        *,
        within: JoinWindows,
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        other_value_serde: SerdeOf[V2] | None = None,
        store: StoreArgument[Any, Any] = None,
        name: str | None = None,
    ) -> "KStream[K, R]": ...
    @overload
    def left_join(
        self,
        other: "KStream[K, V2]",
        joiner: Callable[[K, V, V2 | None], R],
        *,
        within: JoinWindows,
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        other_value_serde: SerdeOf[V2] | None = None,
        store: StoreArgument[Any, Any] = None,
        name: str | None = None,
    ) -> "KStream[K, R]": ...
    @overload
    def left_join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[V, V2 | None], R],
        *,
        grace: Duration | None = None,
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        other_value_serde: SerdeOf[V2] | None = None,
        store: StoreArgument[Any, Any] = None,
        name: str | None = None,
    ) -> "KStream[K, R]": ...
    @overload
    def left_join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[K, V, V2 | None], R],
        *,
        grace: Duration | None = None,
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        other_value_serde: SerdeOf[V2] | None = None,
        store: StoreArgument[Any, Any] = None,
        name: str | None = None,
    ) -> "KStream[K, R]": ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[GK, V2],
        joiner: Callable[[V, V2 | None], R],
        *,
        key_selector: Callable[[V], GK | None],
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        other_value_serde: SerdeOf[V2] | None = None,
        name: str | None = None,
    ) -> "KStream[K, R]": ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[GK, V2],
        joiner: Callable[[V, V2 | None], R],
        *,
        key_selector: Callable[[K, V], GK | None],
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        other_value_serde: SerdeOf[V2] | None = None,
        name: str | None = None,
    ) -> "KStream[K, R]": ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[GK, V2],
        joiner: Callable[[K, V, V2 | None], R],
        *,
        key_selector: Callable[[V], GK | None],
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        other_value_serde: SerdeOf[V2] | None = None,
        name: str | None = None,
    ) -> "KStream[K, R]": ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[GK, V2],
        joiner: Callable[[K, V, V2 | None], R],
        *,
        key_selector: Callable[[K, V], GK | None],
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        other_value_serde: SerdeOf[V2] | None = None,
        name: str | None = None,
    ) -> "KStream[K, R]": ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[GK, V2],
        joiner: Callable[[K, GK | None, V, V2 | None], R],
        *,
        key_selector: Callable[[V], GK | None],
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        other_value_serde: SerdeOf[V2] | None = None,
        name: str | None = None,
    ) -> "KStream[K, R]": ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[GK, V2],
        joiner: Callable[[K, GK | None, V, V2 | None], R],
        *,
        key_selector: Callable[[K, V], GK | None],
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        other_value_serde: SerdeOf[V2] | None = None,
        name: str | None = None,
    ) -> "KStream[K, R]": ...
    def left_join(
        self,
        other: Any,
        joiner: Callable[..., Any],
        *,
        within: JoinWindows | None = None,
        grace: Duration | None = None,
        key_selector: Callable[..., Any] | None = None,
        key_serde: SerdeLike[Any] | None = None,
        value_serde: SerdeLike[Any] | None = None,
        other_value_serde: SerdeLike[Any] | None = None,
        store: StoreArgument[Any, Any] = None,
        name: str | None = None,
    ) -> "KStream[K, Any]":
        """Join as `join` does, and emit each record of this stream at least once.

        A record without a partner is joined with None. In a join of two streams it is emitted, with
        its own timestamp, once a record of either side closes its window; with a table immediately.
        A record with a null key, or a null selected key, is also emitted immediately. A record with
        a null value is dropped.

        Args:
            joiner: As in `join`; the right value, and the selected key of a global table, may be
                None.
            grace: Time to buffer records for late rows of a versioned table.

        >>> from tidewheel import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> clicks = builder.stream("clicks", key_serde=str, value_serde=str)
        >>> users = builder.table("users", key_serde=str, value_serde=str)
        >>> clicks.left_join(users, lambda click, user: f"{user or 'somebody'}: {click}", name="named")
        <KStream named>
        """
        return self._join(
            JoinOptions(
                Call.here("left_join"), joiner, within, grace, key_serde, value_serde,
                other_value_serde, store, name, keeps_left=True, keeps_right=False,
                key_selector=key_selector,
            ),
            other,
        )  # fmt: skip

    @overload
    def outer_join(
        self,
        other: "KStream[K, V2]",
        joiner: Callable[[V | None, V2 | None], R],
        *,
        within: JoinWindows,
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        other_value_serde: SerdeOf[V2] | None = None,
        store: StoreArgument[Any, Any] = None,
        name: str | None = None,
    ) -> "KStream[K, R]": ...
    @overload
    def outer_join(
        self,
        other: "KStream[K, V2]",
        joiner: Callable[[K, V | None, V2 | None], R],
        *,
        within: JoinWindows,
        key_serde: SerdeOf[K] | None = None,
        value_serde: SerdeOf[V] | None = None,
        other_value_serde: SerdeOf[V2] | None = None,
        store: StoreArgument[Any, Any] = None,
        name: str | None = None,
    ) -> "KStream[K, R]": ...
    def outer_join(
        self,
        other: Any,
        joiner: Callable[..., Any],
        *,
        within: JoinWindows | None = None,
        key_serde: SerdeLike[Any] | None = None,
        value_serde: SerdeLike[Any] | None = None,
        other_value_serde: SerdeLike[Any] | None = None,
        store: StoreArgument[Any, Any] = None,
        name: str | None = None,
    ) -> "KStream[K, Any]":
        """Join two streams and emit each record of both sides at least once.

        Args:
            joiner: `f(left, right)` or `f(key, left, right)` -> result value; one side may be None.
            within: Maximum time difference between records.
            other_value_serde: Serde of the other stream's values; default: that stream's.

        >>> from tidewheel import JoinWindows, StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> orders = builder.stream("orders", key_serde=str, value_serde=int)
        >>> payments = builder.stream("payments", key_serde=str, value_serde=int)
        >>> orders.outer_join(payments, lambda due, paid: (due or 0) - (paid or 0), within=JoinWindows(3_600_000))
        <KStream KSTREAM-MERGE-0000000006>
        """
        return self._join(
            JoinOptions(
                Call.here("outer_join"), joiner, within, None, key_serde, value_serde,
                other_value_serde, store, name, keeps_left=True, keeps_right=True,
            ),
            other,
        )  # fmt: skip

    def _join(self, options: JoinOptions, other: object) -> "KStream[K, Any]":
        if _is_global_table(other):
            return self._join_global(JoinCall(options, FunctionKind.GLOBAL_JOINER), other)
        if options.key_selector is not None:
            raise TopologyError(
                f"{options.call.context}: key_selector= belongs to joins with a global table; use select_key() before this join"
            )
        if _is_stream(other):
            return self._join_stream(JoinCall(options), other)
        if _is_table(other):
            return self._join_table(JoinCall(options), other)
        raise TopologyError(
            f"{options.call.context}: an object of type {type(other).__name__} can't be joined; give a KStream, a KTable or "
            "a GlobalKTable"
        )

    def _join_stream(self, join: JoinCall, other: "KStreamJoins[K, Any]") -> "KStream[K, Any]":
        join.windows()  # checks first: a rejected join must not advance the name counter
        other_part = other._part  # noqa: SLF001 - same class
        join.check_graph(self._part.graph, other_part.graph, "stream")
        left = self._placed(join, "-left", join.value)
        right = other._placed(join, "-right", join.other_value)  # noqa: SLF001 - as above
        # Kafka Streams drops the key serde; the result keeps it here if both sides have the same.
        same = left.key_serde if left.key_serde is right.key_serde else None
        return self._joined(join_streams(join, left, right), join.key or same)

    def _join_table(self, join: JoinCall, table: KTable[K, Any]) -> "KStream[K, Any]":
        other_part = table._part  # noqa: SLF001 - a join reads both sides  # pyright: ignore[reportPrivateUsage]
        join.check_graph(self._part.graph, other_part.graph, "table")
        join.check_table(other_part)
        placed = self._placed(join, "", join.value)
        return self._joined(join_table(join, placed, other_part), join.key or placed.key_serde)

    def _join_global(self, join: JoinCall, table: GlobalKTable[Any, Any]) -> "KStream[K, Any]":
        options = join.options
        if join.keeps_right:
            raise TopologyError(
                f"{join.call.context}: a stream has no outer join with a global table, whose rows are no events; use left_join()"
            )
        if options.within is not None or options.grace is not None or options.store is not None:
            raise TopologyError(
                f"{join.call.context}: a join with a global table looks a row up as it is now and keeps nothing; leave "
                "within=, grace= and store= out"
            )
        node = global_join(
            self._part.graph,
            join.call,
            table,
            join.joiner,
            options.key_selector,
            left=join.keeps_left,
            name=join.name,
        )
        self._part.graph.add(node, self._part.node)
        return self._joined(node, join.key or self._part.key_serde, rekeyed=self._part.rekeyed)

    def _placed(self, join: JoinCall, suffix: str, value: AnySerde | None) -> StreamPart:
        part = self._part
        if not part.rekeyed:
            return part
        own_name = suffixed(join.name, suffix)
        key, value = join.key or part.key_serde, value or part.value_serde
        # Called even if the topic is reused: as in Kafka Streams, it advances the name counter.
        repartition = part.graph.repartition(
            own_name or part.node.name, (key, value), generated=own_name is None, call=join.call
        )
        repartition.placeholders = join.placeholders(other=suffix == "-right")
        if own_name is not None or self._repartition is None:
            part.graph.add(repartition, part.node)
            self._repartition = repartition
        return msgspec.structs.replace(
            part, node=self._repartition, key_serde=key, value_serde=value, rekeyed=False
        )


def _is_stream(other: object) -> TypeGuard[KStreamJoins[Any, Any]]:
    return isinstance(other, KStreamJoins)


def _is_table(other: object) -> TypeGuard[KTable[Any, Any]]:
    return isinstance(other, KTable)


def _is_global_table(other: object) -> TypeGuard[GlobalKTable[Any, Any]]:
    return isinstance(other, GlobalKTable)
