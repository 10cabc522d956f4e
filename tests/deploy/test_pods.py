"""Pods of the StatefulSet as processes: their command, environment, settings, probes and stop."""

import json
import os
import re
import secrets
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from checks.repository_files import ROOT
from tests.deploy.manifests import KUBERNETES, container, pod, read_yaml
from tests.deploy.worker_process import Worker, body_of, free_ports, status_of
from tests.integration.cluster import Cluster, until
from tests.streams.cli.command_runs import Command
from tidewheel.streams.exit_codes import ExitCode

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = """
from tidewheel import StreamsBuilder

def topology():
    builder = StreamsBuilder()
    builder.stream("{topic}", key_serde=str, value_serde=str).group_by_key().count(store="counts")
    return builder
"""
PARTITIONS = 4


class Pods:
    """Two pods. Each has a folder for its volumes, and a port of its own, because they share a host."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self._folder, self._cluster = folder, cluster
        self.servers = ("--bootstrap-servers", cluster.bootstrap_servers)
        self.application = f"pods-{secrets.token_hex(4)}"
        self.token = secrets.token_hex(16)
        self.ports = free_ports(2)
        cluster.create({self.application: PARTITIONS})
        (folder / "program.py").write_text(PROGRAM.format(topic=self.application))

    def start(self, number: int, **changed: str) -> Worker:
        name = f"word-count-{number}"
        volume = self._folder / name
        for mount in container()["volumeMounts"]:
            (volume / mount["mountPath"].lstrip("/")).mkdir(parents=True, exist_ok=True)
        (volume / "run/secrets/tidewheel/http-token").write_text(self.token + "\n")
        settings = read_yaml(KUBERNETES / "configmap.yaml")["data"]["tidewheel.toml"]
        in_volume = re.sub(r"file:(?=/)", f"file:{volume}", settings)
        (volume / "etc/tidewheel/tidewheel.toml").write_text(in_volume)
        log = self._folder / f"{name}-{len(list(self._folder.glob('*.log')))}.log"
        command = [sys.executable, "-m", *container()["command"]]
        return Worker(
            command, self._environment(number, name, volume) | changed, log, cwd=self._folder
        )

    def _environment(self, number: int, name: str, volume: Path) -> dict[str, str]:
        fields = {"metadata.name": name, "metadata.namespace": "default"}
        known: dict[str, str] = {}
        for variable in container()["env"]:
            value = variable.get("value") or fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            known[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda used: known[used[1]], value)
        known["TIDEWHEEL_CONFIG_FILE"] = f"{volume}{known['TIDEWHEEL_CONFIG_FILE']}"
        # This machine's Kafka, topics and ports, and what the image sets.
        return {
            **os.environ,
            **known,
            "PYTHONPATH": str(ROOT),
            "TIDEWHEEL_APPLICATION_ID": self.application,
            "TIDEWHEEL_BOOTSTRAP_SERVERS": self._cluster.bootstrap_servers,
            "TIDEWHEEL_HTTP_PORT": str(self.ports[number]),
            "TIDEWHEEL_STATE_DIR": f"{volume}/var/lib/tidewheel",
            "TIDEWHEEL_TOPOLOGY": f"{self._folder}/program.py:topology",
        }

    def probe(self, number: int, name: str) -> int:
        """Return the answer to a probe; 0: none."""
        return status_of(self.ports[number], container()[name]["httpGet"]["path"])

    def until_ready(self, *numbers: int) -> None:
        until(
            lambda: all(self.probe(number, "readinessProbe") == 200 for number in numbers),
            f"pods {numbers} are ready",
        )

    def tasks(self, number: int) -> set[str]:
        status, body = body_of(self.ports[number], "/state", self.token)
        tasks = json.loads(body)["tasks"] if status == 200 else []
        return {task["task_id"] for task in tasks if task["role"] == "active"}

    def status(self) -> Any:
        with Command("status", self.application, "--json", *self.servers) as command:
            assert command.wait() == ExitCode.OK, command.said
            return json.loads(command.said)


@pytest.fixture
def pods(tmp_path: Path, cluster: Cluster) -> Pods:
    return Pods(tmp_path, cluster)


def test_a_restarted_pod_gets_its_tasks_back_and_others_notice_nothing(pods: Pods) -> None:
    with ExitStack() as running:
        staying, leaving = (running.enter_context(pods.start(number)) for number in (0, 1))
        pods.until_ready(0, 1)
        until(
            lambda: [len(pods.tasks(number)) for number in (0, 1)] == [2, 2],
            f"the tasks are shared\n{staying.log}\n{leaving.log}",
        )
        for name in ("startupProbe", "livenessProbe"):
            assert pods.probe(0, name) == 200
        assert status_of(pods.ports[0], "/metrics") == 401
        assert status_of(pods.ports[0], "/metrics", pods.token) == 200
        kept, theirs, before = pods.tasks(0), pods.tasks(1), pods.status()
        grace_s = pod()["terminationGracePeriodSeconds"]
        assert leaving.stop(timeout_s=grace_s) == ExitCode.OK, leaving.log
        assert pods.tasks(0) == kept
        back = running.enter_context(pods.start(1))
        pods.until_ready(1)
        until(lambda: pods.tasks(1) == theirs, f"its tasks are back\n{back.log}")
        after = pods.status()
        assert _ownerships(after, "word-count-0") == _ownerships(before, "word-count-0")
        assert len(_ownerships(after, "word-count-0")) == 2
        assert after["group_epoch"] == before["group_epoch"], "there was no new assignment"
        assert pods.probe(0, "readinessProbe") == 200
        for worker in (staying, back):
            assert worker.stop(timeout_s=grace_s) == ExitCode.OK, worker.log


def _ownerships(status: Any, member: str) -> list[tuple[str, str, int, int]]:
    """Return a member's tasks: each with the incarnation that owns it, since when, and in which epoch."""
    return [
        (task["task"], task["incarnation"], task["epoch"], task["since_ms"])
        for task in status["tasks"]
        if task["member"] == member
    ]


def test_a_pod_is_alive_and_not_ready_while_brokers_are_away(pods: Pods) -> None:
    (unused,) = free_ports(1)
    with pods.start(0, TIDEWHEEL_BOOTSTRAP_SERVERS=f"127.0.0.1:{unused}") as worker:
        until(lambda: pods.probe(0, "livenessProbe") == 200, f"it is alive\n{worker.log}")
        assert pods.probe(0, "readinessProbe") == 503
        assert worker.stop(timeout_s=pod()["terminationGracePeriodSeconds"]) == ExitCode.OK


def test_a_drained_pod_hands_its_tasks_over_without_the_wait_for_its_return(pods: Pods) -> None:
    hour = {"TIDEWHEEL_REJOIN_TIMEOUT_MS": "1h"}
    with pods.start(0, **hour) as staying, pods.start(1, **hour) as leaving:
        pods.until_ready(0, 1)
        until(lambda: len(pods.tasks(0)) == len(pods.tasks(1)) == 2, "the tasks are shared")
        with Command("drain", "word-count-1", pods.application, *pods.servers) as drain:
            assert drain.wait() == ExitCode.OK, drain.said
        until(lambda: len(pods.tasks(0)) == PARTITIONS, f"all tasks are there\n{staying.log}")
        assert leaving.wait() == ExitCode.OK, leaving.log
