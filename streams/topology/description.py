"""Topology descriptions: Kafka Streams' text, a Mermaid flowchart, or plain values.

The text equals that of Kafka Streams' `TopologyDescription`, line by line. Nodes with larger
subtrees come first, then names decide. Neighbours, topics and stores are in Kafka Streams' order,
which depends on Java hash codes.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import msgspec

from tidewheel.streams.topology.drawing import draw
from tidewheel.streams.topology.layout import DrawnPart
from tidewheel.streams.topology.nodes import parents_of
from tidewheel.tasks.key_ranges.keyed_analysis import keyedness, reason_against_shards
from tidewheel.tasks.processing.api.topology_spec import (
    ExternalSinkSpec,
    GlobalStoreSpec,
    NodeSpec,
    ProcessorSpec,
    SinkSpec,
    SourceSpec,
    SubtopologySpec,
    TopologySpec,
)
from tidewheel.tasks.processing.engine.execution import execution_mode

_CAPACITY: Final = 16
_BITS: Final = 0xFFFF_FFFF


NodeType = Literal["source", "processor", "sink"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDescription:
    """One node with its topics, stores and neighbours.

    A source has `topics` or a `pattern`, a processor `stores`, a sink a `topic` or the name of the
    function that chooses it (`extractor`). If `is_external`, `topic` is the target outside Kafka.
    """

    type: NodeType
    name: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    topic: str | None = None
    extractor: str | None = None
    is_external: bool = False
    stores: tuple[str, ...] = ()
    predecessors: tuple[str, ...] = ()
    successors: tuple[str, ...] = ()

    def __str__(self) -> str:
        match self.type:
            case "source":
                topics = f"[{', '.join(self.topics)}]" if self.pattern is None else self.pattern
                head = f"Source: {self.name} (topics: {topics})"
            case "processor":
                head = f"Processor: {self.name} (stores: [{', '.join(self.stores)}])"
            case "sink" if self.is_external:
                head = f"Sink: {self.name} (external: {self.topic})"
            case "sink":
                target = (
                    f"extractor class: {self.extractor}"
                    if self.topic is None
                    else f"topic: {self.topic}"
                )
                head = f"Sink: {self.name} ({target})"
        after = "" if self.type == "sink" else f"\n      --> {_listed(self.successors)}"
        before = "" if self.type == "source" else f"\n      <-- {_listed(self.predecessors)}"
        return head + after + before

    def to_dict(self) -> dict[str, Any]:
        details: dict[str, Any]
        match self.type:
            case "source" if self.pattern is None:
                details = {"topics": list(self.topics)}
            case "source":
                details = {"pattern": self.pattern}
            case "processor":
                details = {"stores": list(self.stores)}
            case "sink" if self.is_external:
                details = {"external": self.topic}
            case "sink" if self.topic is None:
                details = {"extractor": self.extractor}
            case "sink":
                details = {"topic": self.topic}
        links = {"predecessors": list(self.predecessors), "successors": list(self.successors)}
        return {"type": self.type, "name": self.name, **details, **links}


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtopologyDescription:
    """One sub-topology: its nodes and its execution.

    `execution` is batches or record by record; `key_ranges` is "keyed" if its tasks can be divided,
    or the reason they can't. `shards` is "possible" if `partition_shards` can divide its partitions
    among processes, or the reason they stay whole.
    """

    id: int
    nodes: tuple[NodeDescription, ...]
    execution: str | None = None
    key_ranges: str | None = None
    shards: str | None = None

    def __str__(self) -> str:
        execution = "" if self.execution is None else f"    Execution: {self.execution}\n"
        if self.key_ranges is not None:
            execution += f"    Key ranges: {self.key_ranges}\n"
        if self.shards is not None:
            execution += f"    Shards: {self.shards}\n"
        return (
            f"Sub-topology: {self.id}\n{execution}"
            + "".join(f"    {node}\n" for node in self.nodes)
            + "\n"
        )

    def to_dict(self) -> dict[str, Any]:
        execution = {} if self.execution is None else {"execution": self.execution}
        if self.key_ranges is not None:
            execution["key_ranges"] = self.key_ranges
        if self.shards is not None:
            execution["shards"] = self.shards
        return {"id": self.id, **execution, "nodes": [node.to_dict() for node in self.nodes]}


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalStoreDescription:
    """A global store with its source and processor; it has no tasks."""

    id: int
    source: NodeDescription
    processor: NodeDescription

    def __str__(self) -> str:
        nodes = f"    {self.source}\n    {self.processor}\n"
        return f"Sub-topology: {self.id} for global store (will not generate tasks)\n{nodes}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "source": self.source.to_dict(),
            "processor": self.processor.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class TopologyDescription:
    """A described topology; `str()` gives Kafka Streams' text.

    >>> from tidewheel import StreamsBuilder
    >>> builder = StreamsBuilder()
    >>> builder.stream("in", key_serde=str, value_serde=str).to("out")
    >>> description = builder.build().describe()
    >>> print(str(description).strip())
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [in])
          --> KSTREAM-SINK-0000000001
        Sink: KSTREAM-SINK-0000000001 (topic: out)
          <-- KSTREAM-SOURCE-0000000000
    """

    subtopologies: tuple[SubtopologyDescription, ...]
    global_stores: tuple[GlobalStoreDescription, ...] = ()

    @classmethod
    def of(cls, spec: TopologySpec, *, execution: bool = False) -> "TopologyDescription":
        return cls(
            tuple(_described(sub, execution) for sub in spec.subtopologies),
            tuple(map(_described_global, spec.global_stores)),
        )

    def __str__(self) -> str:
        parts = {part.id: str(part) for part in self.subtopologies}
        parts |= {part.id: str(part) for part in self.global_stores}
        return "Topologies:\n " + "".join(f"  {text}" for _, text in sorted(parts.items()))

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, dicts and strings, ready for JSON.

        >>> from tidewheel import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> builder.stream("in", key_serde=str, value_serde=str, name="read").to("out", name="write")
        >>> builder.build().describe().to_dict()["subtopologies"][0]["nodes"][1]
        {'type': 'sink', 'name': 'write', 'topic': 'out', 'predecessors': ['read'], 'successors': []}
        """
        subtopologies = [sub.to_dict() for sub in self.subtopologies]
        global_stores = [store.to_dict() for store in self.global_stores]
        return {"subtopologies": subtopologies} | (
            {"global_stores": global_stores} if global_stores else {}
        )

    def to_mermaid(self) -> str:
        """Return a Mermaid flowchart: box = sub-topology, stadium = topic, cylinder = store.

        >>> from tidewheel import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> builder.stream("in", key_serde=str, value_serde=str, name="read").to("out", name="write")
        >>> print(builder.build().describe().to_mermaid())
        flowchart TB
          topic0(["in"])
          topic1(["out"])
          subgraph sub0["Sub-topology 0"]
            node0["read"]
            node1["write"]
          end
          topic0 --> node0
          node0 --> node1
          node1 --> topic1
        """
        return _Mermaid().draw(self.subtopologies, self.global_stores)

    def to_svg(self) -> str:
        """Return an SVG drawing: frame = sub-topology, rounded box = topic, box = node with its stores.

        >>> from tidewheel import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> builder.stream("in", key_serde=str, value_serde=str, name="read").to("out", name="write")
        >>> builder.build().describe().to_svg().startswith("<svg")
        True
        """
        return draw(self.drawn_parts())

    def drawn_parts(self) -> list[DrawnPart]:
        """Return sub-topologies and global stores as the layout of a drawing takes them."""
        parts = [
            DrawnPart(sub.id, f"Sub-topology {sub.id}", sub.nodes) for sub in self.subtopologies
        ]
        parts += [
            DrawnPart(store.id, f"Global store {store.id}", (store.source, store.processor))
            for store in self.global_stores
        ]
        return parts

    def _repr_mimebundle_(
        self, include: Container[str] | None = None, exclude: Container[str] | None = None
    ) -> dict[str, str]:
        """Return the text, the Mermaid chart and the drawing, of which a notebook shows one."""
        forms = {
            "text/plain": self.__str__,
            "text/vnd.mermaid": self.to_mermaid,
            "image/svg+xml": self.to_svg,
        }
        return {
            mime: form()
            for mime, form in forms.items()
            if (include is None or mime in include) and (exclude is None or mime not in exclude)
        }


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"


