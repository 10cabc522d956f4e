"""`KafkaStreams`: runs a topology. Wires the parts together and decides nothing about records."""

import logging
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Protocol, runtime_checkable

from rebalance.assignors.fixed import fixed_tasks
from rebalance.model import TaskId
from state_stores.factory import committed_store
from state_stores.ports import Database
from state_stores.rocksdb.shared_resources import SharedResources
from state_stores.rocksdb.task_database import TaskDatabase
from state_stores.state_directory import StateDirectory
from streams.assembly import TaskFactory, error_handlers
from streams.config import StreamsConfig
from streams.durations import to_ms
from streams.errors import ConfigError, FencedError, InvalidStateStoreError, StreamsError
from streams.global_stores import RunningGlobalStores
from streams.kafka.clients import KafkaClients
from streams.run_options import RunOptions
from streams.states import KafkaStreamsState, legal
from streams.task_info import TaskInfo, task_info
from streams.topic_info import KafkaTopics
from streams.topics import prepare_topics
from streams.topology import Topology, given_topology
from tasks.errors import GlobalStoreDamagedError
from tasks.internal_topics import ApplicationPlan, changelog_topic
from tasks.lifecycle import TaskState
from tasks.ports import Admin
from tasks.state_updater import RestoreEvent
from tasks.stream_worker import StreamWorker
from tasks.worker_ports import WorkerPorts, WorkerSettings

_log = logging.getLogger("tidewheel")

#: Called with (new state, old state).
StateListener = Callable[[KafkaStreamsState, KafkaStreamsState], None]

#: Called with the error that ended a worker; "replace_thread" starts it again, anything else shuts down.
UncaughtExceptionHandler = Callable[
    [BaseException], Literal["replace_thread", "shutdown_client"] | None
]

#: How long a worker waits before it is started again by "replace_thread".
_REPLACE_WAIT_S = 1.0

#: Global stores that are damaged again so soon after they were made anew are not to be trusted any more.
_WIPE_AGAIN_S = 60.0


@runtime_checkable
class RestoreListener(Protocol):
    """Told how restoring goes on.

    >>> class Progress:
    ...     def on_restore(self, event: RestoreEvent) -> None:
    ...         print(event.store, event.restored)
    >>> isinstance(Progress(), RestoreListener)
    True
    """

    def on_restore(self, event: RestoreEvent) -> None:
        """Called from the restoring thread: keep it short."""
        ...


class SystemClock:
    """The real clocks of this machine."""

    def now_ms(self) -> int:
        """Return ms since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return seconds that never jump."""
        return time.monotonic()


