"""Files of a new project, from templates beside this module."""

import keyword
import re
import sys
from importlib import metadata, resources
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from tidewheel.streams.broker.jars import DEFAULT_VERSION
from tidewheel.streams.errors import ConfigError, StreamsError

#: Path in the project, by template; PACKAGE is the name of its package.
_FILES: Final = {
    "pyproject.toml.txt": "pyproject.toml",
    "tidewheel.toml.txt": "tidewheel.toml",
    "README.md.txt": "README.md",
    "package_init.txt": "PACKAGE/__init__.py",
    "topology.txt": "PACKAGE/topology.py",
    "test_topology.txt": "tests/test_topology.py",
    "compose.yaml.txt": "compose.yaml",
    "Dockerfile.txt": "Dockerfile",
    "dockerignore.txt": ".dockerignore",
    "gitignore.txt": ".gitignore",
    "ci.yml.txt": ".github/workflows/ci.yml",
    "wheels_readme.txt": "wheels/README.md",
}
#: Letters, digits and single dashes: valid as application id, package, topic and image.
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_NAME_MAX: Final = 60
_TAKEN: Final = frozenset({"tests", "wheels", "tidewheel", *sys.stdlib_module_names})


def write_project(folder: Path, name: str) -> list[Path]:
    """Write a project into an empty or missing folder; return its files.

    Raises:
        ConfigError: The name is unusable.
        StreamsError: The folder has files, or can't be written.
    """
    package = package_of(name)
    try:
        return _write_files(folder, name, package)
    except (OSError, ValueError) as error:  # ValueError: a path that no file can have
        reason = getattr(error, "strerror", None) or str(error)
        raise StreamsError(f"{str(folder)!r} can't be written: {reason}") from error


def _write_files(folder: Path, name: str, package: str) -> list[Path]:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StreamsError(f"{folder} exists already; choose another name or --directory")
    templates = resources.files(__package__ or "") / "template"
    written: list[Path] = []
    for template, place in _FILES.items():
        path = folder / place.replace("PACKAGE", package)
        text = (templates / template).read_text(encoding="utf-8")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            text.replace("@NAME@", name)
            .replace("@PACKAGE@", package)
            .replace("@KAFKA@", DEFAULT_VERSION),
            encoding="utf-8",
        )
        written.append(path)
    return written


def package_of(name: str) -> str:
    """Return the Python package of a project; raise `ConfigError` for an unusable name.

    >>> package_of("order-totals")
    'order_totals'
    """
    package = name.replace("-", "_")
    if not _NAME.fullmatch(name) or len(name) > _NAME_MAX:
        raise ConfigError(
            f"{name!r} is no name of a project: write small letters, digits and dashes, at most "
            f"{_NAME_MAX}, such as order-totals"
        )
    owner = _owner_of(name, package)
    if owner is not None:
        raise ConfigError(f"{name!r} is the name of {owner}; choose another one")
    return package


def _owner_of(name: str, package: str) -> str | None:
    """Return what has the name of a project or its package already, None if nothing has."""
    if keyword.iskeyword(package):
        return "a keyword of Python"
    if package in _TAKEN:
        return "another Python module"
    if name in {canonical_name(wanted) for wanted in _requirements()}:
        return "a package that Tidewheel needs"
    # Not the working directory: a folder of that name there is the project itself.
    places = [place for place in sys.path if place and Path(place) != Path.cwd()]
    spec = PathFinder.find_spec(package, places)
    if spec is not None:
        return f"another Python module, {spec.origin or package}"
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    return "a package that is installed here"


def _requirements() -> list[str]:
    try:
        return metadata.requires("tidewheel") or []
    except metadata.PackageNotFoundError:  # run from a checkout
        return []


def canonical_name(requirement: str) -> str:
    """Return the package of a requirement, as package indexes write it.

    >>> canonical_name("Typing_Extensions>=4; extra == 'x'")
    'typing-extensions'
    """
    name = re.match(r"[A-Za-z0-9._-]*", requirement)
    return re.sub(r"[-_.]+", "-", "" if name is None else name[0]).lower()
