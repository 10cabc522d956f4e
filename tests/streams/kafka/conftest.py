"""A real cluster, and one behind a proxy that can do harm."""

import os
from collections.abc import Iterator

import pytest

from tests.fakes.cluster import RealCluster
from tests.fakes.proxy import KafkaProxy
from tidewheel.streams.broker import RunningBroker


@pytest.fixture
def cluster(kafka_broker: RunningBroker) -> Iterator[RealCluster]:
    """A running Kafka."""
    cluster = RealCluster(kafka_broker.bootstrap_servers, run_id=f"a{os.getpid()}")
    yield cluster
    cluster.close()


@pytest.fixture
def proxy(kafka_broker: RunningBroker) -> Iterator[KafkaProxy]:
    """A proxy in front of it."""
    with KafkaProxy(kafka_broker.bootstrap_servers) as proxy:
        yield proxy


@pytest.fixture
def harmed(proxy: KafkaProxy) -> Iterator[RealCluster]:
    """The same Kafka, reached through the proxy."""
    cluster = RealCluster(proxy.bootstrap_servers, run_id=f"h{os.getpid()}")
    yield cluster
    cluster.close()