def _described(spec: SubtopologySpec, execution: bool) -> SubtopologyDescription:
    links = _Links({node.name: parents_of(node) for node in spec.nodes})
    nodes = {node.name: _node(node) for node in spec.nodes}
    return SubtopologyDescription(
        id=spec.id,
        nodes=tuple(
            replace(
                nodes[name],
                predecessors=tuple(links.predecessors[name]),
                successors=tuple(links.successors[name]),
            )
            for name in sorted(nodes, key=lambda name: (-links.sizes[name], name))
        ),
        execution=str(execution_mode(spec)) if execution else None,
        key_ranges=str(keyedness(spec)) if execution else None,
        shards=_shards(spec) if execution else None,
    )


def _shards(spec: SubtopologySpec) -> str:
    reason = reason_against_shards(spec)
    return f"whole: {reason}" if reason else "possible"


class _Links:
    """The neighbours of each node in Kafka Streams' order.

    InternalTopologyBuilder.describeSubtopology connects nodes in hash map order. It sorts
    neighbours by the number of nodes connected below them so far; a node on two paths counts twice.
    """

    def __init__(self, parents: Mapping[str, Iterable[str]]) -> None:
        self.sizes = dict.fromkeys(parents, 1)
        self.predecessors = {name: TreeOrder(self._before) for name in parents}
        self.successors = {name: TreeOrder(self._before) for name in parents}
        for name in hash_order(parents):
            for parent in parents[name]:
                self.predecessors[name].add(parent)
                self.successors[parent].add(name)
                self._grow(parent, self.sizes[name])

    def _before(self, first: str, second: str) -> bool:
        return (-self.sizes[first], first) < (-self.sizes[second], second)

    def _grow(self, name: str, by: int) -> None:
        self.sizes[name] += by
        for above in self.predecessors[name]:
            self._grow(above, by)


