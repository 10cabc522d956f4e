"""A real single-node Kafka for development and tests."""

import logging
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from tidewheel.streams.broker import wire
from tidewheel.streams.broker.broker_errors import BrokerError, BrokerSettingError, PortTakenError
from tidewheel.streams.broker.class_archive import ClassArchive
from tidewheel.streams.broker.data_dir import DataDir
from tidewheel.streams.broker.jars import DEFAULT_VERSION, JarCache
from tidewheel.streams.broker.java import find_java
from tidewheel.streams.broker.launch import HOST, Launch, LaunchedBroker, choose_ports, is_free
from tidewheel.streams.broker.server_config import check_listeners, server_properties

_PORT_ATTEMPTS = 3
_POLL_SECONDS = 0.1
#: Java heap in MiB: the default, and the least with which Kafka starts.
HEAP_MB: Final = 512
HEAP_MB_LEAST: Final = 64

_logger = logging.getLogger(__name__)


class RunningBroker(Protocol):
    @property
    def bootstrap_servers(self) -> str: ...

    def create_topics(self, topics: Mapping[str, int]) -> tuple[str, ...]:
        """Create topics, given partitions by name; return the names of new ones."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalBroker:
    """A Kafka that runs already; it is neither started nor stopped here."""

    bootstrap_servers: str

    def create_topics(self, topics: Mapping[str, int]) -> tuple[str, ...]:
        return wire.create_topics(self.bootstrap_servers.split(",")[0], topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class _BrokerRun:
    broker: LaunchedBroker
    archive: ClassArchive
    data: DataDir
    temporary: bool
    owner_pid: int

    def end(self, *, crash: bool = False) -> None:
        # After a fork two processes have this object, and the broker belongs to the older one.
        if os.getpid() != self.owner_pid:
            return
        try:
            if crash:
                self.broker.process.kill()
            else:
                self.broker.process.stop()
        finally:
            self.archive.keep(self.broker.process.exit_code)
            self.data.unlock()
            if self.temporary and not crash:
                shutil.rmtree(self.data.path, ignore_errors=True)


class KafkaBroker:
    """A real Apache Kafka on this machine: one node in KRaft mode, reachable from here only.

    The first start fetches Kafka's jars (45 MB) through Maven or PySpark's Ivy into the user's
    cache. Later starts take two to four seconds. The broker stops with the `with` block, with
    `stop()`, and when this process exits, crashes or is killed.

        with KafkaBroker() as broker:
            config = StreamsConfig(bootstrap_servers=broker.bootstrap_servers, ...)

    Args:
        version: The Kafka version, 4.0.0 or newer. Checksums of the default one are built in.
        properties: Settings of the broker (`server.properties`), which replace our defaults. To try
            security, map the listener named `BROKER` to another protocol.
        data_dir: Folder of data and logs. Started again there, the broker has the same topics,
            cluster id and, if they are free, ports. Default: a temporary folder that `stop()`
            deletes.
        port: The port for clients; default: a free one.
        heap_mb: Java heap in MiB.
        jvm_options: More options for Java, such as `-XX:...` or `-D...`.
        start_timeout_ms: Limit until the broker answers; a busy machine took over a minute. Waits
            are logged.
        stop_timeout_ms: Time for the stop; then the broker is killed.
        verify_jars: Compare the checksums of all jars before the start, not only sizes.
        show_progress: Draw a progress bar while fetching; default: stderr is a terminal.

    Raises:
        UnknownVersionError: The version is malformed or too old.
        BrokerSettingError: The heap is too small, or the listeners don't fit one node.
    """

    def __init__(
        self,
        *,
        version: str = DEFAULT_VERSION,
        properties: Mapping[str, str | int | bool] | None = None,
        data_dir: Path | str | None = None,
        port: int | None = None,
        heap_mb: int = HEAP_MB,
        jvm_options: Sequence[str] = (),
        start_timeout_ms: int = 900_000,
        stop_timeout_ms: int = 15_000,
        verify_jars: bool = False,
        show_progress: bool | None = None,
    ) -> None:
        self.version = version
        self._properties = dict(properties or {})
        self._temporary = data_dir is None
        self._data = None if data_dir is None else DataDir(Path(data_dir).expanduser().absolute())
        self._port = port
        self._heap_mb = heap_mb
        self._jvm_options = tuple(jvm_options)
        self._start_timeout_ms = start_timeout_ms
        self._stop_timeout_ms = stop_timeout_ms
        self._verify_jars = verify_jars
        self._show_progress = show_progress
        self._cache = JarCache(version)
        if heap_mb < HEAP_MB_LEAST:
            raise BrokerSettingError(
                f"a Java heap of {heap_mb} MiB is too small for Kafka: give heap_mb (--heap-mb) {HEAP_MB_LEAST} or "
                f"more, or leave it out for {HEAP_MB}"
            )
        check_listeners(
            server_properties(port=0, controller_port=0, log_dir=Path(), overrides=self._properties)
        )
        self._run: _BrokerRun | None = None
        self._finalizer: weakref.finalize[[], KafkaBroker] | None = None

    def __repr__(self) -> str:
        where = "not running" if self._run is None else self._run.broker.bootstrap_servers
        return f"<KafkaBroker {self.version}, {where}>"

    @property
    def bootstrap_servers(self) -> str:
        return self._launched().bootstrap_servers

    @property
    def cluster_id(self) -> str:
        return self._launched().cluster_id

    @property
    def pid(self) -> int:
        return self._launched().process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code of a broker that ended without `stop()`; None while it runs."""
        return self._launched().process.exit_code

    @property
    def is_running(self) -> bool:
        return self._run is not None and self._run.broker.process.is_running

    @property
    def data_dir(self) -> Path:
        return self._folder().path

    @property
    def log_file(self) -> Path:
        return self._folder().log_file

    def start(self) -> Self:
        """Fetch Kafka if needed, start it, and return when it answers.

        Raises:
            JavaError: There is no Java that can run Kafka.
            FetchError: The jars could not be fetched.
            PortTakenError: The given port is in use.
            DataDirInUseError: Another broker runs on the data folder.
            BrokerError: Kafka did not start; the message has its last log lines.
        """
        if self._run is not None:
            raise BrokerError(f"{self!r} is running already; stop() it before starting it again")
        if self._port is not None and not is_free(self._port):
            raise _port_taken(self._port)
        java = find_java()
        jars = self._cache.ensure(
            lambda: java, verify=self._verify_jars, show_progress=self._show_progress
        )
        archive = ClassArchive(self._cache.archives, java, jars)
        if self._data is None:
            self._data = DataDir(Path(tempfile.mkdtemp(prefix="tidewheel-broker-")))
        data = self._data
        data.lock(self.version)
        launch = Launch(
            version=self.version,
            java=java,
            jars=jars,
            archive=archive,
            data=data,
            temporary=self._temporary,
            heap_mb=self._heap_mb,
            jvm_options=self._jvm_options,
            start_timeout_ms=self._start_timeout_ms,
            stop_timeout_ms=self._stop_timeout_ms,
        )
        try:
            broker = self._start_on_free_ports(launch)
        except BaseException:
            data.unlock()
            self._delete_temporary_data()
            raise
        self._run = _BrokerRun(
            broker=broker,
            archive=archive,
            data=data,
            temporary=self._temporary,
            owner_pid=os.getpid(),
        )
        self._finalizer = weakref.finalize(self, self._run.end)
        return self

    def stop(self) -> None:
        """Stop the broker and delete temporary data. Idempotent."""
        self._end(crash=False)
        self._delete_temporary_data()

    def kill(self) -> None:
        """Kill the broker as a crash would; `start()` brings it back with its data.

        The next start on this data takes one or two seconds longer: a Kafka controller first
        fences this broker. Otherwise an open transaction might never get its commit markers.
        """
        self._end(crash=True)

    def wait(self, timeout_ms: int) -> bool:
        """Wait until the broker ends; return False after the timeout."""
        deadline = time.monotonic() + timeout_ms / 1000
        while self.is_running:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def create_topics(self, topics: Mapping[str, int]) -> tuple[str, ...]:
        return wire.create_topics(self.bootstrap_servers, topics)

    def last_log_lines(self, count: int = 20) -> list[str]:
        return self._folder().last_log_lines(count)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _launched(self) -> LaunchedBroker:
        if self._run is None:
            raise BrokerError(f"{self!r}: start() it first, or use it in a `with` block")
        return self._run.broker

    def _folder(self) -> DataDir:
        if self._data is None:
            raise BrokerError(f"{self!r} has no data folder yet: start() makes a temporary one")
        return self._data

    def _start_on_free_ports(self, launch: Launch) -> LaunchedBroker:
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            port, controller_port = choose_ports(self._port, launch.data.last_ports())
            properties = server_properties(
                port=port,
                controller_port=controller_port,
                log_dir=launch.data.log_dir,
                overrides=self._properties,
            )
            try:
                broker = launch.start(properties)
            except PortTakenError:
                if self._port is not None and not is_free(self._port):
                    raise _port_taken(self._port) from None
                if attempt == _PORT_ATTEMPTS:
                    raise
                _logger.info("port %d or %d was just taken; trying others", port, controller_port)
            else:
                launch.data.remember(self.version, port, controller_port)
                return broker
        raise AssertionError("the last attempt returns or raises")

    def _end(self, *, crash: bool) -> None:
        if self._run is None:
            return
        if self._finalizer is not None:
            self._finalizer.detach()
        run, self._run = self._run, None
        run.end(crash=crash)

    def _delete_temporary_data(self) -> None:
        if self._temporary and self._data is not None:
            shutil.rmtree(self._data.path, ignore_errors=True)
            self._data = None


def _port_taken(port: int) -> PortTakenError:
    return PortTakenError(
        f"port {port} of {HOST} is in use by another program (perhaps another broker); "
        "stop that, give another port, or none to have a free one picked"
    )
