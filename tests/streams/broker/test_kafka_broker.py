"""Errors of `KafkaBroker`, with a Java that imitates Kafka."""

import os
import socket
import tempfile
from pathlib import Path

import pytest

from tests.streams.broker.fake_tools import JAVA_11, fake_java, fake_mvn
from tidewheel.state_stores.errors import StreamsError
from tidewheel.streams.broker import (
    BrokerError,
    DataDirInUseError,
    JavaError,
    KafkaBroker,
    PortTakenError,
    UnknownVersionError,
)
from tidewheel.streams.broker.data_dir import DataDir
from tidewheel.streams.broker.launch import choose_ports, is_free, new_cluster_id

VERSION = "4.77.0"  # without built-in checksums

# Formats like Kafka's tool; then `main` acts as the broker.
_PLAYS_KAFKA = """
for last in "$@"; do :; done
dir=$(/usr/bin/dirname "$last")
case "$*" in
  *StorageTool*) /bin/mkdir -p "$dir/kafka"; echo "cluster.id=x" > "$dir/kafka/meta.properties" ;;
  *) %s ;;
esac
"""


class Machine:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "bin"
        jars = folder / "registry"
        jars.mkdir()
        (jars / "kafka.jar").write_bytes(b"kafka")
        fake_mvn(self.path / "mvn", serves=jars)
        self.temporary = folder / "tmp"
        self.temporary.mkdir()

    def play(self, main: str) -> None:
        fake_java(self.path / "java", body=_PLAYS_KAFKA % main)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path)
    monkeypatch.setenv("PATH", str(machine.path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("TIDEWHEEL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(machine.temporary))
    return machine


def test_a_kafka_that_dies_is_quoted_and_its_log_saved(machine: Machine) -> None:
    machine.play(
        "for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21; do "
        'echo "line-$n"; done; exit 5'
    )
    with pytest.raises(BrokerError) as failure:
        KafkaBroker(version=VERSION).start()
    message = str(failure.value)
    assert f"Kafka {VERSION} did not start: it ended with exit code 5" in message
    assert "line-1\n" not in message
    assert all(f"  line-{number}\n" in message for number in range(2, 22))
    (saved,) = machine.temporary.iterdir()
    assert f"The whole log: {saved}" in message
    assert "line-1\n" in saved.read_text()


def test_a_kafka_that_never_answers_is_an_error_after_the_start_timeout(
    machine: Machine, tmp_path: Path
) -> None:
    machine.play("echo waiting; exec /bin/sleep 60")
    with pytest.raises(BrokerError, match="within start_timeout_ms=500") as failure:
        KafkaBroker(version=VERSION, data_dir=tmp_path / "data", start_timeout_ms=500).start()
    assert f"The whole log: {tmp_path / 'data' / 'logs' / 'output.log'}" in str(failure.value)
    assert "  waiting\n" in str(failure.value)
    # No process and no lock is left.
    DataDir(tmp_path / "data").lock(VERSION)


def test_formatting_that_fails_is_quoted(machine: Machine) -> None:
    fake_java(machine.path / "java", body="echo 'ConfigException: bad num.io.threads'; exit 1")
    with pytest.raises(BrokerError, match=r"formatting .* check the properties") as failure:
        KafkaBroker(version=VERSION).start()
    assert "ConfigException: bad num.io.threads" in str(failure.value)


def test_a_given_port_in_use_is_named(machine: Machine) -> None:
    """This fails before any download: there is no Java here."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortTakenError, match=f"port {port} of 127.0.0.1 is in use"):
            KafkaBroker(version=VERSION, port=port).start()
    assert list(machine.temporary.iterdir()) == []


def test_a_port_lost_to_another_program_is_tried_thrice(machine: Machine, tmp_path: Path) -> None:
    machine.play(
        f"/bin/grep ^listeners= \"$last\" >> '{tmp_path}/tried'; "
        "echo 'java.net.BindException: Address already in use'; exit 1"
    )
    with pytest.raises(PortTakenError, match="another program took it meanwhile"):
        KafkaBroker(version=VERSION).start()
    tried = (tmp_path / "tried").read_text().splitlines()
    assert len(tried) == len(set(tried)) == 3


def test_the_last_run_is_fenced_again_if_the_first_fence_was_lost(
    machine: Machine, tmp_path: Path
) -> None:
    machine.play("exit 1")
    with pytest.raises(BrokerError, match="exit code 1"):  # formatted, and started once
        KafkaBroker(version=VERSION, data_dir=tmp_path / "data").start()
    runs = tmp_path / "runs"
    machine.play(
        f"""
    echo "$last" >> '{runs}'
    case "$last" in
      */fencing/*) echo 'Performing controller activation'; echo 'Replayed BrokerRegistrationChangeRecord' ;;
      *) [ -e '{tmp_path}/once' ] && exit 5; echo x > '{tmp_path}/once'; echo DUPLICATE_BROKER_REGISTRATION ;;
    esac
    exec /bin/sleep 60"""
    )

    with pytest.raises(BrokerError, match="exit code 5"):
        KafkaBroker(version=VERSION, data_dir=tmp_path / "data").start()

    broker, fencing = f"{tmp_path}/data", f"{tmp_path}/data/fencing"
    assert [str(Path(line).parent) for line in runs.read_text().splitlines()] == [
        fencing,
        broker,
        fencing,
        broker,
    ]


def test_a_start_that_can_not_fence_waits_for_the_session_of_the_last_run(
    machine: Machine, tmp_path: Path
) -> None:
    machine.play("exit 1")
    with pytest.raises(BrokerError, match="exit code 1"):
        KafkaBroker(version=VERSION, data_dir=tmp_path / "data").start()
    runs = tmp_path / "runs"
    machine.play(
        f"""
    echo "$last" >> '{runs}'
    case "$last" in
      */fencing/*) echo 'Performing controller activation'; exec /bin/sleep 60 ;;
      *) echo DUPLICATE_BROKER_REGISTRATION; /bin/sleep 0.5; exit 5 ;;
    esac"""
    )

    with pytest.raises(BrokerError, match="exit code 5"):
        KafkaBroker(version=VERSION, data_dir=tmp_path / "data").start()

    names = [Path(line).parent.name for line in runs.read_text().splitlines()]
    assert names == ["fencing", "data"] * 3 + ["data"]


def test_a_data_folder_in_use_is_named(machine: Machine, tmp_path: Path) -> None:
    machine.play("exit 1")
    held = DataDir(tmp_path / "data")
    held.lock(VERSION)
    with pytest.raises(DataDirInUseError, match=f"{tmp_path}/data is in use by another broker"):
        KafkaBroker(version=VERSION, data_dir=tmp_path / "data").start()
    held.unlock()


def test_data_of_a_newer_kafka_are_not_opened(machine: Machine, tmp_path: Path) -> None:
    machine.play("exit 1")
    data = DataDir(tmp_path / "data")
    data.lock("4.100.0")
    data.remember("4.100.0", 1, 2)
    data.unlock()
    with pytest.raises(BrokerError, match=r"written by Kafka 4\.100\.0, which 4\.77\.0 can't read"):
        KafkaBroker(version=VERSION, data_dir=tmp_path / "data").start()


def test_a_data_folder_that_can_not_be_one_is_named(machine: Machine, tmp_path: Path) -> None:
    machine.play("exit 1")
    (tmp_path / "data").write_text("")
    with pytest.raises(BrokerError, match=f"{tmp_path}/data can't be used: .*; choose another"):
        KafkaBroker(version=VERSION, data_dir=tmp_path / "data").start()


def test_an_old_java_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A too old Java causes no download."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    java = fake_java(machine.path / "java", JAVA_11)
    with pytest.raises(JavaError, match=f"{java} .* is Java 11.0.22, which is too old"):
        KafkaBroker(version=VERSION).start()


def test_attributes_of_a_stopped_broker_raise_an_error() -> None:
    broker = KafkaBroker(version=VERSION)
    for attribute in ("bootstrap_servers", "pid", "cluster_id", "data_dir", "exit_code"):
        with pytest.raises(BrokerError, match="start"):
            getattr(broker, attribute)
    assert not broker.is_running
    broker.stop()
    assert repr(broker) == f"<KafkaBroker {VERSION}, not running>"


def test_an_unknown_version_is_refused_by_the_constructor() -> None:
    with pytest.raises(UnknownVersionError):
        KafkaBroker(version="3.9.0")


def test_broker_errors_are_streams_errors() -> None:
    assert issubclass(BrokerError, StreamsError)


def test_settings_with_secrets_are_readable_by_the_owner_only(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    data.write_config({"log.dirs": "x", "sasl.jaas.config": "password=hush"})
    assert data.properties_file.stat().st_mode & 0o077 == 0
    os.utime(data.properties_file)
    data.write_config({"log.dirs": "x"})
    assert "hush" not in data.properties_file.read_text()


def test_the_last_ports_are_reused_if_free() -> None:
    first = choose_ports(None, None)
    assert len(set(first)) == 2
    assert choose_ports(None, first) == first
    with socket.create_server(("127.0.0.1", first[0])):
        assert not is_free(first[0])
        port, controller_port = choose_ports(None, first)
        assert port != first[0]
        assert controller_port == first[1]
    assert choose_ports(first[1], first)[0] == first[1]
    assert choose_ports(first[1], first)[1] != first[1]


def test_a_damaged_record_of_the_last_start_is_ignored(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    data.lock(VERSION)
    for damaged in ("", "[]", '{"port": "x"}'):
        (tmp_path / "broker.json").write_text(damaged)
        assert data.last_ports() is None
    data.remember(VERSION, 1, 2)
    assert data.last_ports() == (1, 2)
    data.unlock()


def test_cluster_ids_have_kafkas_form() -> None:
    ids = {new_cluster_id() for _ in range(500)}
    assert len(ids) == 500
    assert {len(text) for text in ids} == {22}
    assert not any(text.startswith("-") for text in ids)
