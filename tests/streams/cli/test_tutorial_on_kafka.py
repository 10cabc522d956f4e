"""The page tutorial.md: its code, its test and its commands, on a Kafka of its own."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checks.repository_files import ROOT, code_blocks
from tests.integration.cluster import until
from tests.streams.cli.command_runs import Command
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.testing import KafkaBroker

pytestmark = [pytest.mark.broker, pytest.mark.slow]

BLOCKS = list(code_blocks((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")))
COMMANDS = {"python": "", "tidewheel": "-m tidewheel"}
NOON = 1_795_262_400_000


@pytest.fixture
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as running:
        yield running


def block(*words: str) -> str:
    (found,) = (each.text for each in BLOCKS if all(word in each.text for word in words))
    return found


def command(start: str) -> str:
    """Return the command of the page that begins so, without its comment."""
    lines = (
        line for each in BLOCKS if each.language == "console" for line in each.text.split("\n")
    )
    (found,) = (line[2:] for line in lines if line.startswith(f"$ {start}"))
    return found.partition("  #")[0]


def free_port() -> int:
    """Return a free port whose next one is free, too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def windows_of(rows: list[dict[str, Any]]) -> dict[tuple[str, int], int]:
    return {(row["key"]["key"], row["key"]["start"]): row["value"] for row in rows}


def test_the_tutorial_works_as_it_is_written(broker: KafkaBroker, tmp_path: Path) -> None:
    environment = {
        # Without COLUMNS, which would cut the names of topics.
        **{name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ},
        "TIDEWHEEL_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
        "TIDEWHEEL_STATE_DIR": str(tmp_path / "state"),
        "PYTHONPATH": str(ROOT),
    }
    folder = tmp_path

    def run(line: str, code: ExitCode = ExitCode.OK) -> str:
        program, _, arguments = line.partition(" ")
        called = f"{shlex.quote(sys.executable)} {COMMANDS[program]} {arguments}"
        result = subprocess.run(  # noqa: S602 - the commands of our own page
            called, shell=True, cwd=folder, env=environment, timeout=300,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert result.returncode == code, f"{line}: {result.stdout}{result.stderr}"
        return result.stdout

    run(command("tidewheel new"))
    folder = tmp_path / command("cd ").split()[1]
    for path, text in (
        ("country_views/topology.py", block("def topology()")),
        ("tests/test_topology.py", block("TopologyTestDriver")),
        ("users.jsonl", block('"country": "KR"')),
        ("views.jsonl", block('"page": "/cart"', '"timestamp"')),
    ):
        target = folder / path
        assert target.exists() or target.suffix == ".jsonl"
        target.write_text(text, encoding="utf-8")
    assert "1 passed" in run(f"{command('python -m pytest')} -p no:cacheprovider")
    run(command("tidewheel topics create"))
    assert "country-views-by-country-repartition" in run(command("tidewheel topics country_views"))
    port = free_port()
    start = command("tidewheel run").replace("8080", str(port)).split()[1:]
    with Command(*start, cwd=folder, environment=environment) as running:
        running.until_said("RUNNING", times=2)
        run(command("tidewheel produce users"))
        run(command("tidewheel produce page-views"))
        consume = command("tidewheel consume")
        assert len(run(consume).splitlines()) == 3

        def results() -> dict[tuple[str, int], int]:
            read = run(consume.replace("--count 3", "--until-end"))
            return windows_of([json.loads(line) for line in read.splitlines()])

        until(
            lambda: results() == {("DE", NOON): 2, ("KR", NOON): 1, ("DE", NOON + 60_000): 1},
            "the counts",
        )
        url = shlex.split(command("curl"))[1].replace("8080", str(port))
        with urllib.request.urlopen(url, timeout=100) as answer:  # noqa: S310 - http to this machine
            rows = json.load(answer)["rows"]
        assert [(row["start"], row["value"]) for row in rows] == [(NOON, 2), (NOON + 60_000, 1)]
        assert run(command("tidewheel status"))
        running.signal(signal.SIGINT)
        assert running.wait() == ExitCode.OK
    run(command("tidewheel reset"))
