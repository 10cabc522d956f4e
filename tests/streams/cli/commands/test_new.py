"""A new project: its test, its plain `tidewheel run`, and its files for containers and CI."""

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from compose_spec import PyCompose

from tests.deploy.manifests import stages
from tests.integration.cluster import until
from tests.streams.cli.command_runs import ROOT, Command
from tidewheel.streams.broker import RunningBroker
from tidewheel.streams.broker.jars import DEFAULT_VERSION
from tidewheel.streams.cli.app import main
from tidewheel.streams.exit_codes import ExitCode

NAME = "order-totals"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["new", NAME]) == ExitCode.OK
    return tmp_path / NAME


def run_python(project: Path, *arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
def test_the_test_of_a_new_project_passes(project: Path) -> None:
    assert "1 passed" in run_python(project, "-m", "pytest", "-p", "no:cacheprovider")
    # It can fail: the driver runs the project's own topology.
    topology = project / "order_totals" / "topology.py"
    text = topology.read_text(encoding="utf-8")
    topology.write_text(text.replace("cents + order.cents", "order.cents"), encoding="utf-8")
    with pytest.raises(AssertionError, match="1 failed"):
        run_python(project, "-m", "pytest", "-p", "no:cacheprovider")


def test_the_settings_name_the_topology(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["describe"]) == ExitCode.USAGE
    assert "which topology?" in capsys.readouterr().err
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["describe"]) == ExitCode.OK
    assert f"topics: [{NAME}-orders]" in capsys.readouterr().out


def compose_of(project: Path) -> Any:
    return yaml.safe_load((project / "compose.yaml").read_text(encoding="utf-8"))


def test_the_compose_file_is_valid(project: Path) -> None:
    text = (project / "compose.yaml").read_text(encoding="utf-8")
    PyCompose.from_yaml(text)
    with pytest.raises(ValueError, match=r"services\.app"):
        PyCompose.from_yaml(text.replace("stop_grace_period", "stop_grace"))
    compose = compose_of(project)
    services = compose["services"]
    assert services["kafka"]["image"] == f"apache/kafka:{DEFAULT_VERSION}"
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in compose["volumes"]
    state = services["app"]["volumes"][0].partition(":")[2]
    dockerfile = (project / "Dockerfile").read_text(encoding="utf-8")
    assert f"TIDEWHEEL_STATE_DIR={state} " in dockerfile
    listeners = services["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    for name in ("app", "topics"):
        assert f"://{services[name]['environment']['TIDEWHEEL_BOOTSTRAP_SERVERS']}" in listeners


def test_the_container_is_checked_and_stopped_as_that_of_deploy(project: Path) -> None:
    dockerfile = dict(stages(project / "Dockerfile")[""])
    ours = dict(stages()["runtime"])
    for instruction in ("USER", "STOPSIGNAL", "HEALTHCHECK", "CMD"):
        assert dockerfile[instruction] == ours[instruction]
    assert "os.environ['TIDEWHEEL_HTTP_PORT']" in ours["HEALTHCHECK"]
    assert "TIDEWHEEL_HTTP_PORT=8080" in dockerfile["ENV"].split()
    data = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    assert data["project"]["dependencies"] == ["tidewheel[web]"]  # answers the check


def test_all_files_are_complete(project: Path) -> None:
    for path in filter(Path.is_file, project.rglob("*")):
        text = path.read_text(encoding="utf-8")
        assert text.endswith("\n")
        assert not re.search(r"@[A-Z]+@", text), path
    workflow = yaml.safe_load((project / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    assert {"run": "python -m pytest"} in workflow["jobs"]["test"]["steps"]
    data = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    assert data["project"]["name"] == NAME
    copied = re.findall(
        r"(?m)^COPY (.+) \S+$", (project / "Dockerfile").read_text(encoding="utf-8")
    )
    for source in " ".join(copied).split():
        assert (project / source).exists()


def test_an_existing_folder_stays_as_it_is(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "README.md").write_text("mine", encoding="utf-8")
    assert main(["new", NAME]) == ExitCode.FAILED
    assert "exists already" in capsys.readouterr().err
    assert (project / "README.md").read_text(encoding="utf-8") == "mine"
    (project.parent / "empty").mkdir()
    assert main(["new", NAME, "--directory", "empty"]) == ExitCode.OK


@pytest.mark.parametrize(
    "name",
    [
        *("Shop", "2shop", "shop_1", "shop-", "../shop", ""),
        *(
            "json",
            "class",
            "test",
            "pytest",
            "msgspec",
            "typing-extensions",
            "rocksdict",
            "starlette",
        ),
        *("confluent-kafka", "yaml", "pyyaml", "tests", "wheels", "tidewheel"),
    ],
)
def test_an_unusable_name_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", name]) == ExitCode.USAGE
    assert not list(tmp_path.iterdir())


def test_a_name_in_the_working_directory_is_free_and_one_on_the_path_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").touch()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "order_totals.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    assert main(["new", "shop"]) == ExitCode.OK
    assert main(["new", "order-totals"]) == ExitCode.USAGE
    assert "order_totals.py" in capsys.readouterr().err.replace("\n", "")


@pytest.mark.broker
@pytest.mark.slow
def test_a_plain_run_runs_the_project(kafka_broker: RunningBroker, tmp_path: Path) -> None:
    name = f"new-{secrets.token_hex(4)}"
    project = tmp_path / name
    assert main(["new", name, "--directory", str(project)]) == ExitCode.OK
    servers = ("--bootstrap-servers", kafka_broker.bootstrap_servers)
    topics = compose_of(project)["services"]["topics"]["command"].split()[1:]
    assert main([*topics, *servers]) == ExitCode.OK
    state = ("--state-dir", str(tmp_path / "state"))
    with Command("run", *servers, *state, cwd=project) as running:
        running.until_said("RUNNING")
        order = '{"key": "1", "value": {"customer": "ada", "cents": 250}}'
        produced = subprocess.run(
            [sys.executable, "-m", "tidewheel", "produce", f"{name}-orders", "--value", "json", *servers],
            input=order, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, check=False, timeout=200,
        )  # fmt: skip
        assert produced.returncode == ExitCode.OK

        def revenue() -> list[Any]:
            lines = run_python(
                project, "-m", "tidewheel", "consume", f"{name}-revenue", "--value", "int64",
                "--from-beginning", "--until-end", *servers,
            )  # fmt: skip
            return [(row["key"], row["value"]) for row in map(json.loads, lines.splitlines())]

        until(lambda: revenue() == [("ada", 250)], "the revenue")
        shown = json.loads(run_python(project, "-m", "tidewheel", "status", "--json", *servers))
        (member,) = shown["members"]
        assert member["name"] == f"{socket.gethostname()}/0 ({member['member'][:6]})"
        assert [member["pid"]] == running.workers
        assert {task["member_name"] for task in shown["tasks"]} == {member["name"]}
        running.signal(signal.SIGINT)
        assert running.wait() == ExitCode.OK
