"""A real cluster, and one behind a proxy that injects faults."""

import os
from collections.abc import Iterator

import pytest

from tests.fakes.cluster import RealCluster
from tests.fakes.proxy import KafkaProxy
from tidewheel.streams.broker import RunningBroker


@pytest.fixture
def cluster(kafka_broker: RunningBroker) -> Iterator[RealCluster]:
    cluster = RealCluster(kafka_broker.bootstrap_servers, run_id=f"a{os.getpid()}")
    yield cluster
    cluster.close()


@pytest.fixture
def proxy(kafka_broker: RunningBroker) -> Iterator[KafkaProxy]:
    with KafkaProxy(kafka_broker.bootstrap_servers) as proxy:
        yield proxy


@pytest.fixture
def harmed(proxy: KafkaProxy) -> Iterator[RealCluster]:
    cluster = RealCluster(proxy.bootstrap_servers, run_id=f"h{os.getpid()}")
    yield cluster
    cluster.close()
