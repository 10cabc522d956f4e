"""The DSL's types: users' programs pass mypy and pyright in strict mode, wrong ones don't."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("dsl.py")

pytestmark = pytest.mark.slow


def expected_errors() -> set[int]:
    """Return the lines of the program that must be refused."""
    lines = PROGRAM.read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("  # error")}


def run(*command: str) -> str:
    """Return what a checker prints."""
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


def test_mypy() -> None:
    """mypy --strict refuses exactly the lines marked as errors."""
    pytest.importorskip("mypy")
    output = run("mypy", "--strict", "--output=json", "--follow-imports=silent", str(PROGRAM))
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    errors = [e for e in found if e["severity"] == "error" and Path(e["file"]).name == PROGRAM.name]
    assert {error["line"] for error in errors} == expected_errors(), errors


def test_pyright() -> None:
    """Pyright in strict mode refuses exactly the lines marked as errors."""
    pytest.importorskip("pyright")
    output = run("pyright", "--outputjson", "--pythonpath", sys.executable, str(PROGRAM))
    errors = [
        found for found in json.loads(output)["generalDiagnostics"] if found["severity"] == "error"
    ]
    assert {error["range"]["start"]["line"] + 1 for error in errors} == expected_errors(), errors