class KafkaStreams:
    """Runs a topology in this process: state in RocksDB, input and output in Kafka.

    >>> from streams import KafkaStreams, StreamsBuilder, StreamsConfig
    >>> builder = StreamsBuilder()
    >>> _ = builder.stream("in", key_serde=bytes, value_serde=bytes).to("out", key_serde=bytes, value_serde=bytes)
    >>> app = KafkaStreams(builder.build(), StreamsConfig(application_id="copy", bootstrap_servers="localhost:9092"))
    >>> app.state
    <KafkaStreamsState.CREATED: 'CREATED'>

    `run()` is the usual way: it starts, waits for SIGTERM or SIGINT, commits and closes.
    """

    def __init__(
        self, topology: Topology, config: StreamsConfig, *, options: RunOptions | None = None
    ) -> None:
        self._topology = topology = given_topology(topology, "KafkaStreams")
        self._config = config
        self._options = options or RunOptions()
        self._spec = topology.spec(config)
        self._topology_hash = bytes.fromhex(topology.hash())[:8]
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._state = KafkaStreamsState.CREATED
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._state_listener: StateListener | None = None
        self._exception_handler: UncaughtExceptionHandler | None = None
        self._restore_listener: Callable[[RestoreEvent], None] | None = None
        self._worker: StreamWorker | None = None
        self._globals: RunningGlobalStores | None = None
        #: The next start makes the global stores anew; when that was done last.
        self._wipe_globals = False
        self._wiped_globals_s = -_WIPE_AGAIN_S
        self._paused = False
        self._clock = SystemClock()
        self._started_s = 0.0
        if self._options.tasks is not None and config.group_instance_id is None:
            raise ConfigError(
                "tasks chosen by hand (--tasks) need group_instance_id, so that two processes with different tasks "
                "don't fence each other; set it to a name of this process"
            )

    # -- what users ask --------------------------------------------------------------------------------------------

    @property
    def state(self) -> KafkaStreamsState:
        """Return what the application is doing."""
        return self._state

    @property
    def error(self) -> BaseException | None:
        """Return what ended the application, or None."""
        return self._error

    def set_state_listener(self, listener: StateListener) -> None:
        """Call `listener(new, old)` at every change of state; set it before `start`."""
        self._state_listener = listener

    def set_uncaught_exception_handler(self, handler: UncaughtExceptionHandler) -> None:
        """Let `handler(error)` decide about an error that ended the worker; set it before `start`.

        "replace_thread" starts the worker again from what is committed (never after `FencedError`); any other answer
        ends the application with state ERROR.
        """
        self._exception_handler = handler

    def set_restore_listener(
        self, listener: RestoreListener | Callable[[RestoreEvent], None]
    ) -> None:
        """Tell `listener` (its `on_restore`, or itself) how restoring goes on; set it before `start`."""
        self._restore_listener = (
            listener.on_restore if isinstance(listener, RestoreListener) else listener
        )

    def start(self) -> None:
        """Start in the background; returns at once. Raises `StreamsError` if it was started before."""
        with self._lock:
            if self._thread is not None:
                raise StreamsError("KafkaStreams was started before; make a new one to run again")
            self._thread = threading.Thread(target=self._main, name="tidewheel-worker", daemon=True)
        self._move_to(KafkaStreamsState.REBALANCING)
        self._started_s = self._clock.monotonic_s()
        self._thread.start()

    def close(self, timeout: timedelta | int | None = None, leave_group: bool = True) -> bool:  # noqa: ARG002 - for groups
        """Commit, close tasks and clients; return whether that was done within `timeout` (ms or timedelta).

        `leave_group` has no effect under fixed assignment. None waits as long as it takes. Idempotent.
        """
        self._stop.set()
        if self._worker is not None:
            self._worker.stop()
        if self._thread is None:
            self._move_to(KafkaStreamsState.PENDING_SHUTDOWN)
            self._move_to(KafkaStreamsState.NOT_RUNNING)
            return True
        self._move_to(KafkaStreamsState.PENDING_SHUTDOWN)
        if self._thread is threading.current_thread() or self._thread.ident is None:
            return False  # called by a listener or handler: the worker goes on closing when that returns
        self._thread.join(None if timeout is None else to_ms(timeout) / 1000)
        return not self._thread.is_alive()

    def run(self) -> None:
        """Start, wait for SIGTERM or SIGINT, commit and close. Raises what ended the application, if an error did.

        Raises `StreamsError` too if closing takes longer than `drain_timeout_ms` (no broker answers, or user code does
        not return); what was not committed by then is processed again by the next start.
        """
        previous = self._take_signals()
        try:
            self.start()
            self.wait()
            if not self.close(timeout=self._config.drain_timeout_ms):
                raise StreamsError(
                    f"application {self._config.application_id} could not commit and close within "
                    f"{self._config.drain_timeout_ms} ms; see whether the brokers are reachable and user code returns, or "
                    "raise drain_timeout_ms. What was not committed is processed again at the next start"
                )
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        if self._error is not None:
            raise self._error

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the application is asked to stop or ends by itself; return whether it did."""
        with self._changed:
            return self._changed.wait_for(self._ending, timeout_s)

    def wait_until_running(self, timeout_s: float) -> bool:
        """Wait until the application is RUNNING; return False when it ended first or the time is up."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._state is KafkaStreamsState.RUNNING or self._ending(), timeout_s
            )
            return self._state is KafkaStreamsState.RUNNING

    def _ending(self) -> bool:
        return self._stop.is_set() or self._state in (
            KafkaStreamsState.NOT_RUNNING,
            KafkaStreamsState.ERROR,
        )

    def stop(self) -> None:
        """Ask the application to stop, without waiting; safe in a signal handler's thread."""
        self._stop.set()
        if self._worker is not None:
            self._worker.stop()
        threading.Thread(target=self._notify, name="tidewheel-notify", daemon=True).start()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def pause(self) -> None:
        """Stop processing; tasks, state and commits stay."""
        self._set_paused(True)

    def resume(self) -> None:
        """Go on processing after `pause`."""
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        self._paused = paused
        if self._worker is not None:
            self._worker.paused = paused

    def tasks(self) -> list[TaskInfo]:
        """Return the tasks of this process."""
        worker = self._worker
        if worker is None:
            return []
        lags = worker.lags()
        return [task_info(task, lags) for _, task in sorted(worker.tasks.items())]

    def store(self, name: str, *, stale: bool = False) -> Any:  # noqa: ARG002 - for standbys
        """Return a read-only view of a store over this process's running tasks: what is committed, never less.

        It is a `ReadOnlyKeyValueStore`, `ReadOnlyWindowStore`, `ReadOnlySessionStore` or
        `ReadOnlyVersionedKeyValueStore`, as the store is.

        Args:
            name: The store.
            stale: Also ask copies of the store; this version has none.

        Raises:
            InvalidStateStoreError: There is no such store, or (when reading) no running task of it here.
        """
        if any(each.store.name == name for each in self._spec.global_stores):
            if self._globals is None:
                raise InvalidStateStoreError(
                    f"global store {name} is not open yet; wait until the application is RUNNING"
                )
            return self._globals.stores.views[name]
        for subtopology in self._spec.subtopologies:
            for spec in subtopology.stores:
                if spec.name == name:
                    topic = changelog_topic(self._config.application_id, name)
                    return committed_store(
                        spec, topic, partial(self._databases, subtopology.id, name)
                    )
        known = ", ".join(self._topology.store_names) or "none"
        raise InvalidStateStoreError(f"the topology has no store {name} (stores: {known})")

    def _databases(self, subtopology: int, store: str) -> list[Database]:
        worker = self._worker
        if worker is None:
            return []
        databases: list[Database] = []
        for task_id, task in sorted(worker.tasks.items()):
            if task_id.subtopology == subtopology and task.state is TaskState.RUNNING:
                with suppress(KeyError):  # it is being closed just now
                    databases.append(task.stores.database(store))
        return databases

    def metrics(self) -> dict[str, Any]:
        """Return the figures of this process: rates and totals since the start, lag, commit times, restore progress.

        Times are ms, rates records per second.
        """
        worker, globals_ = self._worker, self._globals
        elapsed_s = (
            max(self._clock.monotonic_s() - self._started_s, 1e-9) if self._started_s else 0.0
        )
        figures: dict[str, Any] = {"state": self._state.value, "uptime-ms": int(elapsed_s * 1000)}
        if globals_ is not None:
            figures["global-stores"] = globals_.metrics()
        if worker is None:
            return figures
        counters, updater = worker.metrics, worker.updater
        lags = worker.lags()
        figures.update(
            {
                "poll-records-total": counters.consumed,
                "process-total": counters.processed,
                "process-rate": counters.processed / elapsed_s if elapsed_s else 0.0,
                "commit-total": counters.commits,
                "commit-latency-avg": counters.commit_s / counters.commits * 1000
                if counters.commits
                else 0.0,
                "commit-latency-max": counters.commit_s_max * 1000,
                "rolled-back-total": counters.rolled_back,
                "records-lag": sum(lags.values()),
                "restore-total": 0 if updater is None else updater.restored_records,
                "restore-remaining-records-total": 0
                if updater is None
                else updater.remaining_records,
                "tasks": {
                    str(task_id): task.metrics() for task_id, task in sorted(worker.tasks.items())
                },
                "lag": {str(partition): lag for partition, lag in sorted(lags.items())},
            }
        )
        return figures

    # -- the worker's thread ---------------------------------------------------------------------------------------

    def _main(self) -> None:
        while True:
            try:
                with ExitStack() as stack:
                    self._work(stack)
            except BaseException as error:  # noqa: BLE001 - kept, shown by state and raised by run()
                try:
                    replaced = self._replaces(error)
                except Exception:  # noqa: BLE001 - logged, and the application shuts down
                    _log.exception("the uncaught exception handler failed; shutting down")
                    replaced = False
                if replaced:
                    continue
                self._error = error
                self._move_to(KafkaStreamsState.PENDING_ERROR)
                self._move_to(KafkaStreamsState.ERROR)
                return
            break
        self._move_to(KafkaStreamsState.PENDING_SHUTDOWN)
        self._move_to(KafkaStreamsState.NOT_RUNNING)

    def _replaces(self, error: BaseException) -> bool:
        """Log what ended the worker; return whether it is to be started again."""
        _log.error("the worker ended: %s", error, exc_info=not isinstance(error, StreamsError))
        if isinstance(error, GlobalStoreDamagedError) and self._may_wipe_globals():
            _log.warning("wiping the global stores and restoring them from their topics")
            self._wipe_globals = True
            self._move_to(KafkaStreamsState.REBALANCING)
            return True
        if isinstance(error, FencedError) or self._exception_handler is None or self._stop.is_set():
            return False
        if self._exception_handler(error) != "replace_thread":
            return False
        self._move_to(KafkaStreamsState.REBALANCING)
        return not self._stop.wait(_REPLACE_WAIT_S)

    def _may_wipe_globals(self) -> bool:
        """Return whether damaged global stores are restored once more: not again and again on a broken disk."""
        now_s = self._clock.monotonic_s()
        again = now_s - self._wiped_globals_s < _WIPE_AGAIN_S
        self._wiped_globals_s = now_s
        return not again and not self._stop.is_set()

    def _work(self, stack: ExitStack) -> None:
        config = self._config
        for caution in config.cautions():
            _log.warning("%s", caution)
        clients = KafkaClients(
            bootstrap_servers=config.bootstrap_servers,
            application_id=config.application_id,
            consumer=config.consumer,
            producer=config.producer,
            admin=config.admin,
        )
        slot = self._take_slot(stack)
        admin: Admin = clients.admin()
        stack.callback(admin.close)
        plan = prepare_topics(
            self._spec,
            config,
            admin,
            options=self._options,
            topology_hash=self._topology_hash,
            stopped=self._stop,
            clock=self._clock,
        )
        if plan is None:
            return
        assigned = self._assigned(plan)
        _log.info(
            "application %s, slot %d, %s: tasks %s, state in %s",
            config.application_id,
            slot.slot,
            config.processing_guarantee,
            ", ".join(map(str, sorted(assigned))) or "none",
            slot.path,
        )
        databases = len(assigned) + bool(plan.global_stores)
        resources = SharedResources.create(config.rocksdb, databases=databases)

        def open_database(path: Path, families: list[str]) -> TaskDatabase:
            return TaskDatabase.open(path, families, config.rocksdb, resources)

        self._globals = None
        if plan.global_stores:
            if self._wipe_globals:
                slot.remove_global_directory()
                self._wipe_globals = False
            self._globals = RunningGlobalStores(
                plan,
                config,
                slot,
                open_database=open_database,
                make_reader=clients.global_reader,
                admin=admin,
                clock=self._clock,
                on_event=self._restored,
            )
            if not self._globals.restore(stack, self._stop):
                return
        make_task = TaskFactory(
            plan=plan,
            config=config,
            directory=lambda task_id: slot.task_directory(str(task_id)),
            open_database=open_database,
            now_ms=self._clock.now_ms,
            global_stores={} if self._globals is None else self._globals.stores.views,
        )
        worker = StreamWorker(
            plan,
            assigned,
            self._settings(slot),
            self._ports(clients, admin, slot),
            make_task=make_task,
            wipe=lambda task: slot.remove_task_directory(str(task.task_id)),
            on_restore=self._restored,
            on_running=self._on_running,
            housekeep=lambda: self._clean(slot, assigned),
            watch=self._check_globals,
        )
        worker.paused = self._paused
        self._worker = worker
        if self._stop.is_set():
            worker.stop()
        worker.run()

    def _check_globals(self) -> None:
        if self._globals is not None:
            self._globals.check()

    def _clean(self, slot: StateDirectory, assigned: frozenset[TaskId]) -> None:
        removed = slot.clean_obsolete(
            {str(task) for task in assigned},
            older_than_ms=self._config.state_cleanup_delay_ms,
            now_ms=int(self._clock.monotonic_s() * 1000),
        )
        if removed:
            _log.info("removed state of tasks that are no longer here: %s", ", ".join(removed))

    def _take_slot(self, stack: ExitStack) -> StateDirectory:
        config = self._config
        slot = StateDirectory.acquire(
            Path(config.state_dir),
            config.application_id,
            slot=self._options.slot,
            exclusive=config.state_dir_exclusive,
        )
        stack.callback(slot.close)
        for holder in slot.others:
            _log.warning(
                "slot %d of %s is held by %s; taking slot %d",
                holder.slot,
                slot.path.parent,
                holder,
                slot.slot,
            )
        return slot

    def _assigned(self, plan: ApplicationPlan) -> frozenset[TaskId]:
        chosen = self._options.tasks
        if chosen is None:
            return fixed_tasks(
                plan.tasks, slot=self._options.slot or 0, workers=self._options.workers
            )
        unknown = sorted(set(chosen).difference(plan.tasks))
        if unknown:
            raise ConfigError(
                f"--tasks names {', '.join(map(str, unknown))}, but the application's tasks are "
                f"{', '.join(map(str, plan.tasks))}"
            )
        return frozenset(chosen)

    def _transactional_id(self, slot: int) -> str:
        config = self._config
        instance = "" if config.group_instance_id is None else f"{config.group_instance_id}-"
        return f"{config.application_id}-fixed-{instance}{slot}"

    def _settings(self, slot: StateDirectory) -> WorkerSettings:
        config = self._config
        return WorkerSettings(
            application_id=config.application_id,
            transactional_id=self._transactional_id(slot.slot),
            siblings=self._options.workers - 1,
            topology_hash=self._topology_hash,
            commit_interval_ms=config.commit_interval_ms,
            cache_max_bytes=config.statestore_cache_max_bytes,
            uncommitted_max_bytes=config.statestore_uncommitted_max_bytes,
            buffered_bytes_per_partition=config.buffered_bytes_per_partition,
            buffered_records_per_partition=config.buffered_records_per_partition,
            max_poll_records=config.max_poll_records,
            repartition_purge_interval_ms=config.repartition_purge_interval_ms,
            auto_offset_reset=config.auto_offset_reset,
            handlers=error_handlers(config),
        )

    def _ports(self, clients: KafkaClients, admin: Admin, slot: StateDirectory) -> WorkerPorts:
        config = self._config
        transactional_id = self._transactional_id(slot.slot)
        timeout_ms = config.worker_hang_timeout_ms + 30_000
        return WorkerPorts(
            make_source=clients.source,
            make_producer=lambda: clients.transactional_producer(transactional_id, timeout_ms),
            make_sink_producer=clients.sink_producer
            if config.processing_guarantee == "at_least_once"
            else None,
            make_reader=clients.changelog_reader,
            admin=admin,
            topics=KafkaTopics(admin),
            clock=self._clock,
        )

    def _restored(self, event: RestoreEvent) -> None:
        if event.kind in ("start", "end"):
            _log.info(
                "store %s: restore %s, %s-%d offsets %d to %d, %d records",
                event.store, event.kind, event.topic, event.partition, event.start, event.end, event.restored,
            )  # fmt: skip
        if self._restore_listener is not None:
            self._restore_listener(event)

    def _on_running(self, running: bool) -> None:
        self._move_to(KafkaStreamsState.RUNNING if running else KafkaStreamsState.REBALANCING)

    # -- state -----------------------------------------------------------------------------------------------------

    def _move_to(self, state: KafkaStreamsState) -> None:
        """Go to another state, log it and tell the listener; a move that is not legal from here is left out."""
        with self._changed:
            old = self._state
            if not legal(old, state):
                return
            self._state = state
            self._changed.notify_all()
        _log.info("state %s -> %s", old.value, state.value, extra={"state": state.value})
        if self._state_listener is not None:
            try:
                self._state_listener(state, old)
            except Exception:  # noqa: BLE001 - logged; listeners are told, not asked
                # Nothing a listener does may stop the worker, or hide why it stopped.
                _log.exception("the state listener failed at %s -> %s", old.value, state.value)

    def _take_signals(self) -> dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}
        return {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGTERM, signal.SIGINT)
        }

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.stop()
