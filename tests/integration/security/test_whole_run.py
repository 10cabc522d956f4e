"""One run of everything: workers, leader, fences, restores, Spark, dashboard and commands.

It shows that every client uses TLS and SCRAM, that no secret is in anything they show or leave,
and that nothing they leave can be read by others.
"""

import json
import os
import secrets
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.fakes.schema_registry import schema_registry
from tests.integration.cluster import PATIENCE_S, until
from tests.integration.security.artefacts import (
    ProcessWatch,
    files_with,
    texts_of_topics,
    too_open,
)
from tests.integration.security.secured_app import SecuredApp, lines_of, stop
from tests.integration.security.secured_broker import SecuredBroker, User, everything
from tests.streams.cli.command_runs import Command
from tidewheel.streams.broker.java import find_java

pytestmark = [
    pytest.mark.fault("SECURITY"),
    pytest.mark.timeout(1_800),
    pytest.mark.spark,
    pytest.mark.nightly("TIDEWHEEL_FAULTS"),
]

#: A variable that holds a password; its own value in environments is the user's choice.
_VARIABLE: Final = "SHOP_ADMIN_PASSWORD"


@dataclass(slots=True, kw_only=True)
class Run:
    """Attributes:
    secret: Each secret of the run, by what it is.
    private: Directories made by the run.
    topics: All text of each topic, before the reset.
    """

    app: SecuredApp
    user: User
    secret: dict[str, str]
    private: list[Path]
    watch: ProcessWatch
    codes: dict[str, int] = field(default_factory=dict[str, int])
    pages: dict[str, str] = field(default_factory=dict[str, str])
    topics: dict[str, bytes] = field(default_factory=dict[str, bytes])

    @property
    def words(self) -> list[bytes]:
        return [word.encode() for word in self.secret.values()]


def _canary(what: str) -> str:
    return f"canary-{what}-{secrets.token_hex(6)}"


def _settings(app: SecuredApp, user: User, secret: dict[str, str]) -> Path:
    """Write a settings file with secrets of all kinds: plain, in a file, in a variable, in a URL."""
    password = app.folder / "password"
    password.write_text(user.password, encoding="utf-8")
    client = user.client | {"ssl.key.password": secret["key password"]}
    tables = {
        "consumer": client,
        "producer": client | {"sasl.password": f"file:{password}"},
        "admin": client | {"sasl.password": f"env:{_VARIABLE}"},
    }
    url = f"http://id:{secret['location']}@127.0.0.1:9/x?X-Amz-Signature={secret['query']}"
    lines = [f'bootstrap_servers = "{app.broker.address}"', f'snapshot_location = "{url}"']
    for name, table in tables.items():
        lines += [f"[{name}]", *(f'"{key}" = {json.dumps(value)}' for key, value in table.items())]
    path = app.folder / "settings.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def _avro(text: bytes) -> bytes:
    return b"\0" + struct.pack(">i", 1) + bytes([2 * len(text)]) + text


def _feed(run: Run) -> None:
    cluster, app = run.app.broker.plain, run.app
    cluster.send(app.source, [(b"k", _avro(b"to be or not"))] * 50 + [(b"k", b"\xff")])
    cluster.wait_until_consumed(app.application_id, app.source)


def _page(run: Run, url: str, path: str) -> bool:
    headers = {"authorization": f"Bearer {run.secret['token']}"}
    request = urllib.request.Request(url + path, headers=headers)  # noqa: S310 - of our dashboard
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310
            run.pages[path] = answer.read().decode()
    except urllib.error.HTTPError as error:
        run.pages[f"{path}, {error.code}"] = error.read().decode()
        return False
    return True


def _watch_dashboard(run: Run, settings: Path) -> None:
    token = run.app.folder / "token"
    token.write_text(run.secret["token"], encoding="utf-8")
    arguments = ("--config", str(settings), "--port", "0", "--token", f"file:{token}", "--json")
    environment = run.app.environment
    with Command("dashboard", run.app.target, *arguments, environment=environment) as command:
        command.until_said('"ready"')
        (url,) = (line["url"] for line in lines_of(command.said) if "url" in line)
        until(lambda: _page(run, url, "healthz"), "the dashboard has read the group")
        for path in ("api/status", "metrics", "", "page.js"):
            assert _page(run, url, path)
        command.signal(2)
        run.codes["dashboard"] = command.wait()
    run.app.outputs["dashboard"] = command.said


def _run_all(run: Run, settings: Path, snapshots: Path) -> None:
    app = run.app
    with app.start(settings, "--workers", "2", "--log-level", "debug") as workers:
        app.until_running(workers, 2)
        _feed(run)
        workers.kill_worker(workers.workers[0])  # the group fences its producers
        workers.until_said("started (process", 3)
        _feed(run)
        for command in ("status --json", "group history", "config show", "describe"):
            _call(run, settings, *command.split(), app.target)
        _watch_dashboard(run, settings)
        with app.start(settings, "--log-level", "debug", slot="b") as joined:
            app.until_running(joined, 1)
            _feed(run)
            member = lines_of(app.outputs[f"status --json {app.target}"])[0]["members"][0]["member"]
            _call(run, settings, "drain", member, app.target)
            stop(joined)
        app.outputs["joined"] = joined.said
        stop(workers)
    app.outputs["workers"] = workers.said
    local = ("--set", f"snapshot_location={snapshots}")
    for command in ("snapshot", "state list", "restore", "state verify"):
        more = ("--state-dir", str(app.folder / "state-c")) if command == "restore" else ()
        _call(run, settings, *command.split(), app.target, *local, *more)
    _call(run, settings, "state", "get", app.target, "counts", "be", *local)
    app.call(settings, "snapshot", app.target)  # fails at a location that nobody serves
    run.topics = texts_of_topics(app.broker.plain, app.application_id)
    _call(run, settings, "reset", app.target, "--execute")


