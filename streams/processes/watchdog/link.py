"""A worker's connection to its watchdog: the port `tidewheel.tasks.loop.worker_ports.Membership`.

A dead watchdog is replaced, a hung one killed. The worker sends the new one the same `Hello`, then
the last report of each `LASTING` kind; the new watchdog sends its orders again.

    started ──▶ connected ──watchdog dies──▶ waiting (back-off) ──▶ connected
                    └──────── close ──────────────┴──▶ closed
"""

import contextlib
import logging
import math
import os
import selectors
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Self

import msgspec

from tidewheel.rebalance.protocol.orders import (
    LASTING,
    AnyOrder,
    AnyReport,
    LogLine,
    Welcome,
    decode_order,
    encode_line,
)
from tidewheel.streams.processes.child import UNREADABLE, LineReader, LineWriter, WakePipe
from tidewheel.streams.processes.watchdog.hello import Hello, encode_hello
from tidewheel.streams.processes.watchdog.shared_memory import TURN_S, SharedMemory
from tidewheel.streams.processes.watchdog.watchdog_process import WATCHDOG_COMMAND, WatchdogProcess

_log: Final = logging.getLogger("tidewheel.watchdog")

#: Back-off before a watchdog is replaced that died soon after its start; doubled each time.
_BACK_OFF_S: Final = 0.1
_BACK_OFF_MAX_S: Final = 5.0
_HEALTHY_S: Final = 10.0
#: Session timeouts without a turn of a hung watchdog.
_HUNG_SESSIONS: Final = 3
#: Time to send waiting reports when the link is closed.
_LAST_SEND_S: Final = 1.0


