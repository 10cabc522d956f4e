"""The Dockerfile's steps in a folder of their own, and its application as a container starts it."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from checks.repository_files import ROOT, repository_files
from tests.deploy.manifests import DEPLOY, Instruction, stages
from tests.deploy.worker_process import Worker, free_ports, status_of
from tests.integration.cluster import Cluster, until
from tidewheel.streams.exit_codes import ExitCode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

#: Folders of the image; the test has them below its own folder.
PLACES = ("/src", "/opt/tidewheel", "/wheels", "/app", "/var/lib/tidewheel")


class Image:
    """Runs instructions of a Dockerfile below a folder, with a clean Python as the base image."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        base = folder / "base"
        subprocess.run([sys.executable, "-m", "venv", base], check=True)
        self.work = folder
        # Nothing of this environment but the address of the package index.
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("PIP_", "SSL_", "REQUESTS_")) or name.lower().endswith("_proxy")
        }
        self.environment |= {"PATH": f"{base}/bin:/usr/bin:/bin", "HOME": str(folder / "nobody")}

    def placed(self, text: str) -> str:
        return re.sub(
            rf"(?<![\w.])(?:{'|'.join(PLACES)})\b", lambda place: f"{self._folder}{place[0]}", text
        )

    def run(self, instructions: list[Instruction]) -> None:
        for name, text in instructions:
            match name:
                case "RUN":
                    self.shell(text)
                case "COPY":
                    self._copy(text)
                case "WORKDIR":
                    self.work = Path(self.placed(text))
                    self.work.mkdir(parents=True, exist_ok=True)
                case "ENV" | "ARG":
                    self._set(text)
                case _:  # the rest describes the container
                    pass

    def shell(self, command: str) -> str:
        done = subprocess.run(
            ["/bin/sh", "-ec", self.placed(command)],
            cwd=self.work,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _copy(self, text: str) -> None:
        *sources, target = text.split()
        for source in sources:
            if (ROOT / source).is_file():
                shutil.copy(ROOT / source, self.work / target)
            else:
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / source, self.work / target, symlinks=True, ignore=ignored)

    def _set(self, text: str) -> None:
        for part in shlex.split(text):
            name, has_value, value = part.partition("=")
            if has_value:
                value = value.replace("$PATH", self.environment["PATH"])
                self.environment[name] = self.placed(value)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    made = Image(tmp_path_factory.mktemp("image"))
    made.run(stages()["build"])
    # The one step that needs root: it makes the user and the folder of the state.
    user, *others = stages()["runtime"]
    assert user.name == "RUN"
    assert "useradd" in user.text
    Path(made.placed("/var/lib/tidewheel")).mkdir(parents=True)
    made.run([step for step in others if not step.text.startswith("--from=build")])
    made.run(stages()["word-count"])
    return made


def test_the_build_has_all_files_that_it_copies() -> None:
    copied = {
        source
        for stage in stages().values()
        for step in stage
        if step.name == "COPY" and not step.text.startswith("--from=")
        for source in step.text.split()[:-1]
    }
    text = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text(encoding="utf-8")
    context = {line[1:] for line in text.splitlines() if line.startswith("!")}
    assert {source.partition("/")[0] for source in copied} == context
    known = {path.relative_to(ROOT).parts[0] for path in repository_files()}
    assert context <= known
    assert all((ROOT / source).exists() for source in copied)


def test_the_image_has_the_locked_packages_and_no_build_tools(image: Image) -> None:
    shown = image.shell("/opt/tidewheel/bin/python -m pip list --format freeze")
    installed = dict(line.split("==") for line in shown.split())
    assert {"tidewheel", "confluent-kafka", "rocksdict", "starlette", "uvicorn"} <= installed.keys()
    assert "hatchling" not in installed
    locked = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    for name, version in installed.items():
        if name not in {"tidewheel", "pip", "setuptools"}:
            assert re.search(
                rf"(?mi)^{re.escape(name).replace('_', '[-_]')}=={re.escape(version)} ", locked
            ), name


@pytest.mark.broker
def test_the_container_becomes_healthy_and_stops(
    image: Image, cluster: Cluster, tmp_path: Path, topics_of_the_demo: None
) -> None:
    cluster.create({"lines": 4, "word-counts": 4})
    runtime = {step.name: step.text for step in stages()["runtime"]}
    check = command_of(runtime["HEALTHCHECK"].partition(" CMD ")[2])
    (port,) = free_ports(1)
    environment = image.environment | {
        "TIDEWHEEL_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
        "TIDEWHEEL_HTTP_PORT": str(port),
    }

    def is_healthy() -> bool:
        done = subprocess.run(
            check, env=environment, cwd=image.work, capture_output=True, check=False
        )
        return done.returncode == 0

    assert not is_healthy()
    with Worker(
        command_of(runtime["CMD"]), environment, tmp_path / "log", cwd=image.work
    ) as worker:
        until(is_healthy, "the container is healthy")
        until(lambda: status_of(port, "/readyz") == 200, "the worker is ready")
        assert (Path(environment["TIDEWHEEL_STATE_DIR"]) / "word-count" / "0").is_dir()
        stop = signal.Signals[runtime["STOPSIGNAL"]]
        assert worker.stop(stop) == ExitCode.OK, worker.log
    assert not is_healthy()


def command_of(text: str) -> list[str]:
    command: list[str] = json.loads(text)
    return command
