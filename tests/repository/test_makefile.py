"""Makefile: each command is explained, and a second run installs nothing."""

import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def test_every_command_is_phony_and_explained() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert phony
    explained = re.findall(r"^([a-z]+):.*## \S", MAKEFILE, re.MULTILINE)
    assert sorted(phony[1].split()) == sorted(explained)


def test_continuous_integration_runs_the_contributors_commands() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    commands = [line for line in script.splitlines() if line and not line.startswith("#")]
    assert commands[0] == "set -euo pipefail"
    assert [line for line in commands if line.startswith("make ")] == ["make check", "make test"]
    assert commands[-1] == "make test"


def test_a_second_demo_installs_nothing(tmp_path: Path) -> None:
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for made in ("bin/python", ".build", ".run", ".broker"):
        (tmp_path / ".venv" / made).touch()
    outside = {name: value for name, value in os.environ.items() if not name.startswith("M")}
    told = subprocess.run(
        ["make", "--dry-run", "demo"],  # noqa: S607 - the one of the PATH, as people say it
        cwd=tmp_path,
        env=outside,  # without MAKEFLAGS and MAKELEVEL: these tests run under make
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert told.stdout.splitlines() == [".venv/bin/tidewheel demo"]
