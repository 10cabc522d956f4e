"""Generated parts of documents match the code."""

import ast
import re

import pytest

from checks.file_map import PACKAGES
from checks.generated_parts import (
    PARTS,
    main,
    outdated,
    settings_table,
    with_part,
)
from checks.repository_files import ROOT
from tidewheel import StreamsConfig
from tidewheel.streams.config.streams_config import SECTIONS


def attributes_read() -> set[str]:
    files = [
        path
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "config" not in path.relative_to(ROOT).parts[:-1]
    ]
    return {
        node.attr
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    }


def test_generated_parts_are_up_to_date() -> None:
    assert [name for _, name, _ in outdated()] == []
    assert main([]) == 0


def test_every_option_is_in_one_section() -> None:
    first = next(iter(StreamsConfig.model_fields))
    assert first in SECTIONS
    assert [option for option in StreamsConfig.model_fields if option in SECTIONS] == [*SECTIONS]
    listed = re.findall(r"(?m)^\| `(\w+)` ", settings_table())
    assert listed == [*StreamsConfig.model_fields]


def test_every_option_has_an_effect() -> None:
    assert set(StreamsConfig.model_fields) <= attributes_read()


def test_a_part_needs_its_markers() -> None:
    text = "a\n<!-- generated: x -->\nold\n<!-- /generated: x -->\nb\n"
    assert with_part(text, "x", "new") == (
        "a\n<!-- generated: x -->\n\nnew\n\n<!-- /generated: x -->\nb\n"
    )
    with pytest.raises(ValueError, match="needs one <!-- generated: y -->"):
        with_part(text, "y", "new")


@pytest.mark.parametrize("name", PARTS)
def test_parts_are_not_empty(name: str) -> None:
    rows = [line for line in PARTS[name][1]().splitlines() if line.startswith(("| ", "- ", "    "))]
    assert len(rows) > 2, "a table's head alone"
