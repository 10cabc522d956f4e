"""A real single-node Kafka for development and tests: fetched, started, watched and stopped."""

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
from typing import Final, Self

from streams.broker import wire
from streams.broker.class_archive import ClassArchive
from streams.broker.data_dir import DataDir
from streams.broker.errors import BrokerError, BrokerSettingError, PortTakenError
from streams.broker.jars import DEFAULT_VERSION, JarCache
from streams.broker.java import find_java
from streams.broker.launch import Launch, LaunchedBroker
from streams.broker.ports import HOST, choose_ports, is_free
from streams.broker.server_config import check_listeners, server_properties

_PORT_ATTEMPTS = 3
_POLL_SECONDS = 0.1
#: Memory of the Java heap in MiB, unless told otherwise, and the least that Kafka starts with.
HEAP_MB: Final = 512
HEAP_MB_LEAST: Final = 64

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What one start has made and one stop has to undo."""

    broker: LaunchedBroker
    archive: ClassArchive
    data: DataDir
    temporary: bool
    owner_pid: int

    def end(self, *, crash: bool = False) -> None:
        """Stop the broker and let go of its folder, which is deleted if it is temporary."""
        # After a fork both processes hold this object, but the broker belongs to the older one.
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

    The first start fetches Kafka's jars (45 MB) through Maven or the Ivy that PySpark ships, into a
    cache of the user's; the first broker that stops leaves Java's archive of its classes there, with
    which a start takes two to four seconds. The broker stops with the `with` block, with
    `stop()`, and also if this process exits, crashes or is killed.

        with KafkaBroker() as broker:
            config = StreamsConfig(bootstrap_servers=broker.bootstrap_servers, ...)

    Args:
        version: The Kafka version, 4.0.0 or newer. Checksums of the default one are built in.
        properties: Settings of the broker (`server.properties`); they win over our own. To try
            security, map the listener named `BROKER` to another protocol.
        data_dir: Where data and logs are kept. Started again there, the broker has its topics,
            its cluster id and, if they are free, its ports back. Not given: a temporary folder
            that `stop()` deletes.
        port: The port for clients; by default a free one.
        heap_mb: Memory of the Java heap, in MiB.
        jvm_options: More options for Java, such as `-XX:...` or `-D...`.
        start_timeout_ms: Limit until the broker answers. A start on a busy machine took over a minute.
        stop_timeout_ms: How long it may take to stop before it is killed.
        verify_jars: Read all jars and compare their checksums before the start, not only sizes.
        show_progress: Draw a progress bar while fetching; by default if stderr is a terminal.

    Raises:
        UnknownVersionError: `version` is none that this broker can run.
        BrokerSettingError: The heap is too small, or the listeners can't be those of one node.
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
        start_timeout_ms: int = 180_000,
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
        self._run: _Run | None = None
        self._finalizer: weakref.finalize[[], KafkaBroker] | None = None

    def __repr__(self) -> str:
        where = "not running" if self._run is None else self._run.broker.bootstrap_servers
        return f"<KafkaBroker {self.version}, {where}>"

    @property
    def bootstrap_servers(self) -> str:
        """What clients connect to, `host:port`.

        Raises:
            BrokerError: The broker has not been started.
        """
        return self._launched().bootstrap_servers

    @property
    def cluster_id(self) -> str:
        """The id of the cluster; it stays the same with a kept data folder."""
        return self._launched().cluster_id

    @property
    def pid(self) -> int:
        """The process id of Kafka's Java."""
        return self._launched().process.pid

    @property
    def exit_code(self) -> int | None:
        """How a broker ended that nobody stopped; None while it runs."""
        return self._launched().process.exit_code

    @property
    def is_running(self) -> bool:
        """Whether the broker was started and its process lives."""
        return self._run is not None and self._run.broker.process.is_running

    @property
    def data_dir(self) -> Path:
        """The folder of data and logs.

        Raises:
            BrokerError: It is a temporary one, which exists only from start to stop.
        """
        return self._folder().path

    @property
    def log_file(self) -> Path:
        """Kafka's own log."""
        return self._folder().log_file

    def start(self) -> Self:
        """Fetch Kafka if need be, start it, and return once it answers.

        Raises:
            JavaError: There is no Java that can run Kafka.
            FetchError: The jars are not here and could not be fetched.
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
        self._run = _Run(
            broker=broker,
            archive=archive,
            data=data,
            temporary=self._temporary,
            owner_pid=os.getpid(),
        )
        self._finalizer = weakref.finalize(self, self._run.end)
        return self

    def stop(self) -> None:
        """Stop the broker, and delete its data if they are temporary. Harmless when not running."""
        self._end(crash=False)
        self._delete_temporary_data()

    def kill(self) -> None:
        """End the broker as a crash would; its data stay, and `start()` brings it back.

        As after `stop()`, the next start takes one or two seconds longer: before the broker its controller is started alone,
        to take the last run for dead. Without that Kafka loses the end of a transaction that was being committed.
        """
        self._end(crash=True)

    def wait(self, timeout_ms: int) -> bool:
        """Wait until the broker has ended by itself; False if it runs on."""
        deadline = time.monotonic() + timeout_ms / 1000
        while self.is_running:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def create_topics(self, topics: Mapping[str, int]) -> tuple[str, ...]:
        """Create topics, given partitions by name; returns the names that were new.

        Raises:
            BrokerError: A topic could not be created; names topic and reason.
        """
        return wire.create_topics(self.bootstrap_servers, topics)

    def last_log_lines(self, count: int = 20) -> list[str]:
        """The end of Kafka's log, and of what Java printed if it printed anything."""
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
        """Start; again with other ports if one was taken between the look and the start."""
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
        """Also what `kill()` left, which only a start or a stop can end."""
        if self._temporary and self._data is not None:
            shutil.rmtree(self._data.path, ignore_errors=True)
            self._data = None


def _port_taken(port: int) -> PortTakenError:
    return PortTakenError(
        f"port {port} of {HOST} is in use by another program (perhaps another broker); "
        "stop that, give another port, or none to have a free one picked"
    )
