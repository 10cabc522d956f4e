"""Files of the repository, and parts of its Markdown files."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_GENERATED = frozenset({".git", ".venv", "__pycache__", "build", "dist"})
_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>.*)$")
LINK = re.compile(r"(?<!!)\[(?:[^\]\n]|\n(?!\n))*\]\((?P<target>[^)\s]+)\)")
_COMMENT = re.compile(r"^\s*<!--\s*(?P<text>.*?)\s*-->\s*$")


def repository_files(root: Path = ROOT) -> list[Path]:
    """Return all files that `git add --all` would include, sorted.

    Without git (an unpacked archive): all files except tools' output.
    """
    if not (root / ".git").exists():
        return sorted(path for path in root.rglob("*") if path.is_file() and _kept(root, path))
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    paths = {root / name for name in listed.split("\0") if name}
    return sorted(path for path in paths if path.is_file())


def _kept(root: Path, path: Path) -> bool:
    parts = path.relative_to(root).parts
    return not any(part in _GENERATED or part.endswith(("_cache", ".egg-info")) for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeBlock:
    language: str
    text: str
    line: int
    """Line number of the block's first line in the file, from 1."""
    comment: str | None
    """The text of an HTML comment on the line above the fence."""


def code_blocks(markdown: str) -> Iterator[CodeBlock]:
    opened: re.Match[str] | None = None
    body: list[str] = []
    start = 0
    comment = before = None
    for number, line in enumerate(markdown.splitlines(), start=1):
        fence = _FENCE.match(line)
        if opened is None:
            if fence is not None:
                opened, body, start, comment = fence, [], number + 1, before
            before = found["text"] if (found := _COMMENT.match(line)) else None
        elif fence is not None and fence["ticks"] == opened["ticks"] and not fence["info"].strip():
            indent = len(opened["indent"])
            yield CodeBlock(
                language=opened["info"].strip(),
                text="".join(f"{part[indent:]}\n" for part in body),
                line=start,
                comment=comment,
            )
            opened, before = None, None
        else:
            body.append(line)


def links(markdown: str) -> list[str]:
    prose: list[str] = []
    inside = False
    for line in markdown.splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            prose.append(re.sub(r"`[^`]*`", "", line))
    return [match["target"] for match in LINK.finditer("\n".join(prose))]


def headings(markdown: str) -> set[str]:
    """Return the anchors of a Markdown text's headings, in GitHub's form."""
    found: set[str] = set()
    inside = False
    for line in markdown.splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside and (match := re.match(r"#{1,6} +(.*)", line)):
            kept = re.sub(r"[^\w\- ]", "", match[1].strip().lower())
            found.add(kept.replace(" ", "-"))
    return found
