"""Relations between topology nodes: parents, topics and connected groups. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from tidewheel.streams.definitions.names import did_you_mean, where
from tidewheel.streams.errors import TopologyError
from tidewheel.tasks.processing.api.topology_spec import (
    ExternalSinkSpec,
    NodeSpec,
    ProcessorSpec,
    SinkSpec,
    SourceSpec,
)
from tidewheel.tasks.processing.engine.operator import OperatorSupplier


def parents_of(node: NodeSpec) -> tuple[str, ...]:
    return () if isinstance(node, SourceSpec) else node.parents


def connected_groups(nodes: Mapping[str, NodeSpec]) -> list[list[str]]:
    """Return groups of nodes connected by edges or stores, in insertion order."""
    group_of: dict[str, str] = {}

    def root(member: str) -> str:
        while (above := group_of[member]) != member:
            group_of[member] = group_of[above]
            member = above
        return member

    for name, node in nodes.items():
        group_of[f"node {name}"] = f"node {name}"
        links = parents_of(node)
        stores = node.stores if isinstance(node, ProcessorSpec) else ()
        for link in (*(f"node {n}" for n in links), *(f"store {s}" for s in stores)):
            group_of.setdefault(link, link)
            group_of[root(link)] = root(f"node {name}")
    groups: dict[str, list[str]] = {}
    for name in nodes:
        groups.setdefault(root(f"node {name}"), []).append(name)
    return list(groups.values())


def check_parents_exist(
    node: ProcessorSpec | SinkSpec | ExternalSinkSpec, nodes: Mapping[str, NodeSpec], context: str
) -> None:
    if not node.parents:
        raise TopologyError(f"{context}: it has no parent; name at least one node")
    for name in node.parents:
        parent = nodes.get(name)
        if name == node.name:
            raise TopologyError(f"{context}: it can't be its own parent; name another node")
        if parent is None:
            raise TopologyError(
                f"{context}: parent {name!r} is not in the topology{did_you_mean(name, nodes)} "
                "(parents are added before their children)"
            )
        if isinstance(parent, SinkSpec | ExternalSinkSpec):
            raise TopologyError(
                f"{context}: parent {name!r} is a sink, which gives nothing on; name the node before it"
            )


def check_read_once(node: SourceSpec, nodes: Iterable[NodeSpec], context: str) -> None:
    """Raise `TopologyError` for a topic that another source reads, or that is given twice."""
    for other in nodes:
        if not isinstance(other, SourceSpec):
            continue
        for topic in node.topics:
            if _reads(other, topic):
                raise TopologyError(
                    f"{context}: topic {topic!r} is read already by {other.name!r}"
                    f"{location_suffix(other.location)}; read it once and use that node twice"
                )
        for topic in other.topics:
            if _reads(node, topic):
                raise TopologyError(
                    f"{context}: the pattern {node.name!r} reads also matches topic {topic!r}, which {other.name!r}"
                    f"{location_suffix(other.location)} reads; make the pattern narrower"
                )
    for topic in node.topics:
        if node.topics.count(topic) > 1:
            raise TopologyError(f"{context}: topic {topic!r} is given twice; leave one out")


def _reads(source: SourceSpec, topic: str) -> bool:
    return topic in source.topics or (
        source.pattern is not None and source.pattern.fullmatch(topic) is not None
    )


def only_feeds_sink(group: Sequence[NodeSpec]) -> bool:
    """Return True if connected nodes are sources, stateless operators and one external sink."""
    return sum(isinstance(node, ExternalSinkSpec) for node in group) == 1 and all(
        isinstance(node, SourceSpec | ExternalSinkSpec) or _is_stateless(node) for node in group
    )


def _is_stateless(node: NodeSpec) -> bool:
    return (
        isinstance(node, ProcessorSpec)
        and not node.stores
        and isinstance(node.supplier, OperatorSupplier)
        and node.supplier.operator.is_stateless
    )


def check_external_sink(group: Sequence[NodeSpec]) -> None:
    """Raise `TopologyError` if nodes were added later to the sub-topology of an external sink."""
    sink = next((node for node in group if isinstance(node, ExternalSinkSpec)), None)
    if sink is None or only_feeds_sink(group):
        return
    others = [node for node in group if not isinstance(node, SourceSpec | ExternalSinkSpec)]
    added = next((node for node in others if not _is_stateless(node)), sink)
    raise TopologyError(
        f"{where(repr(added.name), added.location)}: it was added to the sub-topology of sink {sink.name!r}"
        f"{location_suffix(sink.location)}, which has a task of its own; add it to the StreamsBuilder before build()"
    )


def location_suffix(location: str) -> str:
    return f" ({location})" if location else ""
