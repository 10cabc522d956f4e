"""Arguments of every command: an exit code, never a traceback; memory and time stay bounded.

Nothing is started: brokers, Spark and workers are replaced where a command reaches them.
"""

import io
import shutil
import socket
import string
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn, Self, cast

import pytest
from cyclopts import App
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checks.repository_files import ROOT
from tests.fakes.clients import FakeClients
from tests.fuzz.damage import CHARACTERS, bounded, examples
from tests.rebalance.leader.group_logs import two_members
from tests.streams.group.fake_group import APP, FakeConnection, FakeGroup, GroupAdmin
from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.bulk_restore.content import StoredRow
from tidewheel.streams.broker import BrokerError
from tidewheel.streams.cli.app import build_app, main
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.exit_codes import ExitCode

pytestmark = pytest.mark.fault("DOORS")

#: A valid command line of each command; it runs in a folder with `shop.py`.
_COMMANDS: Final[dict[str, list[str]]] = {
    "run": ["shop.py:topology"],
    "describe": ["shop.py:topology", "--check"],
    "demo": [],
    "broker": ["--topics", "lines:4", "--property", "num.io.threads=8"],
    "reset": ["shop.py:topology", "--execute"],
    "reshard": ["shop.py:topology", "--shards", "4", "--execute"],
    "snapshot": ["shop.py:topology", "--to", "snapshots"],
    "restore": ["shop.py:topology", "--workers", "2"],
    "bootstrap": [
        *("counts", "--app", "shop.py:topology", "--from", "x.csv"),
        *("--input-offsets", "file:offsets.json"),
    ],
    "backfill": [
        *("shop.py:topology", "--outputs", "topics", "--from", "lines=timestamp:5"),
        *(
            "--history",
            "lines=x.csv",
            "--history-until",
            "lines=9",
            "--history-order-by",
            "lines=id",
        ),
        *("--until", "latest", "--accept", "order,cache", "--dry-run"),
    ],
    "status": [APP],
    "top": [APP, "--count", "1"],
    "dashboard": [APP, "--port", "0"],
    "drain": ["a", APP, "--timeout", "30s"],
    "group history": [APP],
    "group recover": ["shop.py:topology", "--execute"],
    "group rest": [APP, "--timeout", "30s"],
    "group resume": [APP],
    "state list": ["shop.py:topology"],
    "state get": ["shop.py:topology", "counts", "be"],
    "state scan": ["shop.py:topology", "counts", "--limit", "3"],
    "state verify": ["shop.py:topology", "--stores", "counts"],
    "state delete": ["shop.py:topology", "counts", "be", "--execute", "--application-id", APP],
    "config show": [],
    "new": ["order-totals"],
    "topics create": ["orders", "--partitions", "4", "--topic-config", "cleanup.policy=compact"],
    "topics describe": ["lines"],
    "produce": ["lines", "--value", "json", "--count", "1"],
    "consume": ["lines", "--value", "int64", "--from-beginning"],
}
_INTERNAL: Final = ("changelog", "repartition")
_PROGRAM: Final = ROOT / "examples" / "word_count.py"
_TEXTS = st.text(CHARACTERS, max_size=20) | st.sampled_from(
    [
        *("", "9" * 400, "-1", "0", "1e999", "nan", "../../etc/passwd", "~nobody-here/x", "a:b", ":"),
        *("x.py:y", "os:system", "\udcff", "\x1b[2J", "[red]", "{}", "http://[::1", "a=b=c"),
        *("/dev/null", "shop\n", "0_0", "999999999999_1", "a" * 300, "1" * 500, "%s{0}", "env:X"),
        *("999999999", "timestamp:" + "9" * 400, "file:/dev/null", "file:", "[" * 100_000, "0001-01-01"),
        *("9999-12-31T23:59:59-14:00", '{"a":' * 5_000, "a:999999999", "::", "shop.py:topology"),
        string.printable.strip(),
    ]
)  # fmt: skip