class WatchdogLink:
    """One worker's connection to its watchdog, made by `start`.

    Any thread may send reports; only the loop's thread calls `receive_orders`, `progress` and `lease_left_s`.
    """

    def __init__(
        self,
        hello: Hello,
        memory: SharedMemory,
        connection: socket.socket,
        *,
        connect: Callable[[], int] | None,
        process: WatchdogProcess | None,
        woken: Callable[[], None],
        command: Sequence[str],
    ) -> None:
        self._hello = hello
        self._memory = memory
        self._connect = connect
        self._process = process
        self._woken = woken
        self._command = command
        self._orders: deque[AnyOrder] = deque()
        #: Guards `_connection`, `_writer`, `_lasting`, `_closed`.
        self._lock = threading.Lock()
        self._lasting: dict[type[AnyReport], AnyReport] = {}
        self._closed = False
        self._connected_s = time.monotonic()
        self._back_off_s = _BACK_OFF_S
        self._turns, self._turned_s, self._checked_s = 0, 0.0, 0.0
        self._dead_pid = 0
        self._hung_s = _HUNG_SESSIONS * hello.join.session_timeout_ms / 1000
        self._wake = WakePipe()
        with self._lock:
            self._use(connection)
        self._thread = threading.Thread(
            target=self._serve, name="tidewheel-watchdog-link", daemon=True
        )
        self._thread.start()

    @classmethod
    def start(
        cls,
        hello: Hello,
        *,
        fd: int | Callable[[], int] | None = None,
        woken: Callable[[], None],
        command: Sequence[str] = WATCHDOG_COMMAND,
    ) -> Self:
        """Connect a worker to its watchdog.

        Args:
            fd: A connection to a running watchdog (`WatchdogProcess.connect_worker`), owned by this
                object from now on. Or a function that makes one, now and after each death. With None,
                or when a connection's watchdog has died, the link starts its own.
            woken: Called from another thread when orders have arrived; must be short.
        """
        process = None
        connect = fd if callable(fd) else None
        if fd is None:
            process = WatchdogProcess(command)
            connection = process.connect_worker()
        else:
            connection = socket.socket(fileno=fd() if callable(fd) else fd)
        return cls(
            hello,
            SharedMemory.create(),
            connection,
            connect=connect,
            process=process,
            woken=woken,
            command=command,
        )

    @property
    def watchdog_pid(self) -> int | None:
        """Process id of a watchdog that was started here; None if another process started it."""
        return None if self._process is None else self._process.pid

    def receive_orders(self) -> list[AnyOrder]:
        """Return the orders since the last call. Never waits."""
        orders: list[AnyOrder] = []
        while self._orders:
            orders.append(self._orders.popleft())
        return orders

    def send(self, report: AnyReport) -> None:
        """Send a report. Never waits. A `LASTING` report is sent again to the next watchdog."""
        line = encode_line(report)
        with self._lock:
            if self._closed:
                return
            if isinstance(report, LASTING):
                self._lasting[type(report)] = report
            self._send(line)

    def progress(self) -> None:
        self._memory.bump()

    def show_call(self, since_ns: int) -> None:
        self._memory.show_call(since_ns, time.monotonic_ns())

    def lease_left_s(self) -> float:
        """Return the seconds in which new work may begin: infinite before the first lease."""
        until_ns = self._memory.lease_ns
        return (until_ns - time.monotonic_ns()) / 1e9 if until_ns else math.inf

    def close(self, timeout_s: float = 5.0) -> None:
        """Send waiting reports and wait for the end of a watchdog started here. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._writer.finish(_LAST_SEND_S)
        self._wake.wake()
        self._thread.join()
        if self._process is not None:
            self._process.close(timeout_s)
        for part in (self._connection, self._wake, self._memory):
            part.close()

    # -- sending; the lock is held -----------------------------------------------------------------

    def _use(self, connection: socket.socket) -> None:
        """Begin a connection: send the shared memory, the `Hello` and the `LASTING` reports."""
        connection.setblocking(False)
        self._connection = connection
        self._writer = LineWriter(connection)
        with contextlib.suppress(OSError):
            socket.send_fds(connection, [b"\0"], [self._memory.fd])
        self._send(encode_hello(self._hello))
        for kind in LASTING:
            if kind in self._lasting:
                self._send(encode_line(self._lasting[kind]))

    def _send(self, line: bytes) -> None:
        if not self._writer.send(line):
            self._wake.wake()

    # -- the link's thread -------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            self._receive()
            if self._closed:
                return
            self._dead_pid, _ = self._memory.watchdog
            _log.warning("the watchdog is gone; connecting to another")
            self._reconnect()

    def _receive(self) -> None:
        reader = LineReader(self._connection)
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            selector.register(self._connection, selectors.EVENT_READ)
            while not self._closed:
                write = selectors.EVENT_WRITE if self._writer.has_unsent else 0
                selector.modify(self._connection, selectors.EVENT_READ | write)
                ready = {key.fileobj: events for key, events in selector.select(TURN_S)}
                self._kill_hung_watchdog()
                if self._wake in ready:
                    self._wake.drain()
                events = ready.get(self._connection, 0)
                if events & selectors.EVENT_WRITE:
                    self._writer.flush()
                if events & selectors.EVENT_READ:
                    lines, ended = reader.read()
                    self._accept_orders(lines)
                    if ended:
                        return

    def _kill_hung_watchdog(self) -> None:
        now_s = time.monotonic()
        pid, turns = self._memory.watchdog
        was_paused = now_s - self._checked_s > 2 * TURN_S  # perhaps both
        if turns != self._turns or was_paused:
            self._turns, self._turned_s = turns, now_s
        elif now_s - self._turned_s > self._hung_s and pid != self._dead_pid:
            _log.error("the watchdog has not run for %.0f s; killing it", now_s - self._turned_s)
            self._dead_pid = pid
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._checked_s = now_s

    def _accept_orders(self, lines: list[bytes]) -> None:
        for line in lines:
            try:
                order = decode_order(line)
            except UNREADABLE as error:
                _log.error("a message of the watchdog is not an order and is skipped: %s", error)
                continue
            if isinstance(order, LogLine):
                logging.getLogger(order.name).log(order.level, "%s", order.text)
                continue
            if isinstance(order, Welcome):
                self._hello = msgspec.structs.replace(self._hello, welcomed=True)
            self._orders.append(order)
        if lines:
            self._woken()

    def _reconnect(self) -> None:
        if time.monotonic() - self._connected_s >= _HEALTHY_S:
            self._back_off_s = _BACK_OFF_S
        else:
            self._pause()
        while not self._closed:
            try:
                connection = self._next_connection()
            except OSError as error:
                _log.error("can't start a watchdog: %s; trying again", error)
                self._pause()
                continue
            self._connected_s = time.monotonic()
            with self._lock:
                if self._closed:
                    connection.close()
                    return
                self._writer.close()
                self._use(connection)
            return

    def _next_connection(self) -> socket.socket:
        if self._connect is not None:
            return socket.socket(fileno=self._connect())
        if self._process is not None:
            self._process.close(0)
        self._process = WatchdogProcess(self._command)
        return self._process.connect_worker()

    def _pause(self) -> None:
        deadline_s = time.monotonic() + self._back_off_s
        self._back_off_s = min(self._back_off_s * 2, _BACK_OFF_MAX_S)
        while not self._closed and time.monotonic() < deadline_s:
            time.sleep(0.02)
