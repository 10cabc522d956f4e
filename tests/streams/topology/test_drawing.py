"""Drawing of a topology for notebooks: an SVG without overlaps, and the Mermaid text."""

import re
from collections.abc import Iterator
from itertools import combinations
from xml.etree import ElementTree as ET

import pytest

from tidewheel import StreamsBuilder, Topology
from tidewheel.streams.topology.layout import laid_out

_SVG = "{http://www.w3.org/2000/svg}"


def _joined() -> Topology:
    builder = StreamsBuilder()
    left = builder.stream("left", key_serde=str, value_serde=str)
    table = builder.table("right", key_serde=str, value_serde=str, store="rows")
    joined = left.join(table, lambda one, other: one + other)
    counts = joined.group_by(lambda value: value, key_serde=str, value_serde=str).count()
    counts.to_stream().to("counts", key_serde=str, value_serde=int)
    joined.to(lambda key, value, context: "left", key_serde=str, value_serde=str)
    return builder.build()


def _circle() -> Topology:
    builder = StreamsBuilder()
    builder.stream("a", key_serde=str, value_serde=str).to("b")
    builder.stream("b", key_serde=str, value_serde=str).to("a")
    return builder.build()


def _merged() -> Topology:
    """Six inputs whose links pass several rows, and a global store without any link to them."""
    builder = StreamsBuilder()
    streams = [builder.stream(f"in-{each}", key_serde=str, value_serde=str) for each in range(6)]
    builder.global_table("countries", key_serde=str, value_serde=str, store="countries")
    merged = streams[0]
    for stream in streams[1:4]:
        merged = merged.merge(stream)
    merged.filter(lambda _key, value: bool(value), name="paid").to("paid")
    merged.group_by(lambda value: value, key_serde=str, value_serde=str).count().to_stream().to(
        "counts", value_serde=int
    )
    for stream in streams[4:]:
        stream.to("paid")
    return builder.build()


@pytest.mark.parametrize("make", [_joined, _circle, _merged])
def test_the_drawing_has_all_nodes_and_no_box_covers_another(make: "type[Topology]") -> None:
    description = make().describe()
    root = ET.fromstring(description.to_svg())  # noqa: S314 - our own text
    # Long names are shortened in the text of their boxes, and whole in the titles.
    texts = {element.text for name in ("text", "title") for element in root.iter(_SVG + name)}
    nodes = [node for sub in description.subtopologies for node in sub.nodes]
    assert {node.name for node in nodes} <= texts
    assert {topic for node in nodes for topic in node.topics} <= texts
    boxes = [
        tuple(float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        for rect in root.iter(f"{_SVG}rect")
        if rect.attrib.get("class") in ("topic", "source", "processor", "sink")
    ]
    assert len(boxes) > len(nodes)
    for (x, y, width, height), (x2, y2, width2, height2) in combinations(boxes, 2):
        assert x + width <= x2 or x2 + width2 <= x or y + height <= y2 or y2 + height2 <= y
    assert all(x >= 0 and x + width <= float(root.attrib["width"]) for x, _, width, _ in boxes)
    assert all(y >= 0 and y + height <= float(root.attrib["height"]) for _, y, _, height in boxes)


def test_what_leads_to_a_box_is_above_it() -> None:
    root = ET.fromstring(_joined().describe().to_svg())  # noqa: S314 - our own text
    links = [path.attrib["d"] for path in root.iter(f"{_SVG}path") if "marker-end" in path.attrib]
    assert len(links) > 10
    for link in links:
        heights = [int(step.split()[-1]) for step in re.split("[MVC]", link)[1:]]
        assert heights == sorted(heights), link


@pytest.mark.parametrize("make", [_joined, _circle, _merged])
def test_nodes_are_in_the_frame_of_their_sub_topology_and_links_cross_no_node(
    make: "type[Topology]",
) -> None:
    layout = laid_out(make().describe().drawn_parts())
    frames = {frame.part: frame for frame in layout.frames}
    for box in layout.boxes:
        frame = frames.get(box.part)
        if frame is not None:
            assert frame.x < box.x < box.x + box.width < frame.x + frame.width
            assert frame.y + frame.header < box.y < box.y + box.height < frame.y + frame.height
    for link in layout.links:
        for x, y in _points(link):
            inside = [
                box.name
                for box in layout.boxes
                if box.x < x < box.x + box.width and box.y < y < box.y + box.height
            ]
            assert inside == [], link


def test_parts_without_a_link_are_side_by_side() -> None:
    """Otherwise each sweep of the layout moves them further apart."""
    builder = StreamsBuilder()
    for name in "abcd":
        builder.stream(name, key_serde=str, value_serde=str).to(f"{name}-out")
    layout = laid_out(builder.build().describe().drawn_parts())
    assert layout.width < 1.2 * sum(frame.width for frame in layout.frames)
    assert len({frame.y for frame in layout.frames}) == 1


def test_a_topic_that_closes_a_circle_is_drawn_twice() -> None:
    boxes = laid_out(_circle().describe().drawn_parts()).boxes
    repeated = [box.name for box in boxes if box.is_repeated]
    assert len(repeated) == 1
    assert sum(box.name == repeated[0] for box in boxes) == 2


def _points(link: str) -> Iterator[tuple[float, float]]:
    """Yield points along an SVG path of lines down and curves."""
    x = y = 0.0
    for step in re.findall("[MVC][^MVC]+", link):
        numbers = [float(number) for number in step[1:].split()]
        if step[0] == "M":
            x, y = numbers
            continue
        x2, y2 = (x, numbers[0]) if step[0] == "V" else (numbers[4], numbers[5])
        for part in range(1, 20):
            at = part / 20
            # Both control points are half way down: x follows 3t² - 2t³.
            moved = at if step[0] == "V" else 3 * at**2 - 2 * at**3
            down = at if step[0] == "V" else 1.5 * at * (1 - at) + at**3
            yield x + (x2 - x) * moved, y + (y2 - y) * down
        x, y = x2, y2


def test_a_notebook_gets_text_mermaid_and_drawing() -> None:
    topology = _joined()
    bundle = topology._repr_mimebundle_()
    assert bundle["text/plain"] == str(topology.describe())
    assert bundle["text/vnd.mermaid"] == topology.describe().to_mermaid()
    assert bundle["image/svg+xml"] == topology.describe().to_svg()
    assert topology.describe()._repr_mimebundle_() == bundle
    assert list(topology._repr_mimebundle_(include={"image/svg+xml"})) == ["image/svg+xml"]
    assert "image/svg+xml" not in topology._repr_mimebundle_(exclude=["image/svg+xml"])


def test_an_empty_topology_can_be_drawn() -> None:
    ET.fromstring(Topology().describe().to_svg())  # noqa: S314 - our own text
