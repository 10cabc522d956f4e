"""Links and references of documents."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from checks.repository_files import ROOT, code_blocks, headings, links, repository_files
from tidewheel import (
    CogroupedKStream,
    KGroupedStream,
    KGroupedTable,
    KStream,
    KTable,
    TimeWindowedKStream,
)

DOCUMENTS = [path for path in repository_files() if path.suffix == ".md"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_resolve(document: Path) -> None:
    broken: list[str] = []
    for target in links(document.read_text(encoding="utf-8")):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = unquote(target).partition("#")
        file = (document.parent / name).resolve() if name else document
        if not file.exists():
            broken.append(f"{target}: no such file")
        elif anchor and anchor not in headings(file.read_text(encoding="utf-8")):
            broken.append(f"{target}: no such heading")
    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_named_files_exist(document: Path) -> None:
    named = re.findall(
        r"`((?:streams|tasks|state_stores|rebalance|tests|benchmarks|checks|examples)/[\w./-]+\.\w+)`",
        document.read_text(encoding="utf-8"),
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "adr"
    pages = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [int(page[:4]) for page in pages] == list(range(1, len(pages) + 1))
    assert links((folder / "README.md").read_text(encoding="utf-8")) == pages


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "adr").glob("[0-9]*.md")), ids=lambda path: path.stem
)
def test_decisions_have_the_four_parts(page: Path) -> None:
    parts = [
        line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("## ")
    ]
    assert parts == [
        "## Context",
        "## Decision",
        "## Costs",
        "## How we would notice that it was wrong",
    ]


def test_every_operator_is_explained_with_its_parts() -> None:
    """Each section of docs/dsl.md has Kafka Streams' name, a picture, and a runnable example."""
    text = (ROOT / "docs" / "dsl.md").read_text(encoding="utf-8")
    lacking: list[str] = []
    for section in text.split("\n### ")[1:]:
        title, _, body = section.partition("\n")
        body, _, _ = body.partition("\n## ")
        languages = {block.language for block in code_blocks(body)}
        if not ("Kafka Streams" in body or "Only here" in body) or not {"", "python"} <= languages:
            lacking.append(title)
    assert lacking == []
    examples = "".join(block.text for block in code_blocks(text) if block.language == "python")
    kinds = (KStream, KTable, KGroupedStream, KGroupedTable, CogroupedKStream, TimeWindowedKStream)
    operators = {name for kind in kinds for name in dir(kind) if not name.startswith("_")}
    # An outer join has a plain name there; the others are no operators.
    called_otherwise = {"outer_join", "queryable_store_name", "aggregations"}
    assert {name for name in operators if f"{name}(" not in examples} == called_otherwise


def test_each_missing_feature_is_argued() -> None:
    text = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    tables, _, reasons = text.partition("## Missing features")
    marked = set(re.findall(r"\(([a-z])\)", tables))
    assert marked == set(re.findall(r"(?m)^- \*\*\(([a-z])\)", reasons))
    assert len(marked) > 5


def test_markdown_parts_are_found() -> None:
    text = (
        "# A *big* `Title`, here\n[one](a.md#x) `[not](b.md)` ![no](c.png)\n"
        "<!-- not run: because -->\n```python\n# [no](d.md)\nx = 1\n```\n"
    )
    (block,) = code_blocks(text)
    assert (block.language, block.text, block.line) == ("python", "# [no](d.md)\nx = 1\n", 5)
    assert block.comment == "not run: because"
    assert links(text) == ["a.md#x"]
    assert headings(text) == {"a-big-title-here"}
