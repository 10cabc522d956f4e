"""Three real brokers with replication 3 and min.insync.replicas 2, which tests stop one by one."""

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.integration.cluster import until
from tidewheel.streams.broker.class_archive import ClassArchive
from tidewheel.streams.broker.data_dir import DataDir
from tidewheel.streams.broker.guarded_process import GuardedProcess
from tidewheel.streams.broker.jars import DEFAULT_VERSION, JarCache
from tidewheel.streams.broker.java import find_java
from tidewheel.streams.broker.launch import HOST, choose_ports, new_cluster_id

NODES: Final = (1, 2, 3)
_START_S: Final = 180.0
_HEAP_MB: Final = 384

_PROPERTIES: Final = {
    "process.roles": "broker,controller",
    "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "BROKER",
    "controller.listener.names": "CONTROLLER",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "log.retention.ms": "-1",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "log.cleaner.dedupe.buffer.size": str(16 << 20),
    # A dead broker is noticed soon, and one on a busy machine is not taken for dead.
    "broker.session.timeout.ms": "9000",
    "replica.lag.time.max.ms": "10000",
    "controller.quorum.fetch.timeout.ms": "6000",
    "controller.quorum.election.timeout.ms": "3000",
    "controller.quorum.request.timeout.ms": "6000",
    "initial.broker.registration.timeout.ms": "170000",
    "unclean.leader.election.enable": "false",
}


class BrokerCluster:
    """Brokers 1 to 3, each a controller too; they end with the `with` block.

    Attributes:
        bootstrap_servers: Addresses of all three.
    """

    def __init__(self, folder: Path, properties: Mapping[str, str] = {}) -> None:
        self._java = find_java()
        self._jars = JarCache(DEFAULT_VERSION).ensure(lambda: self._java)
        self._archive = ClassArchive(JarCache(DEFAULT_VERSION).archives, self._java, self._jars)
        self._ports = {node: choose_ports(None, None) for node in NODES}
        self._data = {node: DataDir(folder / f"broker-{node}") for node in NODES}
        self._running: dict[int, GuardedProcess] = {}
        self.bootstrap_servers = ",".join(f"{HOST}:{port}" for port, _ in self._ports.values())
        cluster_id = new_cluster_id()
        for node, data in self._data.items():
            data.lock(DEFAULT_VERSION)
            data.write_config(self._properties(node) | dict(properties))
            self._format(data, cluster_id)

    def start(self, *nodes: int) -> Self:
        """Start these brokers (default: all), and wait until all running ones answer."""
        for node in nodes or NODES:
            if node in self._running:
                continue
            data = self._data[node]
            self._running[node] = GuardedProcess(
                [*self._command(data), "kafka.Kafka", str(data.properties_file)],
                output=data.output_file,
                lock_fd=data.lock_fd,
                orphaned_dir=None,
                grace_ms=30_000,
            )
        self.wait_until_registered()
        return self

    def wait_until_registered(self) -> None:
        client = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

        def are_registered() -> bool:
            for node, process in self._running.items():
                last = self._data[node].last_log_lines(20)
                assert process.is_running, f"broker {node} ended:\n" + "\n".join(last)
            try:
                return set(client.list_topics(timeout=2).brokers) == set(self._running)
            except KafkaException:
                return False

        until(are_registered, f"brokers {sorted(self._running)} are registered", _START_S)

    def wait_until_in_sync(self) -> None:
        """Wait until all running brokers have all records of all partitions."""
        client = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

        def are_in_sync() -> bool:
            try:
                topics = client.list_topics(timeout=2).topics.values()
            except KafkaException:
                return False
            partitions = [each for topic in topics for each in topic.partitions.values()]
            return all(set(each.isrs) == set(self._running) for each in partitions)

        until(are_in_sync, f"brokers {sorted(self._running)} are in sync", _START_S)

    @property
    def running(self) -> tuple[int, ...]:
        return tuple(sorted(self._running))

    def stop(self, *nodes: int) -> None:
        """Stop brokers cleanly: their partitions get other leaders first."""
        for node in nodes:
            self._running.pop(node).stop()

    def kill(self, *nodes: int) -> None:
        for node in nodes:
            self._running.pop(node).kill()

    def pause(self, *nodes: int) -> None:
        for node in nodes:
            os.kill(self._running[node].pid, signal.SIGSTOP)

    def resume(self, *nodes: int) -> None:
        for node in nodes:
            os.kill(self._running[node].pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._running.values():
            process.kill()
        for data in self._data.values():
            data.unlock()

    def _properties(self, node: int) -> dict[str, str]:
        port, controller_port = self._ports[node]
        voters = ",".join(f"{each}@{HOST}:{self._ports[each][1]}" for each in NODES)
        return _PROPERTIES | {
            "node.id": str(node),
            "listeners": f"BROKER://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
            "controller.quorum.voters": voters,
            "log.dirs": str(self._data[node].log_dir),
        }

    def _command(self, data: DataDir) -> list[str]:
        return [
            str(self._java.executable),
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-Xmx{_HEAP_MB}m",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={data.log4j_file.as_uri()}",
            *self._archive.options(),
            "-cp",
            ":".join(map(str, self._jars)),
        ]

    def _format(self, data: DataDir, cluster_id: str) -> None:
        options = ["format", "--cluster-id", cluster_id, "--config", str(data.properties_file)]
        with data.output_file.open("ab") as output:
            subprocess.run(
                [*self._command(data), "kafka.tools.StorageTool", *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=True,
            )
