"""Errors of `tidewheel broker`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import cyclopts
import pytest

from tests.streams.broker.fake_tools import JAVA_8, fake_java
from tidewheel.streams.broker import ExternalBroker
from tidewheel.streams.broker.kafka_broker import KafkaBroker
from tidewheel.streams.cli.commands.broker import broker


def _run(*arguments: str) -> object:
    """Use the parser, as a command line does."""
    app = cyclopts.App(default_command=broker, result_action="return_value")
    return app(list(arguments), exit_on_error=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--property", "num.io.threads"], "--property needs name=value"),
        (["--property", "=8"], "--property needs name=value"),
        (["--topics", "orders:many"], "--topics orders:many: 'many' is no number of partitions"),
        (["--topics", "orders:0"], "'0' is no number of partitions"),
        (["--topics", "my orders:1"], "--topics my orders:1: topic name 'my orders'"),
        (["--port", "99999"], "--port 99999: a port is a number from 1 to 65535"),
        (["--keep", "--data-dir", "/x"], "leave out --keep"),
        (["--heap-mb", "0"], "give heap_mb (--heap-mb) 64 or more, or leave it out for 512"),
        (["--version", "x"], "'x' is no Kafka version; give three numbers"),
        (["--version", "3.9.0"], "Kafka 3.9.0 is too old"),
        (["--property", "listeners=PLAINTEXT://:9095"], "lacks BROKER and CONTROLLER"),
        (["--property", "listeners=PLAINTEXT://:9095"], "give port (--port) instead"),
        (
            ["--property", "listeners=BROKER://:1,CONTROLLER://:2,EXTRA://:3"],
            "listener EXTRA has no protocol: add it to listener.security.protocol.map",
        ),
    ],
)
def test_an_invalid_command_line_ends_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(*arguments, "--json") == 2
    said = capsys.readouterr()
    assert message in said.err
    (line,) = said.out.splitlines()
    assert json.loads(line)["event"] == "failed"
    assert message in json.loads(line)["error"]


def test_a_secret_in_a_bad_property_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--property", "=hush") == 2
    assert "hush" not in capsys.readouterr().err


def test_missing_programs_end_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    fake_java(tmp_path / "java", JAVA_8)
    assert _run() == 1
    said = capsys.readouterr()
    assert f"{tmp_path}/java (from PATH) is Java 1.8.0_392, which is too old" in said.err
    assert "pip install 'tidewheel[java]'" in said.err
    assert _run("--print-bootstrap") == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "is Java 1.8.0_392" in said.err


def test_the_fixture_uses_a_running_broker(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_light():\n"
        "    heavy = {'tidewheel.streams.broker', 'confluent_kafka', 'rocksdict', 'pyspark', 'cyclopts'}\n"
        "    print(sorted(name for name in heavy if name in sys.modules))\n"
        "def test_it(kafka_broker):\n"
        "    assert kafka_broker.bootstrap_servers == 'far.example:9092'\n"
    )
    search = os.pathsep.join(path for path in sys.path if path)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-qs", "-p", "tidewheel.streams.testing.pytest_plugin",
         "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": search,
            "TIDEWHEEL_TEST_BOOTSTRAP_SERVERS": "far.example:9092",
            # The plugin is named above: pytest would load an installed one twice.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "",
        },
        timeout=300,
        check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout
    assert "2 passed" in run.stdout
    assert run.stdout.splitlines()[0].startswith("[]"), run.stdout


def test_an_external_broker_is_neither_started_nor_stopped() -> None:
    external = ExternalBroker(bootstrap_servers="127.0.0.1:1,127.0.0.1:2")
    assert external.create_topics({}) == ()
    assert not hasattr(external, "stop")


def test_testing_offers_the_broker() -> None:
    import tidewheel.testing  # noqa: PLC0415  # the import is what is tested

    assert tidewheel.testing.KafkaBroker is KafkaBroker
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        tidewheel.testing.Nothing  # noqa: B018  # looking it up is the test
