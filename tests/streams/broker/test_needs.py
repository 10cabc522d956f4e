"""Missing tools, and advice to install them."""

from pathlib import Path

import pytest

from tests.streams.broker.fake_tools import fake_java, fake_mvn, runs
from tidewheel.streams.broker.__main__ import main
from tidewheel.streams.broker.jars import DEFAULT_VERSION


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setenv("TIDEWHEEL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("TIDEWHEEL_IVY_JAR", raising=False)
    return tmp_path / "bin"


def test_a_bare_machine_needs_both_extras(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--missing-extras"]) == 0
    assert capsys.readouterr().out == "java,spark\n"
    assert main(["--check"]) == 1
    said = capsys.readouterr().out
    assert "Java: missing: no Java found" in said
    assert f"Kafka {DEFAULT_VERSION}: missing, and neither Maven nor PySpark's Ivy is here" in said
    assert "run: pip install 'tidewheel[java,spark]'" in said
    assert not bare.exists()


def test_with_java_and_maven_nothing_is_missing(
    bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    java = fake_java(bare / "java")
    mvn = fake_mvn(bare / "mvn", serves=bare)
    assert main(["--missing-extras"]) == 0
    assert capsys.readouterr().out == "\n"
    assert main(["--check"]) == 0
    said = capsys.readouterr().out
    assert f"Java: 17.0.9 at {java} (from PATH)" in said
    assert "Maven is here and will fetch it (45 MB)" in said
    assert runs(mvn) == []


def test_an_ivy_jar_replaces_maven(
    bare: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_java(bare / "java")
    (tmp_path / "ivy.jar").write_bytes(b"")
    monkeypatch.setenv("TIDEWHEEL_IVY_JAR", str(tmp_path / "ivy.jar"))
    assert main(["--missing-extras"]) == 0
    assert capsys.readouterr().out == "\n"


def test_jars_can_be_fetched_ahead(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry = bare.parent / "registry"
    registry.mkdir()
    (registry / "kafka.jar").write_bytes(b"kafka")
    fake_java(bare / "java")
    fake_mvn(bare / "mvn", serves=registry)
    assert main(["--fetch", "--kafka", "4.77.0"]) == 0
    assert main(["--check", "--kafka", "4.77.0"]) == 0
    assert "Kafka 4.77.0: fetched, in " in capsys.readouterr().out


def test_errors_go_to_standard_error(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", "--kafka", "3.0.0"]) == 1
    assert main(["--fetch"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "Kafka 3.0.0 is too old" in said.err
    assert "no Java found" in said.err
    assert "Traceback" not in said.err
