"""Prepares the site's sources: docs/, files that it links to, pictures, and API pages."""

import re
import runpy
import shutil
from pathlib import Path
from typing import Final

from checks.repository_files import LINK, links
from checks.site.api_pages import api_pages
from checks.site.github_markdown import to_python_markdown
from tidewheel import StreamsBuilder

#: Folder of the pages of files outside docs/.
OUTSIDE: Final = "repository"
_PICTURE: Final = re.compile(r"^<!-- picture: (?P<file>[\w/.]+):(?P<name>\w+) -->$", re.MULTILINE)
_LANGUAGES: Final = {".py": "python", ".yml": "yaml", ".yaml": "yaml", ".json": "json"}


def write_sources(root: Path, folder: Path) -> None:
    """Write all pages as Markdown into a folder.

    A file outside docs/ that a page links to becomes a page as well.
    """
    # images/site has pictures of the site itself, for its tests.
    shutil.copytree(root / "docs", folder, ignore=shutil.ignore_patterns("site"))
    shutil.copy(Path(__file__).with_name("site.css"), folder)
    for name, text in api_pages().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    outside: set[Path] = set()
    for path in sorted((root / "docs").rglob("*.md")):
        outside |= _write_page(root, folder, path)
    written: set[Path] = set()
    while todo := sorted(outside - written):
        for path in todo:
            written.add(path)
            outside |= _write_outside(root, folder, path)


def _write_outside(root: Path, folder: Path, path: Path) -> set[Path]:
    if path.suffix == ".md":
        return _write_page(root, folder, path)
    target = folder / page_of(root, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    name = path.relative_to(root).as_posix()
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file())
        lines = [f"- [{file.name}]({page_of(root, file).name})" for file in files]
        target.write_text(f"# `{name}/`\n\n" + "\n".join(lines) + "\n", encoding="utf-8")
        return set(files)
    language = _LANGUAGES.get(path.suffix, "text")
    text = path.read_text(encoding="utf-8")
    target.write_text(f"# `{name}`\n\n~~~~{language}\n{text}~~~~\n", encoding="utf-8")
    return set()


def _write_page(root: Path, folder: Path, path: Path) -> set[Path]:
    """Write one Markdown file; return the files outside docs/ that it links to."""
    text = path.read_text(encoding="utf-8")
    page = page_of(root, path)
    outside: set[Path] = set()
    changed: dict[str, str] = {}
    for target in links(text):
        name, mark, anchor = target.partition("#")
        if not name or "://" in target or target.startswith("mailto:"):
            continue
        linked = (path.parent / name).resolve()
        if not linked.is_relative_to(root / "docs"):
            outside.add(linked)
        way = Path(*[".."] * (len(page.parts) - 1)) / page_of(root, linked)
        changed[target] = f"{way.as_posix()}{mark}{anchor}"

    def replace(match: re.Match[str]) -> str:
        old = match["target"]
        return f"{match[0].removesuffix(f'{old})')}{changed.get(old, old)})"

    written = folder / page
    written.parent.mkdir(parents=True, exist_ok=True)
    text = _PICTURE.sub(lambda match: _topology(root, match), LINK.sub(replace, text))
    written.write_text(to_python_markdown(text), encoding="utf-8")
    return outside


def _topology(root: Path, match: re.Match[str]) -> str:
    """Return the drawing of the topology that `<!-- picture: FILE:FUNCTION -->` names."""
    topology = runpy.run_path(str(root / match["file"]))[match["name"]]()
    if isinstance(topology, StreamsBuilder):
        topology = topology.build()
    return f'<div class="picture">{topology.describe().to_svg()}</div>'.replace("\n", "")


def page_of(root: Path, path: Path) -> Path:
    """Return the page of a file, relative to the site's sources."""
    docs = root / "docs"
    if path.is_relative_to(docs):
        return path.relative_to(docs)
    name = path.relative_to(root)
    if path.is_dir():
        return Path(OUTSIDE) / name / "index.md"
    return Path(OUTSIDE) / (name if path.suffix == ".md" else f"{name.as_posix()}.md")
