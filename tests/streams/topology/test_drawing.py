"""Drawing of a topology for notebooks: an SVG without overlaps, and the Mermaid text."""

from itertools import combinations
from xml.etree import ElementTree as ET

import pytest

from tidewheel import StreamsBuilder, Topology

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


@pytest.mark.parametrize("make", [_joined, _circle])
def test_the_drawing_has_all_nodes_and_no_box_covers_another(make: "type[Topology]") -> None:
    description = make().describe()
    root = ET.fromstring(description.to_svg())  # noqa: S314 - our own text
    texts = {element.text for element in root.iter(f"{_SVG}text")}
    nodes = [node for sub in description.subtopologies for node in sub.nodes]
    assert {node.name for node in nodes} <= texts
    assert {topic for node in nodes for topic in node.topics} <= texts
    boxes = [
        tuple(float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        for rect in root.iter(f"{_SVG}rect")
    ]
    assert len(boxes) > len(nodes)
    for (x, y, width, height), (x2, y2, width2, height2) in combinations(boxes, 2):
        assert x + width <= x2 or x2 + width2 <= x or y + height <= y2 or y2 + height2 <= y
    assert all(x >= 0 and x + width <= float(root.attrib["width"]) for x, _, width, _ in boxes)
    assert all(y >= 0 and y + height <= float(root.attrib["height"]) for _, y, _, height in boxes)


def test_what_leads_to_a_box_is_above_it() -> None:
    root = ET.fromstring(_joined().describe().to_svg())  # noqa: S314 - our own text
    lines = list(root.iter(f"{_SVG}line"))
    upwards = [line for line in lines if float(line.attrib["y1"]) > float(line.attrib["y2"])]
    assert len(lines) > 10
    assert not upwards


def test_a_notebook_gets_text_mermaid_and_drawing() -> None:
    topology = _joined()
    bundle = topology._repr_mimebundle_()
    assert bundle["text/plain"] == str(topology.describe())
    assert bundle["text/vnd.mermaid"] == topology.describe().to_mermaid()
    assert bundle["image/svg+xml"] == topology.describe().to_svg()
    assert topology.describe()._repr_mimebundle_() == bundle


def test_an_empty_topology_can_be_drawn() -> None:
    ET.fromstring(Topology().describe().to_svg())  # noqa: S314 - our own text
