"""What a stream knows of itself, shared by the classes that `KStream` is made of."""

import msgspec

from streams.logical_graph import AnySerde, GraphNode, LogicalGraph


class StreamPart(msgspec.Struct, frozen=True, kw_only=True):
    """A stream: its node and serdes; `rekeyed` says that its keys may not be where their partition is."""

    graph: LogicalGraph
    node: GraphNode
    key_serde: AnySerde | None
    value_serde: AnySerde | None
    rekeyed: bool
