"""`join`, `left_join` and `outer_join` of tables, by key or by foreign key.

Generated names are those of Kafka Streams' KTableImpl.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from tidewheel.streams.definitions.call import Call
from tidewheel.streams.definitions.materialized import Materialized
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.graph.logical_graph import TableNode, TableStore
from tidewheel.streams.graph.table_join_nodes import (
    FOREIGN_KEY_OUTPUT,
    ForeignKeyCall,
    ForeignKeyJoin,
    JoinNames,
    TableJoinNode,
)
from tidewheel.streams.operators.joins.table_join import (
    INNER,
    LEFT,
    OUTER,
    Joined,
    JoinedView,
    JoinType,
)
from tidewheel.streams.user_functions import FunctionKind
from tidewheel.tasks.processing.api.topology_spec import Partitioner

if TYPE_CHECKING:
    from tidewheel.streams.definitions.materialized import StoreArgument
    from tidewheel.streams.dsl.ktable import KTable
    from tidewheel.streams.graph.parts import TablePart

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")
R = TypeVar("R")


class KTableJoins(ABC, Generic[K, V]):
    """The joins of a `KTable`."""

    _part: "TablePart"

    @overload
    def join(
        self,
        other: "KTable[K, V2]",
        joiner: Callable[[V, V2], R | None],
        *,
        store: "StoreArgument[K, R]" = None,
        name: str | None = None,
    ) -> "KTable[K, R]": ...
    @overload
    def join(
        self,
        other: "KTable[K, V2]",
        joiner: Callable[[K, V, V2], R | None],
        *,
        store: "StoreArgument[K, R]" = None,
        name: str | None = None,
    ) -> "KTable[K, R]": ...
    @overload
    def join(
        self,
        other: "KTable[K2, V2]",
        joiner: Callable[[V, V2], R | None],
        *,
        foreign_key: Callable[[V], K2 | None],
        other_partitioner: Partitioner | None = None,
        store: "StoreArgument[K, R]" = None,
        name: str | None = None,
    ) -> "KTable[K, R]": ...
    @overload
    def join(
        self,
        other: "KTable[K2, V2]",
        joiner: Callable[[V, V2], R | None],
        *,
        foreign_key: Callable[[K, V], K2 | None],
        other_partitioner: Partitioner | None = None,
        store: "StoreArgument[K, R]" = None,
        name: str | None = None,
    ) -> "KTable[K, R]": ...
    @overload
    def join(
        self,
        other: "KTable[K2, V2]",
        joiner: Callable[[K, V, V2], R | None],
        *,
        foreign_key: Callable[..., K2 | None],
        other_partitioner: Partitioner | None = None,
        store: "StoreArgument[K, R]" = None,
        name: str | None = None,
    ) -> "KTable[K, R]": ...
    def join(
        self,
        other: "KTable[Any, Any]",
        joiner: Callable[..., Any],
        *,
        foreign_key: Callable[..., Any] | None = None,
        other_partitioner: Partitioner | None = None,
        store: "StoreArgument[Any, Any]" = None,
        name: str | None = None,
    ) -> "KTable[K, Any]":
        """Join each row with the other table's row; a row without a partner has no result.

        Without `foreign_key`, rows of equal keys are joined and both tables need the same partition
        count. With it, each row is joined with the row of the other table that it references.

        Args:
            joiner: `f(left, right)` or `f(key, left, right)` -> result value (None: no row); the
                key is this table's.
            foreign_key: `f(value)` or `f(key, value)` -> key in the other table; None: no
                reference.
            other_partitioner: With `foreign_key`: custom partitioner of the other table's topic,
                `f(topic, key, None, partitions)` -> partition.
            name: Prefix of nodes and, with `foreign_key`, of the join's topics and store.

        A result has the newer timestamp of its two rows; if a change of the row that `foreign_key`
        references caused it, that change's timestamp. As in Kafka Streams (KIP-213), the other
        table's rows arrive as responses; a response is dropped if this table's row has changed
        meanwhile. So an inner foreign-key join (not `left_join`) may keep an outdated result in two
        cases: a row is deleted and immediately returns with a dangling reference, or a row changes
        while its referenced row is deleted.

        >>> from tidewheel import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> users = builder.table("users", key_serde=str, value_serde=str)
        >>> cities = builder.table("cities", key_serde=str, value_serde=str)
        >>> users.join(cities, lambda user, city: f"{user} in {city}")
        <KTable KTABLE-MERGE-0000000006>
        >>> users.join(cities, lambda user, city: city, foreign_key=lambda user: user.partition("@")[2])
        <KTable KTABLE-FK-JOIN-OUTPUT-0000000021>
        """
        call = Call.here("join")
        if foreign_key is None:
            return self._on_key(call, INNER, other, joiner, other_partitioner, store, name)
        link = ForeignKeyCall(
            call, joiner, foreign_key, other_partitioner, left_join=False, name=name
        )
        return self._on_foreign_key(link, other, store)

    @overload
    def left_join(
        self,
        other: "KTable[K, V2]",
        joiner: Callable[[V, V2 | None], R | None],
        *,
        store: "StoreArgument[K, R]" = None,
        name: str | None = None,
    ) -> "KTable[K, R]": ...
    @overload
    def left_join(
        self,
        other: "KTable[K, V2]",
        joiner: Callable[[K, V, V2 | None], R | None],
        *,
        store: "StoreArgument[K, R]" = None,
        name: str | None = None,
    ) -> "KTable[K, R]": ...
    @overload
    def left_join(
        self,
        other: "KTable[K2, V2]",
        joiner: Callable[[V, V2 | None], R | None],
        *,
        foreign_key: Callable[[V], K2 | None],
        other_partitioner: Partitioner | None = None,
        store: "StoreArgument[K, R]" = None,
        name: str | None = None,
    ) -> "KTable[K, R]": ...
    @overload
    def left_join(
        self,
        other: "KTable[K2, V2]",
        joiner: Callable[[V, V2 | None], R | None],
        *,
        foreign_key: Callable[[K, V], K2 | None],
        other_partitioner: Partitioner | None = None,
        store: "StoreArgument[K, R]" = None,
        name: str | None = None,
    ) -> "KTable[K, R]": ...
    @overload
    def left_join(
        self,
        other: "KTable[K2, V2]",
        joiner: Callable[[K, V, V2 | None], R | None],
        *,
        foreign_key: Callable[..., K2 | None],
        other_partitioner: Partitioner | None = None,
        store: "StoreArgument[K, R]" = None,
        name: str | None = None,
    ) -> "KTable[K, R]": ...
    def left_join(
        self,
        other: "KTable[Any, Any]",
        joiner: Callable[..., Any],
        *,
        foreign_key: Callable[..., Any] | None = None,
        other_partitioner: Partitioner | None = None,
        store: "StoreArgument[Any, Any]" = None,
        name: str | None = None,
    ) -> "KTable[K, Any]":
        """Return this table's rows, each joined with the other table's row or None.

        Args:
            joiner: As in `join`; the right value may be None.
            foreign_key: As in `join`; a row without a reference is joined with None.

        >>> from tidewheel import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> users = builder.table("users", key_serde=str, value_serde=str)
        >>> cities = builder.table("cities", key_serde=str, value_serde=str)
        >>> users.left_join(cities, lambda user, city: f"{user} in {city or '?'}", store="where")
        <KTable KTABLE-MERGE-0000000006>
        """
        call = Call.here("left_join")
        if foreign_key is None:
            return self._on_key(call, LEFT, other, joiner, other_partitioner, store, name)
        link = ForeignKeyCall(
            call, joiner, foreign_key, other_partitioner, left_join=True, name=name
        )
        return self._on_foreign_key(link, other, store)

    @overload
    def outer_join(
        self,
        other: "KTable[K, V2]",
        joiner: Callable[[V | None, V2 | None], R | None],
        *,
        store: "StoreArgument[K, R]" = None,
        name: str | None = None,
    ) -> "KTable[K, R]": ...
    @overload
    def outer_join(
        self,
        other: "KTable[K, V2]",
        joiner: Callable[[K, V | None, V2 | None], R | None],
        *,
        store: "StoreArgument[K, R]" = None,
        name: str | None = None,
    ) -> "KTable[K, R]": ...
    def outer_join(
        self,
        other: "KTable[Any, Any]",
        joiner: Callable[..., Any],
        *,
        foreign_key: object = None,
        store: "StoreArgument[Any, Any]" = None,
        name: str | None = None,
    ) -> "KTable[K, Any]":
        """Return the rows of either table, joined with None if the other has no row.

        Args:
            joiner: As in `join`; one of the two values may be None.
            foreign_key: Rejected: foreign-key joins are inner or left.

        >>> from tidewheel import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> planned = builder.table("planned", key_serde=str, value_serde=int)
        >>> built = builder.table("built", key_serde=str, value_serde=int)
        >>> planned.outer_join(built, lambda planned, built: (built or 0) - (planned or 0))
        <KTable KTABLE-MERGE-0000000006>
        """
        call = Call.here("outer_join")
        if foreign_key is not None:
            raise TopologyError(
                f"{call.context}: joins on a foreign key are inner and left only; use join() or left_join()"
            )
        return self._on_key(call, OUTER, other, joiner, None, store, name)

    @abstractmethod
    def _result_store(
        self, prefix: str, store: "StoreArgument[Any, Any]", call: Call, *, value_serde: Any
    ) -> TableStore | None:
        """Return the result's store; it is created only if named or if an operator reads it."""

    def _other_part(self, other: "KTable[Any, Any]", call: Call) -> "TablePart":
        if not isinstance(other, KTableJoins):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped users
            raise TopologyError(
                f"{call.context}: an object of type {type(other).__name__} is no table to join with; give a KTable"
            )
        other_part = other._part  # noqa: SLF001 - same class
        if self._part.graph is not other_part.graph:
            raise TopologyError(
                f"{call.context}: the tables come from different builders; make both with one StreamsBuilder"
            )
        return other_part

    def _on_key(
        self,
        call: Call,
        kind: JoinType,
        other: "KTable[Any, Any]",
        joiner: Callable[..., Any],
        other_partitioner: object,
        store: "StoreArgument[Any, Any]",
        name: str | None,
    ) -> "KTable[K, Any]":
        own_part, other_part = self._part, self._other_part(other, call)
        if other_partitioner is not None:
            raise TopologyError(
                f"{call.context}: other_partitioner is for joins on a foreign key; leave it out, or give foreign_key="
            )
        function = call.function(joiner, FunctionKind.JOINER)
        table_store = self._result_store("KTABLE-MERGE-", store, call, value_serde=None)
        if table_store is not None:
            # As in Kafka Streams, `store=Materialized()` creates a store even without a name.
            table_store.needed = True
        named = JoinNames(own_part, call.name(name))
        if not kind.needs_right:
            own_part.send_old_values()
        if not kind.needs_left:
            other_part.send_old_values()
        joined = Joined(kind, function)
        node = TableJoinNode(
            name=named("", "KTABLE-MERGE-"),
            this_name=named("-join-this", "KTABLE-JOINTHIS-"),
            other_name=named("-join-other", "KTABLE-JOINOTHER-"),
            location=call.location,
            joined=joined,
            left=own_part.view(),
            right=other_part.view(),
            versioned=(own_part.versioned, other_part.versioned),
            store=table_store,
        )
        own_part.graph.add(node, own_part.node, other_part.node)
        return _table(
            type(own_part)(
                graph=own_part.graph,
                node=node,
                store=table_store,
                key_serde=own_part.key_serde if table_store is None else table_store.key_serde,
                value_serde=None if table_store is None else table_store.value_serde,
                parents=(own_part, other_part),
                computed=partial(JoinedView, joined),
                loses_versions=True,
            )
        )

    def _on_foreign_key(
        self, link: ForeignKeyCall, other: "KTable[Any, Any]", store: "StoreArgument[Any, Any]"
    ) -> "KTable[K, Any]":
        own_part, other_part = self._part, self._other_part(other, link.call)
        plan = ForeignKeyJoin(own_part, other_part, link)
        # Also without `store=`: Kafka Streams counts this store in the numbers of generated names.
        materialized = Materialized() if store is None else store
        table_store = self._result_store(
            FOREIGN_KEY_OUTPUT, materialized, link.call, value_serde=None
        )
        assert table_store is not None, "a store was asked for"
        node = TableNode(name=plan.names.result, location=link.call.location, store=table_store)
        own_part.graph.add(node, plan.add())
        return _table(
            type(own_part)(
                graph=own_part.graph,
                node=node,
                store=table_store,
                key_serde=table_store.key_serde,
                value_serde=table_store.value_serde,
            )
        )


def _table(part: "TablePart") -> "KTable[Any, Any]":
    # Imported late: KTable inherits from this class.
    from tidewheel.streams.dsl.ktable import KTable  # noqa: PLC0415

    return KTable(part)
