"""Looks after the workers of one host program: takes them in, notices their death, gives them a part in the group.

One thread serves the sockets, one is the group's runtime. A worker's death is seen by the end of its socket or of its
process, whichever comes first; a hang by its progress counter. When the program and all its workers are gone, what is
left to say is said, and the process ends.
"""

import contextlib
import logging
import os
import selectors
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from tidewheel.rebalance.runtime.leadership import Executors, LeaderPorts
from tidewheel.rebalance.runtime.runtime import GroupRuntime, RuntimeSettings
from tidewheel.streams.console_log import configure_logging
from tidewheel.streams.kafka.admin.group_log import KafkaGroupAdmin, KafkaGroupLog
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.processes.watchdog.assignor_process import Assignors
from tidewheel.streams.processes.watchdog.hello import Hello
from tidewheel.streams.processes.watchdog.worker_line import WorkerLine

_log: Final = logging.getLogger("tidewheel.watchdog")

#: How long the last words may take, once the program is gone.
_GOODBYE_MS: Final = 3_000
_GOODBYE_GRACE_S: Final = 3.0
_FENCES_AT_ONCE: Final = 16


class MonotonicClock:
    """The machine's clock since its start: the same in all its processes, so leases can be passed on."""

    def now_ms(self) -> int:
        """Return milliseconds."""
        return time.monotonic_ns() // 1_000_000


class Watchdog:
    """Serves workers that come through an intake, until that and all of them are gone.

    Args:
        intake: Each byte that comes brings the descriptor of a worker's connection.
    """

    def __init__(self, intake: socket.socket) -> None:
        intake.setblocking(False)
        self._intake: socket.socket | None = intake
        self._selector = selectors.DefaultSelector()
        self._wake_reading, self._wake_writing = socket.socketpair()
        for each in (self._wake_reading, self._wake_writing):
            each.setblocking(False)
        self._selector.register(intake, selectors.EVENT_READ)
        self._selector.register(self._wake_reading, selectors.EVENT_READ)
        self._lines: list[WorkerLine] = []
        self._runtime: GroupRuntime | None = None
        self._thread: threading.Thread | None = None

    def run(self) -> bool:
        """Serve; return whether the group's runtime ended in order."""
        while self._intake is not None or self._lines:
            if self._thread is not None and not self._thread.is_alive():
                return False
            for line in self._lines:
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.has_unsent else 0)
                self._selector.modify(line, wanted, line)
            for key, events in self._selector.select():
                self._serve(key, events)
        return self._say_goodbye()

    def _serve(self, key: selectors.SelectorKey, events: int) -> None:
        if key.fileobj is self._wake_reading:
            with contextlib.suppress(BlockingIOError):
                self._wake_reading.recv(512)
        elif key.fileobj is self._intake:
            self._take_in()
        elif isinstance(key.data, WorkerLine) and key.data in self._lines:
            line = key.data
            if events & selectors.EVENT_WRITE:
                line.flush()
            if events & selectors.EVENT_READ:
                self._listen(line, dead=key.fd == line.pid_fd)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_writing.send(b"\0")

    # -- workers ---------------------------------------------------------------------------------------------------

    def _take_in(self) -> None:
        """Accept a worker, or notice that there will be no more."""
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
            line = WorkerLine(socket.socket(fileno=fd), self._wake)
            self._lines.append(line)
            self._selector.register(line, selectors.EVENT_READ, line)

    def _listen(self, line: WorkerLine, *, dead: bool) -> None:
        """Take in what a worker said; `dead` if its process is known to be."""
        was_known = line.hello is not None
        try:
            reports, ended = line.receive()
        except msgspec.MsgspecError as error:
            _log.error("a worker's first words can't be read: %s", error)
            self._let_go(line)
            return
        if line.hello is not None and not was_known:
            self._welcome(line, line.hello)
        if self._runtime is not None:
            for report in reports:
                self._runtime.report(line.incarnation, report)
        if ended or dead:
            if line.hello is not None and self._runtime is not None and not line.closed:
                reason = "its process has ended" if dead else "its line has ended"
                _log.warning("worker %s: %s", line.incarnation, reason)
                self._runtime.died(line.incarnation, reason)
            self._let_go(line)

    def _welcome(self, line: WorkerLine, hello: Hello) -> None:
        if self._runtime is None:
            configure_logging(hello.log_level, hello.log_format)
            # Callbacks of clients (`oauth_cb`) are given by name.
            sys.path += [each for each in hello.import_path if each not in sys.path]
            self._runtime = make_runtime(hello)
            self._thread = threading.Thread(
                target=self._run_runtime, name="tidewheel-group", daemon=True
            )
            self._thread.start()
        self._runtime.add(
            hello.join,
            line,
            heartbeat_interval_ms=hello.heartbeat_interval_ms,
            hang_timeout_ms=hello.worker_hang_timeout_ms,
            max_call_ms=hello.max_call_ms or None,
            welcomed=hello.welcomed,
        )
        if line.pid_fd is not None:
            self._selector.register(line.pid_fd, selectors.EVENT_READ, line)

    def _let_go(self, line: WorkerLine) -> None:
        self._lines.remove(line)
        self._selector.unregister(line)
        if line.pid_fd is not None:
            self._selector.unregister(line.pid_fd)
        line.close()

    # -- the runtime -----------------------------------------------------------------------------------------------

    def _run_runtime(self) -> None:
        assert self._runtime is not None, "made before its thread"
        try:
            self._runtime.run()
        except BaseException:  # noqa: BLE001 - logged, and ends the process
            _log.exception("the group's runtime failed; another watchdog will be started")
            # Nothing of it can be trusted: workers notice at once and start another.
            logging.shutdown()
            os._exit(1)
        finally:
            self._wake()

    def _say_goodbye(self) -> bool:
        if self._runtime is None or self._thread is None:
            return True
        self._runtime.finish(_GOODBYE_MS)
        self._thread.join(_GOODBYE_MS / 1000 + _GOODBYE_GRACE_S)
        return not self._thread.is_alive()


def make_runtime(hello: Hello) -> GroupRuntime:
    """Return the runtime of the group that a worker belongs to."""
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
                fences=ThreadPoolExecutor(_FENCES_AT_ONCE, "tidewheel-fence"),
                asks=ThreadPoolExecutor(2, "tidewheel-ask"),
            ),
        ),
        settings=RuntimeSettings(
            app=join.app,
            # New at each start: a watchdog that replaces a dead one is another candidate.
            process_id=f"{join.process_id}-{os.urandom(4).hex()}",
            heartbeat_interval_ms=hello.heartbeat_interval_ms,
            session_timeout_ms=join.session_timeout_ms,
            jitter_seed=int.from_bytes(os.urandom(4), "big"),
            coordinator=msgspec.structs.replace(hello.coordinator, assignor=join.assignor),
        ),
        clock=MonotonicClock(),
        was_used=admin.was_used,
    )
