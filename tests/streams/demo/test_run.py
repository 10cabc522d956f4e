"""The whole demo on a real Kafka, with a few flights in place of all."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster import Cluster
from tests.streams.demo.archive import small_archive
from tidewheel.streams.broker import RunningBroker
from tidewheel.streams.demo import check, run
from tidewheel.streams.demo.run import DemoOptions, run_demo
from tidewheel.streams.demo.tables import TABLES, table
from tidewheel.streams.demo.view import JsonView, ResultTable

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.usefixtures("topics_of_the_demo"),
]


class _View(JsonView):
    def __init__(self) -> None:
        self.values: Mapping[str, Mapping[str, Any]] = {}
        self.said: list[str] = []

    def results(self, tables: list[ResultTable], values: Mapping[str, Mapping[str, Any]]) -> None:
        self.values = values

    def verdict(self, message: str, *, good: bool) -> None:
        self.said.append(message)


@pytest.fixture
def _few_flights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = small_archive(tmp_path / "demo" / "small.tar.gz")
    monkeypatch.setattr(run, "ensure_archive", lambda _cache: archive)
    few = [
        replace(table("airlines"), rows=2),
        replace(table("weather"), rows=4),
        replace(table("flights"), rows=4),
    ]
    monkeypatch.setattr(run, "TABLES", few)


@pytest.mark.usefixtures("_few_flights")
def test_the_demo_is_correct_and_leaves_nothing_behind(kafka_broker: RunningBroker) -> None:
    cluster = Cluster(kafka_broker.bootstrap_servers)
    view = _View()
    assert run_demo(DemoOptions(bootstrap_servers=kafka_broker.bootstrap_servers), view)
    assert view.said == ["All 8 results are right, each flight counted exactly once."]
    assert view.values[check.ARRIVALS] == {"IAH": 2, "MIA": 1, "RDU": 1}
    left = _of_the_demo(cluster)
    cluster.close()
    assert left == set()


def _of_the_demo(cluster: Cluster) -> set[str]:
    """Return the demo's topics; other tests create their own meanwhile."""
    fixed = {each.name for each in TABLES} | set(check.OUTPUT_TOPICS)
    return {
        name
        for name in cluster.admin.list_topics()
        if name in fixed or name.startswith("tidewheel-demo-")
    }


@pytest.mark.usefixtures("_few_flights")
def test_a_wrong_result_is_detected(
    kafka_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = check.expected_results

    def other(*arguments: Any) -> check.Results:
        results = right(*arguments)
        return {**results, check.RAIN: {"EWR": 1, "JFK": 3}}

    monkeypatch.setattr(check, "expected_results", other)
    view = _View()
    assert not run_demo(DemoOptions(bootstrap_servers=kafka_broker.bootstrap_servers), view)
    assert view.said == [
        "1 of 8 results are wrong:\n  rain-by-airport, key JFK: expected 3, found 2"
    ]
