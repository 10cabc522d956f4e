"""The development broker with a real Kafka."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread

import msgspec
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from tests.fakes.cluster import RealCluster, write
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.broker import (
    BrokerError,
    DataDirInUseError,
    KafkaBroker,
    PortTakenError,
    launch,
)
from tidewheel.streams.broker.jars import DEFAULT_VERSION
from tidewheel.streams.broker.wire import describe_cluster
from tidewheel.tasks.kafka.ports import NewTopic

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]

_PRODUCERS = 30
_PARTITIONS = 60

_ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
_CLI = "import cyclopts; from tidewheel.streams.cli.commands.broker import broker; cyclopts.App(default_command=broker)()"


class Ready(msgspec.Struct):
    event: str
    bootstrap_servers: str
    cluster_id: str
    data_dir: str
    log_file: str
    pid: int
    topics: dict[str, int]
    version: str


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def command() -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    started: list[subprocess.Popen[bytes]] = []

    def run(*arguments: str) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [sys.executable, "-c", _CLI, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_ENVIRONMENT,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate(timeout=120)


def test_a_broker_starts_answers_and_leaves_nothing_behind() -> None:
    with KafkaBroker() as broker:
        cluster = describe_cluster(broker.bootstrap_servers)
        assert cluster is not None
        assert cluster.cluster_id == broker.cluster_id
        assert cluster.broker_count == 1
        assert broker.create_topics({"orders": 3, "customers": 1}) == ("orders", "customers")
        assert broker.create_topics({"orders": 3, "news": 1}) == ("news",)
        with pytest.raises(BrokerError, match=r"bad name \(1 partitions\): Topic name is invalid"):
            broker.create_topics({"bad name": 1})
        with pytest.raises(BrokerError, match="is running already"):
            broker.start()
        assert "Kafka Server started" in broker.log_file.read_text()
        assert broker.last_log_lines(1) != []
        pid, data_dir, address = broker.pid, broker.data_dir, broker.bootstrap_servers
        assert _lives(pid)
    assert not _lives(pid)
    assert not data_dir.exists()
    assert describe_cluster(address) is None


def test_old_records_are_kept_unless_their_topic_has_a_retention() -> None:
    checking_always = {"log.initial.task.delay.ms": 100, "log.retention.check.interval.ms": 100}
    kept, short = TopicPartition("kept", 0), TopicPartition("short", 0)
    with KafkaBroker(properties=checking_always) as broker:
        cluster = RealCluster(broker.bootstrap_servers, "retention")
        admin = cluster.admin()
        topics = {"kept": {}, "short": {"retention.ms": "1000"}}
        for name, config in topics.items():
            admin.create_topics(
                [NewTopic(name=name, partitions=1, replication_factor=1, config=config)]
            )
            write(cluster, name, b"years ago")
        _until(lambda: admin.beginning_offsets([short]) == {short: 1}, "retention was not checked")
        assert admin.beginning_offsets([kept]) == {kept: 0}
        cluster.close()


def test_kept_data_are_available_after_a_restart(tmp_path: Path) -> None:
    broker = KafkaBroker(data_dir=tmp_path / "data", heap_mb=256)
    with broker:
        first = (broker.cluster_id, broker.bootstrap_servers)
        broker.create_topics({"orders": 2})
        with pytest.raises(DataDirInUseError, match=f"{tmp_path}/data is in use"):
            KafkaBroker(data_dir=tmp_path / "data").start()
        taken = int(broker.bootstrap_servers.rpartition(":")[2])
        with pytest.raises(PortTakenError, match=f"port {taken} of 127.0.0.1 is in use"):
            KafkaBroker(port=taken).start()
    assert not broker.is_running
    with broker:
        assert (broker.cluster_id, broker.bootstrap_servers) == first
        assert broker.create_topics({"orders": 2}) == ()
        assert not broker.wait(timeout_ms=1)
        broker.kill()
        assert not broker.is_running
        broker.start()
        assert (broker.cluster_id, broker.bootstrap_servers) == first
        assert broker.create_topics({"orders": 2}) == ()


def test_data_committed_before_a_crash_stay_committed(tmp_path: Path) -> None:
    broker = KafkaBroker(data_dir=tmp_path / "data", heap_mb=512)
    with broker:
        servers = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
        broker.create_topics({"records": _PARTITIONS})
        consumer = Consumer(servers | {"group.id": "group", "isolation.level": "read_committed"})
        names = [str(number) for number in range(_PRODUCERS)]
        producers = {
            name: Producer(servers | {"transactional.id": name, "linger.ms": 0}) for name in names
        }
        _start(producers.values())
        for number, (name, producer) in enumerate(producers.items()):
            producer.begin_transaction()
            for partition in range(_PARTITIONS):
                producer.produce("records", name.encode(), partition=partition)
            offset = KafkaPartition("records", number, number + 1)
            producer.send_offsets_to_transaction([offset], consumer.consumer_group_metadata(), 30)
        answered: SimpleQueue[str] = SimpleQueue()
        crashed = Event()
        threads = [
            Thread(target=_commit, args=(*each, answered, crashed), daemon=True)
            for each in producers.items()
        ]
        for thread in threads:
            thread.start()
        committed = {answered.get(timeout=120) for _ in range(_PRODUCERS // 2)}
        broker.kill()
        crashed.set()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        # Without a broker each producer wakes 850 times a second, which would delay the start.
        del producer
        producers.clear()
        broker.start()

        # Ends uncommitted transactions.
        _start([Producer(servers | {"transactional.id": name}) for name in names])
        everywhere = [KafkaPartition("records", each) for each in range(_PARTITIONS)]
        offsets = {each.partition: each.offset for each in consumer.committed(everywhere, 30)}
        assert {name: offsets[int(name)] for name in committed} == {
            name: int(name) + 1 for name in committed
        }
        consumer.assign([KafkaPartition("records", each, 0) for each in range(_PARTITIONS)])
        seen = Counter[str]()
        _until(lambda: _has_all(consumer, seen, committed), "all that is committed can be read")
        consumer.close()


def test_F3_a_last_run_that_is_fenced_late_is_fenced_before_the_broker_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = KafkaBroker(data_dir=tmp_path / "data", heap_mb=256)
    with broker:
        broker.create_topics({"orders": 1})
        broker.kill()
        # First without time, then with enough. The controller may end before it has stored the
        # fence, so there is more than one try.
        monkeypatch.setattr(launch, "_FENCING_SECONDS", (-1.0, 60.0, 60.0, 60.0))
        broker.start()

        assert "DUPLICATE_BROKER_REGISTRATION" not in broker.log_file.read_text()
        assert broker.create_topics({"orders": 1}) == ()


def _start(producers: Iterable[Producer]) -> None:
    with ThreadPoolExecutor(_PRODUCERS) as pool:
        list(pool.map(lambda producer: producer.init_transactions(30), producers))


def _commit(name: str, producer: Producer, answered: SimpleQueue[str], crashed: Event) -> None:
    while not crashed.is_set():
        try:
            producer.commit_transaction(1)
        except KafkaException as exception:
            if not exception.args[0].retriable():
                return
        else:
            answered.put(name)
            return


def _has_all(consumer: Consumer, seen: Counter[str], committed: set[str]) -> bool:
    for message in consumer.consume(10_000, 0.5):
        value = message.value()
        assert message.error() is None
        assert value is not None
        seen[value.decode()] += 1
    return all(seen[name] == _PARTITIONS for name in committed)


def test_a_data_folder_can_be_used_with_other_ports(tmp_path: Path) -> None:
    with KafkaBroker(data_dir=tmp_path / "data") as broker:
        cluster_id = broker.cluster_id
    (tmp_path / "data" / "broker.json").unlink()
    with KafkaBroker(data_dir=tmp_path / "data") as broker:
        assert broker.cluster_id == cluster_id
        broker.create_topics({"after": 1})


def test_a_property_kafka_refuses_is_quoted() -> None:
    with pytest.raises(BrokerError) as failure:
        KafkaBroker(properties={"num.io.threads": "many"}).start()
    message = str(failure.value)
    assert "Invalid value many for configuration num.io.threads" in message
    Path(message.rpartition("The whole log: ")[2]).unlink()


def test_properties_win_and_a_secured_listener_starts() -> None:
    jaas = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="me" password="hush" user_me="hush";'
    )
    broker = KafkaBroker(
        properties={
            "listener.security.protocol.map": "BROKER:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.broker.plain.sasl.jaas.config": jaas,
        }
    )
    with broker:
        assert describe_cluster(broker.bootstrap_servers) is None
        broker.kill()
        broker.start()
        assert describe_cluster(broker.bootstrap_servers) is None
        assert "hush" not in broker.log_file.read_text()
        assert "hush" not in repr(broker)


def test_the_command_reports_json_lines_and_ends_well(
    command: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path
) -> None:
    process = command(
        "--json", "--data-dir", str(tmp_path / "data"), "--topics", "orders:3,news",
        "--property", "num.partitions=4", "--property", "num.io.threads=3",
    )  # fmt: skip
    assert process.stdout is not None
    ready = msgspec.json.decode(process.stdout.readline(), type=Ready)
    assert ready.event == "ready"
    assert ready.data_dir == str(tmp_path / "data")
    assert ready.topics == {"orders": 3, "news": 1}
    assert _lives(ready.pid)
    assert describe_cluster(ready.bootstrap_servers) is not None
    assert "num.io.threads = 3" in Path(ready.log_file).read_text()
    process.send_signal(signal.SIGTERM)
    out, error = process.communicate(timeout=120)
    assert (process.returncode, out, error) == (0, b'{"event":"stopped"}\n', b"")
    assert not _lives(ready.pid)


def test_the_broker_is_gone_when_its_command_is_killed(
    command: Callable[..., "subprocess.Popen[bytes]"],
) -> None:
    process = command("--json")
    assert process.stdout is not None
    ready = msgspec.json.decode(process.stdout.readline(), type=Ready)
    assert Path(ready.data_dir).exists()
    process.kill()
    _until(lambda: not _lives(ready.pid), "Kafka lives on")
    _until(lambda: not Path(ready.data_dir).exists(), "its temporary data stay")


def test_the_command_notices_a_broker_that_dies(
    command: Callable[..., "subprocess.Popen[bytes]"],
) -> None:
    process = command("--json")
    assert process.stdout is not None
    ready = msgspec.json.decode(process.stdout.readline(), type=Ready)
    os.kill(ready.pid, signal.SIGKILL)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 1
    assert b"ended by itself with exit code 137" in error
    assert f'{{"event":"failed","error":"Kafka {DEFAULT_VERSION} ended by itself'.encode() in out


def test_the_command_can_print_only_the_address(
    command: Callable[..., "subprocess.Popen[bytes]"],
) -> None:
    process = command("--print-bootstrap")
    assert process.stdout is not None
    address = process.stdout.readline().decode().strip()
    assert describe_cluster(address) is not None
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=120)
    assert (process.returncode, out, error) == (0, b"", b"")


def test_the_fixture_starts_one_broker_for_all_tests(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"test_{number}.py").write_text(
            "def test_it(kafka_broker):\n"
            f"    kafka_broker.create_topics({{'t{number}': 1}})\n"
            f"    open({str(tmp_path / 'pids')!r}, 'a').write(f'{{kafka_broker.pid}}\\n')\n"
        )
    run = _run_pytest(tmp_path, _ENVIRONMENT)
    assert run.returncode == 0, run.stdout
    first, second = (tmp_path / "pids").read_text().split()
    assert first == second
    assert not _lives(int(first))


def _run_pytest(folder: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[bytes]":
    # The plugin is named here: pytest would load an installed one twice.
    environment = {**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tidewheel.streams.testing.pytest_plugin",
         "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)],
        capture_output=True,
        env=environment,
        cwd=folder,
        timeout=120,
        check=False,
    )  # fmt: skip
