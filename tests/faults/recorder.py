"""pytest plugin: writes outcomes and recorded figures of fault tests into the file `--fault-results`.

The file keeps the results of tests that a run leaves out.
"""

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import pytest

_FAULTS: Final = "fault"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault-results", type=Path, help="JSON file of outcomes and figures")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--fault-results")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(path))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers(_FAULTS):
            item.user_properties.append((_FAULTS, mark.args[0]))


class Recorder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._results: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties: defaultdict[str, list[Any]] = defaultdict(list)
        for name, value in report.user_properties:
            properties[name].append(value)
        faults = properties.pop(_FAULTS, None)
        if faults is None:
            return
        seen = self._results.get(report.nodeid, {"outcome": "passed", "seconds": 0.0})
        self._results[report.nodeid] = {
            "faults": sorted(set(faults)),
            "outcome": report.outcome if seen["outcome"] == "passed" else seen["outcome"],
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "seconds": round(seen["seconds"] + report.duration, 1),
            "figures": {name: _rounded(values) for name, values in sorted(properties.items())},
        }

    def pytest_sessionfinish(self) -> None:
        known = json.loads(self._path.read_text()) if self._path.exists() else {}
        merged = dict(sorted((known | self._results).items()))
        self._path.write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")


def _rounded(values: list[Any]) -> list[Any]:
    return [round(value, 2) if isinstance(value, float) else value for value in values]
