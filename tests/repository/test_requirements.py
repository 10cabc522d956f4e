"""The requirements table matches the repository; its checker rejects wrong tables."""

import ast
from pathlib import Path

import pytest

from checks.repository_files import ROOT
from checks.requirements_table import LAST_NUMBER, TABLE, lines, problems

#: Conditions allowed in a `skipif`; tests that need an environment variable are `nightly`.
_FACTS_OF_THE_MACHINE = ("sys.platform", "os.getuid()", "not Path(")

WHOLE = "".join(
    f"| {letter}{number} | something | | | issue 9: Later |\n"
    for letter, last in LAST_NUMBER.items()
    for number in range(1, last + 1)
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "task.py").touch()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_task.py").write_text(
        "class TestTask:\n    def test_L1_learns(self): ...\n    def test_L1_again(self): ...\n"
        "@pytest.mark.nightly('X')\ndef test_L1_learns_all_night(): ...\n",
        encoding="utf-8",
    )
    (tmp_path / "tests" / "test_night.py").write_text(
        "pytestmark = [pytest.mark.nightly('X')]\ndef test_L1_sleeps(): ...\n", encoding="utf-8"
    )
    return tmp_path


def with_line_of_l1(rest: str) -> str:
    return WHOLE.replace("| L1 | something | | | issue 9: Later |", f"| L1 | {rest}")


def test_our_table_is_valid() -> None:
    assert list(problems((ROOT / TABLE).read_text(encoding="utf-8"))) == []


def test_a_table_of_open_issues_is_valid(root: Path) -> None:
    assert list(problems(WHOLE, root)) == []
    assert len(list(lines(WHOLE))) == sum(LAST_NUMBER.values())


def test_a_line_may_have_tests(root: Path) -> None:
    done = "it learns | `tasks/task.py` | `tests/test_task.py::test_L1_learns` |"
    assert list(problems(with_line_of_l1(f"{done} |"), root)) == []
    assert list(problems(with_line_of_l1(f"{done} issue 9: Later |"), root)) == []


def test_tests_of_section_p_keep_their_names(root: Path) -> None:
    row = "| P1 | text | `tasks` | `tests/test_task.py::test_L1_learns` | |"
    table = WHOLE.replace("| P1 | something | | | issue 9: Later |", row)
    assert list(problems(table, root)) == []
    missing = table.replace("test_L1_learns", "test_forgets")
    (problem,) = problems(missing, root)
    assert "has no function test_forgets" in problem


def test_a_nightly_test_is_named_as_such(root: Path) -> None:
    tests = "`tests/test_task.py::test_L1_learns`, `tests/test_task.py::test_L1_learns_all_night` (nightly)"
    tests += ", `tests/test_night.py::test_L1_sleeps` (nightly)"
    assert list(problems(with_line_of_l1(f"it learns | `tasks` | {tests} | |"), root)) == []


def test_only_the_marker_makes_a_test_nightly() -> None:
    asking = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "skipif(" in (source := path.read_text(encoding="utf-8"))
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).endswith("mark.skipif")
        and not ast.unparse(call.args[0]).startswith(_FACTS_OF_THE_MACHINE)
    ]
    assert asking == []


@pytest.mark.parametrize(
    ("rest", "problem"),
    [
        ("text | | | |", "has neither module and test nor an issue"),
        ("text | | | later |", "'later' is not of the form"),
        ("| | | issue 9: Later |", "is empty"),
        ("text | `tasks/task.py` | | issue 9: Later |", "a module without a test"),
        ("text | `tasks/no.py` | `tests/test_task.py::test_L1_learns` | |", "module tasks/no.py"),
        ("text | `tasks` | `tests/test_no.py::test_L1_x` | |", "test file tests/test_no.py"),
        ("text | `tasks` | `tests/test_task.py::test_L1_x` | |", "has no function test_L1_x"),
        ("text | `tasks` | `tests/test_task.py::test_learns` | |", "does not bear the id"),
        (
            "text | `tasks` | `tests/test_task.py::test_L1_learns`, `tests/test_night.py::test_L1_sleeps` | |",
            "`make test` leaves tests/test_night.py::test_L1_sleeps out; write (nightly) behind it",
        ),
        (
            "text | `tasks` | `tests/test_task.py::test_L1_learns_all_night` (nightly) | |",
            "has only nightly tests",
        ),
        (
            "text | `tasks` | `tests/test_task.py::test_L1_learns` (nightly), `tests/test_task.py::test_L1_again` | |",
            "is not marked nightly",
        ),
    ],
)
def test_wrong_lines_are_found(root: Path, rest: str, problem: str) -> None:
    (found,) = problems(with_line_of_l1(rest), root)
    assert found.startswith("L1: ")
    assert problem in found


def test_missing_and_unknown_requirements_are_found(root: Path) -> None:
    table = WHOLE.replace("| L1 | something | | | issue 9: Later |\n", "")
    table += "| S1 | again | | | issue 9: Later |\n| R9 | new | | | issue 9: Later |\n"
    assert list(problems(table, root)) == [
        "L1 has 0 lines; give it one",
        "S1 has 2 lines; give it one",
        "R9: is not a requirement we know; add it to the checker's list",
    ]
