"""Checks docs/internals/requirements.md: `python -m checks.requirements_table`.

Each requirement has one line. The line names the module and a test with the requirement's id
(`test_N13_...`; any name in sections P and D), or the issue that will do it. Modules and tests must exist,
and `make test` must run at least one test of a line. Tests marked `nightly` have "(nightly)" in the
table.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from checks.repository_files import ROOT

TABLE = "docs/internals/requirements.md"
LAST_NUMBER = {"L": 6, "S": 5, "K": 8, "N": 14, "R": 3, "P": 15, "D": 15}
"""Each letter's requirements are numbered from 1 to here."""
_WITHOUT_ID_IN_TESTS = frozenset({"P", "D"})

_COLUMNS = 5
_ID = re.compile(r"^[A-Z]\d+$")
_ISSUE = re.compile(r"^issue \d+: \S.*$")
_CODE = re.compile(r"`([^`]+)`")
_NIGHTLY = re.compile(r"`([^`]+)` \(nightly\)")
_NIGHTLY_MARK = "pytest.mark.nightly("


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    id: str
    text: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    nightly: frozenset[str]
    issue: str


def lines(markdown: str) -> Iterator[Line]:
    """Rows of other tables have no id in their first column."""
    for row in markdown.splitlines():
        cells = [cell.strip() for cell in row.strip().strip("|").split("|")]
        if not row.startswith("|") or not _ID.match(cells[0]):
            continue
        cells += [""] * (_COLUMNS - len(cells))
        yield Line(
            id=cells[0],
            text=cells[1],
            modules=tuple(_CODE.findall(cells[2])),
            tests=tuple(_CODE.findall(cells[3])),
            nightly=frozenset(_NIGHTLY.findall(cells[3])),
            issue=cells[4],
        )


def problems(markdown: str, root: Path = ROOT) -> Iterator[str]:
    table = list(lines(markdown))
    ids = [line.id for line in table]
    for letter, last in LAST_NUMBER.items():
        for number in range(1, last + 1):
            if (count := ids.count(f"{letter}{number}")) != 1:
                yield f"{letter}{number} has {count} lines; give it one"
    for line in table:
        yield from (f"{line.id}: {problem}" for problem in _problems_of(line, root))


def _problems_of(line: Line, root: Path) -> Iterator[str]:
    number = int(line.id[1:])
    if number > LAST_NUMBER.get(line.id[0], 0):
        yield "is not a requirement we know; add it to the checker's list"
    if not line.text:
        yield "is empty; write the requirement"
    if line.issue and not _ISSUE.match(line.issue):
        yield f"{line.issue!r} is not of the form `issue N: title`"
    if not line.issue and not (line.modules and line.tests):
        yield "has neither module and test nor an issue; give it one of them"
    if bool(line.modules) != bool(line.tests):
        yield "has a module without a test, or a test without a module; name both"
    for module in line.modules:
        if not (root / module).exists():
            yield f"module {module} does not exist"
    for test in line.tests:
        yield from _problems_of_test(line.id, test, root, said_nightly=test in line.nightly)
    if line.tests and line.nightly.issuperset(line.tests):
        yield "has only nightly tests; name one that `make test` runs"


def _problems_of_test(
    requirement: str, test: str, root: Path, *, said_nightly: bool
) -> Iterator[str]:
    file, _, name = test.partition("::")
    bears_id = requirement[0] not in _WITHOUT_ID_IN_TESTS
    if bears_id and not name.startswith(f"test_{requirement}_"):
        yield f"test {test} does not bear the id: call it test_{requirement}_..."
    elif not (root / file).is_file():
        yield f"test file {file} does not exist"
    elif name not in (nightly := _functions(root / file)):
        yield f"{file} has no function {name}"
    elif nightly[name] != said_nightly:
        yield (
            f"`make test` leaves {test} out; write (nightly) behind it"
            if nightly[name]
            else f"test {test} is not marked nightly; take (nightly) away"
        )


def _functions(path: Path) -> dict[str, bool]:
    """Return the functions, with True for those marked `nightly` (also by their module)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    whole = any(
        _NIGHTLY_MARK in ast.unparse(node)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    )
    return {
        node.name: whole
        or any(
            ast.unparse(decorator).startswith(_NIGHTLY_MARK) for decorator in node.decorator_list
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def main() -> int:
    markdown = (ROOT / TABLE).read_text(encoding="utf-8")
    found = list(problems(markdown))
    for problem in found:
        print(f"{TABLE}: {problem}", file=sys.stderr)
    if not found:
        table = list(lines(markdown))
        shown = sum(bool(line.tests) for line in table)
        print(f"{TABLE}: {len(table)} requirements, {shown} shown by tests, the rest by issue")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
