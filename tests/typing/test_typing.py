"""Public types: correct programs pass mypy and pyright in strict mode, wrong ones fail.

`correct/` and `wrong/` are checked, never run. Both checkers must reject lines that end with `#
error`; other lines must pass without cast, ignore or annotation.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
FOLDERS = [str(HERE / "correct"), str(HERE / "wrong")]

Line = tuple[str, int]

pytestmark = pytest.mark.slow


def expected_errors() -> set[Line]:
    return {
        (f"{path.parent.name}/{path.name}", number)
        for folder in FOLDERS
        for path in Path(folder).glob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if line.endswith("  # error")
    }


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    return done.stdout


def compare(found: Iterable[tuple[str, int, str]]) -> None:
    lines: dict[Line, str] = {}
    for file, number, text in found:
        path = Path(file)
        if path.resolve().is_relative_to(HERE) or not path.is_absolute():
            lines.setdefault((f"{path.parent.name}/{path.name}", number), text)
    expected = expected_errors()
    refused = {f"{line[0]}:{line[1]} {lines[line]}" for line in lines.keys() - expected}
    assert not refused, "refused without a mark:\n" + "\n".join(sorted(refused))
    passed = {f"{file}:{number}" for file, number in expected - lines.keys()}
    assert not passed, "marked, but passes:\n" + "\n".join(sorted(passed))


def test_every_wrong_program_has_an_expected_error() -> None:
    marked = {file for file, _ in expected_errors()}
    assert marked == {f"wrong/{path.name}" for path in Path(FOLDERS[1]).glob("[!_]*.py")}


def test_mypy() -> None:
    pytest.importorskip("mypy")
    # `make types` excludes these folders, but not single files.
    files = [str(path) for folder in FOLDERS for path in Path(folder).glob("*.py")]
    output = run("mypy", "--strict", "--output=json", "--follow-imports=silent", *files)
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    compare((e["file"], e["line"], e["message"]) for e in found if e["severity"] == "error")


def test_pyright() -> None:
    pytest.importorskip("pyright")
    output = run("pyright", "--outputjson", "--pythonpath", sys.executable, *FOLDERS)
    compare(
        (found["file"], found["range"]["start"]["line"] + 1, found["message"])
        for found in json.loads(output)["generalDiagnostics"]
        if found["severity"] == "error"
    )
