"""GitHub's Markdown as Python-Markdown's: lists, and Mermaid as pictures.

GitHub indents the content of a list item as far as its text, and needs no empty line before a
list. Python-Markdown indents by four.
"""

import re
from collections.abc import Iterator
from typing import Final

from checks.site.flowchart import draw_flowchart

_ITEM: Final = re.compile(r"(?P<indent> *)(?P<marker>[-*]|\d+\.)(?P<space> +)(?=\S)")
_FENCE: Final = re.compile(r" *(?P<ticks>`{3,})(?P<info>.*)$")


def to_python_markdown(text: str) -> str:
    return "\n".join(_pictures(_indented(text.splitlines()))) + "\n"


def _indented(lines: list[str]) -> Iterator[str]:
    """Yield lines with the indents of Python-Markdown."""
    columns: list[int] = []  # of the texts of the list items around a line
    fence: str | None = None
    before = ""
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if fence is not None:
            yield _shifted(line, columns)
            closing = _FENCE.match(line)
            if closing and closing["ticks"] == fence and not closing["info"].strip():
                fence = None
            before = line
            continue
        if not line.strip():
            yield ""
            before = ""
            continue
        while columns and indent < columns[-1]:
            if before and not _ITEM.match(line) and len(columns) == 1 and indent == 0:
                columns.clear()
                break
            columns.pop()
        item = _ITEM.match(line)
        if item:
            if before and not columns and not _in_list(before):
                yield ""
            yield "    " * len(columns) + line[indent:]
            columns.append(item.end())
        else:
            opening = _FENCE.match(line)
            if opening:
                fence = opening["ticks"]
            yield _shifted(line, columns)
        before = line


def _in_list(line: str) -> bool:
    return bool(_ITEM.match(line)) or line.startswith(" ")


def _shifted(line: str, columns: list[int]) -> str:
    if not columns or not line.strip():
        return line
    return "    " * len(columns) + line[min(columns[-1], len(line) - len(line.lstrip())) :]


def _pictures(lines: Iterator[str]) -> Iterator[str]:
    chart: list[str] | None = None
    for line in lines:
        if chart is None:
            if line == "```mermaid":
                chart = []
            else:
                yield line
        elif line == "```":
            yield f'<div class="picture">{draw_flowchart(chart)}</div>'
            chart = None
        else:
            chart.append(line)
