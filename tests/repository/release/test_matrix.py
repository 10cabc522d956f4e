"""Trials of the wheel: the choice of interpreters, their steps and results."""

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from checks.lock import EXTRAS as LOCKED_EXTRAS
from checks.release import matrix
from checks.repository_files import ROOT

THIS = f"{sys.version_info.major}.{sys.version_info.minor}"


def _program(folder: Path, name: str, answer: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n{answer}\n", encoding="utf-8")
    program.chmod(0o755)
    return program


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder of PATH; the home has no interpreters."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    monkeypatch.setattr("os.get_exec_path", lambda: [str(tmp_path / "bin")])
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "uv"))
    return tmp_path


def test_interpreters_are_found_on_the_path_and_of_pyenv_and_uv(folder: Path) -> None:
    _program(folder / "bin", "python3.11", "echo 3.11")
    _program(folder / "pyenv/versions/3.12.1/bin", "python3.12", "echo 3.12")
    _program(folder / "uv/cpython-3.13.2-linux-x86_64-gnu/bin", "python3.13", "echo 3.13")
    found = list(matrix.interpreters(matrix.VERSIONS))
    assert [each.version for each in found] == ["3.11", "3.12", "3.13"]


def test_programs_that_are_no_interpreter_of_the_version_are_passed_over(folder: Path) -> None:
    _program(folder / "bin", "python3.12", "exit 127")  # a shim of pyenv for a missing version
    _program(folder / "bin", "python3.13", "echo 3.12")
    right = _program(folder / "pyenv/versions/3.12.1/bin", "python3.12", "echo 3.12")
    assert [each.path for each in matrix.interpreters(matrix.VERSIONS)] == [str(right)]


def test_missing_interpreters_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = folder / "tidewheel.whl"
    assert matrix.main(["--wheel", str(wheel), "--only", "3.14"]) == 1
    assert "Python 3.14: not installed here" in capsys.readouterr().out


class Steps:
    """Records the commands of a trial; `answer` returns code and output of each."""

    def __init__(self, answer: Callable[[str], tuple[int, str]]) -> None:
        self.answer = answer
        self.commands: list[str] = []
        self.environments: list[dict[str, str]] = []

    def run(
        self, command: list[str], *, env: dict[str, str] | None = None, **_: object
    ) -> subprocess.CompletedProcess[str]:
        text = " ".join(command)
        if "sys.version_info" in text:
            return subprocess.CompletedProcess(command, 0, stdout=f"{THIS}\n")
        assert env is not None
        self.commands.append(text)
        self.environments.append(env)
        code, output = self.answer(text)
        if "__file__" in text and not output:
            output = command[0].replace("bin/python", "lib/tidewheel/__init__.py")
        return subprocess.CompletedProcess(command, code, stdout=output)


def _try(monkeypatch: pytest.MonkeyPatch, steps: Steps, *arguments: str) -> int:
    monkeypatch.setattr(subprocess, "run", steps.run)
    monkeypatch.setattr(matrix, "COPIED", ())
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return matrix.main(["--wheel", "tidewheel.whl", "--only", THIS, *arguments])


def test_a_trial_runs_example_tests_and_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(lambda text: (0, "java" if "--missing-extras" in text else ""))
    assert _try(monkeypatch, steps) == 0
    order = ["-m venv", "checks.install run", "markdown_examples", "checks.install build", "pytest"]
    order += ["--missing-extras", "checks.install java", "tidewheel demo"]
    places = [
        next(n for n, command in enumerate(steps.commands) if part in command) for part in order
    ]
    assert places == sorted(places)
    assert not any("PYTHONPATH" in environment for environment in steps.environments)


def test_the_demo_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(lambda _: (0, ""))
    assert _try(monkeypatch, steps, "--no-demo") == 0
    assert not any("demo" in command for command in steps.commands)


def test_a_failed_step_ends_the_trial(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = Steps(lambda text: (1, "2 failed") if "pytest" in text else (0, ""))
    assert _try(monkeypatch, steps) == 1
    assert "tests failed with code 1\n2 failed" in capsys.readouterr().err
    assert not any("demo" in command for command in steps.commands)


def test_the_source_tree_is_no_installed_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(ROOT / "tidewheel" / "__init__.py")
    steps = Steps(lambda text: (0, source if "__file__" in text else ""))
    assert _try(monkeypatch, steps) == 1
    assert "not from the wheel" in capsys.readouterr().err


def test_the_versions_are_those_of_the_classifiers_and_of_the_workflow() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    classified = [text.rpartition(" ")[2] for text in project["classifiers"] if ":: 3." in text]
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    jobs = workflow["jobs"]
    assert list(matrix.VERSIONS) == classified == jobs["matrix"]["strategy"]["matrix"]["python"]
    assert "bash .ci/run" in [step.get("run") for step in jobs["proof"]["steps"]]


def test_every_locked_extra_is_tried() -> None:
    assert {*matrix.EXTRAS, "java", "spark"} == set(LOCKED_EXTRAS)


def test_all_tried_tests_exist() -> None:
    assert [path for path in (*matrix.TESTS, *matrix.COPIED) if not (ROOT / path).exists()] == []
