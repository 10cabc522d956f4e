"""Shared fixtures: one broker, and applications and workers that end with their test."""

import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster import PATIENCE_S, Cluster, SteadyFeed
from tests.integration.forked import ROOT
from tests.integration.processes import WORKER, WorkerProcess
from tidewheel import KafkaStreams, StreamsBuilder, StreamsConfig, Topology
from tidewheel.streams.worker.application.run_options import RunOptions

#: A string: each process compares thousands of paths with it.
_HERE = str(Path(__file__).parent) + "/"

StartApp = Callable[..., KafkaStreams]

StartWorker = Callable[..., WorkerProcess]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(_HERE):
            item.add_marker(pytest.mark.broker)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _feeds_end() -> Iterator[None]:
    yield
    SteadyFeed.stop_all()


@pytest.fixture
def unique() -> str:
    return secrets.token_hex(4)


@pytest.fixture
def config(cluster: Cluster, unique: str, tmp_path: Path) -> dict[str, Any]:
    return {
        "application_id": f"app-{unique}",
        "bootstrap_servers": cluster.bootstrap_servers,
        "state_dir": str(tmp_path / "state"),
        "commit_interval_ms": 50,
        "statestore_cache_max_bytes": 0,
    }


@pytest.fixture
def start_app() -> Iterator[StartApp]:
    apps: list[KafkaStreams] = []

    def start(
        topology: Topology | StreamsBuilder,
        config: dict[str, Any],
        *,
        options: RunOptions | None = None,
        prepare: Callable[[KafkaStreams], None] | None = None,
        wait: bool = True,
    ) -> KafkaStreams:
        # Fixed assignment starts without a group's delays.
        options = options or RunOptions(fixed=True)
        settings = StreamsConfig(**config)
        if isinstance(topology, StreamsBuilder):
            topology = topology.build(settings)
        app = KafkaStreams(topology, settings, options=options)
        apps.append(app)
        if prepare is not None:
            prepare(app)
        app.start()
        if wait:
            assert app.wait_until_running(PATIENCE_S), f"{app.state.name}: {app.error!r}"
        return app

    yield start
    for app in apps:
        assert app.close(timeout=int(PATIENCE_S * 1000)), "the application closes"


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[StartWorker]:
    workers: list[WorkerProcess] = []

    def start(name: str, program: str = WORKER, *, root: Path = ROOT) -> WorkerProcess:
        worker = WorkerProcess(tmp_path, name, program, root=root)
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.close()
        # pytest shows this for failed tests only.
        sys.stdout.write(f"--- {worker.name}, the end of its log ---\n{worker.log[-8_000:]}\n")
