"""The brokers' host name does not resolve: at the start, and later."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.proxy import KafkaProxy
from tests.faults.conftest import MakeRun
from tests.faults.fault_run import PARTITIONS, FaultRun, incarnations
from tests.faults.network.command import STARTED, command, verify_command
from tests.faults.network.namespaces import Names
from tests.integration.cluster import Cluster, until

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.nightly("TIDEWHEEL_FAULTS"),
    pytest.mark.fault("DNS"),
]

_NAME = "kafka.lan"
_UNRESOLVED = "resolve"
_LOST_S = 20.0


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[KafkaProxy]:
    """A broker with a name that only workers resolve."""
    with KafkaProxy(cluster.bootstrap_servers, name=_NAME) as made:
        yield made


def _start(run: FaultRun, names: Names, proxy: KafkaProxy) -> None:
    for name in "abc":
        run.start(name, within=names.within, bootstrap_servers=proxy.bootstrap_servers)


def _create(run: FaultRun) -> None:
    run.cluster.create({run.source: PARTITIONS, run.sink: PARTITIONS})
    run.feed.start()


def _naming(log: str) -> list[str]:
    return [line for line in log.splitlines() if _NAME in line and _UNRESOLVED in line]


def _is_named(log: str) -> bool:
    return bool(_naming(log))


def test_workers_wait_at_their_start_for_a_name_that_resolves_soon(
    make_run: MakeRun, names: Names, proxy: KafkaProxy, record_property: Callable[..., None]
) -> None:
    run = make_run()
    _create(run)
    _start(run, names, proxy)
    workers = run.workers.values()
    until(lambda: all(_is_named(worker.log) for worker in workers), "all logs name the host")
    assert not any(worker.has_ended or worker.is_running for worker in workers)
    names.know(_NAME)
    known_s = time.monotonic()
    run.until_shared()
    record_property("recovery_s", time.monotonic() - known_s)
    run.until_progress()
    run.verify()


def test_lost_name_pauses_workers_until_it_resolves_again(
    make_run: MakeRun, names: Names, proxy: KafkaProxy, record_property: Callable[..., None]
) -> None:
    names.know(_NAME)
    run = make_run()
    _create(run)
    _start(run, names, proxy)
    run.until_shared()
    run.until_progress()
    names.forget()
    proxy.cut()
    time.sleep(_LOST_S)
    assert all(_is_named(worker.log) for worker in run.workers.values())
    names.know(_NAME)
    known_s = time.monotonic()
    run.until_shared()
    run.until_progress()
    record_property("recovery_s", time.monotonic() - known_s)
    record_property("lives", sum(len(incarnations(each)) for each in run.workers.values()))
    assert not run.dead
    run.verify()


def test_command_tries_again_until_the_name_resolves(
    make_run: MakeRun,
    names: Names,
    proxy: KafkaProxy,
    tmp_path: Path,
    record_property: Callable[..., None],
) -> None:
    run = make_run()
    _create(run)
    log = tmp_path / "command.log"
    with command(run, log, proxy.bootstrap_servers, names.within) as process:
        until(lambda: len(_naming(log.read_text())) > 1, "the log names the host every minute")
        names.know(_NAME)
        known_s = time.monotonic()
        run.until_progress()
        record_property("recovery_s", time.monotonic() - known_s)
        assert log.read_text().count(STARTED) == 1
        verify_command(run, log, process)
