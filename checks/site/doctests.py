"""griffe's extension for docstrings: examples with `>>>` become blocks of code."""

from collections.abc import Iterator
from typing import Any, Final

import griffe

#: Mark of a line that needs Spark; a test of tests/bulk runs it.
_SKIPPED: Final = "  # doctest: +SKIP"


class Doctests(griffe.Extension):
    """Puts fences around examples."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            obj.docstring.value = "\n".join(_fenced(obj.docstring.value.splitlines()))


def _fenced(lines: list[str]) -> Iterator[str]:
    indent: str | None = None
    for line in lines:
        if indent is None and line.lstrip().startswith(">>> "):
            indent = line[: len(line) - len(line.lstrip())]
            yield f"\n{indent}```pycon"
        elif indent is not None and not line.strip():
            yield f"{indent}```"
            indent = None
        yield line.removesuffix(_SKIPPED)
    if indent is not None:
        yield f"{indent}```"
