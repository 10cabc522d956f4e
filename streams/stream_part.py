"""What a stream knows of itself, shared by the classes that `KStream` is made of."""

from dataclasses import dataclass

from streams.logical_graph import AnySerde, GraphNode, LogicalGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPart:
    """A stream: its node and serdes; `rekeyed` says that its keys may not be where their partition is."""

    graph: LogicalGraph
    node: GraphNode
    key_serde: AnySerde | None
    value_serde: AnySerde | None
    rekeyed: bool