def _commands(app: App, prefix: str = "") -> Iterator[tuple[str, App]]:
    for name in app:
        if name.startswith("-"):
            continue
        inner = list(_commands(app[name], f"{prefix}{name} "))
        yield from inner or [(prefix + name, app[name])]


@pytest.fixture(scope="module")
def options() -> dict[str, list[str]]:
    """Return the names of each command's options."""
    return {
        name: [
            option
            for argument in command.assemble_argument_collection()
            for option in argument.names
            if option.startswith("-")
        ]
        for name, command in _commands(build_app())
    }


def test_every_command_has_a_line_here(options: dict[str, list[str]]) -> None:
    assert options.keys() == _COMMANDS.keys()


def _unreachable(*_: Any, **__: Any) -> NoReturn:
    raise StreamsError("nothing can be reached in this test")


def _interrupted(_seconds: float) -> NoReturn:
    raise KeyboardInterrupt


class _NumericHosts:
    """Resolves addresses only: a name server would make the test wait."""

    def __init__(self, resolve: Callable[..., Any]) -> None:
        self._resolve = resolve

    def __call__(self, host: str, *arguments: Any, **options: Any) -> Any:
        return self._resolve(host, *arguments, **options, flags=socket.AI_NUMERICHOST)


class _ResetAdmin(GroupAdmin):
    def found(self) -> Self:
        return self


class _Rows:
    def rows(self, _spec: object) -> list[StoredRow]:
        return [StoredRow(key=b"be", value=(7).to_bytes(8), timestamp=5)]


class _SilentReader:
    def __init__(self, *_: Any, **__: Any) -> None: ...

    def assign(self, positions: dict[TopicPartition, int]) -> None:
        self._positions = positions

    def positions(self) -> dict[TopicPartition, int]:
        return self._positions

    def poll(self, _records: int, _seconds: float) -> NoReturn:
        raise KeyboardInterrupt

    def close(self) -> None: ...


class _NoSupervisor:
    def __init__(self, starts: list[Any], **_: Any) -> None:
        assert starts

    def run(self) -> int:
        return ExitCode.OK


def _no_broker(_broker: object) -> NoReturn:
    raise BrokerError("no Kafka starts in this test")


def _replace_the_outside(patch: pytest.MonkeyPatch) -> None:
    group = FakeGroup()
    group.write(two_members())
    internal = [f"{app}-counts-{kind}" for app in (APP, "word-count") for kind in _INTERNAL]
    for topic in ("lines", "word-counts", *internal):
        group.broker.create_topic(topic, 4)
    cli = "tidewheel.streams.cli"
    patch.setattr(f"{cli}.group_access.connect", lambda *_, **__: FakeConnection(group.broker))
    patch.setattr(f"{cli}.commands.reset.KafkaResetAdmin", lambda _: _ResetAdmin(group.broker))
    patch.setattr(f"{cli}.commands.reshard.KafkaResetAdmin", lambda _: _ResetAdmin(group.broker))
    patch.setattr(f"{cli}.commands.reshard.make_clients", lambda _: FakeClients(group.broker))
    records = f"{cli}.commands.records"
    patch.setattr(f"{records}.cluster.KafkaResetAdmin", lambda _: _ResetAdmin(group.broker))
    patch.setattr(f"{records}.consume.KafkaTopicReader", _SilentReader)
    clients = FakeClients(group.broker)
    patch.setattr(f"{records}.produce.KafkaSinkProducer", lambda _: clients.sink_producer())
    patch.setattr("sys.stdin", io.StringIO('{"value": {"line": 1}}\n{"value": 2}\n'))
    patch.setattr(f"{cli}.commands.run.Supervisor", _NoSupervisor)
    patch.setattr(f"{cli}.commands.run.configure_logging", lambda *_, **__: None)
    patch.setattr(f"{cli}.commands.demo.configure_logging", lambda *_, **__: None)
    patch.setattr(f"{cli}.commands.demo.run_demo", _unreachable)
    patch.setattr(f"{cli}.commands.dashboard._serve", lambda *_, **__: None)
    patch.setattr("tidewheel.streams.broker.KafkaBroker.start", _no_broker)
    patch.setattr("tidewheel.streams.bulk.driver.bulk_session", _unreachable)
    backfill = "tidewheel.streams.bulk.backfill.command"
    patch.setattr(f"{backfill}.KafkaResetAdmin", lambda _: _ResetAdmin(group.broker))
    patch.setattr(f"{backfill}.group_log_writer", _unreachable)
    view = "tidewheel.streams.bulk.store_view"
    patch.setattr(f"{view}.KafkaResetAdmin", lambda _: _ResetAdmin(group.broker))
    patch.setattr(f"{view}.read_content", lambda *_: _Rows())
    patch.setattr("tidewheel.streams.worker.input_sample.make_clients", _unreachable)
    patch.setattr("time.sleep", _interrupted)  # the first wait ends a command as Ctrl-C does
    patch.setattr("signal.signal", lambda *_: None)
    patch.setattr("socket.getaddrinfo", _NumericHosts(socket.getaddrinfo))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("commands")
    shutil.copy(_PROGRAM, made / "shop.py")
    (made / "offsets.json").write_text('{"lines": {"0": 3}}', encoding="utf-8")
    return made


