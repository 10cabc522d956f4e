"""One start of Kafka: format the folder if it is new, run Java, wait until the broker answers."""

import base64
import contextlib
import secrets
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from streams.broker import wire
from streams.broker.class_archive import ClassArchive
from streams.broker.data_dir import DataDir
from streams.broker.errors import BrokerError, PortTakenError
from streams.broker.java import Java
from streams.broker.ports import is_listening
from streams.broker.process import GuardedProcess
from streams.broker.server_config import client_listener

_POLL_SECONDS = 0.02
_LOG_LINES = 20
_PORT_TAKEN_SIGNS = ("Address already in use", "BindException")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedBroker:
    """A broker that answered."""

    process: GuardedProcess
    bootstrap_servers: str
    cluster_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start Kafka on a locked data folder."""

    version: str
    java: Java
    jars: tuple[Path, ...]
    archive: ClassArchive
    data: DataDir
    temporary: bool
    """The data folder is deleted afterwards; so what explains a failure is saved from it."""
    heap_mb: int
    jvm_options: tuple[str, ...]
    start_timeout_ms: int
    stop_timeout_ms: int

    def start(self, properties: Mapping[str, str]) -> LaunchedBroker:
        """Start Kafka with these settings and wait until it answers.

        Raises:
            PortTakenError: It could not listen on one of its ports.
            BrokerError: It did not start; has the last log lines.
        """
        self.data.write_config(properties)
        cluster_id = self.data.cluster_id(properties)
        if cluster_id is None:
            cluster_id = new_cluster_id()
            self._format(cluster_id)
        self.data.start_new_log()
        process = GuardedProcess(
            [
                *self._java(f"-Xmx{self.heap_mb}m", "-XX:+ExitOnOutOfMemoryError"),
                *self.archive.making_options(),
                *self.jvm_options,
                "-cp",
                self._class_path(),
                "kafka.Kafka",
                str(self.data.properties_file),
            ],
            output=self.data.output_file,
            lock_fd=self.data.lock_fd,
            orphaned_dir=self.data.path if self.temporary else None,
            grace_ms=self.stop_timeout_ms,
        )
        try:
            address = self._wait_until_ready(process, properties, cluster_id)
        except BaseException:
            process.kill()
            raise
        return LaunchedBroker(process=process, bootstrap_servers=address, cluster_id=cluster_id)

    def _java(self, *options: str) -> list[str]:
        return [
            str(self.java.executable),
            # The quickest to start of all collectors, and no worse for a heap this small.
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={self.data.log4j_file.as_uri()}",
            *options,
        ]

    def _class_path(self) -> str:
        return ":".join(str(jar) for jar in self.jars)

    def _format(self, cluster_id: str) -> None:
        """Kafka's own tool writes what a new node needs, the features of its version included."""
        command = [
            # Too short a program for the optimising compiler to pay.
            *self._java("-XX:TieredStopAtLevel=1"),
            *self.archive.options(),
            "-cp",
            self._class_path(),
            "kafka.tools.StorageTool",
            "format",
            "--standalone",
            "--cluster-id",
            cluster_id,
            "--config",
            str(self.data.properties_file),
        ]
        with self.data.output_file.open("ab") as output:
            try:
                done = subprocess.run(  # noqa: S603  # Kafka's own tool, no shell
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=self.start_timeout_ms / 1000,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                late = f"formatting took longer than start_timeout_ms={self.start_timeout_ms}"
                raise self._failure(late) from None
        if done.returncode != 0:
            raise self._failure(
                f"formatting {self.data.log_dir} ended with exit code {done.returncode}; "
                "check the properties given"
            )

    def _wait_until_ready(
        self, process: GuardedProcess, properties: Mapping[str, str], cluster_id: str
    ) -> str:
        """Until this very broker answers; its address."""
        address, plain = client_listener(properties)
        deadline = time.monotonic() + self.start_timeout_ms / 1000
        while time.monotonic() < deadline:
            if not process.is_running:
                raise self._died(process.exit_code, address)
            if plain:
                cluster = wire.describe_cluster(address)
                # Another broker may have got the port first: its cluster has another id.
                ready = cluster is not None and cluster.cluster_id == cluster_id
            else:
                # Without its certificates and passwords nobody can ask it; its log has to do.
                ready = self.data.log_contains("Kafka Server started") and is_listening(address)
            if ready:
                return address
            time.sleep(_POLL_SECONDS)
        raise self._failure(
            f"it did not answer at {address} within start_timeout_ms={self.start_timeout_ms}"
        )

    def _died(self, exit_code: int | None, address: str) -> BrokerError:
        if any(self.data.log_contains(sign) for sign in _PORT_TAKEN_SIGNS):
            return PortTakenError(
                f"Kafka {self.version} could not listen on {address} or its controller's port: "
                "another program took it meanwhile; try again, or choose another port"
            )
        return self._failure(f"it ended with exit code {exit_code}")

    def _failure(self, reason: str) -> BrokerError:
        """The error with the last log lines and where the whole log is."""
        lines = "\n  ".join(self.data.last_log_lines(_LOG_LINES)) or "(nothing)"
        log_file = self.data.log_file if self.data.log_file.exists() else self.data.output_file
        if self.temporary:
            log_file = self._save_log()
        return BrokerError(
            f"Kafka {self.version} did not start: {reason}.\nIts last log lines:\n  {lines}\n"
            f"The whole log: {log_file}"
        )

    def _save_log(self) -> Path:
        with tempfile.NamedTemporaryFile(
            prefix="tidewheel-broker-", suffix=".log", delete=False
        ) as saved:
            for file in (self.data.output_file, self.data.log_file):
                with contextlib.suppress(FileNotFoundError):
                    saved.write(file.read_bytes())
        return Path(saved.name)


def new_cluster_id() -> str:
    """A random id of the form Kafka makes: 16 bytes in URL-safe base64, no dash in front."""
    while True:
        text = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        if not text.startswith("-"):
            return text
