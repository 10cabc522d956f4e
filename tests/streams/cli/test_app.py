"""The command line as a whole: parsing, errors and exit codes."""

import importlib
import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidewheel.streams.cli.app import (
    _COMMANDS,
    _FAMILIES,
    _asks_for_list,
    _Command,
    build_app,
    command_names,
    main,
)
from tidewheel.streams.cli.output import print_error
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.processes.supervisor.restart_policy import RestartSettings
from tidewheel.streams.processes.supervisor.worker_messages import StartWorker

ROOT = Path(__file__).parents[3]
WORD_COUNT = f"{ROOT / 'examples' / 'word_count.py'}:topology"


@pytest.fixture(autouse=True)
def _logging_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler on this test's standard error would fail in every later test."""
    monkeypatch.setattr(
        "tidewheel.streams.cli.commands.run.configure_logging", lambda *_, **__: None
    )


@pytest.fixture
def supervised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[StartWorker], RestartSettings]]:
    seen: list[tuple[list[StartWorker], RestartSettings]] = []

    class _Supervisor:
        def __init__(
            self, starts: list[StartWorker], *, restart: RestartSettings, start_watchdog: object
        ) -> None:
            del start_watchdog
            seen.append((starts, restart))

        def run(self) -> ExitCode:
            return ExitCode.OK

    monkeypatch.setattr("tidewheel.streams.cli.commands.run.Supervisor", _Supervisor)
    return seen


@pytest.mark.parametrize(
    "command",
    [
        "run", "describe", "demo", "broker", "reset", "reshard", "status", "top", "dashboard", "drain",
        "group history", "group recover", "config show", "produce", "consume", "topics",
        "topics create", "topics describe", "new",
    ],
)  # fmt: skip
def test_every_command_exists_and_has_a_help_text(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--help"]) == ExitCode.OK
    said = capsys.readouterr().out
    assert f"tidewheel {command}" in said


def test_help_lists_commands_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == ExitCode.OK
    said = capsys.readouterr().out
    assert "Start a real Kafka on this machine" in said
    for code in ExitCode:
        assert f"{code.value}: {code.meaning[:40]}" in said


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == ExitCode.OK
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], 'Did you mean "run"?'),
        (["run", "app:topology", "--wrkers", "2"], "Did you mean --workers?"),
        (["run"], "which topology?"),
        (["describe", WORD_COUNT, "--mermiad"], "Did you mean --mermaid?"),
        (["run", "app:topology", "--log-level", "loud"], "Invalid value"),
        (["run", "app:topology", "--workers", "0"], "from 1 to 1,000"),
        (["restore", "app:topology", "--workers", "1001"], "from 1 to 1,000"),
        (["run", "app:topology", "--tasks", "0_1", "--workers", "2"], "fewer tasks in --tasks"),
        (["run", "app:topology", "--tasks", "one"], "--tasks: 'one' is not a task id"),
        (["run", "app:topology", "--set", "=hush"], "write option=value"),
        (["describe", WORD_COUNT, "--mermaid", "--json"], "choose one"),
        (["describe", "nowhere:topology"], "there is no module 'nowhere'"),
        (["reset", "app", "--to", "yesterday"], "--to 'yesterday'"),
        (["reset", "app", "--application-id", "other"], "give one of the two"),
        (["config", "show", "--set", "comit_interval_ms=1"], "did you mean commit_interval_ms?"),
    ],
)
def test_an_invalid_command_line_ends_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == ExitCode.USAGE
    said = capsys.readouterr()
    assert message in said.err.replace("\n", " ")
    assert "hush" not in said.err


