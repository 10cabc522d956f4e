"""One start of Kafka: format a new folder, or fence the last run; start Java, wait until the broker answers."""

import base64
import contextlib
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidewheel.streams.broker import wire
from tidewheel.streams.broker.broker_errors import BrokerError, PortTakenError
from tidewheel.streams.broker.class_archive import ClassArchive
from tidewheel.streams.broker.data_dir import DataDir
from tidewheel.streams.broker.guarded_process import GuardedProcess
from tidewheel.streams.broker.java import Java
from tidewheel.streams.broker.server_config import (
    FENCING_SESSION_MS,
    client_listener,
    fencing_properties,
)
from tidewheel.streams.broker.wire import split_address

HOST = "127.0.0.1"
"""The only address the development broker listens on: it has no passwords."""


_POLL_SECONDS = 0.02
_LOG_LINES = 20
_ACTIVE = "Performing controller activation"
_FENCED = "Replayed BrokerRegistrationChangeRecord"
_NOT_FENCED = "DUPLICATE_BROKER_REGISTRATION"
_FENCING_SECONDS = (2.0, 10.0, 40.0)
"""After its session a run is fenced in some milliseconds. On a busy machine the controller takes longer: each attempt has more time."""
_PORT_TAKEN_SIGNS = ("Address already in use", "BindException")


