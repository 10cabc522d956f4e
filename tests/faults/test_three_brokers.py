"""Three brokers restart one by one, one is lost, and two are lost at the same time, under load."""

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.faults.broker_cluster import NODES, BrokerCluster
from tests.faults.conftest import MakeRun
from tests.faults.fault_run import FaultRun
from tests.integration.cluster import PATIENCE_S, Cluster, until

pytestmark = [
    pytest.mark.timeout(1_200),
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.nightly("TIDEWHEEL_FAULTS"),
]

#: How long two brokers stay away: longer than a call of the product waits.
_AWAY_S = 35.0


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with BrokerCluster(tmp_path_factory.mktemp("brokers")) as made:
        yield made


@pytest.fixture
def cluster(brokers: BrokerCluster) -> Iterator[Cluster]:
    made = Cluster(brokers.bootstrap_servers)
    yield made
    made.close()


def _is_written(brokers: BrokerCluster, topic: str) -> bool:
    producer = Producer(
        {"bootstrap.servers": brokers.bootstrap_servers, "message.timeout.ms": 20_000, "acks": -1}
    )
    errors: list[object] = []
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(60.0)
    return errors == [None]


def test_brokers_accept_records_while_two_of_three_live(
    brokers: BrokerCluster, cluster: Cluster
) -> None:
    cluster.create({"written": 1})
    client = AdminClient({"bootstrap.servers": brokers.bootstrap_servers})
    topics = client.list_topics("written", timeout=PATIENCE_S).topics
    (partition,) = topics["written"].partitions.values()
    assert set(partition.replicas) == set(NODES)
    first, second, _ = partition.replicas
    brokers.kill(first)
    until(lambda: _is_written(brokers, "written"), "another broker leads")
    brokers.pause(second)
    assert not _is_written(brokers, "written")
    brokers.resume(second)
    brokers.start()
    brokers.wait_until_in_sync()
    assert brokers.running == NODES
    assert _is_written(brokers, "written")


@pytest.mark.fault("56")
def test_brokers_restart_one_by_one_and_are_lost(
    make_run: MakeRun, brokers: BrokerCluster, record_property: Callable[..., None]
) -> None:
    run = make_run(supervised=True, rate=500, config={"worker_hang_timeout_ms": 60_000})
    run.begin()
    stalls_s: list[float] = []
    for node in NODES:
        brokers.stop(node)
        stalls_s.append(_until_progress(run))
        brokers.start()
        brokers.wait_until_in_sync()
        stalls_s.append(_until_progress(run))
    for node in NODES:
        brokers.kill(node)
        stalls_s.append(_until_progress(run))
        brokers.start()
        brokers.wait_until_in_sync()
    for pair in ((1, 2), (2, 3)):
        brokers.kill(*pair)
        _look_for(run, _AWAY_S)
        brokers.start()
        brokers.wait_until_in_sync()
        stalls_s.append(_until_progress(run))
    record_property("times", 8)
    record_property("recovery_s", max(stalls_s))
    record_property("restarted_workers", dict(run.crashes))
    run.until_shared()
    run.verify()


def _until_progress(run: FaultRun) -> float:
    begun_s = time.monotonic()
    run.until_progress()
    return time.monotonic() - begun_s


def _look_for(run: FaultRun, seconds: float) -> None:
    """Let time pass; a worker that ends by itself fails the run."""
    until_s = time.monotonic() + seconds
    run.until(lambda: time.monotonic() > until_s, "the brokers stay away")
