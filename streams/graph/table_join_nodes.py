"""Graph nodes of table joins: names, topics and stores."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tidewheel.state_stores.spec import StoreSpec
from tidewheel.streams.definitions.call import Call
from tidewheel.streams.definitions.checks import check_callable
from tidewheel.streams.definitions.default_serdes import KEY_DEFAULT, VALUE_DEFAULT, filled
from tidewheel.streams.definitions.materialized import Materialized
from tidewheel.streams.definitions.names import where
from tidewheel.streams.definitions.node_arguments import PARTITIONER
from tidewheel.streams.graph.logical_graph import (
    ForeignKeyTopicNode,
    GraphNode,
    ProcessorGraphNode,
    TableStore,
)
from tidewheel.streams.operators.joins.foreign_key_join import (
    ForeignKeyOperator,
    ForeignKeyTopics,
    ForeignTableJoin,
    ResponseJoin,
    SubscriptionJoin,
    SubscriptionReceive,
    SubscriptionSend,
)
from tidewheel.streams.operators.joins.subscription import (
    RESPONSES,
    SUBSCRIPTIONS,
    to_primary_partition,
)
from tidewheel.streams.operators.joins.table_join import Joined, LeftSide, RightSide
from tidewheel.streams.operators.tables.table import TableSource
from tidewheel.streams.operators.tables.table_view import TableView
from tidewheel.streams.serdes import Serdes
from tidewheel.streams.topology.topology import Topology
from tidewheel.streams.user_functions import FunctionKind
from tidewheel.tasks.processing.api.topology_spec import Partitioner, ProcessorSpec
from tidewheel.tasks.processing.engine.operator import OperatorSupplier

if TYPE_CHECKING:
    from tidewheel.streams.graph.parts import TablePart

_REGISTRATION = "KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-"
_RESPONSE = "KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-"
_PROCESSOR = "KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR-"
#: Name prefix of an unnamed foreign-key join's result.
FOREIGN_KEY_OUTPUT = "KTABLE-FK-JOIN-OUTPUT-"


class JoinNames:
    """Names of a join's nodes: from `name=`, or generated; both advance the name counter."""

    def __init__(self, part: "TablePart", name: str | None) -> None:
        self._graph = part.graph
        self.name = name

    def __call__(self, suffix: str, prefix: str) -> str:
        return self._graph.node_name(prefix, None if self.name is None else self.name + suffix)


class SubscriptionStore(TableStore):
    def spec(self, context: str) -> StoreSpec:
        reason = (
            "its rows are subscriptions of a foreign-key join; deleting a row of the left table (a tombstone in its topic) "
            "deletes its subscription"
        )
        return replace(super().spec(context), internal_rows=reason)


@dataclass(eq=False, kw_only=True)
class TableJoinNode(GraphNode):
    """A join of two tables by key: a node for each side, and one that merges the results.

    `left` and `right` are each table's view and its stores; `versioned` is True for a versioned
    table, whose changes may be older than its current row.
    """

    this_name: str
    other_name: str
    joined: Joined
    left: tuple[TableView, tuple[str, ...]]
    right: tuple[TableView, tuple[str, ...]]
    versioned: tuple[bool, bool]
    store: TableStore | None

    def write_to(self, topology: Topology, parents: tuple[str, ...]) -> None:
        left, right = (
            parents[0],
            parents[-1],
        )  # equal if a table is joined with itself
        # A result store has the old results; without one, each side computes them from its old row.
        computes_old = self.old_values and self.store is None
        sides = (
            (self.this_name, left, LeftSide, self.right, self.versioned[0]),
            (self.other_name, right, RightSide, self.left, self.versioned[1]),
        )
        for name, parent, operator, (view, stores), versioned in sides:
            supplier = OperatorSupplier(operator, (self.joined, view, versioned))
            topology.add_node(
                ProcessorSpec(
                    name=name,
                    supplier=self._with_old_values(supplier) if computes_old else supplier,
                    parents=(parent,),
                    stores=stores,
                    reads=frozenset(stores),
                    location=self.location,
                )
            )
        if self.store is not None:
            self.store.add_to(topology, self.location)
        store_name = None if self.store is None else self.store.name
        topology.add_node(
            ProcessorSpec(
                name=self.name,
                supplier=self._with_old_values(OperatorSupplier(TableSource, (store_name,))),
                parents=(self.this_name, self.other_name),
                stores=() if store_name is None else (store_name,),
                location=self.location,
            )
        )
        topology.copartition((left, right), where("join", self.location))

    def stores(self) -> tuple[TableStore, ...]:
        return () if self.store is None else (self.store,)


class ForeignKeyCall:
    def __init__(
        self,
        call: Call,
        joiner: Callable[..., Any],
        foreign_key: Callable[..., Any],
        other_partitioner: Partitioner | None,
        *,
        left_join: bool,
        name: str | None,
    ) -> None:
        self.call = call
        self.joiner = call.function(joiner, FunctionKind.JOINER)
        self.foreign_key = call.mapper(foreign_key)
        self.left_join = left_join
        self.name = call.name(name)
        self.to_other: Partitioner | None = None
        check_callable(other_partitioner, "other_partitioner", PARTITIONER, call.context)
        if other_partitioner is not None:
            self.to_other = partial(_by_key, other_partitioner)


def _by_key(partitioner: Partitioner, topic: str, key: Any, value: Any, partitions: int) -> Any:
    del value
    return partitioner(topic, key, None, partitions)


