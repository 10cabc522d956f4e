"""Topics, produce and consume on a real Kafka, and the page that uses them."""

import io
import json
import re
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checks.repository_files import ROOT, code_blocks
from tests.integration.cluster import Cluster, until
from tests.streams.cli.command_runs import Command
from tidewheel.streams.broker import RunningBroker
from tidewheel.streams.cli.app import main
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.tasks.processing.engine.output import OutputColumns

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PAGE = ROOT / "docs" / "getting-started.md"

PROGRAM = """
from tidewheel import StreamsBuilder

def topology():
    builder = StreamsBuilder()
    orders = builder.stream("{app}-orders", key_serde=str, value_serde=str)
    counts = orders.group_by(lambda order: order, key_serde=str, value_serde=str).count(store="n")
    counts.to_stream().to("{app}-totals", key_serde=str, value_serde=int)
    return builder

config = {{"application_id": "{app}"}}
"""


class Shell:
    def __init__(self, servers: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.servers = servers
        self._capsys = capsys

    def run(self, *arguments: str, stdin: str = "", code: ExitCode = ExitCode.OK) -> list[Any]:
        """Run a command in this process; return its JSON lines, or after a failure its error."""
        before, sys.stdin = sys.stdin, io.StringIO(stdin)
        self._capsys.readouterr()
        try:
            result = main([*arguments, "--bootstrap-servers", self.servers])
        finally:
            sys.stdin = before
        printed = self._capsys.readouterr()
        assert result == code, f"{arguments}: {printed.err}"
        if code is not ExitCode.OK and not printed.out:
            return [printed.err]
        return [json.loads(line) for line in printed.out.splitlines()]


@pytest.fixture
def unique() -> str:
    return secrets.token_hex(4)


@pytest.fixture
def shell(kafka_broker: RunningBroker, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(kafka_broker.bootstrap_servers, capsys)


def test_topics_are_created_listed_and_described(shell: Shell, unique: str) -> None:
    orders, refunds = f"orders-{unique}", f"refunds-{unique}"
    arguments = ("topics", "create", orders, refunds, "--partitions", "3", "--json")
    compacted = ("--topic-config", "cleanup.policy=compact")
    created = shell.run(*arguments, *compacted)
    assert [(row["topic"], row["partitions"], row["created"]) for row in created] == [
        (orders, 3, True), (refunds, 3, True),
    ]  # fmt: skip
    assert [row["created"] for row in shell.run(*arguments)] == [False, False]
    (error,) = shell.run("topics", "create", orders, "--partitions", "4", code=ExitCode.FAILED)
    assert "3 partitions, not 4" in error
    assert {"topic": orders, "partitions": 3} in shell.run("topics", "--json")
    shell.run("produce", orders, "--partition", "1", "--json", stdin='{"key": "a", "value": "x"}')
    (described,) = shell.run("topics", "describe", orders, "--json")
    assert [row["next_offset"] for row in described["partitions"]] == [0, 1, 0]
    assert described["settings"]["cleanup.policy"] == "compact"
    (error,) = shell.run(
        "topics", "describe", f"order-{unique}", code=ExitCode.MISSING_SOURCE_TOPIC
    )
    assert f"did you mean {orders}?" in error


def test_the_topics_of_an_application_are_shown_before_it_runs(
    shell: Shell, unique: str, tmp_path: Path
) -> None:
    app = f"app-{unique}"
    program = tmp_path / f"program_{unique}.py"
    program.write_text(PROGRAM.format(app=app), encoding="utf-8")
    target = f"{program}:topology"
    rows = shell.run("topics", target, "--json", code=ExitCode.MISSING_SOURCE_TOPIC)
    missing, created = "missing: create it", "created at the start"
    assert [(row["topic"], row["role"], row["partitions"], row["state"]) for row in rows[:2]] == [
        (f"{app}-orders", "source", None, missing),
        (f"{app}-totals", "output", None, missing),
    ]
    assert {row["state"] for row in rows[2:]} == {created}
    shell.run("topics", "create", f"{app}-orders", "--partitions", "5", "--json")
    rows = shell.run("topics", target, "--json", code=ExitCode.MISSING_OUTPUT_TOPIC)
    assert [(row["role"], row["partitions"], row["state"]) for row in rows] == [
        ("source", 5, "exists"),
        ("output", None, missing),
        ("repartition", 5, created),
        ("changelog", 5, created),
        ("group", 1, created),
        ("group", 1, created),
    ]


def test_records_are_written_and_read_by_serde(shell: Shell, cluster: Cluster, unique: str) -> None:
    topic = f"typed-{unique}"
    shell.run("topics", "create", topic, "--partitions", "2", "--json")
    serdes = ("--key", "string", "--value", "int64")
    lines = [
        {"key": "a", "value": 1, "timestamp": 1_000, "headers": {"trace": "x"}},
        {"key": "b", "value": None, "timestamp": 2_000},
        {"key": None, "value": -7, "timestamp": 3_000},
    ]
    text = "\n\n".join(map(json.dumps, lines)) + "\n"
    assert shell.run("produce", topic, *serdes, "--json", stdin=text) == [
        {"topic": topic, "records": 3}
    ]
    # The clients of applications, with Kafka's own partitioner, find the same records.
    cluster.send(topic, [(b"a", bytes(8))])
    stored = cluster.read(topic)
    assert {record.value for record in stored} == {
        (1).to_bytes(8), None, (-7).to_bytes(8, signed=True), bytes(8),
    }  # fmt: skip
    assert len({record.partition for record in stored if record.key == b"a"}) == 1
    whole = ("--from-beginning", "--until-end")
    read = sorted(shell.run("consume", topic, *serdes, *whole), key=lambda row: row["timestamp"])
    fields = ("key", "value", "timestamp")
    assert [[row[name] for name in fields] for row in read if row["value"] != 0] == [
        ["a", 1, 1_000], ["b", None, 2_000], [None, -7, 3_000],
    ]  # fmt: skip
    assert [row["headers"] for row in read if "headers" in row] == [[["trace", "x"]]]
    place = next(row for row in read if row["key"] == "b")["partition"]
    chosen = shell.run("consume", topic, *serdes, *whole, "--partition", str(place))
    assert {row["partition"] for row in chosen} == {place}
    assert len(shell.run("consume", topic, *serdes, "--from-beginning", "--count", "2")) == 2
    assert shell.run("consume", topic, "--until-end") == []


def test_open_transactions_are_read_only_when_asked(
    shell: Shell, cluster: Cluster, unique: str
) -> None:
    topic = f"open-{unique}"
    shell.run("topics", "create", topic, "--partitions", "1", "--json")
    producer = cluster.clients.transactional_producer(f"tx-{unique}", 60_000)
    producer.init()
    producer.begin()
    producer.produce(
        OutputColumns(topic=topic, partitions=0, keys=[b"a"], values=[b"x"], timestamps=[1])
    )
    until(lambda: sum(cluster.log_ends(topic).values()) == 1, "the record to be in the log")
    arguments = ("consume", topic, "--from-beginning", "--until-end")
    assert shell.run(*arguments) == []
    (row,) = shell.run(*arguments, "--isolation", "read_uncommitted")
    assert (row["key"], row["value"]) == ("a", "x")
    producer.abort()
    producer.close()


def test_a_bad_line_or_record_ends_the_command_with_its_place(shell: Shell, unique: str) -> None:
    topic = f"bad-{unique}"
    (error,) = shell.run("produce", topic, code=ExitCode.MISSING_OUTPUT_TOPIC)
    assert "tidewheel topics create" in error
    shell.run("consume", topic, code=ExitCode.MISSING_SOURCE_TOPIC)
    shell.run("topics", "create", topic, "--partitions", "1", "--json")
    (error,) = shell.run(
        "produce",
        topic,
        "--text",
        "--value",
        "int64",
        stdin="1\n2\nthree\n4\n",
        code=ExitCode.FAILED,
    )
    assert "line 3" in error
    rows = shell.run("consume", topic, "--value", "int64", "--from-beginning", "--until-end")
    assert [row["value"] for row in rows] == [1, 2]
    (error,) = shell.run(
        "consume",
        topic,
        "--value",
        "int32",
        "--from-beginning",
        "--until-end",
        code=ExitCode.FAILED,
    )
    assert f"{topic}-0 offset 0" in error
    rows = shell.run("consume", topic, "--value", "int64", "--partition", "0", "--offset", "1")
    assert [(row["offset"], row["value"]) for row in rows] == [(1, 2)]
    rows = shell.run("consume", topic, "--value", "int64", "--offset", "0", "--until-end")
    assert [row["value"] for row in rows] == [1, 2]
    (error,) = shell.run("consume", topic, "--offset", "2", code=ExitCode.USAGE)
    assert "offsets 0 to 1" in error
    (error,) = shell.run("consume", topic, "--partition", "1", code=ExitCode.USAGE)
    assert "partitions 0 to 0" in error


def _page(unique: str) -> tuple[str, list[str]]:
    """Return the page's program and its commands, with topics of this test."""
    text = PAGE.read_text(encoding="utf-8")
    for name in ("word-counts", '"lines"', "word-count"):
        assert name in text
    text = text.replace("word-counts", f"counts-{unique}").replace(
        '"word-count"', f'"app-{unique}"'
    )
    text = text.replace('"lines"', f'"lines-{unique}"')
    text = re.sub(r"\b(produce|create) lines\b", rf"\1 lines-{unique}", text)
    program = next(block.text for block in code_blocks(text) if "def topology" in block.text)
    commands = [
        line.removeprefix("$ ")
        for block in code_blocks(text)
        if block.language == "console"
        for line in block.text.splitlines()
        if "tidewheel " in line
    ]
    return program, commands


def test_the_page_getting_started_works_without_client_code(
    kafka_broker: RunningBroker, unique: str, tmp_path: Path
) -> None:
    assert "confluent_kafka" not in PAGE.read_text(encoding="utf-8")
    program, commands = _page(unique)
    (tmp_path / "word_count.py").write_text(program, encoding="utf-8")
    environment = {
        "TIDEWHEEL_BOOTSTRAP_SERVERS": kafka_broker.bootstrap_servers,
        "TIDEWHEEL_STATE_DIR": str(tmp_path / "state"),
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
    }

    def run(command: str) -> str:
        called = command.replace("tidewheel ", f"{sys.executable} -m tidewheel ", 1)
        result = subprocess.run(  # noqa: S602 - the commands of our own page
            called, shell=True, cwd=tmp_path, env=environment, timeout=200,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert result.returncode in (0, int(ExitCode.MISSING_OUTPUT_TOPIC)), (
            f"{command}: {result.stderr}"
        )
        return result.stdout

    def one(*words: str) -> str:
        (found,) = (command for command in commands if all(word in command for word in words))
        return found

    run(one("topics create"))
    assert f"app-{unique}-counts-changelog" in run(one("topics word_count.py"))
    with Command(*one("run ").split()[1:], cwd=tmp_path, environment=environment) as running:
        running.until_said("RUNNING")
        run(one("produce", "--text"))
        read = [json.loads(line) for line in run(one("consume")).splitlines()]
        assert len(read) == 4
        assert {row["key"] for row in read} <= {"to", "be", "or", "not"}
        everything = one("consume").replace("--count 4", "--until-end")

        def counts() -> dict[str, int]:
            rows = [json.loads(line) for line in run(everything).splitlines()]
            return {row["key"]: row["value"] for row in rows}

        until(lambda: counts() == {"to": 2, "be": 2, "or": 1, "not": 1}, "the counts")
        run(one("produce lines", "hamlet"))
        until(lambda: counts() == {"to": 3, "be": 3, "or": 1, "not": 1}, "the counts")
        running.signal(signal.SIGINT)
        assert running.wait() == ExitCode.OK
    assert one("reset", "--execute")
    run(one("reset", "--execute"))
