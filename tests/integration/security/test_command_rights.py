"""Each command runs with exactly its documented rights; without each one an error names it."""

import io
import re
import secrets
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from tests.integration.cluster import PATIENCE_S, until
from tests.integration.security.documented_rights import Names, command_rights
from tests.integration.security.secured_app import SecuredApp, lines_of, stop
from tests.integration.security.secured_broker import Right, SecuredBroker, everything
from tests.streams.cli.command_runs import Command
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.broker.java import find_java
from tidewheel.streams.cli.app import command_names, main
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.spark,
    pytest.mark.fault("SECURITY"),
    pytest.mark.nightly("TIDEWHEEL_FAULTS"),
]

#: Arguments that stand for the application, the topic of the table, a file, and a member.
_APP, _TOPIC, _ROWS, _MEMBER = "APP", "TOPIC", "ROWS", "MEMBER"
#: Arguments of each command of the table. They run in this order: the last ones change the
#: application.
_COMMANDS: Final[dict[str, list[str]]] = {
    "status": [_APP],
    "top": [_APP, "--count", "1"],
    "dashboard": [_APP, "--port", "0", "--json"],
    "describe --check": [_APP],
    "topics MODULE:TOPOLOGY": [_APP],
    "topics": [],
    "topics describe": [_TOPIC],
    "topics create": [_TOPIC, "--partitions", "1"],
    "produce": [_TOPIC],
    "consume": [_TOPIC, "--from-beginning", "--count", "1"],
    "group history": [_APP],
    "state list": [_APP],
    "state get": [_APP, "counts", "be"],
    "state scan": [_APP, "counts"],
    "state verify": [_APP],
    "snapshot": [_APP, "--to", "snapshots", "--full"],
    "restore": [_APP, "--state-dir", "restored"],
    "bootstrap": ["counts", "--app", _APP, "--from", _ROWS, "--input-offsets", "latest"],
    "group recover": [_APP, "--execute"],
    "reset": [_APP, "--execute"],
    "reshard": [_APP, "--shards", "2", "--execute"],
    "state delete": [_APP, "counts", "or", "--execute"],
    "group rest": [_APP, "--timeout", "60s"],
    "group resume": [_APP],
    "drain": [_MEMBER, _APP],
}
_BY_SPARK: Final = {"snapshot", "restore", "state verify", "bootstrap"}
_OF_RUNNING: Final = {"state delete", "group rest", "group resume", "drain"}
#: `run` has a table of its own; the others ask no broker, or only one that they start.
#: `backfill` needs a new application; its guide says which rights.
_WITHOUT_ROWS: Final = {"run", "demo", "new", "broker", "config show", "backfill"}
#: Partitions of internal topics.
_INTERNAL: Final = {
    "counts-changelog": 2,
    "counts-repartition": 2,
    "group-state": 1,
    "group-inbox": 1,
}
#: For the parametrisation; each test has names of its own.
_PAGE: Final = command_rights(Names("shop", source="in", sink="out", dead="dead"))
#: Each right that is missing, by index, then none.
_CASES: Final = [
    (command, missing) for command in _COMMANDS for missing in (*range(len(_PAGE[command])), None)
]


