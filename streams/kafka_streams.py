"""`KafkaStreams`: runs a topology."""

import logging
import math
import signal
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.config.streams_config import checked_config
from tidewheel.streams.console_log import enable_loggers
from tidewheel.streams.definitions.checks import check_environment, check_flag, check_series
from tidewheel.streams.definitions.isolation_level import IsolationLevel, checked_isolation_level
from tidewheel.streams.durations import to_ms
from tidewheel.streams.errors import ApplicationShutdownError, ConfigError, StreamsError
from tidewheel.streams.group.key_metadata import (
    KeyQueryMetadata,
    PartitionerWithHeaders,
    StreamsMetadata,
)
from tidewheel.streams.serdes import SerdeLike
from tidewheel.streams.topology.topology import Topology, checked_topology
from tidewheel.streams.worker.application import departing
from tidewheel.streams.worker.application.application import Application, SystemClock, Telemetry
from tidewheel.streams.worker.application.application_state import (
    ENDED,
    SIGNALS_S,
    ApplicationState,
    KafkaStreamsState,
    StateListener,
)
from tidewheel.streams.worker.application.life_hooks import LifeHooks
from tidewheel.streams.worker.application.memory import FreedMemory, ProcessMemory
from tidewheel.streams.worker.application.record_limit import RecordLimit
from tidewheel.streams.worker.application.run_options import RunOptions
from tidewheel.streams.worker.application.wiring import (
    check_custom_stores,
    make_clients,
)
from tidewheel.streams.worker.application.written_outputs import OutputRecord, WrittenOutputs
from tidewheel.streams.worker.group_membership import Departure
from tidewheel.streams.worker.host_watchdog import HostWatchdog
from tidewheel.streams.worker.listeners import RestoreListener, StandbyUpdateListener, called
from tidewheel.streams.worker.metrics import TaskInfo, figures_of, task_infos
from tidewheel.streams.worker.process_view import ProcessView, RestoreTimes
from tidewheel.streams.worker.queries import store_lags, store_view
from tidewheel.streams.worker.restore_helpers import restore_helpers
from tidewheel.streams.worker.stream_thread import Answer, StreamThread
from tidewheel.streams.worker.topic_setup import spec_of
from tidewheel.tasks.durations import Duration
from tidewheel.tasks.key_ranges.shared_loop import WorkerLoop
from tidewheel.tasks.processing.api.record import Headers
from tidewheel.tasks.processing.api.topology_spec import Partitioner
from tidewheel.tasks.restore.state_updater import RestoreEvent, StandbyUpdateEvent

if TYPE_CHECKING:
    from tidewheel.streams.web.http_server import HttpServer
    from tidewheel.streams.worker.key_directory import GroupDirectory

_log = logging.getLogger("tidewheel")

K = TypeVar("K")
_R = TypeVar("_R")

#: Called with the error that ended a worker. "replace_thread" restarts it, "shutdown_application"
#: ends all workers of the group, other answers end this process's workers.
UncaughtExceptionHandler = Callable[[BaseException], Answer | None]

#: Seconds between two looks at the number of processed records.
_COUNT_S: Final = 0.1
#: Time to close after the drain, slightly less than the supervisor waits before it kills.
_CLOSE_MS: Final = 4_500


