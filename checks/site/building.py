"""Builds the pages: prepares the sources, runs Zensical, and follows every link of the result."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from checks.repository_files import ROOT
from checks.site.sources import OUTSIDE, write_sources

CONFIG: Final = "mkdocs.yml"
#: Tags and attributes of addresses that a browser loads to show a page.
_LOADED: Final = {"script": "src", "img": "src", "link": "href", "iframe": "src"}


class SiteError(Exception):
    """The site could not be built, or a page of it has a broken link."""


def build(output: Path, root: Path = ROOT) -> list[Path]:
    """Write the site into a folder, which is replaced, and return its pages.

    Raises:
        SiteError: Zensical failed or warned, or a link leads nowhere.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_sources(root, folder / "docs")
        shutil.copy(root / CONFIG, folder)
        # Docstrings come from the code of this checkout.
        environment = os.environ | {"PYTHONPATH": str(root), "NO_COLOR": "1"}
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", CONFIG]
        run = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        if run.returncode:
            raise SiteError(f"{run.stdout}{run.stderr}".strip())
        shutil.rmtree(output, ignore_errors=True)
        shutil.copytree(folder / "site", output)
    _order_search(output / "search.json")
    pages = sorted(output.rglob("*.html"))
    broken = list(broken_links(output, pages))
    if broken:
        raise SiteError("\n".join(broken))
    return pages


def _order_search(path: Path) -> None:
    """Sort the search's items, and remove internals and files outside docs/.

    Zensical reads pages side by side, in another order each time; the order decides between equal
    results. Internals would hide users' pages.
    """
    index = json.loads(path.read_text(encoding="utf-8"))
    count = len(index["items"])
    kept = (
        item
        for item in index["items"]
        if item["path"][:1] != ["Internals"] and not item["location"].startswith(f"{OUTSIDE}/")
    )
    index["items"] = sorted(kept, key=lambda item: str(item["location"]))
    if not 0 < len(index["items"]) < count:
        raise SiteError(f"{path.name} has another form: Zensical has changed")
    path.write_text(json.dumps(index), encoding="utf-8")


def broken_links(site: Path, pages: list[Path]) -> Iterator[str]:
    """Yield each link inside the site without a target, and each file loaded from elsewhere."""
    read = {page: _Page(page.read_text(encoding="utf-8")) for page in pages}
    for page, content in read.items():
        if page.name == "404.html":  # served for any address: its links begin at the host
            continue
        name = page.relative_to(site)
        for address in content.loaded:
            if urlsplit(address).netloc:
                yield f"{name}: loads {address} from elsewhere"
        for address in (*content.links, *content.loaded):
            if problem := _problem(page, address, read):
                yield f"{name}: {address}: {problem}"


def _problem(page: Path, address: str, read: Mapping[Path, "_Page"]) -> str | None:
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return None
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return "no such page"
    if parts.fragment and target in read and unquote(parts.fragment) not in read[target].anchors:
        return "no such anchor"
    return None


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        address = values.get(_LOADED.get(tag, ""))
        # The canonical address is a name, and is not loaded.
        if address is not None and values.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(address)