def _described_global(spec: GlobalStoreSpec) -> GlobalStoreDescription:
    source, processor = _node(spec.source), _node(spec.processor)
    return GlobalStoreDescription(
        id=spec.id,
        source=replace(source, successors=(processor.name,)),
        processor=replace(processor, predecessors=(source.name,)),
    )


def _node(node: NodeSpec) -> NodeDescription:
    match node:
        case SourceSpec():
            pattern = None if node.pattern is None else node.pattern.pattern
            topics = tuple(hash_order(node.topics))
            return NodeDescription(type="source", name=node.name, topics=topics, pattern=pattern)
        case ProcessorSpec():
            # Kafka Streams prints topics and stores from a HashSet, so in hash order.
            stores = tuple(hash_order(node.stores))
            return NodeDescription(type="processor", name=node.name, stores=stores)
        case SinkSpec():
            if isinstance(node.topic, str):
                return NodeDescription(type="sink", name=node.name, topic=node.topic)
            return NodeDescription(type="sink", name=node.name, extractor=_function(node.topic))
        case ExternalSinkSpec():
            return NodeDescription(
                type="sink", name=node.name, topic=node.make().target, is_external=True
            )


def _function(function: Callable[..., Any]) -> str:
    """Return a function's name without an address, so the text is equal at every start."""
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__


class _Mermaid:
    """Collects the lines of a flowchart.

    Ids are generated: names may be reserved words in Mermaid.
    """

    def __init__(self) -> None:
        self._topics: dict[str, str] = {}
        self._boxes: list[str] = []
        self._links: list[str] = []
        self._count = 0

    def draw(
        self,
        subtopologies: Sequence[SubtopologyDescription],
        global_stores: Sequence[GlobalStoreDescription],
    ) -> str:
        for sub in subtopologies:
            title = f"Sub-topology {sub.id}"
            if sub.execution is not None:
                title += f" ({sub.execution})"
            self._draw_box(sub.id, title, sub.nodes)
        for store in global_stores:
            self._draw_box(store.id, f"Global store {store.id}", (store.source, store.processor))
        topics = [f"  {node_id}([{_label(topic)}])" for topic, node_id in self._topics.items()]
        return "\n".join(["flowchart TB", *topics, *self._boxes, *self._links])

    def _draw_box(self, number: int, title: str, nodes: Sequence[NodeDescription]) -> None:
        ids = {node.name: f"node{self._count + index}" for index, node in enumerate(nodes)}
        self._count += len(ids)
        names = sorted({store for node in nodes for store in node.stores})
        stores = {name: f"store{number}_{index}" for index, name in enumerate(names)}
        self._boxes += [
            f"  subgraph sub{number}[{_label(title)}]",
            *(f"    {node_id}[{_label(name)}]" for name, node_id in ids.items()),
            *(f"    {node_id}[({_label(name)})]" for name, node_id in stores.items()),
            "  end",
        ]
        for node in nodes:
            self._link(node, ids, stores)

    def _link(
        self, node: NodeDescription, ids: Mapping[str, str], stores: Mapping[str, str]
    ) -> None:
        me = ids[node.name]
        read = node.topics if node.pattern is None else (f"/{node.pattern}/",)
        self._links += [f"  {self._topic(topic)} --> {me}" for topic in read]
        self._links += [f"  {me} --> {ids[child]}" for child in node.successors]
        self._links += [f"  {me} -.- {stores[store]}" for store in node.stores]
        if node.type == "sink":
            written = f"{node.extractor}(…)" if node.topic is None else node.topic
            self._links.append(f"  {me} --> {self._topic(written)}")

    def _topic(self, name: str) -> str:
        return self._topics.setdefault(name, f"topic{len(self._topics)}")


