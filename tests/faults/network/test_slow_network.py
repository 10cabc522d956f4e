"""A slow network between all workers and the broker."""

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient

from tests.fakes.proxy import END_TXN, KafkaProxy
from tests.faults.conftest import MakeRun
from tests.faults.fault_run import incarnations
from tests.integration.cluster import PATIENCE_S, Cluster
from tidewheel.rebalance.protocol.records import MemberRecord

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.nightly("TIDEWHEEL_FAULTS"),
]

_WATCHED_S = 45.0
_LATENCY_S = 0.2
_REQUESTS = 5


@pytest.fixture
def slow(cluster: Cluster) -> Iterator[KafkaProxy]:
    # Each way: at least 200 ms there and back.
    with KafkaProxy(cluster.bootstrap_servers, latency_s=(_LATENCY_S / 2, _LATENCY_S)) as made:
        yield made


def _fastest_request_s(proxy: KafkaProxy) -> float:
    client = AdminClient({"bootstrap.servers": proxy.bootstrap_servers})
    client.list_topics(timeout=PATIENCE_S)  # connects

    def request_s() -> float:
        begun_s = time.monotonic()
        client.list_topics(timeout=PATIENCE_S)
        return time.monotonic() - begun_s

    return min(request_s() for _ in range(_REQUESTS))


@pytest.mark.fault("24")
def test_slow_network_kills_no_worker(
    slow: KafkaProxy, make_run: MakeRun, record_property: Callable[..., None]
) -> None:
    run = make_run(config={"bootstrap_servers": slow.bootstrap_servers})
    run.begin()
    lives = {name: incarnations(worker) for name, worker in run.workers.items()}
    owners, epochs = run.owners(), run.epochs()
    commits, watched_s = slow.seen[END_TXN], time.monotonic()
    while time.monotonic() < watched_s + _WATCHED_S:
        assert run.owners() == owners
        time.sleep(0.1)
    fastest_s = _fastest_request_s(slow)
    record_property("request_s", fastest_s)
    assert fastest_s >= _LATENCY_S
    assert slow.seen[END_TXN] > commits, "workers send their requests through it"
    sent_s = time.monotonic()
    run.until_progress()
    record_property("recovery_s", time.monotonic() - sent_s)
    assert {name: incarnations(worker) for name, worker in run.workers.items()} == lives
    assert all(len(each) == 1 for each in lives.values())
    assert run.owners() == owners
    assert run.epochs() == epochs
    run.verify()
    phases = {each.phase for each in run.trace().records if isinstance(each, MemberRecord)}
    assert phases <= {"ACTIVE", "LEAVING", "GONE"}
