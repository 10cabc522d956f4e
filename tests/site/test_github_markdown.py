"""Forms of GitHub's Markdown that Python-Markdown reads in another way, and pictures."""

from xml.etree import ElementTree as ET

import pytest

from checks.site.flowchart import draw_flowchart
from checks.site.github_markdown import to_python_markdown


def test_a_list_after_a_paragraph_gets_an_empty_line() -> None:
    assert to_python_markdown("**Rules**\n- one\n- two\n") == "**Rules**\n\n- one\n- two\n"


def test_lines_below_an_item_are_indented_by_four_for_each_level() -> None:
    text = "1. one,\n   more\n   - inner\n     more\n\n   ```sql\n   a\n     b\n   ```\n2. two\n\nafter\n"
    assert to_python_markdown(text) == (
        "1. one,\n    more\n    - inner\n        more\n\n    ```sql\n    a\n      b\n    ```\n"
        "2. two\n\nafter\n"
    )


def test_lines_of_a_block_stay_as_they_are() -> None:
    text = "```text\n- no item\n  x\n```\n"
    assert to_python_markdown(text) == text


def test_a_flowchart_becomes_a_picture_with_its_boxes_and_links() -> None:
    lines = ["flowchart LR", '    a["one<br>two"] --> b["<x>"] -->|sends| c', "    a --> c"]
    root = ET.fromstring(draw_flowchart(lines))  # noqa: S314 - made above
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert sorted(filter(None, texts)) == ["<x>", "c", "one", "sends", "two"]
    left = [float(box.attrib["x"]) for box in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert left == sorted(set(left))  # c is right of b, not of a alone
    assert root.attrib["aria-label"] == "one, two to <x>; <x> to c; one, two to c"
    assert "<div" in to_python_markdown("```mermaid\nflowchart LR\na --> b\n```\n")


def test_a_circle_from_top_to_bottom_has_lanes_beside_its_boxes() -> None:
    lines = [
        "flowchart TB",
        "    a -->|on| b",
        "    b -->|back| a",
        "    b --> c",
        "    a -->|past| c",
    ]
    root = ET.fromstring(draw_flowchart(lines))  # noqa: S314 - made above
    width = float(root.attrib["width"])
    boxes = list(root.iter("{http://www.w3.org/2000/svg}rect"))
    tops = [float(box.attrib["y"]) for box in boxes]
    assert tops == sorted(set(tops))
    left = min(float(box.attrib["x"]) for box in boxes)
    right = max(float(box.attrib["x"]) + float(box.attrib["width"]) for box in boxes)
    texts = {
        text.text: float(text.attrib["x"])
        for text in root.iter("{http://www.w3.org/2000/svg}text")
        if text.attrib.get("class") == "label"
    }
    assert 0 < texts["back"] < left < texts["on"] < right < texts["past"] < width


@pytest.mark.parametrize("line", ["a ==> b", "subgraph x", 'a("round") --> b'])
def test_other_syntax_of_mermaid_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="unknown line"):
        draw_flowchart(["flowchart LR", line])
