"""The Grafana dashboard and the alert rules use metrics, and labels, that `/metrics` serves."""

import json
import re
import shutil
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from checks.repository_files import ROOT, code_blocks
from tests.streams.web.processes import thread
from tests.streams.web.test_figures import PROCESS
from tidewheel.streams.web.prometheus import metric_name
from tidewheel.streams.worker.figures import families

_FOLDER = ROOT / "deploy" / "grafana"
_DASHBOARD: dict[str, Any] = json.loads((_FOLDER / "tidewheel.json").read_text(encoding="utf-8"))
_ALERTS = (_FOLDER / "alerts.yml").read_text(encoding="utf-8")
_MONITORING = [*code_blocks((ROOT / "docs/guides/monitoring.md").read_text(encoding="utf-8"))]
_PROMTOOL = shutil.which("promtool")
#: Labels that Prometheus adds.
_ADDED = {"instance", "job", "le"}


def _served() -> dict[str, set[str]]:
    """Return the labels of each metric's name."""
    worker = thread(0, {}, {})
    worker.worker.updater = SimpleNamespace(
        restored_records=0, remaining_records=0, restore_remaining_s=0.0, waits={}
    )
    names: dict[str, set[str]] = {}
    for family in families([worker], PROCESS):
        name = metric_name(family.name)
        labels = {"application", *family.labels}
        is_histogram = family.kind == "histogram"
        for ending in ("_bucket", "_sum", "_count") if is_histogram else ("",):
            names[name + ending] = labels
    return names


def _expressions() -> list[str]:
    found = [target["expr"] for panel in _panels() for target in panel.get("targets", ())]
    found += [variable["query"] for variable in _DASHBOARD["templating"]["list"]]
    rules = re.split(r"\n      - alert: ", _ALERTS)[1:]
    found += [rule.partition("labels:")[0] for rule in rules]
    found += [
        line
        for block in _MONITORING
        if block.language == "promql"
        for line in block.text.splitlines()
    ]
    assert len(found) > 40
    return found


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = _DASHBOARD["panels"]
    return panels


def test_each_metric_is_served() -> None:
    served = _served()
    used = {name for text in _expressions() for name in re.findall(r"tidewheel_[a-z0-9_]+", text)}
    assert len(used) > 25
    assert used <= served.keys()


def test_each_label_is_one_of_the_metric() -> None:
    served = _served()
    for text in _expressions():
        for name, selector in re.findall(r"(tidewheel_[a-z0-9_]+)(?:\{([^}]*)\})?", text):
            labels = set(re.findall(r"(\w+)\s*[=!]~?\"", selector))
            assert labels <= served[name] | _ADDED, text
        names = re.findall(r"tidewheel_[a-z0-9_]+", text)
        grouped = {
            label.strip()
            for part in re.findall(r"by \(([^)]*)\)", text)
            for label in part.split(",")
        }
        assert grouped <= _ADDED.union(*(served[name] for name in names)), text


def test_the_guide_collects_by_the_job_and_rules_of_the_alerts() -> None:
    (text,) = (block.text for block in _MONITORING if block.language == "yaml")
    config = yaml.safe_load(text)
    assert {job["job_name"] for job in config["scrape_configs"]} == set(
        re.findall(r'job="(\w+)"', _ALERTS)
    )
    assert all((_FOLDER / name).is_file() for name in config["rule_files"])


def test_panels_have_their_own_place_and_explain_themselves() -> None:
    panels = _panels()
    assert len({panel["id"] for panel in panels}) == len(panels)
    places: set[tuple[int, int]] = set()
    for panel in panels:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        place = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not place & places, panel["title"]
        places |= place
        assert panel["type"] == "row" or panel["description"]


def test_rules_of_a_worker_tell_hosts_apart() -> None:
    """Each host has a worker in slot 0."""
    grouped = re.findall(r"by \(([^)]*)\)", _ALERTS)
    assert all("instance" in labels for labels in grouped if "slot" in labels)
    assert sum("slot" in labels for labels in grouped) > 4


@pytest.mark.parametrize("arguments", [("check", "alerts.yml"), ("test", "alerts_test.yml")])
def test_prometheus_accepts_the_rules_and_they_fire(arguments: tuple[str, str]) -> None:
    if _PROMTOOL is None:
        pytest.skip("no promtool of Prometheus")
    verb, file = arguments
    done = subprocess.run(
        [_PROMTOOL, verb, "rules", file],
        cwd=_FOLDER,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_next_step() -> None:
    names = re.findall(r"^      - alert: (\w+)$", _ALERTS, re.MULTILINE)
    assert len(set(names)) == len(names) > 10
    for rule in re.split(r"\n      - alert: ", _ALERTS)[1:]:
        severity = re.search(r"\n        labels: \{ severity: (\w+) \}\n", rule)
        assert severity is not None, rule
        assert severity[1] in {"critical", "warning", "info"}
        assert re.search(r'\n          summary: "[^"]+"\n          next_step: \S.+\n', rule), rule
