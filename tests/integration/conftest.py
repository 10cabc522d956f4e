"""What integration tests share: one broker for all of them, applications and workers that end with their test."""

import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster import PATIENCE_S, Cluster, SteadyFeed
from tests.integration.processes import WORKER, WorkerProcess
from tidewheel import KafkaStreams, StreamsBuilder, StreamsConfig, Topology
from tidewheel.streams.broker import RunningBroker
from tidewheel.streams.worker.application.run_options import RunOptions

#: As text: thousands of paths are looked at, in each process.
_HERE = str(Path(__file__).parent) + "/"

#: Starts a topology in this process and returns it, by default once it is RUNNING.
StartApp = Callable[..., KafkaStreams]

#: Starts a worker's process of this name, by default of `programs.worker`, which then waits for orders.
StartWorker = Callable[..., WorkerProcess]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs a broker and takes its time."""
    for item in items:
        if str(item.path).startswith(_HERE):
            item.add_marker(pytest.mark.broker)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def cluster(kafka_broker: RunningBroker) -> Iterator[Cluster]:
    """The session's broker."""
    made = Cluster(kafka_broker.bootstrap_servers)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _feeds_end() -> Iterator[None]:
    """No feed outlives its test."""
    yield
    SteadyFeed.stop_all()


@pytest.fixture
def unique() -> str:
    """A word that no other test and no earlier run has used for its topics and applications."""
    return secrets.token_hex(4)


@pytest.fixture
def config(cluster: Cluster, unique: str, tmp_path: Path) -> dict[str, Any]:
    """Settings of an application of its own, as keywords or as orders of a worker."""
    return {
        "application_id": f"app-{unique}",
        "bootstrap_servers": cluster.bootstrap_servers,
        "state_dir": str(tmp_path / "state"),
        "commit_interval_ms": 50,
        "statestore_cache_max_bytes": 0,
    }


@pytest.fixture
def start_app() -> Iterator[StartApp]:
    """Runs applications in this process and closes them after the test."""
    apps: list[KafkaStreams] = []

    def start(
        topology: Topology | StreamsBuilder,
        config: dict[str, Any],
        *,
        options: RunOptions | None = None,
        prepare: Callable[[KafkaStreams], None] | None = None,
        wait: bool = True,
    ) -> KafkaStreams:
        # Alone and at once, unless a test is about groups.
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
    """Starts workers' processes and ends them after the test."""
    workers: list[WorkerProcess] = []

    def start(name: str, program: str = WORKER) -> WorkerProcess:
        worker = WorkerProcess(tmp_path, name, program)
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.close()
        # Shown by a test that has failed, and by no other.
        sys.stdout.write(f"--- {worker.name}, the end of its log ---\n{worker.log[-8_000:]}\n")