def _call(run: Run, settings: Path, *arguments: str) -> None:
    run.codes[" ".join(arguments)], _ = run.app.call(settings, *arguments)


@pytest.fixture(scope="module")
def run(secured: SecuredBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("run")
    kinds = ("key password", "registry", "location", "query", "token")
    secret = {kind: _canary(kind.replace(" ", "-")) for kind in kinds}
    private = [folder / name for name in ("state-a", "state-b", "state-c", "snapshots")]
    temporary, events = folder / "tmp", folder / "events"
    with schema_registry() as registry:
        registry.add("lines", '"string"')
        place = urlsplit(registry.url)
        url = f"{place.scheme}://id:{secret['registry']}@{place.netloc}"
        before = os.umask(0)
        try:
            for directory in (temporary, events, folder / "conf"):
                directory.mkdir()
            (folder / "conf" / "spark-defaults.conf").write_text(
                f"spark.eventLog.enabled true\nspark.eventLog.dir {events.as_uri()}\n"
                "spark.eventLog.compress false\n"  # it is searched for secrets
                f"spark.local.dir {temporary}\n",
                encoding="utf-8",
            )
            app = SecuredApp(
                broker=secured,
                folder=folder,
                application_id=f"shop{secrets.token_hex(4)}",
                value_serde=f"Serdes.avro('\"string\"', {url!r})",
            )
            user = secured.user(everything())
            secret["password"] = user.password
            app.environment |= {
                _VARIABLE: user.password,
                "TMPDIR": str(temporary),
                "SPARK_CONF_DIR": str(folder / "conf"),
                "JAVA_HOME": str(find_java().home),
            }
            port = int(secured.plain.bootstrap_servers.rpartition(":")[2])
            with ProcessWatch(port) as watch:
                whole = Run(
                    app=app, user=user, secret=secret, watch=watch,
                    private=[*private, temporary, events],
                )  # fmt: skip
                _run_all(whole, _settings(app, user, secret), folder / "snapshots")
        finally:
            os.umask(before)
        yield whole


def test_all_commands_succeed(run: Run) -> None:
    # `status` reports alarms, which a slow machine may cause.
    del run.codes[f"status --json {run.app.target}"]
    failed = {command: run.app.outputs[command] for command, code in run.codes.items() if code}
    assert failed == {}


def test_no_output_has_a_secret(run: Run) -> None:
    texts = {**run.app.outputs, **{f"/{path}": text for path, text in run.pages.items()}}
    found = {
        (name, kind)
        for name, text in texts.items()
        for kind, word in run.secret.items()
        if word in text
    }
    assert found == set()
    assert "***" in run.app.outputs[f"config show {run.app.target}"]
    assert '"level":"debug"' in run.app.outputs["workers"]


def test_no_file_has_a_secret(run: Run) -> None:
    assert all(any(root.rglob("*")) for root in run.private if root.name.startswith("state"))
    assert any(path.stat().st_size for path in run.private[-1].rglob("*")), "Spark's event log"
    assert files_with(run.words, *run.private) == []


def test_no_topic_has_a_secret(run: Run) -> None:
    app = run.app
    filled = {topic for topic, text in run.topics.items() if text}
    assert filled >= {app.source, app.sink, app.dead}
    assert any(topic.endswith("-changelog") for topic in filled)
    assert [
        topic for topic, text in run.topics.items() if any(word in text for word in run.words)
    ] == []


def test_no_command_line_or_environment_has_a_secret(run: Run) -> None:
    assert len(run.watch.seen) > 10, "supervisor, workers, watchdogs, Java, executors, commands"
    allowed = f"{_VARIABLE}={run.user.password}"
    found = {
        kind
        for text in run.watch.seen.values()
        for kind, word in run.secret.items()
        if word in text.replace(allowed, "")
    }
    assert found == set()


def test_nothing_that_is_left_is_readable_by_others(run: Run) -> None:
    """The run had umask 0000: each other mask leaves the same rights, or fewer."""
    *ours, events = run.private
    assert too_open(*ours) == {}
    # Spark opens its event log to its group, for its history server.
    assert too_open(events, bits=0o007) == {}


def test_every_client_used_the_secured_listener(run: Run) -> None:
    assert run.watch.plain == {}
    nobody = User(name="ANONYMOUS", password="", ca=run.user.ca)
    app = run.app.application_id
    by_plain = {
        (each.kind, each.operation)
        for each in run.app.broker.decisions(nobody)
        if each.name.startswith(app)
    }
    # The test itself reads topics and committed offsets.
    assert by_plain <= {
        ("Topic", "READ"), ("Topic", "DESCRIBE"), ("Group", "DESCRIBE"), ("Topic", "CREATE"),
        ("Topic", "DESCRIBE_CONFIGS"),
    }  # fmt: skip
