"""Rules for every file of the four packages."""

import ast
import importlib
import inspect
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from checks.repository_files import ROOT, repository_files

PACKAGES = ("streams", "tasks", "state_stores", "rebalance")
LONGEST_FILE = 800
UNSAFE = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve"}
"""Modules whose reading side runs what is in the data."""

PYTHON_FILES = [path for path in repository_files() if path.suffix == ".py"]


def imported_modules(source: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_the_package_is_typed() -> None:
    assert (ROOT / "tidewheel" / "py.typed").is_file()


def test_the_package_contains_the_four_folders() -> None:
    for package in PACKAGES:
        assert (ROOT / "tidewheel" / package).readlink() == Path("..") / package


def test_folders_have_few_files() -> None:
    counts = Counter(
        path.relative_to(ROOT).parent.as_posix()
        for path in repository_files()
        if "wire_samples" not in path.parts and "adr" not in path.parts  # these only grow
    )
    assert counts.keys() >= {*PACKAGES, "docs", "tests/integration"}
    crowded = {
        folder: count
        for folder, count in counts.items()
        if count > (10 if folder in PACKAGES else 20)
    }
    assert crowded == {}


def test_no_file_exceeds_its_length_limit() -> None:
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in PYTHON_FILES
    }
    assert len(lengths) > len(PACKAGES)
    assert {path: lines for path, lines in lengths.items() if lines > LONGEST_FILE} == {}


def test_no_module_unpickles() -> None:
    trespasses = {
        path.relative_to(ROOT).as_posix(): sorted(unsafe)
        for path in PYTHON_FILES
        if (unsafe := imported_modules(path.read_text(encoding="utf-8")) & UNSAFE)
    }
    assert trespasses == {}


def test_the_import_finder_detects_every_form() -> None:
    source = "def f():\n    import pickle as p\nfrom marshal import loads\nimport dill.source\n"
    assert imported_modules(source) == {"pickle", "marshal", "dill"}


def test_every_test_folder_is_a_package() -> None:
    folders = {path.parent for path in PYTHON_FILES if path.is_relative_to(ROOT / "tests")}
    assert folders
    missing = [
        folder.relative_to(ROOT) for folder in folders if not (folder / "__init__.py").exists()
    ]
    assert missing == []


def test_tests_mirror_the_packages() -> None:
    strangers = [
        folder.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for folder in (ROOT / "tests" / package).rglob("*")
        if folder.is_dir() and folder.name != "__pycache__" and not _mirrors(folder)
    ]
    assert strangers == []


#: Folders without a package of their own: programs that tests start, texts they compare with, and
#: the scenarios of `key_ranges`.
_AIDS = frozenset({"programs", "scenarios", "transcripts", "wire_samples"})


def _mirrors(folder: Path) -> bool:
    if _AIDS & set(folder.relative_to(ROOT).parts):
        return True
    original = ROOT / folder.relative_to(ROOT / "tests")
    return original.is_dir() or original.with_suffix(".py").is_file()


def public_names() -> list[str]:
    tidewheel: ModuleType = importlib.import_module("tidewheel")
    return list(getattr(tidewheel, "__all__", ()))


def test_tidewheel_shows_sorted_public_names() -> None:
    names = public_names()
    assert names
    assert names == sorted(names)
    tidewheel = importlib.import_module("tidewheel")
    assert [name for name in names if not hasattr(tidewheel, name)] == []


@pytest.mark.parametrize("name", public_names())
def test_public_names_are_documented(name: str) -> None:
    value = getattr(importlib.import_module("tidewheel"), name)
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        pytest.skip("a type alias or a constant is documented where it is written")
    assert value.__doc__
    inherited = (
        [base.__doc__ for base in inspect.getmro(value)[1:]] if inspect.isclass(value) else []
    )
    assert value.__doc__ not in inherited
    assert not (inspect.isclass(value) and value.__doc__.startswith(f"{name}("))