def test_the_page_lists_all_commands_that_ask_brokers() -> None:
    assert set(_PAGE) == set(_COMMANDS)
    # Some rows are of one form of a command.
    listed = {re.sub(r" (--check|MODULE:TOPOLOGY)$", "", command) for command in _PAGE}
    assert listed == set(command_names()) - _WITHOUT_ROWS


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Commands use the session of their process, if there is one."""
    from tidewheel.state_stores.bulk_restore.spark.job import spark_session  # noqa: PLC0415 - as commands do

    settings = {"spark.local.dir": str(tmp_path_factory.mktemp("spark"))}
    with spark_session(
        name="rights", master="local[2]", java_home=find_java().home, settings=settings
    ) as session:
        yield session


@pytest.fixture(scope="module")
def app(secured: SecuredBroker, tmp_path_factory: pytest.TempPathFactory) -> SecuredApp:
    """An application that ran, and stopped."""
    made = _new_app(secured, tmp_path_factory.mktemp("app"))
    with made.start(made.settings_file(secured.user(everything()))) as run:
        made.until_running(run, 1)
        made.until_counted(50)
        changelog = f"{made.application_id}-counts-changelog"
        until(lambda: b"be" in secured.plain.folded(changelog), "the words are counted")
        assert stop(run) == 0
    return made


@pytest.fixture(scope="module")
def running_app(
    secured: SecuredBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredApp]:
    """An application with two workers."""
    made = _new_app(secured, tmp_path_factory.mktemp("running"))
    with made.start(made.settings_file(secured.user(everything())), "--workers", "2") as run:
        made.until_running(run, 2)
        made.until_counted(50)
        yield made


def _new_app(secured: SecuredBroker, folder: Path) -> SecuredApp:
    (folder / "rows.csv").write_text("key,value\nbe,5\n", encoding="utf-8")
    return SecuredApp(broker=secured, folder=folder, application_id=f"shop{secrets.token_hex(4)}")


class _Call:
    """A call of a command in this process, where one Spark serves all."""

    def __init__(self, command: str, app: SecuredApp) -> None:
        self._command, self._app = command, app
        self._admin = AdminClient({"bootstrap.servers": app.broker.plain.bootstrap_servers})
        self.topic = app.source
        if command == "topics create":
            self.topic = f"new-{secrets.token_hex(4)}"
        self.rights = command_rights(
            Names(
                app.application_id,
                source=app.source,
                sink=app.sink,
                dead=app.dead,
                topic=self.topic,
            )
        )[command]

    def run(self, rights: Iterable[Right], output: Callable[[], str]) -> tuple[int, str]:
        """Return the exit code and the output."""
        rows = str(self._app.folder / "rows.csv")
        values = {_APP: self._app.target, _TOPIC: self.topic, _ROWS: rows}
        if self._command == "drain":
            values[_MEMBER] = self._member(output)
        self._prepare()
        output()  # of the preparation
        user = self._app.broker.user(rights)
        settings = self._app.settings_file(user, state_dir=str(self._app.folder / "state-a"))
        arguments = [
            *self._command.removesuffix(" MODULE:TOPOLOGY").split(),
            *(values.get(argument, argument) for argument in _COMMANDS[self._command]),
            *("--config", str(settings)),
        ]
        if self._command == "dashboard":
            return _dashboard(arguments)
        code = main(arguments)
        return code, output()

    def _prepare(self) -> None:
        app_id, plain = self._app.application_id, self._app.broker.plain
        if self._command == "group recover":
            self._delete_topic(f"{app_id}-group-state")
            # Its members count as alive for a session timeout.
            recover = ["group", "recover", self._app.target, "--config", self._boss()]
            until(lambda: main(recover) == 0, "the stopped members count as silent")
        if self._command in ("reset", "reshard"):
            existing = self._admin.list_topics(timeout=PATIENCE_S).topics
            internal = {f"{app_id}-{kind}": count for kind, count in _INTERNAL.items()}
            plain.create({name: count for name, count in internal.items() if name not in existing})
            for name in ("group-state", "group-inbox"):
                plain.send(f"{app_id}-{name}", [(b"noise", b"noise")], partition=0)
            committed = {TopicPartition(self._app.source, 0): _committed(f"{app_id}-{0:032x}-0")}
            plain.admin.alter_committed(app_id, committed)
            if self._command == "reshard":  # a group of shards that are no more
                plain.admin.alter_committed(f"{app_id}~0of4", committed)

    def _boss(self) -> str:
        return str(self._app.settings_file(self._app.broker.user(everything())))

    def _delete_topic(self, name: str) -> None:
        if name in self._admin.list_topics(timeout=PATIENCE_S).topics:
            self._admin.delete_topics([name])[name].result(PATIENCE_S)
        until(lambda: name not in self._admin.list_topics(timeout=PATIENCE_S).topics, "it is gone")

    def _member(self, output: Callable[[], str]) -> str:
        main(["status", self._app.target, "--json", "--config", self._boss()])
        members = lines_of(output())[0]["members"]
        return str(next(each["member"] for each in members if each["phase"] == "ACTIVE"))


@pytest.fixture
def call(
    command: str,
    secured: SecuredBroker,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> _Call:
    if command in _BY_SPARK:
        request.getfixturevalue("spark")
    if command == "bootstrap":
        app = _new_app(secured, tmp_path)
    else:
        app = request.getfixturevalue("running_app" if command in _OF_RUNNING else "app")
    monkeypatch.chdir(app.folder)
    monkeypatch.setattr("sys.stdin", io.StringIO('{"value": "to be"}\n'))  # of `produce`
    return _Call(command, app)


@pytest.mark.parametrize(
    ("command", "missing"),
    _CASES,
    ids=[
        f"{command} without {'nothing' if missing is None else list(_PAGE[command])[missing]}"
        for command, missing in _CASES
    ],
)
def test_a_command_needs_exactly_its_documented_rights(
    command: str, missing: int | None, call: _Call, capfd: pytest.CaptureFixture[str]
) -> None:
    rights = list(call.rights)
    left_out = None if missing is None else rights.pop(missing)
    code, output = call.run(rights, lambda: "".join(capfd.readouterr()))
    if left_out is None:
        assert code == 0 or (command == "status" and code == 1), output  # alarms
        assert "not-checked" not in output
        assert command != "topics" or call.topic in output
    elif call.rights[left_out] == "not listed":
        assert code == 0, output
        assert left_out.name not in output
    else:
        assert code != 0 or not call.rights[left_out].startswith("error"), output
        assert _is_named(left_out, output), output


def _dashboard(arguments: list[str]) -> tuple[int, str]:
    """Run the dashboard until it has read the group; return its exit code, output and status."""
    with Command(*arguments) as command:
        until(lambda: not command.is_running or '"ready"' in command.said, "it is ready")
        if not command.is_running:
            return command.wait(), command.said
        (url,) = (line["url"] for line in lines_of(command.said))
        until(lambda: "not read yet" not in _fetched(f"{url}api/status"), "it has read the group")
        status = _fetched(f"{url}api/status")
        command.signal(2)
        return command.wait(), command.said + status


def _fetched(url: str) -> str:
    """Return a page, or the error in its place."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:  # noqa: S310 - our dashboard
            text: str = answer.read().decode()
    except urllib.error.HTTPError as error:
        text = error.read().decode()
    return text


def _committed(transactional_id: str) -> CommittedOffset:
    """Return an offset that a worker has committed."""
    progress = Progress(
        task_epoch=0,
        transactional_id=transactional_id,
        topic_id=bytes(16),
        topology_hash=bytes(8),
        vector=Vector.at(1),
    )
    return CommittedOffset(1, progress.encode())


def _is_named(missing: Right, output: str) -> bool:
    # READ and WRITE include DESCRIBE, which some requests need first.
    operations = f"{missing.operation}|DESCRIBE"
    resource = "the cluster" if missing.kind == "Cluster" else re.escape(missing.name)
    return any(
        re.search(rf"\bgrant\b.*\b({operations})\b", line) and re.search(resource, line)
        for line in output.splitlines()
    )
