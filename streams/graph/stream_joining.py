"""Joins of a stream as values: what the user asked for, checked, and the nodes and stores that makes in the graph."""

from collections.abc import Callable
from typing import Any

import msgspec

from tidewheel.streams.definitions.call import Call
from tidewheel.streams.definitions.default_serdes import DefaultSerde
from tidewheel.streams.definitions.materialized import Materialized, StoreArgument
from tidewheel.streams.durations import Duration, to_ms
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.graph.logical_graph import GraphNode, LogicalGraph, ProcessorNode
from tidewheel.streams.graph.parts import StreamPart, TablePart
from tidewheel.streams.graph.stream_join_nodes import (
    BytesStore,
    JoinStore,
    StreamJoinNode,
    StreamTableJoinNode,
)
from tidewheel.streams.operators.joins.stream_join import JoinWindow
from tidewheel.streams.serdes import SerdeLike
from tidewheel.streams.user_functions import FunctionKind, UserFunction
from tidewheel.streams.windows import JoinWindows
from tidewheel.tasks.processing.engine.operator import OperatorSupplier


class JoinOptions(msgspec.Struct, frozen=True):
    """What the user gave to a join."""

    call: Call
    joiner: Callable[..., Any]
    within: object
    grace: Duration | None
    key_serde: SerdeLike[Any] | None
    value_serde: SerdeLike[Any] | None
    other_value_serde: SerdeLike[Any] | None
    store: StoreArgument[Any, Any]
    name: str | None
    keeps_left: bool
    keeps_right: bool
    key_selector: Callable[..., Any] | None = None


class Join:
    """A join's options, checked."""

    def __init__(self, options: JoinOptions, kind: FunctionKind = FunctionKind.JOINER) -> None:
        call = options.call
        self.options = options
        self.call = call
        self.keeps_left = options.keeps_left
        self.keeps_right = options.keeps_right
        self.joiner: UserFunction = call.function(options.joiner, kind)
        self.key = call.serde(options.key_serde, "key_serde")
        self.value = call.serde(options.value_serde, "value_serde")
        self.other_value = call.serde(options.other_value_serde, "other_value_serde")
        self.name = call.name(options.name)
        self.materialized = Materialized.of(options.store, call.context)
        self._check_materialized()

    def _check_materialized(self) -> None:
        wishes = self.materialized
        if wishes.key_serde is not None or wishes.value_serde is not None:
            raise TopologyError(
                f"{self.call.context}: a join's serdes are given with key_serde=, value_serde= and other_value_serde=; leave "
                "them out of Materialized"
            )
        if not wishes.fits_windows:
            raise TopologyError(
                f"{self.call.context}: a join can't keep its records in a store of type {wishes.store_type!r}; give 'rocksdb' or 'in_memory'"
            )
        if wishes.headers:
            raise TopologyError(
                f"{self.call.context}: a join's store of waiting records keeps no headers; leave headers= out"
            )
        if wishes.retention is not None or wishes.ttl is not None:
            raise TopologyError(
                f"{self.call.context}: how long a join keeps its records follows from its windows and grace; leave "
                "retention= and ttl= out"
            )

    @property
    def store_base(self) -> str | None:
        """Return what the names of the stores begin with; None for generated ones."""
        return self.name if self.options.store is None else self.materialized.name

    def windows(self) -> JoinWindows:
        """Return the windows of a join of two streams."""
        within, context = self.options.within, self.call.context
        if self.options.grace is not None:
            raise TopologyError(
                f"{context}: grace= belongs to joins with a table; give two streams' grace to JoinWindows(..., grace=...)"
            )
        if isinstance(within, JoinWindows):
            return within
        what = "no within=" if within is None else f"within= of type {type(within).__name__}"
        raise TopologyError(
            f"{context}: a join of two streams says how near in time records must be, but there is {what}; give "
            "within=JoinWindows(...)"
        )

    def check_table(self, table: TablePart) -> None:
        """Raise unless the options fit a join with this table."""
        context, grace_ms = self.call.context, self.grace_ms()
        if self.keeps_right:
            raise TopologyError(
                f"{context}: a stream has no outer join with a table, whose rows are no events; use left_join()"
            )
        if self.options.within is not None:
            raise TopologyError(
                f"{context}: within= belongs to joins of two streams, a table has one row per key; leave it out"
            )
        if grace_ms is not None and not table.versioned:
            raise TopologyError(
                f"{context}: grace= looks rows up as of a past time, but the table is not versioned; make it with "
                'store=Materialized(store_type="versioned", history_retention=...), or leave grace out'
            )
        if grace_ms is None and self.options.store is not None:
            raise TopologyError(
                f"{context}: a join with a table keeps nothing unless it has a grace; leave store= out"
            )

    def grace_ms(self) -> int | None:
        """Return the grace of a join with a table."""
        grace = self.options.grace
        return None if grace is None else to_ms(grace, f"{self.call.context}: grace")

    def check_graph(self, mine: object, theirs: object, what: str) -> None:
        """Raise unless both sides come from one builder."""
        if mine is not theirs:
            raise TopologyError(
                f"{self.call.context}: the {what} comes from a different builder; make both with one StreamsBuilder"
            )

    def placeholders(self, *, other: bool) -> tuple[DefaultSerde, DefaultSerde]:
        """Return what stands for the serdes of one side if nobody gave them: it says which argument does."""
        to, option, side = f"to {self.call.operator}()", "value_serde=", "this stream"
        if other:
            option, side = "other_value_serde=", "the other stream"
        return (
            DefaultSerde("key", f"key_serde= {to}"),
            DefaultSerde("value", f"{option} {to}, for the values of {side}"),
        )

    def bytes_store(self, name: str, *, generated: bool) -> BytesStore:
        """Return a store whose rows the operator writes itself."""
        return BytesStore(
            name=name,
            generated=generated,
            materialized=self.materialized,
            key_serde=None,
            value_serde=None,
            needed=True,
        )


