"""A worker loses its network for 20 s; the others keep theirs."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.fakes.proxy import KafkaProxy
from tests.faults.conftest import MakeRun
from tests.faults.fault_run import eventually, incarnations
from tests.faults.network.namespaces import Network
from tests.integration.cluster import Cluster, until

pytestmark = [pytest.mark.timeout(600), pytest.mark.broker, pytest.mark.slow]

CUT_S = 20.0
SESSION_S = 1.5
TAKE_OVER_S = 3.0


@pytest.fixture
def proxy(cluster: Cluster, net: Network) -> Iterator[KafkaProxy]:
    """Gateway of the namespace: its broker has the address of the link."""
    with KafkaProxy(cluster.bootstrap_servers, host=net.host) as made:
        yield made


@pytest.mark.fault("21")
def test_partitioned_worker_is_replaced_and_returns_as_a_new_incarnation(
    make_run: MakeRun, net: Network, proxy: KafkaProxy, record_property: Callable[..., None]
) -> None:
    sessions = {"session_timeout_ms": int(SESSION_S * 1_000), "heartbeat_interval_ms": 250}
    run = make_run(config=sessions)
    run.begin("bc")
    alone = run.start("a", within=net.within, bootstrap_servers=proxy.bootstrap_servers)
    run.until_shared()
    before = incarnations(alone)

    net.cut()
    cut_s = time.monotonic()
    taken_s = eventually(lambda: run.is_owned_by("bc"), "b and c take over the tasks of a")
    record_property("recovery_s", taken_s)
    assert taken_s < SESSION_S + TAKE_OVER_S
    assert before[-1] in run.trace().ended(), "a was fenced"
    run.until_progress()
    time.sleep(max(cut_s + CUT_S - time.monotonic(), 0.0))
    net.connect()

    until(run.is_shared, "a has a task again")
    assert not alone.has_ended
    assert len(incarnations(alone)) > len(before)
    assert incarnations(alone)[-1] in run.trace().owners(), "it returns as a new incarnation"
    run.verify()