def choose_ports(port: int | None, last: tuple[int, int] | None) -> tuple[int, int]:
    """Ports for clients and for the controller: the given one, else the last ones, else free ones.

    Args:
        port: The one the user wants for clients.
        last: Those of the last start on the same data; taken again if they are free.
    """
    # Held open together, so that the two are never the same.
    with socket.socket() as first, socket.socket() as second:
        first.bind((HOST, 0))
        second.bind((HOST, 0))
        for_clients, for_controller = int(first.getsockname()[1]), int(second.getsockname()[1])
    if last is not None and is_free(last[0]):
        for_clients = last[0]
    if port is not None:
        for_clients = port
    if last is not None and last[1] != for_clients and is_free(last[1]):
        for_controller = last[1]
    return for_clients, for_controller


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` now."""
    with socket.socket() as probe:
        # As Java does: a port that only has old connections winding down is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def is_listening(address: str) -> bool:
    """Whether someone accepts connections at `host:port`."""
    try:
        with socket.create_connection(split_address(address), timeout=1):
            return True
    except OSError:
        return False


class _LastRunNotFencedError(Exception):
    """The controller believes that the last run is still there."""


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
            return self._start_broker(properties, cluster_id)
        fencing = fencing_properties(properties)
        for patience_s in _FENCING_SECONDS:
            was_fenced = self._fence_last_run(fencing, patience_s)
            # A slow machine may need longer than that, and what a controller has written when it is stopped may be lost:
            # the broker that starts is told if the last run still counts as alive, and is stopped before it does harm.
            with contextlib.suppress(_LastRunNotFencedError):
                return self._start_broker(properties, cluster_id, fenced=True)
            if was_fenced and self.version.startswith("4.0."):
                break  # it gives the last run its whole session even if it was fenced
        return self._start_broker(properties, cluster_id)

    def _start_broker(
        self, properties: Mapping[str, str], cluster_id: str, *, fenced: bool = False
    ) -> LaunchedBroker:
        """Start it; raises `_LastRunNotFencedError` if the last run counts as alive and should have been `fenced`."""
        self.data.start_new_log()
        process = self._run_kafka(self.data, self.archive.making_options())
        try:
            address = self._wait_until_ready(process, properties, cluster_id, fenced=fenced)
        except BaseException:
            process.kill()
            raise
        return LaunchedBroker(process=process, bootstrap_servers=address, cluster_id=cluster_id)

    def _fence_last_run(self, properties: Mapping[str, str], patience_s: float) -> bool:
        """Have the controller take the last run for dead before the broker starts; why, `fencing_properties` says.

        Returns:
            Whether it was seen to: a run that never came so far, or was fenced before, is not there.
        """
        files = self.data.fencing()
        files.write_config(properties)
        process = self._run_kafka(files, self.archive.options())
        try:
            address = properties["listeners"].partition("://")[2]
            return self._fences(process, files, address, patience_s)
        finally:
            process.stop()

    def _fences(
        self, process: GuardedProcess, files: DataDir, address: str, patience_s: float
    ) -> bool:
        """Wait until its log says that it has fenced the last run, or it has had the time; which of both."""
        enough: float | None = None
        for now in self._looks(process, files, address, "its controller was not active"):
            if enough is None and files.log_contains(_ACTIVE):
                enough = now + FENCING_SESSION_MS / 1000 + patience_s
            if enough is not None and files.log_contains(_FENCED, after=_ACTIVE):
                return True
            if enough is not None and now > enough:
                return False
        raise AssertionError("looking ends with an error")

    def _run_kafka(self, files: DataDir, archive_options: Sequence[str]) -> GuardedProcess:
        """Start Kafka with the settings that lie there."""
        return GuardedProcess(
            [
                *self._java(files, f"-Xmx{self.heap_mb}m", "-XX:+ExitOnOutOfMemoryError"),
                *archive_options,
                *self.jvm_options,
                "-cp",
                self._class_path(),
                "kafka.Kafka",
                str(files.properties_file),
            ],
            output=files.output_file,
            lock_fd=self.data.lock_fd,
            orphaned_dir=self.data.path if self.temporary else None,
            grace_ms=self.stop_timeout_ms,
        )

    def _java(self, files: DataDir, *options: str) -> list[str]:
        return [
            str(self.java.executable),
            # The quickest to start of all collectors, and no worse for a heap this small.
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={files.log4j_file.as_uri()}",
            *options,
        ]

    def _class_path(self) -> str:
        return ":".join(str(jar) for jar in self.jars)

    def _format(self, cluster_id: str) -> None:
        """Kafka's own tool writes what a new node needs, the features of its version included."""
        command = [
            # Too short a program for the optimising compiler to pay.
            *self._java(self.data, "-XX:TieredStopAtLevel=1"),
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
        self,
        process: GuardedProcess,
        properties: Mapping[str, str],
        cluster_id: str,
        *,
        fenced: bool,
    ) -> str:
        """Until this very broker answers; its address."""
        address, plain = client_listener(properties)
        for _ in self._looks(process, self.data, address, f"it did not answer at {address}"):
            if fenced and self.data.log_contains(_NOT_FENCED):
                raise _LastRunNotFencedError
            if plain:
                cluster = wire.describe_cluster(address)
                # Another broker may have got the port first: its cluster has another id.
                ready = cluster is not None and cluster.cluster_id == cluster_id
            else:
                # Without its certificates and passwords nobody can ask it; its log has to do.
                ready = self.data.log_contains("Kafka Server started") and is_listening(address)
            if ready:
                return address
        raise AssertionError("looking ends with an error")

    def _looks(
        self, process: GuardedProcess, files: DataDir, address: str, late: str
    ) -> Iterator[float]:
        """The time at which to look, again and again.

        Raises:
            PortTakenError: It ended because it could not listen.
            BrokerError: It ended, or took too long: `late` says what did not happen.
        """
        deadline = time.monotonic() + self.start_timeout_ms / 1000
        while (now := time.monotonic()) < deadline:
            if not process.is_running:
                raise self._died(process.exit_code, address, files)
            yield now
            time.sleep(_POLL_SECONDS)
        raise self._failure(f"{late} within start_timeout_ms={self.start_timeout_ms}", files)

    def _died(self, exit_code: int | None, address: str, files: DataDir) -> BrokerError:
        if any(files.log_contains(sign) for sign in _PORT_TAKEN_SIGNS):
            return PortTakenError(
                f"Kafka {self.version} could not listen on {address} or its controller's port: "
                "another program took it meanwhile; try again, or choose another port"
            )
        return self._failure(f"it ended with exit code {exit_code}", files)

    def _failure(self, reason: str, files: DataDir | None = None) -> BrokerError:
        """The error with the last log lines and where the whole log is."""
        files = files or self.data
        lines = "\n  ".join(files.last_log_lines(_LOG_LINES)) or "(nothing)"
        log_file = files.log_file if files.log_file.exists() else files.output_file
        if self.temporary:
            log_file = _save_log(files)
        return BrokerError(
            f"Kafka {self.version} did not start: {reason}.\nIts last log lines:\n  {lines}\n"
            f"The whole log: {log_file}"
        )


def _save_log(files: DataDir) -> Path:
    with tempfile.NamedTemporaryFile(
        prefix="tidewheel-broker-", suffix=".log", delete=False
    ) as saved:
        for file in (files.output_file, files.log_file):
            with contextlib.suppress(FileNotFoundError):
                saved.write(file.read_bytes())
    return Path(saved.name)


def new_cluster_id() -> str:
    """A random id of the form Kafka makes: 16 bytes in URL-safe base64, no dash in front."""
    while True:
        text = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        if not text.startswith("-"):
            return text
