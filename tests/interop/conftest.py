"""Fixtures for Kafka Streams on a real broker."""

from collections.abc import Iterator

import pytest

from benchmarks.environment.java import find_compiler, kafka_streams_jars
from tests.integration.cluster import Cluster
from tests.interop.kafka_streams_process import KafkaStreamsProcess
from tidewheel.streams.broker.broker_errors import BrokerError
from tidewheel.streams.broker.java import find_java


@pytest.fixture(scope="session")
def kafka_streams() -> None:
    try:
        compiler = find_compiler(find_java())
        kafka_streams_jars()
    except BrokerError as error:
        pytest.skip(f"no Kafka Streams to ask: {error}")
    if compiler is None:
        pytest.skip("no JDK to compile a Kafka Streams program with")


@pytest.fixture(scope="module")
def java(
    kafka_streams: None, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaStreamsProcess]:
    log = tmp_path_factory.mktemp("java") / "log"
    with KafkaStreamsProcess(cluster.bootstrap_servers, log) as process:
        yield process