def test_run_starts_its_workers_with_their_shares(
    supervised: list[tuple[list[StartWorker], RestartSettings]],
) -> None:
    arguments = (
        "run app.py:topology --workers 2 --tasks 0_0,0_1,0_2 --wait-for-topics --create-topics --no-restart "
        "--log-level debug --log-format json --bootstrap-servers kafka:9092 --application-id shop --state-dir /state "
        "--config shop.toml --set commit_interval_ms=1s --set consumer.sasl.password=hush"
    )
    assert main(arguments.split()) == ExitCode.OK
    ((starts, restart),) = supervised
    assert not restart.enabled
    assert [start.slot for start in starts] == [0, 1]
    assert [start.tasks for start in starts] == [("0_0", "0_2"), ("0_1",)]
    common: dict[str, Any] = {
        "target": "app.py:topology",
        "overrides": {
            "commit_interval_ms": "1s",
            "consumer": {"sasl.password": "hush"},
            "bootstrap_servers": "kafka:9092",
            "application_id": "shop",
            "state_dir": "/state",
        },
        "config_file": "shop.toml",
        "workers": 2,
        "wait_for_topics": True,
        "create_topics": True,
        "log_level": "debug",
        "log_format": "json",
    }
    for start in starts:
        assert {name: getattr(start, name) for name in common} == common


def test_run_needs_only_the_program(
    supervised: list[tuple[list[StartWorker], RestartSettings]],
) -> None:
    assert main(["run", "app:topology"]) == ExitCode.OK
    ((starts, restart),) = supervised
    process_id = starts[0].process_id
    assert process_id
    expected = StartWorker(
        target="app:topology", process_id=process_id, next_free=True, wait_for_brokers=True
    )
    assert starts == [expected]
    assert restart == RestartSettings()


def test_describe_prints_kafka_streams_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", WORD_COUNT, "--execution"]) == ExitCode.OK
    said = capsys.readouterr().out
    assert said.startswith("Topologies:\n   Sub-topology: 0\n    Execution: batch\n")
    assert said.endswith("(topic: word-counts)\n      <-- KTABLE-TOSTREAM-0000000007\n")


def test_describe_prints_a_flowchart_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", WORD_COUNT, "--mermaid"]) == ExitCode.OK
    assert capsys.readouterr().out.startswith(("flowchart", "graph"))
    assert main(["describe", WORD_COUNT, "--json"]) == ExitCode.OK
    assert len(json.loads(capsys.readouterr().out)["subtopologies"]) == 2


