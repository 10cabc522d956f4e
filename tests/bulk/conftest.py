"""Fixtures of bulk tests: one Spark session per process, and a broker."""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.cluster import Cluster
from tidewheel import StreamsConfig
from tidewheel.state_stores.bulk_restore.spark.job import SparkSession, spark_session
from tidewheel.streams.broker.java import find_java

#: A string: thousands of paths are compared in each process.
_HERE = str(Path(__file__).parent) + "/"

MakeConfig = Callable[..., StreamsConfig]

#: Starting Spark can take a minute on a busy machine.
_TIMEOUT_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(_HERE):
            item.add_marker(pytest.mark.broker)
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.first)
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


@pytest.fixture(scope="session")
def spark_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def spark(spark_files: Path) -> Iterator[SparkSession]:
    (spark_files / "events").mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (spark_files / "events").as_uri(),
        "spark.local.dir": str(spark_files / "blocks"),
    }
    with spark_session(
        name="tests", master="local[2]", java_home=find_java().home, settings=settings
    ) as session:
        yield session


@pytest.fixture
def unique() -> str:
    return secrets.token_hex(4)


@pytest.fixture
def make_config(cluster: Cluster, unique: str, tmp_path: Path) -> MakeConfig:
    def make(**options: object) -> StreamsConfig:
        given: dict[str, object] = {
            "application_id": f"app-{unique}",
            "bootstrap_servers": cluster.bootstrap_servers,
            "state_dir": tmp_path / "state",
            "snapshot_location": str(tmp_path / "snapshots"),
        }
        return StreamsConfig(**{**given, **options})  # type: ignore[arg-type] # checked by the config itself

    return make
