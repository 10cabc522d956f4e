"""Topology graph of the dashboard: of a program, or of what the group's two topics say."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidewheel.rebalance.protocol.group import Group
from tidewheel.streams.group.inbox import InboxFold
from tidewheel.streams.group.range_map import topic_readers
from tidewheel.streams.topology.description import NodeDescription
from tidewheel.streams.topology.layout import DrawnPart, Layout, laid_out
from tidewheel.streams.topology.topology import Topology

#: Title and figures, which the page fills in.
_HEADER_LINES: Final = 2
#: Topics and stores of a sub-topology that are drawn where no program names them.
_NAMES_MAX: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPart:
    """A sub-topology or global store as a row of the table below the drawing."""

    part: int
    title: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    stores: tuple[str, ...]
    has_tasks: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyGraph:
    """Drawing of a topology, and the same as text.

    Attributes:
        topology_hash: Hash of the program's topology; "" if the graph is from the group's topics,
            which name neither nodes nor written topics.
    """

    layout: Layout
    parts: tuple[GraphPart, ...]
    topology_hash: str = ""


def program_graph(topology: Topology) -> TopologyGraph:
    description = topology.describe()
    tasks = {sub.id for sub in description.subtopologies}
    return _graph(description.drawn_parts(), tasks, topology.hash())


class GroupGraph:
    """Graph of a group whose program is unknown; drawn again only after a change."""

    def __init__(self, application_id: str) -> None:
        self._prefix = f"{application_id}-"
        self._contents: Mapping[int, tuple[int, tuple[str, ...], tuple[str, ...]]] = {}
        self._graph = _graph((), (), "")

    def read(self, group: Group, inbox: InboxFold) -> TopologyGraph:
        contents = self._read(group, inbox)
        if contents != self._contents:
            self._contents = contents
            parts = [
                DrawnPart(number, f"Sub-topology {number}", (_tasks_node(*content),))
                for number, content in contents.items()
            ]
            self._graph = _graph(parts, contents, "")
        return self._graph

    def _read(
        self, group: Group, inbox: InboxFold
    ) -> dict[int, tuple[int, tuple[str, ...], tuple[str, ...]]]:
        """Return the number of tasks, the topics and the stores of each sub-topology."""
        counts: dict[int, int] = {}
        stores: dict[int, set[str]] = {}
        topics: dict[int, set[str]] = {}
        for task, shape in group.tasks.items():
            counts[task.subtopology] = counts.get(task.subtopology, 0) + 1
            names = stores.setdefault(task.subtopology, set())
            names.update(map(self._store, shape.changelogs))
        for topic, number in topic_readers(group, inbox).items():
            topics.setdefault(number, set()).add(topic)
        return {
            number: (
                counts[number],
                _listed(topics.get(number, ()), "topics"),
                _listed(stores[number], "stores"),
            )
            for number in sorted(counts)
        }

    def _store(self, changelog: str) -> str:
        return changelog.removeprefix(self._prefix).removesuffix("-changelog")


def _listed(names: Iterable[str], noun: str) -> tuple[str, ...]:
    ordered = sorted(names)
    more = len(ordered) - _NAMES_MAX
    return tuple(ordered) if more <= 0 else (*ordered[:_NAMES_MAX], f"{more} more {noun}")


def _tasks_node(count: int, topics: tuple[str, ...], stores: tuple[str, ...]) -> NodeDescription:
    name = f"{count} task{'' if count == 1 else 's'}"
    return NodeDescription(type="source", name=name, topics=topics, stores=stores)


def _graph(
    parts: Sequence[DrawnPart], with_tasks: Iterable[int], topology_hash: str
) -> TopologyGraph:
    numbers = set(with_tasks)
    return TopologyGraph(
        layout=laid_out(parts, header_lines=_HEADER_LINES),
        parts=tuple(_part(part, has_tasks=part.number in numbers) for part in parts),
        topology_hash=topology_hash,
    )


def _part(part: DrawnPart, *, has_tasks: bool) -> GraphPart:
    reads: dict[str, None] = {}
    writes: dict[str, None] = {}
    stores: dict[str, None] = {}
    for node in part.nodes:
        reads |= dict.fromkeys(node.topics if node.pattern is None else (f"/{node.pattern}/",))
        stores |= dict.fromkeys(node.stores)
        if node.type == "sink":
            writes[f"{node.extractor}(…)" if node.topic is None else node.topic] = None
    return GraphPart(
        part=part.number,
        title=part.title,
        reads=tuple(reads),
        writes=tuple(writes),
        stores=tuple(stores),
        has_tasks=has_tasks,
    )
