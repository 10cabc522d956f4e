"""`join`, `left_join` and `outer_join` of streams: with another stream, with a table, or with a global table.

Both sides must be where their keys belong: a side whose keys may have changed first goes through a repartition topic, and
topics that are read as they are must have equal partition counts. Nodes, stores and topics have the names they have in
Kafka Streams' KStreamImpl and KStreamImplJoin.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeGuard, TypeVar, overload

import msgspec

from tidewheel.streams.definitions.call import Call
from tidewheel.streams.definitions.materialized import StoreArgument
from tidewheel.streams.dsl.global_ktable import GlobalKTable, global_join
from tidewheel.streams.dsl.ktable import KTable
from tidewheel.streams.durations import Duration
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.graph.logical_graph import AnySerde, GraphNode, RepartitionNode
from tidewheel.streams.graph.parts import StreamPart
from tidewheel.streams.graph.stream_join_nodes import (
    Join,
    JoinOptions,
    join_streams,
    join_table,
    suffixed,
)
from tidewheel.streams.serdes import SerdeLike, SerdeOf
from tidewheel.streams.user_functions import FunctionKind
from tidewheel.streams.windows import JoinWindows

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
    #: Where a join without a name sends this stream to, so that the next one takes its records from there.
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
        """Join records with those of another stream that are near in time, or with the row of a table.

        Records with a null key or a null value are dropped. Each pair of two streams' records gives one result, with
        the larger of their timestamps; a record that comes later than `JoinWindows` lets it finds no partners any more.
        With a table, a record gives a result if the table has a row for its key: now, or at the record's time if the
        table is versioned. With a global table, it is the row of the key that `key_selector` returns, as it is now; null
        keys of the stream are no matter, null selected ones are dropped.

        Args:
            other: A stream or a table of the same keys, or a global table.
            joiner: `f(left, right)` or `f(key, left, right)` -> the result's value; this stream is the left side. With
                a global table also `f(key, mapped_key, left, right)`: the stream's key and the selected one.
            within: How near in time records of two streams must be.
            grace: How long records wait for rows of a versioned table that come late; they come out in the order of
                time. Not at all, if not given.
            key_selector: `f(value)` or `f(key, value)` -> the global table's key.
            key_serde: Serde of keys; the stream's if not given.
            value_serde: Serde of this stream's values, likewise.
            other_value_serde: Serde of the other stream's values, likewise; a table has its own.
            store: What the stores' names begin with, or how they are kept; a join with a table has one with `grace`.
                A `Materialized` without a name leaves their names generated, also where `name` is given.
            name: What the names of nodes, repartition topics and, without `store`, of stores begin with.

        Raises:
            TopologyError: `other` can't be joined, or the options do not fit it.

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
        """Join as `join` does, and let each of this stream's records come out at least once.

        A record without a partner has None on the right: with another stream it comes out, with its own timestamp, once
        a record of either side has shown that its window is over; with a table at once. So does, at once, a record with
        a null key, or a null selected one. Null values are dropped.

        Args:
            other: A stream or a table of the same keys, or a global table.
            joiner: `f(left, right)` or `f(key, left, right)` -> the result's value; the right side may be None. With a
                global table also `f(key, mapped_key, left, right)`; the selected key may then be None, too.
            within: How near in time records of two streams must be.
            grace: How long records wait for rows of a versioned table that come late.
            key_selector: `f(value)` or `f(key, value)` -> the global table's key.
            key_serde: Serde of keys; the stream's if not given.
            value_serde: Serde of this stream's values, likewise.
            other_value_serde: Serde of the other stream's values, likewise; a table has its own.
            store: What the stores' names begin with, or how they are kept; a join with a table has one with `grace`.
                A `Materialized` without a name leaves their names generated, also where `name` is given.
            name: What the names of nodes, repartition topics and, without `store`, of stores begin with.

        Raises:
            TopologyError: `other` can't be joined, or the options do not fit it.

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
        """Join two streams as `left_join` does, and let records of both sides come out at least once.

        Args:
            other: A stream of the same keys.
            joiner: `f(left, right)` or `f(key, left, right)` -> the result's value; one side may be None.
            within: How near in time records must be.
            key_serde: Serde of keys; the stream's if not given.
            value_serde: Serde of this stream's values, likewise.
            other_value_serde: Serde of the other stream's values, likewise.
            store: What the stores' names begin with, or how they are kept. A `Materialized` without a name leaves
                their names generated, also where `name` is given.
            name: What the names of nodes, repartition topics and, without `store`, of stores begin with.

        Raises:
            TopologyError: `other` is not a stream of the same builder.

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

    # -- parts -----------------------------------------------------------------------------------------------------

    def _join(self, options: JoinOptions, other: object) -> "KStream[K, Any]":
        """Join with whatever `other` is."""
        if _is_global_table(other):
            return self._join_global(Join(options, FunctionKind.GLOBAL_JOINER), other)
        if options.key_selector is not None:
            raise TopologyError(
                f"{options.call.context}: key_selector= belongs to joins with a global table; use select_key() before this join"
            )
        if _is_stream(other):
            return self._join_stream(Join(options), other)
        if _is_table(other):
            return self._join_table(Join(options), other)
        raise TopologyError(
            f"{options.call.context}: an object of type {type(other).__name__} can't be joined; give a KStream, a KTable or "
            "a GlobalKTable"
        )

    def _join_stream(self, join: Join, other: "KStreamJoins[K, Any]") -> "KStream[K, Any]":
        join.windows()  # so that no name is used up by a join that is refused
        theirs = other._part  # noqa: SLF001 - its own class
        join.check_graph(self._part.graph, theirs.graph, "stream")
        left = self._placed(join, "-left", join.value)
        right = other._placed(join, "-right", join.other_value)  # noqa: SLF001 - as above
        # Kafka Streams forgets the serde; where both sides have the same, that is the result's.
        same = left.key_serde if left.key_serde is right.key_serde else None
        return self._joined(join_streams(join, left, right), join.key or same)

    def _join_table(self, join: Join, table: KTable[K, Any]) -> "KStream[K, Any]":
        theirs = table._part  # noqa: SLF001 - joins know both sides  # pyright: ignore[reportPrivateUsage]
        join.check_graph(self._part.graph, theirs.graph, "table")
        join.check_table(theirs)
        placed = self._placed(join, "", join.value)
        return self._joined(join_table(join, placed, theirs), join.key or placed.key_serde)

    def _join_global(self, join: Join, table: GlobalKTable[Any, Any]) -> "KStream[K, Any]":
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

    def _placed(self, join: Join, suffix: str, value: AnySerde | None) -> StreamPart:
        """Return the stream with its records where their keys belong."""
        part = self._part
        if not part.rekeyed:
            return part
        given = suffixed(join.name, suffix)
        key, value = join.key or part.key_serde, value or part.value_serde
        # The numbers are used up for each join, also where the topic is there already.
        made = part.graph.repartition(
            given or part.node.name, (key, value), generated=given is None, call=join.call
        )
        made.placeholders = join.placeholders(other=suffix == "-right")
        if given is not None or self._repartition is None:
            part.graph.add(made, part.node)
            self._repartition = made
        return msgspec.structs.replace(
            part, node=self._repartition, key_serde=key, value_serde=value, rekeyed=False
        )


def _is_stream(other: object) -> TypeGuard[KStreamJoins[Any, Any]]:
    return isinstance(other, KStreamJoins)


def _is_table(other: object) -> TypeGuard[KTable[Any, Any]]:
    return isinstance(other, KTable)


def _is_global_table(other: object) -> TypeGuard[GlobalKTable[Any, Any]]:
    return isinstance(other, GlobalKTable)
