"""A slow network between all workers and the broker."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.fakes.proxy import KafkaProxy
from tests.faults.conftest import MakeRun
from tests.faults.fault_run import incarnations
from tests.integration.cluster import Cluster
from tidewheel.rebalance.protocol.records import MemberRecord

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.nightly("TIDEWHEEL_FAULTS"),
]

_WATCHED_S = 45.0


@pytest.fixture
def slow(cluster: Cluster) -> Iterator[KafkaProxy]:
    # Each way: 200 ms there and back on average.
    with KafkaProxy(cluster.bootstrap_servers, latency_s=(0.05, 0.15)) as made:
        yield made


@pytest.mark.fault("24")
def test_slow_network_kills_no_worker(
    slow: KafkaProxy, make_run: MakeRun, record_property: Callable[..., None]
) -> None:
    run = make_run(config={"bootstrap_servers": slow.bootstrap_servers})
    run.begin()
    lives = {name: incarnations(worker) for name, worker in run.workers.items()}
    owners = run.owners()
    watched_s = time.monotonic()
    while time.monotonic() < watched_s + _WATCHED_S:
        assert run.owners() == owners
        time.sleep(0.1)
    sent_s = time.monotonic()
    run.until_progress()
    record_property("recovery_s", time.monotonic() - sent_s)
    assert {name: incarnations(worker) for name, worker in run.workers.items()} == lives
    assert all(len(each) == 1 for each in lives.values())
    run.verify()
    phases = {each.phase for each in run.trace().records if isinstance(each, MemberRecord)}
    assert phases <= {"ACTIVE", "LEAVING", "GONE"}