class _ForeignKeyNames(msgspec.Struct, frozen=True):
    """Names of a foreign-key join's nodes, topics and store, generated in Kafka Streams' order."""

    registration: str
    send: str
    registration_sink: str
    registration_source: str
    store: str
    receive: str
    subscription_join: str
    foreign_join: str
    response: str
    response_sink: str
    response_source: str
    resolver: str
    result: str

    @classmethod
    def of(cls, named: JoinNames) -> "_ForeignKeyNames":
        return cls(
            named("-subscription-registration", _REGISTRATION) + "-topic",
            named("-subscription-registration-processor", _REGISTRATION),
            named("-subscription-registration-sink", "KTABLE-SINK-"),
            named("-subscription-registration-source", "KTABLE-SOURCE-"),
            named("-subscription-store", "KTABLE-FK-JOIN-SUBSCRIPTION-STATE-STORE-"),
            named("-subscription-receive", _PROCESSOR),
            named("-subscription-join-foreign", _PROCESSOR),
            named("-foreign-join-subscription", _PROCESSOR),
            named("-subscription-response", _RESPONSE) + "-topic",
            named("-subscription-response-sink", "KTABLE-SINK-"),
            named("-subscription-response-source", "KTABLE-SOURCE-"),
            named(
                "-subscription-response-resolver",
                "KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-RESOLVER-PROCESSOR-",
            ),
            named("-result", FOREIGN_KEY_OUTPUT),
        )

    @property
    def topics(self) -> ForeignKeyTopics:
        return ForeignKeyTopics(self.registration, self.response)


class ForeignKeyJoin:
    """Nodes of a foreign-key join: subscriptions to the other table, and its responses."""

    def __init__(self, left: "TablePart", right: "TablePart", link: ForeignKeyCall) -> None:
        self._left = left
        self._right = right
        self._link = link
        right.send_old_values()
        left.send_old_values()
        self.names = _ForeignKeyNames.of(JoinNames(left, link.name))
        self._key = filled(left.key_serde, KEY_DEFAULT)
        self._value = filled(left.value_serde, VALUE_DEFAULT)
        self._foreign_key = filled(right.key_serde, KEY_DEFAULT)
        self._foreign_value = filled(right.value_serde, VALUE_DEFAULT)

    def add(self) -> GraphNode:
        """Add all nodes except the result's; return the last one."""
        return self._resolve(self._respond(self._subscribe()))

    def _subscribe(self) -> GraphNode:
        """Add the nodes that send this table's subscriptions to the other table's tasks."""
        names, link = self.names, self._link
        arguments = (link.foreign_key, link.left_join, self._left.versioned)
        serdes = (self._key, self._value, self._foreign_key)
        send = self._node(names.send, SubscriptionSend, *arguments, *serdes)
        self._left.graph.add(send, self._left.node)
        topic = ForeignKeyTopicNode(
            name=names.registration_source,
            location=link.call.location,
            topic=names.registration,
            generated=link.name is None,
            sink_name=names.registration_sink,
            key_serde=self._right.key_serde,
            value_serde=SUBSCRIPTIONS,
            partitioner=link.to_other,
            joined_with=self._right.node.name,
        )
        self._left.graph.add(topic, send)
        return topic

    def _respond(self, registration: GraphNode) -> GraphNode:
        """Add the other table's nodes: they store subscriptions and respond to them."""
        names, link, graph = self.names, self._link, self._left.graph
        store = SubscriptionStore(
            name=names.store,
            generated=link.name is None,
            materialized=Materialized(caching=False, headers=False),
            key_serde=Serdes.bytes(),
            value_serde=SUBSCRIPTIONS,
            needed=True,
        )
        receive = self._node(names.receive, SubscriptionReceive, names.store, self._foreign_key)
        receive.store = store
        graph.add(receive, registration)
        view, view_stores = self._right.view()
        serdes = (self._key, self._foreign_value)
        answer = self._node(names.subscription_join, SubscriptionJoin, view, *serdes)
        answer.store_names, answer.reads = view_stores, frozenset(view_stores)
        graph.add(answer, receive)
        arguments = (names.store, self._right.versioned, self._foreign_key)
        again = self._node(names.foreign_join, ForeignTableJoin, *arguments, *serdes)
        again.store_names, again.reads = (names.store,), frozenset({names.store})
        graph.add(again, self._right.node)
        topic = ForeignKeyTopicNode(
            name=names.response_source,
            location=link.call.location,
            topic=names.response,
            generated=link.name is None,
            sink_name=names.response_sink,
            key_serde=self._left.key_serde,
            value_serde=RESPONSES,
            partitioner=to_primary_partition,
            joined_with=self._left.node.name,
        )
        graph.add(topic, answer, again)
        return topic

    def _resolve(self, response: GraphNode) -> GraphNode:
        view, view_stores = self._left.view()
        arguments = (view, self._link.joiner, self._link.left_join)
        serdes = (self._value, self._foreign_value)
        join = self._node(self.names.resolver, ResponseJoin, *arguments, *serdes)
        join.store_names, join.reads = view_stores, frozenset(view_stores)
        self._left.graph.add(join, response)
        return join

    def _node(
        self, name: str, operator: type[ForeignKeyOperator], *arguments: Any
    ) -> ProcessorGraphNode:
        return ProcessorGraphNode(
            name=name,
            location=self._link.call.location,
            supplier=OperatorSupplier(operator, (self.names.topics, *arguments)),
        )