class KafkaStreams:
    """Application that runs a topology in this process.

    >>> from tidewheel import KafkaStreams, StreamsBuilder, StreamsConfig
    >>> builder = StreamsBuilder()
    >>> _ = builder.stream("in", key_serde=bytes, value_serde=bytes).to("out", key_serde=bytes, value_serde=bytes)
    >>> app = KafkaStreams(builder.build(), StreamsConfig(application_id="copy", bootstrap_servers="localhost:9092"))
    >>> app.state
    <KafkaStreamsState.CREATED: 'CREATED'>

    Processes with the same `application_id` form one group that shares the tasks. `run()` is the
    usual way: it starts, waits for SIGTERM or SIGINT, moves the tasks to other members, commits and
    closes. Register listeners and handlers first:

    >>> app.set_state_listener(lambda new, old: print(old, "->", new))
    >>> app.set_uncaught_exception_handler(lambda error: "replace_thread")
    >>> app.set_restore_listener(lambda event: print(event.store, event.kind, event.restored))
    >>> app.tasks(), app.local_store_lags(), app.metrics()["state"]
    ([], {}, 'CREATED')
    >>> app.pause([0])  # sub-topology 0 pauses until resume()
    >>> app.close(timeout=1_000)
    CREATED -> PENDING_SHUTDOWN
    PENDING_SHUTDOWN -> NOT_RUNNING
    True
    """

    def __init__(
        self, topology: Topology, config: StreamsConfig, *, options: RunOptions | None = None
    ) -> None:
        topology = checked_topology(topology, "KafkaStreams")
        config = checked_config(config, "KafkaStreams")
        check_environment()
        spec = spec_of(topology, config)
        check_custom_stores(spec, config)
        self._config, self._options = config, options or RunOptions()
        self._state = ApplicationState()
        self._exception_handler: UncaughtExceptionHandler | None = None
        self._restore_listener: Callable[[RestoreEvent], None] | None = None
        self._standby_listener: Callable[[StandbyUpdateEvent], None] | None = None
        self._restore_helpers = restore_helpers(config, self._options)
        self._freed_memory = FreedMemory()
        self._event_loop = WorkerLoop(config.max_calls_in_flight)
        self._hooks = LifeHooks(self._event_loop)
        self._application = Application(
            spec=spec,
            topology_hash=bytes.fromhex(topology.hash()),
            config=config,
            options=self._options,
            state=self._state,
            clock=SystemClock(),
            memory=ProcessMemory(config.rocksdb),
            on_restore=self._restored,
            on_standby_update=self._standby_updated,
            runs=self._restore_helpers,
            telemetry=self._telemetry(),
            event_loop=self._event_loop,
        )
        self._watchdog = HostWatchdog(self._options.watchdog_fd, self._options.process_id)
        #: Guards the attributes below.
        self._lock = threading.RLock()
        self._threads: list[StreamThread] = []
        self._ended: StreamThread | None = None
        self._started = 0
        self._error: BaseException | None = None
        #: Time at which a close without a broker gives up its last commit; None: brokers answer.
        self._gives_up_s: float | None = None
        self._closer: threading.Thread | None = None
        self._group_directory: GroupDirectory | None = None
        telemetry = self._application.telemetry
        self._restore_times = RestoreTimes(
            self._application.clock.monotonic_s, None if telemetry is None else telemetry.restored
        )
        self._http_server: HttpServer | None = None
        self._paused: frozenset[int] = frozenset()
        self._is_in_run = False
        self._started_s = 0.0
        if self._options.tasks is not None and config.group_instance_id is None:
            raise ConfigError(
                "tasks chosen by hand (--tasks) need group_instance_id, so that two processes with different tasks "
                "don't fence each other; set it to a name of this process"
            )

    @property
    def state(self) -> KafkaStreamsState:
        """Return the state."""
        return self._state.current

    @property
    def error(self) -> BaseException | None:
        """Return the error that ended the application, or None."""
        return self._error

    def set_state_listener(self, listener: StateListener) -> None:
        """Call `listener(new, old)` at every state change; set it before `start`."""
        self._state.listener = called(listener, "set_state_listener", "(new, old)")

    def set_uncaught_exception_handler(self, handler: UncaughtExceptionHandler) -> None:
        """Set `handler(error)`, called for an error that ended a worker; set it before `start`.

        "replace_thread" restarts the worker from its committed state (never after `FencedError`).
        "shutdown_application" ends all current workers of the group with state ERROR and
        `ApplicationShutdownError`; with fixed assignment, or before the worker joined, only those
        of this process. Other answers end this process's workers with state ERROR.
        """
        self._exception_handler = called(handler, "set_uncaught_exception_handler", "(error)")

    def set_restore_listener(
        self, listener: RestoreListener | Callable[[RestoreEvent], None]
    ) -> None:
        """Report restores to `listener` (callable, or its `on_restore`); set it before `start`."""
        self._restore_listener = called(listener, "set_restore_listener", "(event)", "on_restore")

    def set_standby_update_listener(
        self, listener: StandbyUpdateListener | Callable[[StandbyUpdateEvent], None]
    ) -> None:
        """Report standby updates to `listener` (callable, or its `on_standby_update`).

        Set it before `start`.
        """
        setter = "set_standby_update_listener"
        self._standby_listener = called(listener, setter, "(event)", "on_standby_update")

    def on_start(self, function: Callable[[], _R]) -> Callable[[], _R]:
        """Call `function()` in `start`, before any task starts; for clients of your functions.

        A coroutine function runs on the event loop that all coroutines of this process share, so a
        client that it opens serves all tasks and key ranges. `start` waits for it; if it fails, the
        application ends with its error, which `start` raises. Returns the function: usable as a
        decorator.

        >>> from tidewheel import KafkaStreams, StreamsBuilder, StreamsConfig
        >>> class Prices:
        ...     async def open(self): self.client = ...  # such as httpx.AsyncClient()
        ...     async def close(self): self.client = None
        ...     async def find(self, value): return value
        >>> prices, builder = Prices(), StreamsBuilder()
        >>> builder.stream("in", key_serde=str, value_serde=str).map_values(prices.find).to("out", value_serde=str)
        >>> app = KafkaStreams(builder.build(), StreamsConfig(application_id="a", bootstrap_servers="b:9092"))
        >>> _ = app.on_start(prices.open)
        >>> _ = app.on_stop(prices.close)
        """
        with self._lock:
            self._check_not_started("on_start")
            self._hooks.add_start(function)
        return function

    def on_stop(self, function: Callable[[], _R]) -> Callable[[], _R]:
        """Call `function()` when all tasks are closed, the last registered first.

        A coroutine function runs on the event loop of `on_start` and has 10 s. An error is logged;
        the other functions run. Not called if `start` was not.

        >>> from tidewheel import KafkaStreams, StreamsBuilder, StreamsConfig
        >>> builder = StreamsBuilder()
        >>> builder.stream("in", key_serde=str, value_serde=str).to("out")
        >>> app = KafkaStreams(builder.build(), StreamsConfig(application_id="a", bootstrap_servers="b:9092"))
        >>> @app.on_stop
        ... def report():
        ...     print("stopped")
        """
        with self._lock:
            self._check_not_started("on_stop")
            self._hooks.add_stop(function)
        return function

    def _check_not_started(self, call: str) -> None:
        if self._started or self.state in ENDED:
            raise StreamsError(f"{call}: the application was started before; call it before start")

    def start(self) -> None:
        """Start in the background, once the functions of `on_start` have returned.

        The HTTP server of `http_port` starts before them.

        Raises:
            StreamsError: It was started or closed before.
            ConfigError: The HTTP server can't listen, or its packages are missing.
            Exception: That of a function of `on_start`.
        """
        with self._lock:
            if self._started:
                raise StreamsError("KafkaStreams was started before; make a new one to run again")
            if self.state in ENDED:
                raise StreamsError("KafkaStreams was closed before; make a new one to run")
            thread = self._new_thread(self._options.slot)
            self._start_http_server(
                thread
            )  # its address is part of the worker's entry in the group
        enable_loggers()
        self._state.move_to(KafkaStreamsState.REBALANCING)
        self._started_s = self._application.clock.monotonic_s()
        if self._application.telemetry is not None:
            self._application.measuring.is_wanted = True
            self._application.telemetry.begin(self.view.families)
        try:
            goes_on = self._hooks.start(self._state.stopping.is_set)
        except BaseException as error:
            thread.error = error
            thread.release_slot()
            self.on_end(thread)
            self.close()
            raise
        if not goes_on:
            thread.release_slot()
            self.on_end(thread)
            return
        self._freed_memory.start()
        thread.start()

    def _telemetry(self) -> Telemetry | None:
        if self._config.telemetry == "none":
            return None
        from tidewheel.streams.telemetry.starting import make_telemetry  # noqa: PLC0415 - needs the extra

        return make_telemetry(self._config.application_id)

    def _start_http_server(self, thread: StreamThread) -> None:
        if self._config.http_port is None:
            return
        from tidewheel.streams.web.serving import serve_view  # noqa: PLC0415 - needs the extra

        # A restarted worker takes its slot again, and so its port.
        slot = thread.claim_slot().slot
        try:
            self._http_server = serve_view(self.view, slot)
        except BaseException:
            thread.release_slot()
            raise

    @property
    def http_url(self) -> str | None:
        """Return the URL of the HTTP server that `http_port` asks for, while it runs."""
        return None if self._http_server is None else self._http_server.url

    @property
    def view(self) -> ProcessView:
        """Return a view of this process for `tidewheel.web`; its content is not public."""
        return ProcessView(
            application=self._application,
            threads=self._shown,
            state=lambda: self.state,
            uptime_s=self._uptime_s,
            tasks=self.tasks,
            metrics=self.metrics,
            group=lambda: self._directory().group(),
            restore_times=self._restore_times,
        )

    def close(self, timeout: Duration | None = None, leave_group: bool = True) -> bool:
        """Commit, close tasks and clients; return True if done within `timeout` (ms, timedelta or text).

        The group reassigns the tasks immediately. With `leave_group=False` they wait
        `rejoin_timeout_ms` for this member (no effect with fixed assignment). None waits without
        limit. Idempotent.
        """
        check_flag(leave_group, "leave_group", "close", error=StreamsError)
        timeout_ms = (
            None if timeout is None else to_ms(timeout, "close: timeout", error=StreamsError)
        )
        return self._end(Departure(rejoin=not leave_group), timeout_ms)

    def drain(self, timeout: Duration | None = None) -> bool:
        """Move the running tasks to other members, then close; return True if done in time.

        Members with fixed assignment and static members (`group_instance_id`) close immediately; the
        tasks of a static member wait for it.

        Args:
            timeout: Time limit of the moves, in ms, as timedelta or as text ("30s"); None: `drain_timeout_ms`.
                Closing may take a few more seconds.
        """
        drain_ms = self._drain_ms(timeout, "drain")
        if self._application.is_fixed:
            return self._end(Departure(), drain_ms + _CLOSE_MS)
        if self._config.group_instance_id is not None:
            return self._end(Departure(rejoin=True), drain_ms + _CLOSE_MS)
        return self._end(Departure(drain_ms=drain_ms), drain_ms + _CLOSE_MS)

    def _drain_ms(self, timeout: Duration | None, call: str) -> int:
        if timeout is None:
            return self._config.drain_timeout_ms
        return to_ms(timeout, f"{call}: timeout", error=StreamsError)

    @overload
    def run(
        self,
        count: int | None = ...,
        timeout: Duration | None = ...,
        collect: Literal[False] = ...,
    ) -> None: ...
    @overload
    def run(
        self,
        count: int | None = ...,
        timeout: Duration | None = ...,
        *,
        collect: Literal[True],
    ) -> list[OutputRecord]: ...
    def run(
        self,
        count: int | None = None,
        timeout: Duration | None = None,
        collect: bool = False,
    ) -> list[OutputRecord] | None:
        """Start, wait for SIGTERM or SIGINT, drain and close.

        A second signal has its original effect and ends the process immediately.

        Args:
            count: Also stop once so many records of input topics are processed, and those that they
                caused in internal topics; a few more may be.
            timeout: Also stop after this time, in ms, as timedelta or as text ("30s").
            collect: Return what the output topics got meanwhile, also from other writers. A notebook
                shows it as a table. Topics that a function chooses are left out.

        Raises the error that ended the application, or `StreamsError` if closing takes too long (no
        broker responds, or user code does not return). The next owner processes uncommitted records again.
        """
        if count is not None and (type(count) is not int or count < 1):
            raise StreamsError(f"run: count={count!r}; give a number of input records, 1 or more")
        limit_s = math.inf
        if timeout is not None:
            limit_s = to_ms(timeout, "run: timeout", error=StreamsError) / 1000
        until_s = self._application.clock.monotonic_s() + limit_s
        check_flag(collect, "collect", "run", error=StreamsError)
        if not collect:
            self._run(count, until_s)
            return None
        clients = make_clients(self._config)
        spec, make_admin = self._application.spec, clients.admin
        outputs = WrittenOutputs(spec, make_admin=make_admin, make_source=clients.source)
        outputs.begin(limit_s)
        self._run(count, until_s)
        return outputs.read()

    def _run(self, count: int | None, until_s: float) -> None:
        self._is_in_run = True
        previous = departing.handle_first_signal(self._state.ask_to_stop)
        try:
            self.start()
            self._wait(count, until_s)
            if not self.drain():
                raise StreamsError(
                    f"application {self._config.application_id} could not commit and close within "
                    f"{self._config.drain_timeout_ms} ms; check that the brokers are reachable and that user code returns, or "
                    "raise drain_timeout_ms. Uncommitted records are processed again at the next start"
                )
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        if self._error is not None:
            raise self._error

    def _wait(self, count: int | None, until_s: float) -> None:
        """Wait for a stop or the end, for the time-out, or until so many records are processed."""
        clock, application = self._application.clock, self._application
        limit = None
        if count is not None:
            limit = RecordLimit(application.spec, count, self._config.commit_interval_ms)
        is_reached = False
        while (left_s := until_s - clock.monotonic_s()) > 0:
            if self.wait(min(left_s, SIGNALS_S if limit is None else _COUNT_S)):
                return
            if limit is None:
                continue
            metrics = self.metrics()
            if not is_reached and limit.is_reached(metrics):
                is_reached = True
                self.pause(limit.pausable)
            if is_reached and limit.is_finished(metrics, clock.monotonic_s()):
                return

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the application is asked to stop or ends; return False at the timeout."""
        return self._state.wait_for_end(timeout_s)

    def wait_until_running(self, timeout_s: float) -> bool:
        """Wait for RUNNING; return False after a stop, an end or the timeout."""
        return self._state.wait_for_running(timeout_s)

    def stop(self) -> None:
        """Request a stop without waiting; safe in a signal handler."""
        self._state.ask_to_stop()
        if not self._is_in_run:  # else `run` drains and closes
            threading.Thread(
                target=lambda: self.close(timeout=0), name="tidewheel-stop", daemon=True
            ).start()

    def pause(self, subtopologies: Iterable[int] | None = None) -> None:
        """Pause processing; tasks, state, commits and membership continue.

        Args:
            subtopologies: Numbers in `describe()`; None: all.

        Raises:
            StreamsError: There is no such sub-topology.
        """
        chosen = self._chosen(subtopologies)
        with self._lock:
            self._set_paused(self._paused | chosen)

    def resume(self, subtopologies: Iterable[int] | None = None) -> None:
        """Resume the sub-topologies with these numbers; arguments and errors as in `pause`."""
        chosen = self._chosen(subtopologies)
        with self._lock:
            self._set_paused(self._paused - chosen)

    def _chosen(self, subtopologies: Iterable[int] | None) -> frozenset[int]:
        all_ids = frozenset(subtopology.id for subtopology in self._application.spec.subtopologies)
        chosen = all_ids
        if subtopologies is not None:
            numbers = check_series(subtopologies, "numbers", "subtopologies", error=StreamsError)
            chosen = frozenset(numbers)
        unknown = sorted(chosen - all_ids, key=str)
        if unknown:
            raise StreamsError(
                f"there is no sub-topology {', '.join(map(str, unknown))}; this topology has "
                f"{', '.join(map(str, sorted(all_ids))) or 'none'} (see topology.describe())"
            )
        return chosen

    def _set_paused(self, paused: frozenset[int]) -> None:
        """Pause these sub-topologies only; the caller holds the lock."""
        self._paused = paused
        for thread in self._threads:
            thread.paused = paused

    def tasks(self) -> list[TaskInfo]:
        """Return the tasks of this process, in every role."""
        workers = [thread.worker for thread in self._shown()]
        return task_infos([worker for worker in workers if worker is not None])

    def store(
        self,
        name: str,
        *,
        stale: bool = False,
        headers: bool = False,
        isolation_level: IsolationLevel
        | Literal["read_committed", "read_uncommitted"]
        | None = None,
    ) -> Any:
        """Return a read-only view of a store over this process's running tasks.

        The type is `ReadOnlyKeyValueStore`, `ReadOnlyWindowStore`, `ReadOnlySessionStore` or
        `ReadOnlyVersionedKeyValueStore`.

        Args:
            stale: Also query copies (standbys, learners), which lag slightly.
            headers: Return `ValueTimestampHeaders`, for session stores `AggregationWithHeaders`.
            isolation_level: "read_uncommitted" includes changes since the last commit; None:
                `default_interactive_query_isolation_level`.

        Raises:
            InvalidStateStoreError: The store does not exist or keeps no headers, or (when reading)
                no running task of it is here.
            QueryTimeoutError: The worker did not return uncommitted rows within
                `interactive_query_timeout_ms`.

        >>> def count_of(app: KafkaStreams, word: str) -> int:
        ...     return app.store("counts").get(word, 0)
        """
        check_flag(stale, "stale", "store", error=StreamsError)
        check_flag(headers, "headers", "store", error=StreamsError)
        if isolation_level is None:
            isolation_level = self._config.default_interactive_query_isolation_level
        level = checked_isolation_level(isolation_level)
        return store_view(
            self._application, self._shown, name, stale=stale, with_headers=headers, level=level
        )

    def local_store_lags(self) -> dict[str, dict[int, int]]:
        """Return known lags by store and partition, in changelog offsets; 0 for running tasks."""
        return store_lags(self._shown())

    def query_metadata_for_key(
        self,
        store: str,
        key: K,
        key_serde: SerdeLike[K],
        *,
        partitioner: Partitioner | PartitionerWithHeaders | None = None,
        headers: Headers = (),
    ) -> KeyQueryMetadata:
        """Return the process that owns a key's state, by its `application_server`.

        The first call reads the group log (a few round trips); later calls read new records only. A
        task may move after the answer: call again if the process raises `InvalidStateStoreError`.

        Args:
            key: Key by which the store's input is partitioned; for a windowed store the inner key.
            partitioner: Custom partitioner of that input, (topic, key, None, partitions) ->
                partition (KIP-67), or with headers: (topic, key, None, headers, partitions).

        Raises:
            InvalidStateStoreError: The store does not exist.
            SerializationError: The serde can't serialise the key.
            StreamsError: The application does not run, has fixed assignment, or the key has no single
                partition.

        >>> def where_is(app: KafkaStreams, user: str) -> str:
        ...     host = app.query_metadata_for_key("counts", user, str).active_host
        ...     return "nowhere now" if host is None else f"http://{host.host}:{host.port}/counts/{user}"
        """
        return self._directory().where_is(store, key, key_serde, partitioner, headers)

    def metadata_for_all_clients(self) -> list[StreamsMetadata]:
        """Return tasks and stores by process; raises as `query_metadata_for_key`."""
        return self._directory().all_clients()

    def metrics(self) -> dict[str, Any]:
        """Return this process's metrics: times in ms, rates per second, totals.

        Totals are those of the present workers and tasks: a restarted worker begins at 0.
        """
        elapsed_s = self._uptime_s()
        figures = {"state": self.state.value, "uptime-ms": int(elapsed_s * 1000)}
        return figures | figures_of(self._shown(), elapsed_s)

    def _uptime_s(self) -> float:
        now_s = self._application.clock.monotonic_s()
        return max(now_s - self._started_s, 1e-9) if self._started_s else 0.0

    def _directory(self) -> "GroupDirectory":
        from tidewheel.streams.worker.key_directory import group_directory  # noqa: PLC0415 - a fast start

        if self._application.is_fixed:
            raise StreamsError(
                "the tasks of this application are placed by hand (fixed assignment), so no group knows their owners; "
                "use your own placement of tasks"
            )
        with self._lock:
            if not self._started or self._state.stopping.is_set():
                raise StreamsError(
                    f"application {self._config.application_id} is {self.state}; where keys are is known from start() "
                    "to close()"
                )
            if self._group_directory is None:
                self._group_directory = group_directory(self._application)
            return self._group_directory

    def add_stream_thread(self) -> str | None:
        """Start another worker in this process: a member with its own slot, producer and tasks.

        Returns its name, or None if the application is not running. Python runs one thread's code at a
        time, so this helps only if user code waits. Otherwise start another process.

        Raises:
            StreamsError: Fixed assignment: the worker would get no tasks.
        """
        if self._application.is_fixed:
            raise StreamsError(
                "add_stream_thread needs a group, but the tasks of this application are placed by hand (fixed assignment)"
            )
        with self._lock:
            if self.state not in (KafkaStreamsState.RUNNING, KafkaStreamsState.REBALANCING):
                return None
            thread = self._new_thread(None)
        thread.start()
        return thread.name

    def remove_stream_thread(self, timeout: Duration | None = None) -> str | None:
        """Drain and end the newest worker; return its name, or None for the last one.

        Called from a worker (a processor, a listener), it does not wait for the end. `timeout` is that
        of `drain`.

        Raises:
            StreamsError: It did not end in time; it continues to close.
        """
        drain_ms = self._drain_ms(timeout, "remove_stream_thread")
        with self._lock:
            staying = [thread for thread in self._threads if not thread.departs]
            if len(staying) < 2:  # noqa: PLR2004 - the last one is ended by `close`
                return None
            thread = staying[-1]
            thread.depart(Departure(drain_ms=drain_ms))
            inside = any(thread.is_current for thread in self._threads)
        waits = (drain_ms / 1000 + departing.RELEASE_S, _CLOSE_MS / 1000)
        if inside:
            threading.Thread(target=thread.wait_for_end, args=waits, daemon=True).start()
        elif not thread.wait_for_end(*waits):
            raise StreamsError(f"{thread.name} could not commit and close within {drain_ms} ms")
        return thread.name

    def _new_thread(self, slot: int | None) -> StreamThread:
        self._started += 1
        thread = StreamThread(
            self._application,
            self._watchdog,
            self,
            name="tidewheel-worker" if self._started == 1 else f"tidewheel-worker-{self._started}",
            preferred_slot=slot,
            alone=self._options.workers == 1 and self._started == 1,
        )
        thread.paused = self._paused
        self._threads.append(thread)
        return thread

    def _shown(self) -> list[StreamThread]:
        with self._lock:
            return list(self._threads) or [*filter(None, [self._ended])]

    def on_running(self) -> None:
        """Set state RUNNING if all worker threads run, else REBALANCING."""
        enable_loggers()  # the program may have called `dictConfig` since the start
        while True:
            running = self._all_run()
            self._state.move_to(
                KafkaStreamsState.RUNNING if running else KafkaStreamsState.REBALANCING
            )
            if self._all_run() is running:  # else a thread changed meanwhile: repeat
                return

    def _all_run(self) -> bool:
        with self._lock:
            return bool(self._threads) and all(thread.running for thread in self._threads)

    def answer_to(self, error: BaseException) -> Answer:
        """Return the user handler's answer to an error; default: "shutdown_client"."""
        handler = self._exception_handler
        answer = None if handler is None else handler(error)
        match answer:
            case "replace_thread" | "shutdown_application":
                return answer
            case _:
                return "shutdown_client"

    def on_shutdown(self, reason: str) -> None:
        """Close this process: another member's handler ended the whole application."""
        if self._state.stopping.is_set():
            return  # already closing
        with self._lock:
            self._error = self._error or ApplicationShutdownError(
                f"member {reason} - its uncaught exception handler has ended the whole application"
            )
        _log.error("%s", self._error)
        self._state.move_to(KafkaStreamsState.PENDING_ERROR)
        self._start_closing(Departure())

    def on_end(self, thread: StreamThread) -> None:
        """Handle a worker's end: the last one ends the application, a failed one all others."""
        with self._lock:
            self._threads.remove(thread)
            self._ended = thread
            last = not self._threads
            if self._error is None:
                self._error = thread.error
            failed = self._error is not None
        if failed:
            self._state.move_to(KafkaStreamsState.PENDING_ERROR)
        if last:
            self._state.move_to(KafkaStreamsState.PENDING_SHUTDOWN)
            self._state.move_to(
                KafkaStreamsState.ERROR if failed else KafkaStreamsState.NOT_RUNNING
            )
        if failed or last:
            self._start_closing(Departure())

    def _end(self, departure: Departure, timeout_ms: int | None) -> bool:
        self._state.stopping.set()
        self._state.move_to(KafkaStreamsState.PENDING_SHUTDOWN)
        with self._lock:
            started = self._started
            inside = any(thread.is_current for thread in self._threads)
        if not started:
            self._state.move_to(KafkaStreamsState.NOT_RUNNING)
        closer = self._start_closing(departure)
        if inside:
            return False  # called by a listener or handler, which must return first
        clock = self._application.clock
        until_s = math.inf if timeout_ms is None else clock.monotonic_s() + timeout_ms / 1000
        while closer.is_alive() and (left_s := until_s - clock.monotonic_s()) > 0:
            closer.join(min(left_s, SIGNALS_S))
            if self._gives_up_s is not None:
                until_s = min(until_s, self._gives_up_s)
        return not closer.is_alive()

    def _start_closing(self, departure: Departure) -> threading.Thread:
        with self._lock:
            if self._closer is None:
                self._closer = threading.Thread(
                    target=self._close, args=(departure,), name="tidewheel-close", daemon=True
                )
                self._closer.start()
            return self._closer

    def _close(self, departure: Departure) -> None:
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.depart(departure)
        if not departing.stop_workers(threads, departure.drain_ms, self._config):
            self._gives_up_s = self._application.clock.monotonic_s() + _CLOSE_MS / 1000
        for thread in threads:
            thread.join(None)
        self._hooks.stop()
        self._event_loop.close()
        self._restore_helpers.close()
        self._freed_memory.close()
        if self._group_directory is not None:
            self._group_directory.close()
        self._watchdog.close()
        if self._http_server is not None:
            self._http_server.close()
        if self._application.telemetry is not None:
            self._application.telemetry.close()

    def _restored(self, event: RestoreEvent) -> None:
        if event.kind in ("start", "end"):
            _log.info(
                "store %s: restore %s, %s-%d offsets %d to %d, %d records",
                event.store, event.kind, event.topic, event.partition, event.start, event.end, event.restored,
            )  # fmt: skip
        self._restore_times.record(event)
        if self._restore_listener is not None:
            self._restore_listener(event)

    def _standby_updated(self, event: StandbyUpdateEvent) -> None:
        if self._standby_listener is not None:
            self._standby_listener(event)
