"""The only broker freezes, restarts or is killed while a group works. It belongs to these tests."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.fakes.proxy import FETCH, KafkaProxy
from tests.faults.conftest import MakeRun
from tests.faults.fault_run import PARTITIONS, FaultRun, eventually, incarnations
from tests.faults.network.command import STARTED, command, verify_command
from tests.integration.cluster import Cluster, until
from tests.integration.processes import WorkerProcess
from tests.integration.programs.jobs import STORE
from tidewheel.streams.broker import KafkaBroker
from tidewheel.tasks.kafka.internal_topics import changelog_topic

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.nightly("TIDEWHEEL_FAULTS"),
]

#: A worker may need several calls in a row after an outage, of 30 s each.
_RECOVERY_S = 240.0
_NTH = 5
_ALARM_S = 60.0
#: Time-out of a producer's calls.
_CALL_S = 30.0
#: Seconds in which a starting worker asks for a broker.
_UNREACHABLE_S = 30.0


@pytest.fixture(scope="module")
def kept_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    # Else its controller would take the leadership from this lone broker after a pause.
    patient = {"broker.session.timeout.ms": 300_000}
    folder = tmp_path_factory.mktemp("broker") / "data"
    with KafkaBroker(data_dir=folder, properties=patient) as made:
        yield made


@pytest.fixture
def broker(kept_broker: KafkaBroker) -> KafkaBroker:
    return kept_broker if kept_broker.is_running else kept_broker.start()


@pytest.fixture
def cluster(broker: KafkaBroker) -> Iterator[Cluster]:
    made = Cluster(broker.bootstrap_servers)
    yield made
    made.close()


@pytest.mark.fault("20")
@pytest.mark.parametrize("frozen_s", [30.0, 70.0])
def test_broker_freezes(
    make_run: MakeRun, broker: KafkaBroker, frozen_s: float, record_property: Callable[..., None]
) -> None:
    run = make_run()
    run.begin()
    run.until_progress()
    ids = run.trace().transactional_ids()
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        time.sleep(frozen_s)
    finally:
        os.kill(broker.pid, signal.SIGCONT)

    def check() -> None:
        later_ids = run.trace().transactional_ids()
        replaced = [each for each in ids if later_ids[each] > ids[each]]
        record_property("replaced_producers", len(replaced))
        # A commit may still be answered within its 30 s.
        assert replaced or frozen_s <= _CALL_S, "a worker continues with another producer"

    _verify_recovery(run, record_property, check)


@pytest.mark.fault("19")
def test_command_waits_for_a_broker_that_starts_later(
    make_run: MakeRun, broker: KafkaBroker, tmp_path: Path, record_property: Callable[..., None]
) -> None:
    run = make_run()
    run.cluster.create({run.source: PARTITIONS, run.sink: PARTITIONS})
    log, servers = tmp_path / "command.log", broker.bootstrap_servers
    broker.stop()
    begun_s = time.monotonic()
    with command(run, log, servers) as process:
        until(lambda: _waits(log.read_text(), servers), "it names the broker and waits")
        worker = psutil.Process(process.pid).children()
        broker.start()
        run.feed.start()
        started_s = time.monotonic()
        run.until_progress()
        record_property("recovery_s", time.monotonic() - started_s)
        # A worker ends after 30 s without a broker; its supervisor starts the next one.
        starts = log.read_text().count(STARTED)
        assert starts <= 1 + (started_s - begun_s) / _UNREACHABLE_S, "no attempt ends early"
        assert starts > 1 or psutil.Process(process.pid).children() == worker
        verify_command(run, log, process)


def _waits(log: str, servers: str) -> bool:
    names = any(servers in line and "Connect" in line for line in log.splitlines())
    return names and "-> REBALANCING" in log and "-> RUNNING" not in log


@pytest.mark.fault("17")
def test_broker_restarts_cleanly_under_load(
    make_run: MakeRun, broker: KafkaBroker, record_property: Callable[..., None]
) -> None:
    run = make_run(is_static=True)  # after a crash of the client, too, tasks wait for their worker
    run.begin()
    run.until_progress()
    owners, epochs = run.owners(), run.epochs()
    broker.stop()
    broker.start()
    _verify_recovery(run, record_property, lambda: _assert_stayed(run, owners, epochs))


def _assert_stayed(run: FaultRun, owners: dict[int, list[str]], epochs: dict[int, int]) -> None:
    assert run.owners() == owners
    crashed = {worker.name.partition(".")[0] for worker in run.dead}
    stayed = [partition for partition, names in owners.items() if crashed.isdisjoint(names)]
    assert stayed, "each worker has crashed"
    now = run.epochs()
    assert [now[each] for each in stayed] == [epochs[each] for each in stayed]


@pytest.mark.fault("18")
@pytest.mark.parametrize("point", ["before_offsets", "before_commit"])
def test_broker_dies_in_an_open_transaction(
    make_run: MakeRun, broker: KafkaBroker, point: str, record_property: Callable[..., None]
) -> None:
    run = make_run()
    run.begin("ab")
    run.start("c", failpoints=f"{point}:{_NTH}:stop")
    assert run.until_one_stops() == "c"
    broker.kill()
    run.workers["c"].signal_all(signal.SIGCONT)
    broker.start()
    _verify_recovery(run, record_property)


@pytest.mark.fault("54")
def test_restore_reports_a_broker_that_stops_and_continues_after_it(
    make_run: MakeRun, broker: KafkaBroker, record_property: Callable[..., None]
) -> None:
    stopped = threading.Event()

    def stop() -> None:
        os.kill(broker.pid, signal.SIGSTOP)
        stopped.set()

    run = make_run()
    with KafkaProxy(broker.bootstrap_servers) as proxy:
        run.begin("a")
        run.until_progress()
        changelog = changelog_topic(run.application_id, STORE)
        topic_id = run.cluster.admin.describe_topics([changelog])[changelog].topic_id
        proxy.before_request(FETCH, stop, topic_id)
        waiting = run.start("b", bootstrap_servers=proxy.bootstrap_servers)
        try:
            until(stopped.is_set, "b restores")
            error = f"(cluster {proxy.bootstrap_servers}); check that the brokers run"
            took_s = eventually(lambda: _reports(waiting, error), "an error", _ALARM_S)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        record_property("recovery_s", took_s)
        run.until_shared()
        run.verify()


def _reports(worker: WorkerProcess, error: str) -> bool:
    """Return True if the worker reports an error; lines of its watchdog are JSON."""
    lines = worker.log.splitlines()
    return any(error in line for line in lines if not line.startswith("{"))


def _verify_recovery(
    run: FaultRun, record_property: Callable[..., None], check: Callable[[], None] = lambda: None
) -> None:
    begun_s = time.monotonic()

    def is_shared() -> bool:
        _restart_crashed(run)
        return run.is_shared()

    until(is_shared, "all workers have a task", _RECOVERY_S)
    run.until_progress()
    record_property("recovery_s", time.monotonic() - begun_s)
    record_property("crashes", len(run.dead))
    record_property("lives", sum(len(incarnations(each)) for each in run.workers.values()))
    check()
    run.verify()


def _restart_crashed(run: FaultRun) -> None:
    """Restart workers after a crash of the Kafka client (confluentinc/librdkafka#5280)."""
    for name, worker in list(run.workers.items()):
        if worker.has_ended:
            code = worker.wait()
            assert code == -signal.SIGSEGV, (
                f"{worker.name} ended with {code}:\n{worker.log[-4000:]}"
            )
            run.dead.append(run.workers.pop(name))
            run.start(name)
