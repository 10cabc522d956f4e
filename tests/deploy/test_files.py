"""Compose file, Kubernetes manifests and unit fit their schemas, each other, and our settings."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
from compose_spec import PyCompose

from checks.repository_files import ROOT
from tests.deploy.manifests import (
    DEPLOY,
    KUBERNETES,
    container,
    pod,
    read_yaml,
    seconds_of,
    stages,
    stateful_set,
)
from tidewheel import StreamsConfig
from tidewheel.streams.broker.jars import DEFAULT_VERSION
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.processes.supervisor.restart_policy import RestartSettings

COMPOSE = DEPLOY / "compose"
UNIT = DEPLOY / "systemd" / "tidewheel@.service"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
DEFAULTS = StreamsConfig(application_id="defaults")
#: Seconds after which the supervisor has killed each worker that does not stop.
KILLED_S = DEFAULTS.drain_timeout_ms / 1_000 + 5
#: Manifests of Kubernetes itself; the other two are read by kustomize and by an operator.
MANIFESTS = ["configmap", "service", "statefulset", "poddisruptionbudget"]


def check_manifest(manifest: Any) -> None:
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_the_compose_file_follows_the_specification() -> None:
    text = (COMPOSE / "compose.yaml").read_text(encoding="utf-8")
    PyCompose.from_yaml(text)
    for right, wrong in (
        ("stop_grace_period", "stop_grace"),
        ("service_healthy", "service_fine"),
        ("35s", "35 seconds"),
    ):
        assert right in text
        with pytest.raises(ValueError, match="at line"):
            PyCompose.from_yaml(text.replace(right, wrong))


def test_the_services_fit_each_other() -> None:
    compose = read_yaml(COMPOSE / "compose.yaml")
    services, app = compose["services"], compose["services"]["app"]
    assert services["kafka"]["image"] == f"apache/kafka:{DEFAULT_VERSION}"
    assert app["image"] == services["topics"]["image"] == f"tidewheel-word-count:{VERSION}"
    listeners = services["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    for name in ("app", "topics"):
        assert f"://{services[name]['environment']['TIDEWHEEL_BOOTSTRAP_SERVERS']}," in listeners
        build = services[name]["build"]
        assert (COMPOSE / build["context"] / build["dockerfile"]).is_file()
    for service in services.values():
        assert set(service.get("depends_on", {})) <= services.keys()
        assert set(service.get("secrets", ())) <= compose["secrets"].keys()
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in compose["volumes"] or (COMPOSE / source).is_file(), volume
    assert int(app["stop_grace_period"].removesuffix("s")) >= KILLED_S
    image = dict(
        part.split("=", 1)
        for name, text in stages()["runtime"]
        for part in text.split()
        if name == "ENV"
    )
    assert app["volumes"] == [f"state:{image['TIDEWHEEL_STATE_DIR']}"]
    workers, port = int(app["command"].rpartition(" ")[2]), int(image["TIDEWHEEL_HTTP_PORT"])
    scraped = read_yaml(COMPOSE / "prometheus.yml")["scrape_configs"][0]["static_configs"][0]
    assert scraped["targets"] == [f"{app['hostname']}:{port + number}" for number in range(workers)]
    assert app["environment"]["TIDEWHEEL_HTTP_TOKEN"] == "file:/run/secrets/http_token"  # noqa: S105 - its place
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert "/deploy/compose/http_token" in ignored


def test_prometheus_accepts_its_configuration(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool of Prometheus")
    text = (COMPOSE / "prometheus.yml").read_text(encoding="utf-8")
    (tmp_path / "prometheus.yml").write_text(
        text.replace("/run/secrets/http_token", "http_token"), encoding="utf-8"
    )
    (tmp_path / "http_token").write_text("0123456789abcdef", encoding="utf-8")
    shutil.copy(DEPLOY / "grafana" / "alerts.yml", tmp_path)
    done = subprocess.run(
        [promtool, "check", "config", tmp_path / "prometheus.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_alerts_name_the_job_that_is_scraped() -> None:
    alerts = (DEPLOY / "grafana" / "alerts.yml").read_text(encoding="utf-8")
    (scraped,) = read_yaml(COMPOSE / "prometheus.yml")["scrape_configs"]
    (relabelled,) = _pod_monitor_endpoint()["relabelings"]
    assert relabelled["targetLabel"] == "job"
    jobs = set(re.findall(r'job="(\w+)"', alerts))
    assert jobs == {scraped["job_name"]} == {relabelled["replacement"]}


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_follow_the_schemas_of_kubernetes(name: str) -> None:
    check_manifest(read_yaml(KUBERNETES / f"{name}.yaml"))


def test_the_schemas_refuse_a_misspelt_manifest() -> None:
    manifest = stateful_set()
    spec = manifest["spec"]["template"]["spec"]
    spec["terminationGracePeriod"] = spec.pop("terminationGracePeriodSeconds")
    with pytest.raises(kubernetes_validate.ValidationError):
        check_manifest(manifest)


def test_kustomize_lists_each_manifest() -> None:
    listed = read_yaml(KUBERNETES / "kustomization.yaml")
    assert listed["resources"] == [f"{name}.yaml" for name in MANIFESTS]
    optional = {"kustomization.yaml", "podmonitor.yaml"}
    assert {path.name for path in KUBERNETES.iterdir()} == {*listed["resources"], *optional}
    (image,) = listed["images"]
    assert (
        container()["image"] == f"{image['name']}:{image['newTag']}" == f"{image['name']}:{VERSION}"
    )


def test_selectors_and_names_meet() -> None:
    one = stateful_set()["spec"]
    labels = one["template"]["metadata"]["labels"]
    service, budget, monitor = (
        read_yaml(KUBERNETES / f"{name}.yaml")
        for name in ("service", "poddisruptionbudget", "podmonitor")
    )
    assert one["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    assert budget["spec"]["selector"] == monitor["spec"]["selector"] == {"matchLabels": labels}
    (spread,) = pod()["topologySpreadConstraints"]
    assert spread["labelSelector"] == {"matchLabels": labels}
    assert one["serviceName"] == service["metadata"]["name"]
    (port,) = container()["ports"]
    assert {_pod_monitor_endpoint()["port"], service["spec"]["ports"][0]["targetPort"]} == {
        port["name"]
    }
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container()[probe]["httpGet"]["port"] == port["name"]
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    claims = {claim["metadata"]["name"] for claim in one["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container()["volumeMounts"]} == volumes.keys() | claims
    assert (
        volumes["settings"]["configMap"]["name"]
        == read_yaml(KUBERNETES / "configmap.yaml")["metadata"]["name"]
    )
    assert (
        _pod_monitor_endpoint()["authorization"]["credentials"]["name"]
        == volumes["secrets"]["secret"]["secretName"]
    )


def test_the_image_and_the_pod_agree() -> None:
    runtime = stages()["runtime"]
    (user,) = (text for name, text in runtime if name == "USER")
    security = pod()["securityContext"]
    assert user == f"{security['runAsUser']}:{security['runAsGroup']}"
    assert security["fsGroup"] == security["runAsGroup"]
    (volume,) = (text for name, text in runtime if name == "VOLUME")
    mounts = {mount["name"]: mount for mount in container()["volumeMounts"]}
    assert mounts["state"]["mountPath"] == volume
    assert container()["securityContext"]["readOnlyRootFilesystem"]
    assert {name for name, mount in mounts.items() if not mount.get("readOnly")} == {"state", "tmp"}


def test_grace_and_probes_are_longer_than_what_they_wait_for() -> None:
    assert pod()["terminationGracePeriodSeconds"] >= KILLED_S
    liveness = seconds_of(container()["livenessProbe"])
    assert liveness >= DEFAULTS.max_call_ms / 1_000
    restart_s = RestartSettings().delay_max_ms / 1_000
    assert liveness > restart_s
    (health,) = (text for name, text in stages()["runtime"] if name == "HEALTHCHECK")
    interval, retries = re.findall(r"--(?:interval|retries)=(\d+)", health)
    assert int(interval) * int(retries) > restart_s


def _pod_monitor_endpoint() -> Any:
    (endpoint,) = read_yaml(KUBERNETES / "podmonitor.yaml")["spec"]["podMetricsEndpoints"]
    return endpoint


def _unit() -> dict[str, str]:
    return dict(re.findall(r"(?m)^(\w+)=(.*)$", UNIT.read_text(encoding="utf-8")))


def test_the_page_names_every_line_of_unit_image_and_compose_file() -> None:
    page = (ROOT / "docs" / "guides" / "deploying.md").read_text(encoding="utf-8")
    services = read_yaml(COMPOSE / "compose.yaml")["services"]
    lines = {*_unit()} - {"Description", "Documentation", "KillSignal"}
    lines |= {key for service in services.values() for key in service} - {"environment", "image"}
    lines |= {name for each in services.values() for name in each.get("environment", ())}
    for stage in stages().values():
        for name, text in stage:
            lines |= {name} if name != "ENV" else {part.partition("=")[0] for part in text.split()}
    assert not {line for line in lines if line not in page}


def test_the_unit_stops_workers_in_time_and_restarts_what_heals() -> None:
    service = _unit()
    assert service["Type"] == "exec"
    assert (service["KillSignal"], service["KillMode"]) == ("SIGTERM", "mixed")
    assert int(service["TimeoutStopSec"]) >= KILLED_S
    final = {str(code.value) for code in ExitCode if code.is_final}
    assert set(service["RestartPreventExitStatus"].split()) == final


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze")
    unit = tmp_path / "tidewheel@shop.service"
    # It checks that the command exists.
    text = UNIT.read_text(encoding="utf-8").replace(
        "/opt/%i/bin/tidewheel", shutil.which("true") or ""
    )
    unit.write_text(text, encoding="utf-8")
    done = _verify(analyze, unit)
    assert (done.returncode, done.stderr) == (0, "")
    unit.write_text(text.replace("KillMode=mixed", "KillMode=some"), encoding="utf-8")
    assert _verify(analyze, unit).stderr


def _verify(analyze: str, unit: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [analyze, "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
