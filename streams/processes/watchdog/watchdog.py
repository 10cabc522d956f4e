"""The watchdog of one host program: serves its workers, and runs their part in the group.

One thread serves the sockets, one runs the group runtime. The end of a worker's socket or process
shows its death; a stopped progress counter shows a hang. When the program and all its workers are
gone, the runtime sends its last messages and the process ends.
"""

import logging
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from tidewheel.rebalance.protocol.naming import display_name
from tidewheel.rebalance.protocol.orders import LogLine
from tidewheel.rebalance.runtime.leadership import Executors, LeaderPorts
from tidewheel.rebalance.runtime.runtime import GroupRuntime, RuntimeSettings
from tidewheel.streams.console_log import (
    UNREACHABLE_LOGGER,
    LogLevel,
    configure_logging,
    forward_logs,
)
from tidewheel.streams.kafka.admin.group_log import KafkaGroupAdmin, KafkaGroupLog
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.processes.child import WakePipe
from tidewheel.streams.processes.watchdog.assignor_process import Assignors
from tidewheel.streams.processes.watchdog.hello import Hello
from tidewheel.streams.processes.watchdog.shared_memory import TURN_S
from tidewheel.streams.processes.watchdog.worker_socket import WorkerSocket

_log: Final = logging.getLogger("tidewheel.watchdog")

#: Time for the group runtime to send the workers' last messages after the program has ended.
_GOODBYE_MS: Final = 3_000
_GOODBYE_GRACE_S: Final = 3.0
_FENCE_THREADS: Final = 16


