"""Optimisations of `StreamsBuilder.build(config)`: fewer internal topics and stores.

As in Kafka Streams' InternalStreamsBuilder (KIP-295), with its names and node order. They change a
copy of the graph, so a builder can be built again with other settings.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidewheel.streams.graph.logical_graph import (
    AnySerde,
    GraphNode,
    LogicalGraph,
    RepartitionNode,
    TableNode,
)
from tidewheel.streams.graph.stream_join_nodes import single_store_self_join

if TYPE_CHECKING:
    from tidewheel.streams.config import StreamsConfig


def optimized(graph: LogicalGraph, config: "StreamsConfig | None") -> LogicalGraph:
    """Return the graph optimised by `topology_optimization`.

    Unchanged without a config, as in Kafka Streams.
    """
    steps: Collection[str] = () if config is None else config.topology_optimization
    if steps == "none":
        steps = ()
    elif steps == "all":
        steps = _STEPS
    if not steps:
        return graph
    graph = graph.copy()
    for name, step in _STEPS.items():
        if name in steps:
            step(graph)
    return graph


def reuse_ktable_source_topics(graph: LogicalGraph) -> None:
    for node in graph.nodes:
        if isinstance(node, TableNode) and node.source is not None:
            node.reuses_source = True


def merge_repartition_topics(graph: LogicalGraph) -> None:
    """Repartition once after a key change instead of once per grouping or join."""
    for key_changing, repartitions in _by_key_change(graph).items():
        if repartitions and _only_below(key_changing, repartitions):
            _merge(key_changing, repartitions)


def _by_key_change(graph: LogicalGraph) -> dict[GraphNode, list[RepartitionNode]]:
    repartitions_by_node: dict[GraphNode, list[RepartitionNode]] = {}
    merges: list[GraphNode] = []
    for node in graph.nodes:
        if node.changes_key:
            repartitions_by_node[node] = []
        elif isinstance(node, RepartitionNode) and node.optimizable:
            key_changing = _key_change_above(node)
            if key_changing is not None:
                repartitions_by_node[key_changing].append(node)
        elif node.merges:
            merges.append(node)
    merged: dict[GraphNode, list[GraphNode]] = {}
    for merge in merges:
        merged[merge] = [
            key_changing
            for key_changing, repartitions in repartitions_by_node.items()
            if all(_child_towards(node, merge) is not None for node in repartitions)
            and _child_towards(merge, key_changing) is not None
        ]
    for merge, parents in merged.items():
        repartitions_by_node[merge] = list(
            dict.fromkeys(node for parent in parents for node in repartitions_by_node[parent])
        )
    for parent in {parent for parents in merged.values() for parent in parents}:
        del repartitions_by_node[parent]
    return repartitions_by_node


def _key_change_above(node: GraphNode) -> GraphNode | None:
    nearest = _find_above(node, lambda each: each.changes_key or each.changes_value)
    return nearest if nearest is not None and nearest.changes_key else None


def _child_towards(node: GraphNode, above: GraphNode) -> GraphNode | None:
    return _find_above(node, lambda each: above in each.parents)


def _find_above(node: GraphNode, matches: Callable[[GraphNode], bool]) -> GraphNode | None:
    """Return the node or an ancestor that matches: the first one found, depth first."""
    if matches(node):
        return node
    for parent in node.parents:
        ancestor = _find_above(parent, matches)
        if ancestor is not None:
            return ancestor
    return None


def _only_below(key_changing: GraphNode, repartitions: Collection[RepartitionNode]) -> bool:
    """Return True if the repartitions receive records only by way of this key change.

    Without this check, as in Kafka Streams, records that a merge adds would not be repartitioned.
    """
    #: Each node above the repartitions -> True if it is below the key change.
    between: dict[GraphNode, bool] = {}

    def ends_at_key_change(node: GraphNode) -> bool:
        if node is key_changing:
            return True
        if node not in between:
            # a list, because `any` would stop early and miss nodes of other paths
            ways = [ends_at_key_change(parent) for parent in node.parents]
            between[node] = any(ways)
        return between[node]

    ways = [ends_at_key_change(node) for node in repartitions]
    if not all(ways):
        return False  # one was already merged for another key change
    return all(
        parent is key_changing or between[parent]
        for node, led in between.items()
        if led
        for parent in node.parents
    )


def _merge(key_changing: GraphNode, repartitions: list[RepartitionNode]) -> None:
    """Replace the repartitions by one directly below the key change, above the nodes between."""
    first = repartitions[0]
    single = replace(
        first,
        name=f"{first.topic}-source",
        filter_name=f"{first.topic}-filter",
        sink_name=f"{first.topic}-sink",
        key_serde=_first_not_none(node.key_serde for node in repartitions),
        value_serde=_first_not_none(node.value_serde for node in repartitions),
        priority=key_changing.priority,
        parents=[],
        children=[],
    )
    for node in repartitions:
        child = _child_towards(node, key_changing)
        if child is not None:  # None if it was already moved for another repartition
            single.add_child(child)
            key_changing.remove_child(child)
        for parent in list(node.parents):
            for below in list(node.children):
                parent.add_child(below)
            parent.remove_child(node)
        for below in list(node.children):
            node.remove_child(below)
    key_changing.add_child(single)


def _first_not_none(serdes: Iterable[AnySerde | None]) -> AnySerde | None:
    return next((serde for serde in serdes if serde is not None), None)


_STEPS: Final[dict[str, Callable[[LogicalGraph], None]]] = {
    "reuse_ktable_source_topics": reuse_ktable_source_topics,
    "merge_repartition_topics": merge_repartition_topics,
    "single_store_self_join": single_store_self_join,
}
