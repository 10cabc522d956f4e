"""Fixtures of the contract tests: the fake and, with a broker, the real adapter."""

import os
from collections.abc import Iterator

import pytest

from tests.fakes.cluster import Cluster, ClusterOfFakes, RealCluster
from tidewheel.streams.broker import RunningBroker


@pytest.fixture(params=["fake", pytest.param("kafka", marks=pytest.mark.broker)])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if request.param == "fake":
        yield ClusterOfFakes()
        return
    real = request.getfixturevalue("real_cluster")
    yield real


@pytest.fixture
def real_cluster(kafka_broker: RunningBroker) -> Iterator[RealCluster]:
    servers = kafka_broker.bootstrap_servers
    cluster = RealCluster(servers, run_id=f"c{os.getpid()}")
    yield cluster
    cluster.close()
