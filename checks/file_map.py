"""Prints every module with the first line of its docstring: `python -m checks.file_map [FOLDER ...]`."""

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from checks.repository_files import ROOT

#: In import order: each may import the ones after it.
PACKAGES = ("streams", "tasks", "state_stores", "rebalance")


def file_map(folders: Sequence[str] = PACKAGES, root: Path = ROOT) -> Iterator[str]:
    for folder in sorted({path.parent for each in folders for path in (root / each).rglob("*.py")}):
        yield f"{folder.relative_to(root)}/  {_summary(folder / '__init__.py')}"
        for path in sorted(folder.glob("*.py")):
            if path.name != "__init__.py":
                yield f"    {path.name:<28} {_summary(path)}"


def _summary(path: Path) -> str:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


if __name__ == "__main__":
    print("\n".join(file_map(sys.argv[1:] or PACKAGES)))
