"""One start of Kafka: formats a new folder or fences the last run, then starts Java."""

import base64
import contextlib
import logging
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

_logger = logging.getLogger(__name__)

#: The broker listens here only, because it has no passwords.
HOST = "127.0.0.1"


_POLL_SECONDS = 0.02
_LOG_LINES = 20
#: Characters of a log line in a report of a slow start.
_SHOWN_MAX = 120
#: Seconds between two log lines about a broker that starts slowly.
_REPORT_SECONDS = 15.0
_ACTIVE = "Performing controller activation"
_FENCED = "Replayed BrokerRegistrationChangeRecord"
_NOT_FENCED = "DUPLICATE_BROKER_REGISTRATION"
#: Seconds to wait, per attempt, until a temporary controller has fenced the last run's broker. That
#: takes milliseconds, but longer on a busy machine.
_FENCING_SECONDS = (2.0, 10.0, 40.0)
_PORT_TAKEN_SIGNS = ("Address already in use", "BindException")


def choose_ports(port: int | None, last: tuple[int, int] | None) -> tuple[int, int]:
    """Return a client and a controller port: the given one, else the last ones, else free ones."""
    # Both sockets are open at the same time, so their ports differ.
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
    with socket.socket() as probe:
        # As Java does: a port with only closing connections is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def is_listening(address: str) -> bool:
    try:
        with socket.create_connection(split_address(address), timeout=1):
            return True
    except OSError:
        return False


class _LastRunNotFencedError(Exception): ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedBroker:
    process: GuardedProcess
    bootstrap_servers: str
    cluster_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The settings for a start on a locked data folder.

    Attributes:
        temporary: The data folder is deleted afterwards, so the log of a failure is saved
            elsewhere.
    """

    version: str
    java: Java
    jars: tuple[Path, ...]
    archive: ClassArchive
    data: DataDir
    temporary: bool
    heap_mb: int
    jvm_options: tuple[str, ...]
    start_timeout_ms: int
    stop_timeout_ms: int

    def start(self, properties: Mapping[str, str]) -> LaunchedBroker:
        self.data.write_config(properties)
        cluster_id = self.data.cluster_id(properties)
        if cluster_id is None:
            cluster_id = new_cluster_id()
            self._format(cluster_id)
            return self._start_broker(properties, cluster_id)
        fencing = fencing_properties(properties)
        for limit_s in _FENCING_SECONDS:
            was_fenced = self._fence_last_run(fencing, limit_s)
            # The controller may have stopped before it fenced the last run, or stored that. Then
            # the new broker logs a duplicate registration: stop it and fence again, waiting longer.
            with contextlib.suppress(_LastRunNotFencedError):
                return self._start_broker(properties, cluster_id, fenced=True)
            if was_fenced and self.version.startswith("4.0."):
                break  # Kafka 4.0 accepts a broker only after the last run's session, fenced or not
        return self._start_broker(properties, cluster_id)

    def _start_broker(
        self, properties: Mapping[str, str], cluster_id: str, *, fenced: bool = False
    ) -> LaunchedBroker:
        """Start the broker.

        With `fenced` (a controller ran before, to fence the last run), raise
        `_LastRunNotFencedError` if the broker logs that the last run is still registered.
        """
        self.data.start_new_log()
        process = self._run_kafka(self.data, self.archive.making_options())
        try:
            address = self._wait_until_ready(process, properties, cluster_id, fenced=fenced)
        except BaseException:
            process.kill()
            raise
        return LaunchedBroker(process=process, bootstrap_servers=address, cluster_id=cluster_id)

    def _fence_last_run(self, properties: Mapping[str, str], limit_s: float) -> bool:
        """Run the controller alone until it has fenced the last run (see `fencing_properties`).

        Return False if no fence was seen: the last run had no registration, or was fenced before.
        """
        files = self.data.fencing()
        files.write_config(properties)
        process = self._run_kafka(files, self.archive.options())
        try:
            address = properties["listeners"].partition("://")[2]
            return self._fences(process, files, address, limit_s)
        finally:
            process.stop()

    def _fences(
        self, process: GuardedProcess, files: DataDir, address: str, limit_s: float
    ) -> bool:
        fence_limit: float | None = None
        for now in self._polls(process, files, address, "its controller was not active"):
            if fence_limit is None and files.log_contains(_ACTIVE):
                fence_limit = now + FENCING_SESSION_MS / 1000 + limit_s
            if fence_limit is not None and files.log_contains(_FENCED, after=_ACTIVE):
                return True
            if fence_limit is not None and now > fence_limit:
                return False
        raise AssertionError("polling ends with an error")

    def _run_kafka(self, files: DataDir, archive_options: Sequence[str]) -> GuardedProcess:
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
            # This collector starts fastest, and suits such a small heap.
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={files.log4j_file.as_uri()}",
            *options,
        ]

    def _class_path(self) -> str:
        return ":".join(str(jar) for jar in self.jars)

    def _format(self, cluster_id: str) -> None:
        command = [
            # This program is too short for the optimising compiler.
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
                done = subprocess.run(  # noqa: S603 - Kafka's own tool, no shell
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
        address, plain = client_listener(properties)
        for _ in self._polls(process, self.data, address, f"it did not answer at {address}"):
            if fenced and self.data.log_contains(_NOT_FENCED):
                raise _LastRunNotFencedError
            if plain:
                cluster = wire.describe_cluster(address)
                # Another broker may have got the port first; its cluster id differs.
                ready = cluster is not None and cluster.cluster_id == cluster_id
            else:
                # Its certificates and passwords are unknown here, so its log is read instead.
                ready = self.data.log_contains("Kafka Server started") and is_listening(address)
            if ready:
                return address
        raise AssertionError("polling ends with an error")

    def _polls(
        self, process: GuardedProcess, files: DataDir, address: str, late: str
    ) -> Iterator[float]:
        """Yield the time at each poll.

        Raise if the process ends, or after `start_timeout_ms`, with `late` as the reason.
        """
        began = time.monotonic()
        deadline = began + self.start_timeout_ms / 1000
        report_at = began + _REPORT_SECONDS
        while (now := time.monotonic()) < deadline:
            if not process.is_running:
                raise self._died(process.exit_code, address, files)
            if now >= report_at:
                report_at = now + _REPORT_SECONDS
                last = "".join(files.last_log_lines(1))[:_SHOWN_MAX] or "it has logged nothing yet"
                _logger.warning("waiting for %.0f s until Kafka answers: %s", now - began, last)
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
    """Return 16 random bytes in URL-safe base64; Kafka refuses a leading dash."""
    while True:
        text = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        if not text.startswith("-"):
            return text
