"""Layered layout of a topology: places of topics, sub-topologies and their nodes, top-down.

Each sub-topology is laid out by itself and becomes one box of the drawing of topics and
sub-topologies. A topic that would close a circle is drawn twice.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, Protocol
from unicodedata import east_asian_width

#: Pixels of a character of the 12 px monospace font, of a line, and around the text of a box.
_CHARACTER: Final = 7.25
_LINE: Final = 17
_PADDING: Final = 8
#: Longest label in characters; longer ones lose their middle.
_LABEL_MAX: Final = 44
#: Pixels between neighbours and between rows, around the drawing, and inside a frame.
_GAP: Final = 20
_ROW_GAP: Final = 26
_MARGIN: Final = 12
_FRAME_PADDING: Final = 14
_FRAME_WIDTH_MIN: Final = 270
#: Passes over all rows that order them, and then that straighten links.
_SWEEPS: Final = 12
_STRAIGHTENINGS: Final = 30


#: Boxes linked with a box, and how many pixels right of them it is straight above or below.
_Neighbours = dict[str, list[tuple[str, float]]]


class DrawnNode(Protocol):
    """A node as `NodeDescription` has it."""

    @property
    def type(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def topics(self) -> Sequence[str]: ...
    @property
    def pattern(self) -> str | None: ...
    @property
    def topic(self) -> str | None: ...
    @property
    def extractor(self) -> str | None: ...
    @property
    def stores(self) -> Sequence[str]: ...
    @property
    def successors(self) -> Sequence[str]: ...


class DrawnPart(NamedTuple):
    """A sub-topology or global store."""

    number: int
    title: str
    nodes: Sequence[DrawnNode]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A topic or a node at the pixels of its upper left corner.

    Attributes:
        kind: "topic", "source", "processor" or "sink".
        part: Number of a node's sub-topology.
        label: Name, shortened if long.
        stores: Names of a node's stores, shortened if long.
        is_repeated: True if the drawing has this topic a second time, to avoid a circle.
    """

    kind: str
    name: str
    label: str
    x: int
    y: int
    width: int
    height: int
    stores: tuple[str, ...] = ()
    part: int = -1
    is_repeated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The outline of a sub-topology; its first `header` pixels are free for text."""

    part: int
    title: str
    x: int
    y: int
    width: int
    height: int
    header: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Places of all parts of a drawing; a link is the data of an SVG path."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    frames: tuple[Frame, ...]
    links: tuple[str, ...]


class _Size(NamedTuple):
    width: float
    height: float


class _Point(NamedTuple):
    x: float
    y: float

    def moved(self, by: "_Point") -> "_Point":
        return _Point(self.x + by.x, self.y + by.y)


class _Link(NamedTuple):
    """A link between two boxes, and where it meets them in pixels right of their middles."""

    start: str
    end: str
    start_dx: float = 0.0
    end_dx: float = 0.0


class _Placed(NamedTuple):
    """Middles of the upper edges of boxes, the points of each link, and the size of the whole."""

    tops: Mapping[str, _Point]
    routes: Sequence[list[_Point]]
    size: _Size


class _Block(NamedTuple):
    """A sub-topology, laid out at the origin; `inset` is the place of its nodes in its frame."""

    part: DrawnPart
    sizes: Mapping[str, _Size]
    placed: _Placed
    size: _Size
    inset: _Point

    def dx(self, node: str) -> float:
        return self.placed.tops[node].x + self.inset.x - self.size.width / 2


class _TopicLink(NamedTuple):
    topic: str
    block: str
    node: str
    is_read: bool

    def between(self, blocks: Mapping[str, _Block]) -> _Link:
        dx = blocks[self.block].dx(self.node)
        if self.is_read:
            return _Link(self.topic, self.block, end_dx=dx)
        return _Link(self.block, self.topic, start_dx=dx)


def laid_out(parts: Iterable[DrawnPart], *, header_lines: int = 1) -> Layout:
    """Return the layout of sub-topologies; their frames have `header_lines` lines of text."""
    header = header_lines * _LINE + 8
    blocks = {f"part {part.number}": _block(part, header) for part in parts}
    topic_links = _without_circles(_topic_links(blocks))
    sizes = {link.topic: _text_size((_topic_label(link.topic),)) for link in topic_links}
    topics = list(sizes)
    sizes |= {name: block.size for name, block in blocks.items()}
    outer = _place(
        sizes, [link.between(blocks) for link in topic_links], at=_Point(_MARGIN, _MARGIN)
    )
    boxes = [_topic_box(topic, outer.tops[topic], sizes[topic]) for topic in topics]
    frames: list[Frame] = []
    routes: list[list[_Point]] = []
    insides: dict[str, _Point] = {}
    for name, block in blocks.items():
        corner = outer.tops[name].moved(_Point(-block.size.width / 2, 0))
        insides[name] = inside = corner.moved(block.inset)
        frames.append(_frame(block, corner, header))
        boxes += _node_boxes(block, inside)
        routes += [[point.moved(inside) for point in route] for route in block.placed.routes]
    for link, route in zip(topic_links, outer.routes, strict=True):
        block, inside = blocks[link.block], insides[link.block]
        top = block.placed.tops[link.node].moved(inside)
        if link.is_read:
            routes.append([*route, top])
        else:
            bottom = _Point(top.x, top.y + block.sizes[link.node].height)
            routes.append([bottom, *route])
    return Layout(
        width=round(outer.size.width + 2 * _MARGIN),
        height=round(outer.size.height + 2 * _MARGIN),
        boxes=tuple(boxes),
        frames=tuple(frames),
        links=tuple(map(_path, routes)),
    )


def _block(part: DrawnPart, header: int) -> _Block:
    sizes = {node.name: _text_size((node.name, *node.stores)) for node in part.nodes}
    links = [_Link(node.name, child) for node in part.nodes for child in node.successors]
    sources = {node.name for node in part.nodes if node.type == "source"}
    sinks = {node.name for node in part.nodes if node.type == "sink"}
    placed = _place(sizes, links, first=sources, last=sinks)
    width = max(placed.size.width + 2 * _FRAME_PADDING, _FRAME_WIDTH_MIN)
    height = header + placed.size.height + 2 * _FRAME_PADDING
    inset = _Point((width - placed.size.width) / 2, header + _FRAME_PADDING)
    return _Block(part, sizes, placed, _Size(width, height), inset)


def _topic_links(blocks: Mapping[str, _Block]) -> list[_TopicLink]:
    links: list[_TopicLink] = []
    for name, block in blocks.items():
        for node in block.part.nodes:
            read = node.topics if node.pattern is None else (f"/{node.pattern}/",)
            links += [_TopicLink(f"topic {topic}", name, node.name, is_read=True) for topic in read]
            if node.type == "sink":
                written = f"{node.extractor}(…)" if node.topic is None else node.topic
                links.append(_TopicLink(f"topic {written}", name, node.name, is_read=False))
    return links


def _without_circles(links: Sequence[_TopicLink]) -> list[_TopicLink]:
    """Return the links; one that would close a circle leads to a second box of its topic."""
    kept: list[_TopicLink] = []
    below: dict[str, set[str]] = {}
    # What is read comes first, so that a written topic is the one to be repeated.
    for link in sorted(links, key=lambda link: not link.is_read):
        start, end = (link.topic, link.block) if link.is_read else (link.block, link.topic)
        if _is_reached(start, end, below):
            kept.append(link._replace(topic=f"again {link.topic.removeprefix('topic ')}"))
        else:
            below.setdefault(start, set()).add(end)
            kept.append(link)
    return kept


def _is_reached(goal: str, start: str, below: Mapping[str, set[str]]) -> bool:
    found = {start}
    pending = [start]
    while pending:
        name = pending.pop()
        if name == goal:
            return True
        new = below.get(name, set()) - found
        found |= new
        pending += new
    return False


# --- one layered drawing ---


def _place(
    sizes: Mapping[str, _Size],
    links: Sequence[_Link],
    *,
    first: Collection[str] = (),
    last: Collection[str] = (),
    at: _Point = _Point(0, 0),  # noqa: B008 - immutable
) -> _Placed:
    """Place boxes in rows, each below those that lead to it.

    Args:
        first, last: Boxes for the first and the last row.
        at: Upper left corner of the drawing.
    """
    if not sizes:
        return _Placed({}, [], _Size(0, 0))
    ranks = _ranks(sizes, links, first, last)
    chains, all_sizes, all_ranks = _with_bends(sizes, ranks, links)
    rows: list[list[str]] = [[] for _ in range(max(all_ranks.values()) + 1)]
    for name, rank in all_ranks.items():
        rows[rank].append(name)
    xs = _columns(rows, all_sizes, [link for chain in chains for link in chain])
    left = min(xs[name] - all_sizes[name].width / 2 for name in xs)
    right = max(xs[name] + all_sizes[name].width / 2 for name in xs)
    tops: dict[str, _Point] = {}
    bottoms: dict[str, float] = {}
    y = at.y
    for row in rows:
        bottom = y + max((all_sizes[name].height for name in row), default=0)
        for name in row:
            tops[name] = _Point(xs[name] - left + at.x, y)
            bottoms[name] = bottom
        y = bottom + _ROW_GAP
    routes = [_route(chain, tops, all_sizes, bottoms) for chain in chains]
    size = _Size(right - left, y - _ROW_GAP - at.y)
    return _Placed({name: tops[name] for name in sizes}, routes, size)


def _ranks(
    sizes: Mapping[str, _Size],
    links: Sequence[_Link],
    first: Collection[str],
    last: Collection[str],
) -> dict[str, int]:
    """Return the row of each box: the longest way to it, or just above what it leads to."""
    after: dict[str, list[str]] = {name: [] for name in sizes}
    missing = dict.fromkeys(sizes, 0)
    for link in links:
        after[link.start].append(link.end)
        missing[link.end] += 1
    starts = [name for name in sizes if not missing[name]]
    ranks = dict.fromkeys(sizes, 0)
    pending = list(starts)
    while pending:
        name = pending.pop()
        for child in after[name]:
            ranks[child] = max(ranks[child], ranks[name] + 1)
            missing[child] -= 1
            if not missing[child]:
                pending.append(child)
    for name in starts:
        if after[name] and name not in first:
            ranks[name] = min(ranks[child] for child in after[name]) - 1
    bottom = max(ranks.values())
    # A lone sink is both: it stays in the row of its own sub-topology's end.
    return ranks | {name: bottom for name in last if name in ranks}


def _with_bends(
    sizes: Mapping[str, _Size], ranks: Mapping[str, int], links: Sequence[_Link]
) -> tuple[list[list[_Link]], dict[str, _Size], dict[str, int]]:
    """Return each link as a chain of links between neighbouring rows, by way of empty boxes."""
    all_sizes, all_ranks = dict(sizes), dict(ranks)
    chains: list[list[_Link]] = []
    for number, link in enumerate(links):
        chain: list[_Link] = []
        above, dx = link.start, link.start_dx
        for rank in range(ranks[link.start] + 1, ranks[link.end]):
            bend = f"bend {number} {rank}"
            all_sizes[bend], all_ranks[bend] = _Size(0, 0), rank
            chain.append(_Link(above, bend, dx))
            above, dx = bend, 0.0
        chains.append([*chain, _Link(above, link.end, dx, link.end_dx)])
    return chains, all_sizes, all_ranks


def _columns(
    rows: Sequence[Sequence[str]], sizes: Mapping[str, _Size], links: Sequence[_Link]
) -> dict[str, float]:
    """Return the middle of each box; parts without links between them are side by side."""
    above: _Neighbours = {name: [] for name in sizes}
    below: _Neighbours = {name: [] for name in sizes}
    for link in links:
        above[link.end].append((link.start, link.start_dx - link.end_dx))
        below[link.start].append((link.end, link.end_dx - link.start_dx))
    both = {name: [*above[name], *below[name]] for name in sizes}
    columns: dict[str, float] = {}
    right = 0.0
    for component in _components(both):
        members = [[name for name in row if name in component] for row in rows]
        xs = _columns_of_component(members, sizes, above, below, both)
        shift = right - min(x - sizes[name].width / 2 for name, x in xs.items())
        columns |= {name: x + shift for name, x in xs.items()}
        right = max(columns[name] + sizes[name].width / 2 for name in xs) + _GAP
    return columns


def _components(neighbours: _Neighbours) -> Iterator[set[str]]:
    seen: set[str] = set()
    for name in neighbours:
        if name in seen:
            continue
        component = {name}
        pending = [name]
        while pending:
            new = {other for other, _ in neighbours[pending.pop()]} - component
            component |= new
            pending += new
        seen |= component
        yield component


def _columns_of_component(
    rows: Sequence[list[str]],
    sizes: Mapping[str, _Size],
    above: _Neighbours,
    below: _Neighbours,
    both: _Neighbours,
) -> dict[str, float]:
    """Order each row near its neighbours in other rows, then straighten the links."""
    xs: dict[str, float] = {}
    for row in rows:
        _spread(row, sizes, xs, dict.fromkeys(row, 0.0))
    for sweep in range(_SWEEPS):
        is_down = sweep % 2 == 0
        for row in rows if is_down else reversed(rows):
            wanted = {name: _wanted(name, above if is_down else below, xs) for name in row}
            row.sort(key=wanted.__getitem__)
            _spread(row, sizes, xs, wanted)
    for _ in range(_STRAIGHTENINGS):
        for row in (*rows, *reversed(rows)):
            _spread(row, sizes, xs, {name: _wanted(name, both, xs) for name in row})
    return xs


def _wanted(name: str, neighbours: _Neighbours, xs: Mapping[str, float]) -> float:
    places = [xs[neighbour] + dx for neighbour, dx in neighbours[name]]
    return sum(places) / len(places) if places else xs[name]


def _spread(
    row: Sequence[str],
    sizes: Mapping[str, _Size],
    xs: dict[str, float],
    wanted: Mapping[str, float],
) -> None:
    """Set a row's middles as near to the wanted ones as their order and gaps allow.

    Boxes that would overlap form a run, which is centred on its mean (pool adjacent violators).
    """
    offsets: list[float] = []
    right = 0.0
    for name in row:
        offsets.append(right + sizes[name].width / 2)
        right += sizes[name].width + _GAP
    runs: list[tuple[float, int]] = []
    for name, offset in zip(row, offsets, strict=True):
        mean, count = wanted[name] - offset, 1
        while runs and runs[-1][0] >= mean:
            earlier, many = runs.pop()
            mean = (earlier * many + mean * count) / (many + count)
            count += many
        runs.append((mean, count))
    shifts = [mean for mean, count in runs for _ in range(count)]
    xs.update(
        (name, offset + shift) for name, offset, shift in zip(row, offsets, shifts, strict=True)
    )


def _route(
    chain: Sequence[_Link],
    tops: Mapping[str, _Point],
    sizes: Mapping[str, _Size],
    bottoms: Mapping[str, float],
) -> list[_Point]:
    """Return the points of a link; it crosses rows upright, and moves sideways between them."""
    start = chain[0].start
    x = tops[start].x + chain[0].start_dx
    points = [_Point(x, tops[start].y + sizes[start].height), _Point(x, bottoms[start])]
    for link in chain:
        top = tops[link.end].moved(_Point(link.end_dx, 0))
        points.append(top)
        if link is not chain[-1]:
            points.append(_Point(top.x, bottoms[link.end]))
    return points


def _path(points: Sequence[_Point]) -> str:
    parts = [f"M{points[0].x:.0f} {points[0].y:.0f}"]
    for (x, y), (x2, y2) in pairwise(points):
        if round(x) == round(x2):
            parts.append(f"V{y2:.0f}")
        else:
            middle = (y + y2) / 2
            parts.append(f"C{x:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}")
    return "".join(parts)


# --- boxes ---


def _topic_label(name: str) -> str:
    kind, _, topic = name.partition(" ")
    return f"{_shortened(topic)} (again)" if kind == "again" else _shortened(topic)


def _text_size(lines: Sequence[str]) -> _Size:
    width = max(_cells(_shortened(line)) for line in lines) * _CHARACTER
    # Room for the sign of a store, which only the first line lacks.
    return _Size(max(width + 2 * _PADDING + 20, 60), len(lines) * _LINE + 10)


def _shortened(text: str) -> str:
    half = _LABEL_MAX // 2
    return text if len(text) <= _LABEL_MAX else f"{text[: half - 1]}…{text[-half:]}"


def _cells(text: str) -> int:
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)


def _topic_box(name: str, top: _Point, size: _Size) -> Box:
    kind, _, topic = name.partition(" ")
    return Box(
        kind="topic",
        name=topic,
        label=_topic_label(name),
        x=round(top.x - size.width / 2),
        y=round(top.y),
        width=round(size.width),
        height=round(size.height),
        is_repeated=kind == "again",
    )


def _node_boxes(block: _Block, inside: _Point) -> Iterator[Box]:
    for node in block.part.nodes:
        size, top = block.sizes[node.name], block.placed.tops[node.name].moved(inside)
        yield Box(
            kind=node.type,
            name=node.name,
            label=_shortened(node.name),
            part=block.part.number,
            stores=tuple(map(_shortened, node.stores)),
            x=round(top.x - size.width / 2),
            y=round(top.y),
            width=round(size.width),
            height=round(size.height),
        )


def _frame(block: _Block, corner: _Point, header: int) -> Frame:
    return Frame(
        part=block.part.number,
        title=block.part.title,
        x=round(corner.x),
        y=round(corner.y),
        width=round(block.size.width),
        height=round(block.size.height),
        header=header,
    )
