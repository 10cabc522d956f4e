"""Fixtures of network faults: a proxy of the broker, and namespaces."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.proxy import KafkaProxy
from tests.faults.network.namespaces import Names, Network, missing, network
from tests.integration.cluster import Cluster


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[KafkaProxy]:
    with KafkaProxy(cluster.bootstrap_servers) as made:
        yield made


@pytest.fixture
def net() -> Iterator[Network]:
    _skip_without_namespaces()
    with network() as made:
        yield made


@pytest.fixture
def names(tmp_path: Path) -> Names:
    _skip_without_namespaces()
    return Names(tmp_path)


def _skip_without_namespaces() -> None:
    if reason := missing():
        pytest.skip(reason)