class SystemMonotonicClock:
    """The machine's monotonic clock, equal in all processes: workers read lease times by it."""

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class Watchdog:
    """Serves workers until the intake and all connections are closed.

    Args:
        intake: Socket on which each byte comes with the descriptor of a new worker's connection.
    """

    def __init__(self, intake: socket.socket) -> None:
        intake.setblocking(False)
        self._intake: socket.socket | None = intake
        self._selector = selectors.DefaultSelector()
        self._wake = WakePipe()
        self._selector.register(intake, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._workers: list[WorkerSocket] = []
        self._runtime: GroupRuntime | None = None
        self._thread: threading.Thread | None = None

    def run(self) -> bool:
        """Serve until all workers are gone; return True if the group runtime ended in order."""
        while self._intake is not None or self._workers:
            if self._thread is not None and not self._thread.is_alive():
                return False
            for worker in self._workers:
                worker.count_turn()
                write = selectors.EVENT_WRITE if worker.has_unsent else 0
                self._selector.modify(worker, selectors.EVENT_READ | write, worker)
            for key, events in self._selector.select(TURN_S):
                self._serve(key, events)
        return self._finish()

    def _serve(self, key: selectors.SelectorKey, events: int) -> None:
        if key.fileobj is self._wake:
            self._wake.drain()
        elif key.fileobj is self._intake:
            self._accept_worker()
        elif isinstance(key.data, WorkerSocket) and key.data in self._workers:
            worker = key.data
            if events & selectors.EVENT_WRITE:
                worker.flush()
            if events & selectors.EVENT_READ:
                self._receive(worker, is_dead=key.fd == worker.pid_fd)

    # -- workers -----------------------------------------------------------------------------------

    def _accept_worker(self) -> None:
        assert self._intake is not None, "registered only while it is open"
        fds: list[int] = []
        try:
            data, fds, _, _ = socket.recv_fds(self._intake, 1, 1)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._selector.unregister(self._intake)
            self._intake.close()
            self._intake = None
            return
        for fd in fds:
            worker = WorkerSocket(socket.socket(fileno=fd), self._wake.wake)
            self._workers.append(worker)
            self._selector.register(worker, selectors.EVENT_READ, worker)

    def _receive(self, worker: WorkerSocket, *, is_dead: bool) -> None:
        had_hello = worker.hello is not None
        try:
            reports, ended = worker.receive()
        except msgspec.MsgspecError as error:
            _log.error("the first message of a worker can't be read: %s", error)
            self._close(worker)
            return
        if worker.hello is not None and not had_hello:
            self._add_member(worker, worker.hello)
        if self._runtime is not None:
            for report in reports:
                self._runtime.report(worker.incarnation, report)
        if ended or is_dead:
            if worker.hello is not None and self._runtime is not None and not worker.closed:
                reason = "its process has ended" if is_dead else "its connection has ended"
                join = worker.hello.join
                _log.info("%s, process %d: %s", display_name(join), join.pid, reason)
                self._runtime.died(worker.incarnation, reason)
            self._close(worker)

    def _add_member(self, worker: WorkerSocket, hello: Hello) -> None:
        if self._runtime is None:
            # The workers report unreachable brokers.
            levels: dict[str, LogLevel] = {UNREACHABLE_LOGGER: "error", **hello.log_levels}
            if hello.log_format is None:
                # The program has its own logging, with its own handlers.
                forward_logs(hello.log_level, _ToWorkers(self._workers), levels)
            else:
                configure_logging(hello.log_level, hello.log_format, levels=levels)
            # Callbacks of clients (`oauth_cb`) are imported by name.
            sys.path += [path for path in hello.import_path if path not in sys.path]
            self._runtime = make_runtime(hello)
            self._thread = threading.Thread(
                target=self._run_runtime, name="tidewheel-group", daemon=True
            )
            self._thread.start()
        self._runtime.add(
            hello.join,
            worker,
            heartbeat_interval_ms=hello.heartbeat_interval_ms,
            hang_timeout_ms=hello.worker_hang_timeout_ms,
            max_call_ms=hello.max_call_ms or None,
            welcomed=hello.welcomed,
        )
        if worker.pid_fd is not None:
            self._selector.register(worker.pid_fd, selectors.EVENT_READ, worker)

    def _close(self, worker: WorkerSocket) -> None:
        self._workers.remove(worker)
        self._selector.unregister(worker)
        if worker.pid_fd is not None:
            self._selector.unregister(worker.pid_fd)
        worker.close()

    # -- the runtime -------------------------------------------------------------------------------

    def _run_runtime(self) -> None:
        assert self._runtime is not None, "made before its thread"
        try:
            self._runtime.run()
        except BaseException:  # noqa: BLE001 - logged, and ends the process
            _log.exception("the group's runtime failed; another watchdog will be started")
            # The runtime's state can't be trusted. Workers notice the end and start a new watchdog.
            logging.shutdown()
            os._exit(1)
        finally:
            self._wake.wake()

    def _finish(self) -> bool:
        if self._runtime is None or self._thread is None:
            return True
        self._runtime.finish(_GOODBYE_MS)
        self._thread.join(_GOODBYE_MS / 1000 + _GOODBYE_GRACE_S)
        return not self._thread.is_alive()


def make_runtime(hello: Hello) -> GroupRuntime:
    join = hello.join
    settings = ClientSettings(
        bootstrap_servers=hello.bootstrap_servers,
        application_id=join.app,
        client_id=hello.client_id,
        consumer=hello.consumer,
        producer=hello.producer,
        admin=hello.admin,
    )
    admin = KafkaGroupAdmin(settings)
    return GroupRuntime(
        lambda: KafkaGroupLog(settings, replication_factor=hello.replication_factor),
        ports=LeaderPorts(
            fencer=admin,
            ends=admin,
            assign=Assignors(
                join.assignor, hello.assignor_timeout_ms / 1000, hello.import_path
            ).assign,
            executors=Executors(
                leader=ThreadPoolExecutor(1, "tidewheel-leader"),
                fences=ThreadPoolExecutor(_FENCE_THREADS, "tidewheel-fence"),
                asks=ThreadPoolExecutor(2, "tidewheel-ask"),
            ),
        ),
        settings=RuntimeSettings(
            app=join.app,
            # A new id at each start: a watchdog that replaces a dead one is a new leader candidate.
            process_id=f"{join.process_id}-{os.urandom(4).hex()}",
            heartbeat_interval_ms=hello.heartbeat_interval_ms,
            session_timeout_ms=join.session_timeout_ms,
            jitter_seed=int.from_bytes(os.urandom(4), "big"),
            coordinator=msgspec.structs.replace(hello.coordinator, assignor=join.assignor),
        ),
        clock=SystemMonotonicClock(),
        was_used=admin.was_used,
    )


class _ToWorkers(logging.Handler):
    """Sends log lines to the first worker that is there; drops them when all are gone."""

    def __init__(self, workers: Sequence[WorkerSocket]) -> None:
        super().__init__()
        self._workers = workers

    def emit(self, record: logging.LogRecord) -> None:
        for worker in list(self._workers)[:1]:
            worker.order(
                [LogLine(name=record.name, level=record.levelno, text=self.format(record))]
            )