def _label(text: str) -> str:
    escaped = text.replace("#", "#35;").replace('"', "#quot;")
    return f'"{escaped.replace("<", "#lt;").replace(">", "#gt;")}"'


def string_hash(text: str) -> int:
    """Return Java's `String.hashCode()`, unsigned.

    >>> string_hash("hello")
    99162322
    """
    code = 0
    data = text.encode("utf-16-be")
    for index in range(0, len(data), 2):
        code = code * 31 + (data[index] << 8 | data[index + 1]) & _BITS
    return code


def hash_order(names: Iterable[str], capacity: int = _CAPACITY) -> list[str]:
    """Return distinct names in the order of a Java `HashMap` filled in the given order.

    >>> hash_order(["b", "q", "a"])
    ['q', 'a', 'b']
    >>> hash_order(["b", "i"]), hash_order(["b", "i"], 3)
    (['b', 'i'], ['i', 'b'])
    """
    ordered = list(dict.fromkeys(names))
    buckets = 1 << max(capacity - 1, 0).bit_length()
    while len(ordered) > buckets * 3 // 4:
        buckets *= 2

    def bucket(name: str) -> int:
        code = string_hash(name)
        return (code ^ code >> 16) & buckets - 1

    return sorted(ordered, key=bucket)


class _Leaf(msgspec.Struct, eq=False):
    name: str
    red: bool = True
    left: "_Leaf | None" = None
    right: "_Leaf | None" = None


class TreeOrder:
    """A Java `TreeSet` whose comparator may change: an inserted name keeps its place.

    >>> sizes = {"a": 1, "b": 1, "c": 1}
    >>> order = TreeOrder(lambda one, other: (-sizes[one], one) < (-sizes[other], other))
    >>> order.add("b"); sizes["c"] = 5; order.add("a"); order.add("c"); list(order)
    ['c', 'a', 'b']
    """

    def __init__(self, before: Callable[[str, str], bool]) -> None:
        self._before = before
        self._root: _Leaf | None = None

    def add(self, name: str) -> None:
        """Insert a name by the current order; a name equal to one on the path is dropped."""
        path: list[tuple[_Leaf, bool]] = []
        here = self._root
        while here is not None:
            if here.name == name:
                return
            left = self._before(name, here.name)
            path.append((here, left))
            here = here.left if left else here.right
        leaf = _Leaf(name)
        if not path:
            self._root = leaf
        elif path[-1][1]:
            path[-1][0].left = leaf
        else:
            path[-1][0].right = leaf
        self._balance(leaf, [node for node, _ in path])
        assert self._root is not None
        self._root.red = False

    def _balance(self, leaf: _Leaf, above: list[_Leaf]) -> None:
        """Rebalance the red-black tree as java.util.TreeMap does (Cormen et al.)."""
        while len(above) > 1 and above[-1].red:
            parent, grandparent = above[-1], above[-2]
            on_left = parent is grandparent.left
            uncle = grandparent.right if on_left else grandparent.left
            if uncle is not None and uncle.red:
                parent.red = uncle.red = False
                grandparent.red = True
                leaf, above = grandparent, above[:-2]
                continue
            if leaf is (parent.right if on_left else parent.left):
                self._rotate(parent, grandparent, left=on_left)
                parent = leaf
            parent.red, grandparent.red = False, True
            self._rotate(grandparent, above[-3] if len(above) > 2 else None, left=not on_left)  # noqa: PLR2004 - root has no parent
            return

    def _rotate(self, leaf: _Leaf, parent: _Leaf | None, *, left: bool) -> None:
        if left:
            up = leaf.right
            assert up is not None
            leaf.right, up.left = up.left, leaf
        else:
            up = leaf.left
            assert up is not None
            leaf.left, up.right = up.right, leaf
        if parent is None:
            self._root = up
        elif parent.left is leaf:
            parent.left = up
        else:
            parent.right = up

    def __iter__(self) -> Iterator[str]:
        return self._walk(self._root)

    def _walk(self, leaf: _Leaf | None) -> Iterator[str]:
        if leaf is not None:
            yield from self._walk(leaf.left)
            yield leaf.name
            yield from self._walk(leaf.right)
