"""Builds the wheel and the source archive into dist/ and checks both: `make dist`.

The wheel is built from the source archive, as installers do. Checked are the files of both, the
metadata (`twine check --strict`), and the README as an index page shows it.
"""

import email
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.message import Message
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

from readme_renderer import markdown

from checks.release.address import is_placeholder, repository
from checks.repository_files import ROOT, headings, repository_files

DIST: Final = ROOT / "dist"
PACKAGES: Final = ("streams", "tasks", "state_stores", "rebalance")
_DEMO: Final = "examples/flight_delays.py"
#: Files of the source archive outside of the package; hatchling adds the last three.
_SOURCE_FILES: Final = frozenset(
    {"README.md", "CHANGELOG.md", "hatch_build.py", "pyproject.toml", "LICENSE", ".gitignore", "PKG-INFO"}
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    wheel: Path
    sdist: Path


def main() -> int:
    built = build(DIST)
    problems = [
        *content_problems(built),
        *address_problems(project_urls(built.wheel)),
        *readme_problems(description(built.wheel)),
    ]
    for problem in problems:
        print(problem, file=sys.stderr)
    files = [str(built.wheel), str(built.sdist)]
    twine = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *files], check=False
    )
    if is_placeholder(repository()):
        print(
            f"The repository's address is a placeholder, {repository()}: do not publish these files."
        )
    return 1 if problems or twine.returncode else 0


def build(folder: Path) -> Distribution:
    shutil.rmtree(folder, ignore_errors=True)
    # No isolation: an isolated build would fetch build tools without a hash.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Distribution(wheel=wheel, sdist=sdist)


def content_problems(built: Distribution) -> Iterator[str]:
    yield from _differences("the wheel", wheel_files(built.wheel), package_files() | {_demo_copy()})
    examples = {path for path in _paths() if path.startswith("examples/")}
    expected = package_files() | examples | _SOURCE_FILES
    yield from _differences("the source archive", sdist_files(built.sdist), expected)


def package_files() -> frozenset[str]:
    """Return the paths inside the wheel of all files of the package."""
    own = (path for path in _paths() if path.startswith("tidewheel/") and path.count("/") == 1)
    rooms = (f"tidewheel/{path}" for path in _paths() if path.startswith(_FOLDERS))
    return frozenset(own) | frozenset(rooms)


_FOLDERS: Final = tuple(f"{package}/" for package in PACKAGES)


def _paths() -> Iterator[str]:
    for path in repository_files():
        yield path.relative_to(ROOT).as_posix()


def _demo_copy() -> str:
    return f"tidewheel/streams/demo/{_DEMO}"


def wheel_files(wheel: Path) -> frozenset[str]:
    """Return the installed files, without the metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    return frozenset(name for name in names if not name.split("/")[0].endswith(".dist-info"))


def sdist_files(sdist: Path) -> frozenset[str]:
    with tarfile.open(sdist) as archive:
        names = [member.name for member in archive.getmembers() if member.isfile()]
    return frozenset(name.partition("/")[2] for name in names)


def _differences(archive: str, files: frozenset[str], expected: frozenset[str]) -> Iterator[str]:
    for path in sorted(files - expected):
        yield f"{archive} has {path}, which does not belong there: correct pyproject.toml"
    for path in sorted(expected - files):
        yield f"{archive} lacks {path}: correct pyproject.toml"


def description(wheel: Path) -> str:
    payload = _metadata(wheel).get_payload(decode=True)
    assert isinstance(payload, bytes)
    return payload.decode("utf-8")


def project_urls(wheel: Path) -> list[str]:
    return [line.partition(", ")[2] for line in _metadata(wheel).get_all("Project-URL", [])]


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def address_problems(addresses: Sequence[str]) -> Iterator[str]:
    if not addresses:
        yield "the metadata has no Project-URL: correct hatch_build.py"
    for address in addresses:
        if problem := _link_problem(address):
            yield f"Project-URL: {address}: {problem}"


def readme_problems(text: str) -> Iterator[str]:
    """Yield each fault of a long description: markup, and links that an index page cannot follow."""
    html = markdown.render(text)
    if html is None:
        yield "the README cannot be drawn as an index page does it"
        return
    page = _Links()
    page.feed(html)
    if "checkout only" in text:
        yield "the README still has its part for checkouts: correct hatch_build.py"
    for target in page.targets:
        if target.startswith("#"):
            problem = None if target[1:] in page.anchors else "no such heading on the page"
        else:
            problem = _link_problem(target)
        if problem:
            yield f"README, on an index page: {target}: {problem}"


class _Links(HTMLParser):
    """Collects the targets of links and images, and the anchors of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        wanted = {"a": "href", "img": "src"}.get(tag)
        self.targets += [value for name, value in attrs if name == wanted and value]
        self.anchors |= {value for name, value in attrs if name == "id" and value}


def _link_problem(target: str) -> str | None:
    if not target.startswith("https://"):
        return "not an address that begins with https://"
    kind, _, rest = target.removeprefix(f"{repository()}/").partition("/")
    if kind not in {"blob", "raw"}:
        return None
    name, _, anchor = rest.partition("/")[2].partition("#")
    file = ROOT / name
    if not file.is_file():
        return "no such file in the repository"
    if anchor and anchor not in headings(file.read_text(encoding="utf-8")):
        return "no such heading"
    return None


if __name__ == "__main__":
    sys.exit(main())
