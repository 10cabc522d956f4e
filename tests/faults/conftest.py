"""Fixtures of fault tests: a cluster, and runs that end with their test."""

import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.fault_run import FaultRun
from tests.integration.cluster import Cluster
from tidewheel.streams.broker import RunningBroker

_HERE = str(Path(__file__).parent) + "/"

MakeRun = Callable[..., FaultRun]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(_HERE) and item.get_closest_marker("fault"):
            item.add_marker(pytest.mark.broker)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def cluster(kafka_broker: RunningBroker) -> Iterator[Cluster]:
    made = Cluster(kafka_broker.bootstrap_servers)
    yield made
    made.close()


@pytest.fixture
def make_run(cluster: Cluster, tmp_path: Path) -> Iterator[MakeRun]:
    runs: list[FaultRun] = []

    def make(**settings: Any) -> FaultRun:
        made = FaultRun(
            **{
                "cluster": cluster,
                "folder": tmp_path,
                "application_id": f"fault-{secrets.token_hex(4)}",
                **settings,
            }
        )
        runs.append(made)
        return made

    yield make
    for run in runs:
        run.close()
        for worker in [*run.workers.values(), *run.dead]:
            # pytest shows this for failed tests only.
            sys.stdout.write(f"--- {worker.name}, end of its log ---\n{worker.log[-8_000:]}\n")