def test_config_show_prints_the_source_of_each_value(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDEWHEEL_COMMIT_INTERVAL_MS", "250")
    arguments = ["config", "show", WORD_COUNT, "--set", "consumer.sasl.password=canary", "--json"]
    assert main(arguments) == ExitCode.OK
    said = capsys.readouterr().out
    assert "canary" not in said
    rows = {row["option"]: row for row in map(json.loads, said.splitlines())}
    assert rows["application_id"]["value"] == "word-count"
    assert rows["commit_interval_ms"]["value"] == "250"
    assert "TIDEWHEEL_COMMIT_INTERVAL_MS" in rows["commit_interval_ms"]["source"]
    assert rows["num_standby_replicas"]["source"] == "default"
    assert "consumer.sasl.password" in rows


def test_config_show_works_before_there_is_an_application(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["config", "show", "--json"]) == ExitCode.OK
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (first["option"], first["value"]) == ("application_id", "")
    assert first["source"] == "not set, but required"


@pytest.mark.slow
def test_python_m_streams_is_the_same_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tidewheel", "describe", "nowhere:topology"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == ExitCode.USAGE
    assert "there is no module 'nowhere'" in result.stderr


def test_commands_are_imported_only_when_they_are_called() -> None:
    code = "import sys; from tidewheel.streams.cli.app import main; main(['--version']); print('confluent_kafka' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert result.stdout.splitlines()[-1] == "False"
    assert build_app().name == ("tidewheel",)


#: Modules whose import takes as long as the whole help, or longer.
_HEAVY = (
    "asyncio",
    "confluent_kafka",
    "markdown_it",
    "pydantic",
    "pyspark",
    "rich.markdown",
    "rocksdict",
    "starlette",
    "tidewheel.streams.config",
    "tidewheel.streams.dsl",
    "tidewheel.streams.kafka",
    "tidewheel.streams.worker",
    "uvicorn",
)


@pytest.mark.parametrize(
    "line", ["--help", "state --help", "", "--version", "statsu", "state lsit"]
)
def test_lists_of_commands_import_no_heavy_modules(line: str) -> None:
    code = (
        "import sys; from tidewheel.streams.cli.app import main; "
        f"code = main({line.split()!r}); print(code, *sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    code, *modules = result.stdout.splitlines()[-1].split()
    assert code == ("2" if line.endswith(("statsu", "lsit")) else "0")
    assert "cyclopts" in modules
    assert [name for name in _HEAVY if name in modules] == []


@pytest.mark.parametrize("name", command_names())
def test_the_help_of_a_command_imports_no_heavy_modules(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text is that of a process with all modules."""
    words = [*name.split(), "--help"]
    monkeypatch.setenv("COLUMNS", "80")
    code = (
        "import sys; from tidewheel.streams.cli.app import main; "
        "code = main(); print(code, *sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    shown, _, modules = result.stdout.rstrip("\n").rpartition("\n")
    third_party = [module for module in _HEAVY if "tidewheel" not in module]
    needed = {"asyncio", "markdown_it", "rich.markdown"}  # the text itself, and `run`'s annotations
    assert [m for m in third_party if m in modules.split() and m not in needed] == []
    assert main(words) == ExitCode.OK
    assert shown.split() == capsys.readouterr().out.split()


def _commands() -> Iterator[tuple[str, _Command]]:
    yield from _COMMANDS.items()
    for family, (_, commands) in _FAMILIES.items():
        for name, command in commands.items():
            yield f"{family} {name}", command


@pytest.mark.parametrize(("name", "command"), list(_commands()), ids=lambda value: str(value)[:20])
def test_the_list_shows_each_commands_first_sentence(name: str, command: _Command) -> None:
    module, _, function = command.path.partition(":")
    text = inspect.getdoc(getattr(importlib.import_module(module), function)) or ""
    assert command.summary == " ".join(text.partition("\n\n")[0].split()), name


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_for_commands_and_options(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("ZSH_CUSTOM", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    assert main(["--install-completion", "--shell", shell]) == ExitCode.OK
    scripts = [path for path in tmp_path.rglob("*") if path.is_file() and "tidewheel" in path.name]
    (script,) = scripts
    text = script.read_text()
    assert "log-level" in text
    assert "history" in text


@pytest.mark.parametrize(
    "before",
    [
        "",
        "autoload -Uz compinit && compinit",
        "autoload -Uz compinit\ncompinit\nalias x=y # no end",
    ],
)
def test_zsh_completes_with_each_start_up_file(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("ZSH", "ZSH_CUSTOM", "ZDOTDIR"):
        monkeypatch.delenv(variable, raising=False)
    start = tmp_path / ".zshrc"
    start.write_text(before)
    for _ in range(2):
        assert main(["--install-completion", "--shell", "zsh"]) == ExitCode.OK
    message = capsys.readouterr().out
    assert "zsh" in message
    assert str(start) in message
    assert start.read_text().startswith(before)
    assert start.read_text().count("compdef _") == 1, "the second time adds nothing"
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("needs zsh")
    shown = subprocess.run(
        [zsh, "-i", "-c", "print $_comps[tidewheel]; whence -w $_comps[tidewheel]"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert shown.stdout.split() == [
        "_cyclopts_tidewheel",
        "_cyclopts_tidewheel:",
        "function",
    ], shown.stderr


def test_an_unknown_shell_is_an_error_of_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from cyclopts.completion import detect  # noqa: PLC0415 - only this test needs it

    def detected() -> None:
        raise detect.ShellDetectionError("no shell")

    monkeypatch.setattr(detect, "detect_shell", detected)
    assert main(["--install-completion"]) == ExitCode.USAGE
    assert "--shell bash" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_colours_follow_the_environment(
    environment: dict[str, str],
    coloured: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for variable in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert main(["describe", "nowhere:topology"]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert ("\x1b[1;31m" in error) is coloured
    assert "there is no module 'nowhere'" in error


@pytest.mark.parametrize(
    ("line", "asks"),
    [
        ("", True),
        ("--help", True),
        ("group", True),
        ("topics", False),
        ("topics --help", False),
        ("group --help", True),
        ("group history --help", False),
        ("run", False),
    ],
)
def test_a_command_line_asks_for_a_list_or_a_command(line: str, asks: bool) -> None:
    assert _asks_for_list(line.split()) == asks


def test_errors_steer_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("open by a\x1b[2J\u202e[red]:\n  next line")
    assert capsys.readouterr().err == "error: open by a [2J [red]:\n  next line\n"