def _exit_code(folder: Path, arguments: list[str]) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])  # a command with a program puts its folder there
        patch.setenv("TIDEWHEEL_STATE_DIR", str(folder / "state"))
        patch.setenv("TIDEWHEEL_BOOTSTRAP_SERVERS", "127.0.0.1:1")
        patch.setenv("XDG_DATA_HOME", str(folder / "data"))
        _replace_the_outside(patch)
        errors = cast("io.TextIOWrapper", sys.stderr)
        errors.reconfigure(errors="backslashreplace")  # as Python's own
        return main(arguments)


@pytest.mark.parametrize("command", _COMMANDS)
@settings(
    examples(10),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_arguments_give_an_exit_code(
    folder: Path,
    options: dict[str, list[str]],
    capsys: pytest.CaptureFixture[str],
    command: str,
    data: st.DataObject,
) -> None:
    arguments = list(_COMMANDS[command])
    for place in data.draw(st.sets(st.integers(0, len(arguments)), max_size=2)):
        arguments[place : place + 1] = [data.draw(_TEXTS)]
    more = st.sampled_from([*options[command], "--", "-", "--x="]) | _TEXTS
    arguments += data.draw(st.lists(more, max_size=4))
    with bounded():
        code = _exit_code(folder, [*command.split(), *arguments])
    assert code in [*ExitCode]
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", APP, "--config", "~nobody-here/x"],
        ["status", "\udcff"],
        ["describe", "examples/\udcff.py:x"],
        ["describe", "a" * 300 + ".py:x"],
        ["config", "show", "9" * 400],
        ["state", "get", "shop.py:topology", "counts", "\udc80"],
        ["run", "shop.py:topology", "--workers", "999999999"],
        ["state", "scan", "shop.py:topology", "counts", "--limit", "9" * 400],
        ["new", "a" * 300],
        ["new", "shop", "--directory", "a" * 300],
        ["new", "shop", "--directory", "\udcff\ud800"],
        ["new", "shop", "--directory", "/dev/null/shop"],
        ["topics"],
        ["topics", "shop.py:topology"],
        ["topics", "create", "a" * 300],
        ["topics", "create", "orders", "--partitions", "9" * 400],
        ["produce", "lines", "--value", "os:system"],
        ["produce", "lines", "--partition", "9" * 400],
        ["consume", "lines", "--key", "windowed:windowed:string:1m:1m"],
    ],
)
def test_these_arguments_give_an_exit_code(folder: Path, arguments: list[str]) -> None:
    _exit_code(folder, arguments[:1])  # imports
    with bounded():
        assert _exit_code(folder, arguments) in [*ExitCode]


@pytest.mark.parametrize("command", _COMMANDS)
def test_each_line_here_is_valid(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """So the examples above change valid command lines."""
    code = _exit_code(folder, [*command.split(), *_COMMANDS[command]])
    assert code not in (ExitCode.USAGE, ExitCode.RECORD_FAILED), capsys.readouterr().err
