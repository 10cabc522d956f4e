"""The fault matrix, the tests that name its faults, and the page of their results."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from checks import reliability_page
from checks.reliability_page import matrix
from checks.repository_files import ROOT

#: `make test` shows that these are survived; `make faults` does so for all.
_ALWAYS: Final = frozenset(
    ["1", "3", "5", "7", "9", "12", "18", "21", "26", "28", "32", "34", "38", "39", "42"]
)


def _marks(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node


def _faults(tree: ast.AST) -> set[str]:
    return {
        argument.value
        for call in _marks(tree)
        if ast.unparse(call.func) == "pytest.mark.fault"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


def _named_faults() -> dict[str, set[Path]]:
    named: defaultdict[str, set[Path]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if path != Path(__file__):
            for number in _faults(ast.parse(path.read_text(encoding="utf-8"))):
                named[number].add(path)
    return dict(named)


def test_tests_name_only_faults_of_the_matrix() -> None:
    assert set(_named_faults()) <= set(matrix())


def test_each_fault_has_a_test() -> None:
    assert set(matrix()) <= set(_named_faults())


def test_make_test_runs_a_test_of_each_frequent_fault() -> None:
    always: set[str] = set()
    for path in {path for paths in _named_faults().values() for path in paths}:
        module = ast.parse(path.read_text(encoding="utf-8"))
        assignments = [ast.unparse(each) for each in module.body if isinstance(each, ast.Assign)]
        if any(text.startswith("pytestmark") and "nightly" in text for text in assignments):
            continue
        for node in module.body:
            if isinstance(node, ast.FunctionDef) and not _is_nightly(node):
                always |= _faults(node)
    assert always >= _ALWAYS


def _is_nightly(test: ast.FunctionDef) -> bool:
    decorators = (ast.unparse(decorator).lower() for decorator in test.decorator_list)
    return any(text.startswith(("pytest.mark.nightly", "nightly")) for text in decorators)


def test_results_are_of_tests_that_exist() -> None:
    for node in reliability_page.results():
        path, _, name = node.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert f"def {name.partition('[')[0].rpartition('::')[2]}(" in text, node


def test_each_fault_was_survived_in_its_last_run() -> None:
    passed = {
        number
        for each in reliability_page.results().values()
        if each["outcome"] == "passed"
        for number in each["faults"]
    }
    assert passed >= set(matrix())


def test_a_failed_test_is_shown_and_its_figures_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results = {
        "a.py::test_a": _result("passed", recovery_s=[1.0, 3.0], times=[20]),
        "a.py::test_b": _result("failed", recovery_s=[99.0], times=[7]),
        "a.py::test_c": _result("skipped"),
    }
    monkeypatch.setattr(reliability_page, "results", lambda: results)
    monkeypatch.setattr(
        reliability_page, "matrix", lambda: {"1": {"fault": "f", "expected": "survived"}}
    )
    row = reliability_page.faults_table().splitlines()[2]
    assert "`test_b` failed; `test_c` skipped; survived" in row
    assert row.endswith("| 1 | 20 | 2.0 (at most 3.0) |")


def _result(outcome: str, **figures: list[float]) -> dict[str, object]:
    return {"faults": ["1"], "outcome": outcome, "date": "2026-11-28", "figures": figures}