def suffixed(name: str | None, suffix: str) -> str | None:
    """Return the name with the suffix, if there is one.

    >>> suffixed("pairs", "-merge"), suffixed(None, "-merge")
    ('pairs-merge', None)
    """
    return None if name is None else name + suffix


class _Names:
    """Names of the parts of a join of two streams: made of `name=` and `store=`, else generated.

    Numbers are used up in the order of Kafka Streams, also where a name is given.
    """

    def __init__(self, join: Join, graph: LogicalGraph) -> None:
        self._join = join
        self._base = join.store_base
        self._this_suffix = "-outer-this-join" if join.keeps_right else "-this-join"
        self._other_suffix = "-outer-other-join" if join.keeps_left else "-other-join"
        this_prefix = "KSTREAM-OUTERTHIS-" if join.keeps_right else "KSTREAM-JOINTHIS-"
        other_prefix = "KSTREAM-OUTEROTHER-" if join.keeps_left else "KSTREAM-JOINOTHER-"
        name, named = join.name, graph.node_name
        self.this_window = named("KSTREAM-WINDOWED-", suffixed(name, "-this-windowed"))
        self.other_window = named("KSTREAM-WINDOWED-", suffixed(name, "-other-windowed"))
        this_generated, other_generated = named(this_prefix), named(other_prefix)
        self.merge = named("KSTREAM-MERGE-", suffixed(name, "-merge"))
        self.this = suffixed(name, self._this_suffix) or this_generated
        self.other = suffixed(name, self._other_suffix) or other_generated
        self.this_store = self._store(this_generated, self._this_suffix)
        self.other_store = self._store(other_generated, self._other_suffix)
        self.waiting = self._store(
            f"KSTREAM-OUTERSHARED-{this_generated.removeprefix(this_prefix)}",
            "-outer-shared-join" if join.keeps_right else "-left-shared-join",
        )

    def _store(self, generated: str, suffix: str) -> str:
        return f"{suffixed(self._base, suffix) or generated}-store"


def join_streams(join: Join, left: StreamPart, right: StreamPart) -> GraphNode:
    """Add a join of two streams whose records are where their keys belong; return its node."""
    graph, windows, location = left.graph, join.windows(), join.call.location
    names = _Names(join, graph)
    this_value, other_value = (
        join.value or left.value_serde,
        join.other_value or right.value_serde,
    )
    sides = (
        (names.this_window, left.node, names.this_store, this_value),
        (names.other_window, right.node, names.other_store, other_value),
    )
    stores: list[JoinStore] = []
    for window, parent, store_name, value_serde in sides:
        store = JoinStore(
            name=store_name,
            generated=join.store_base is None,
            materialized=join.materialized,
            key_serde=join.key or left.key_serde or right.key_serde,
            value_serde=value_serde,
            needed=True,
            join_windows=windows,
            placeholders=join.placeholders(other=store_name == names.other_store),
        )
        node = ProcessorNode(
            name=window,
            location=location,
            supplier=OperatorSupplier(JoinWindow, (store_name,)),
            store=store,
        )
        graph.add(node, parent)
        stores.append(store)
    result = StreamJoinNode(
        name=names.merge,
        location=location,
        this_window=names.this_window,
        other_window=names.other_window,
        this_name=names.this,
        other_name=names.other,
        this_store=stores[0],
        other_store=stores[1],
        non_joined=join.bytes_store(names.waiting, generated=join.store_base is None)
        if join.keeps_left
        else None,
        is_outer=join.keeps_right,
        windows=windows,
        joiner=join.joiner,
        keeps_null_keys=join.keeps_left,
    )
    graph.add(result, left.node, right.node)
    return result


def join_table(join: Join, left: StreamPart, table: TablePart) -> GraphNode:
    """Add a join with a table of a stream whose records are where their keys belong; return its node."""
    graph, grace_ms = left.graph, join.grace_ms()
    prefix = "KSTREAM-LEFTJOIN-" if join.keeps_left else "KSTREAM-JOIN-"
    name = graph.node_name(prefix, join.name)
    buffer: BytesStore | None = None
    if grace_ms is not None:
        buffer_name = join.materialized.name or f"{name}-Buffer"
        generated = join.name is None and join.materialized.name is None
        buffer = join.bytes_store(buffer_name, generated=generated)
    view, stores = table.view()
    node = StreamTableJoinNode(
        name=name,
        location=join.call.location,
        table=table.node.name,
        after=frozenset((table.node.name,)),
        view=view,
        view_stores=stores,
        joiner=join.joiner,
        left=join.keeps_left,
        grace_ms=grace_ms,
        buffer=buffer,
        key_serde=join.key or left.key_serde,
        value_serde=join.value or left.value_serde,
        keeps_null_keys=join.keeps_left,
    )
    graph.add(node, left.node)
    return node
