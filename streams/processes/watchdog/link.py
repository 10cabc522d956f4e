"""The worker's line to its watchdog: the port `tidewheel.tasks.loop.worker_ports.Membership`.

A watchdog that dies is replaced at once: the new one is told the same `Hello`, then what was last said of everything
that still counts; its orders come again.

    started ──▶ connected ──watchdog dies──▶ waiting (back-off) ──▶ connected
                    └──────── close ──────────────┴──▶ closed
"""

import contextlib
import logging
import math
import selectors
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
    Welcome,
    decode_order,
    encode_line,
)
from tidewheel.streams.processes.child import LineReader
from tidewheel.streams.processes.watchdog.hello import Hello, encode_hello
from tidewheel.streams.processes.watchdog.process import WATCHDOG_COMMAND, WatchdogProcess
from tidewheel.streams.processes.watchdog.shared_memory import SharedMemory

_log: Final = logging.getLogger("tidewheel.watchdog")

#: Wait before a watchdog is started again that died soon after its start; doubled each time, up to the maximum.
_AGAIN_S: Final = 0.1
_AGAIN_MAX_S: Final = 5.0
_HEALTHY_S: Final = 10.0


class WatchdogLink:
    """One worker's connection. `take`, `progress` and `lease_left_s` are for its loop thread, `say` for any.

    Make it with `start`.
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
        #: Guards the connection's sending side: `_connection`, `_unsent`, `_lasting`.
        self._lock = threading.Lock()
        self._connection = connection
        self._unsent = bytearray()
        self._lasting: dict[type[AnyReport], AnyReport] = {}
        self._closed = False
        self._began_s = time.monotonic()
        self._again_s = _AGAIN_S
        self._wake_reading, self._wake_writing = socket.socketpair()
        self._wake_reading.setblocking(False)
        self._wake_writing.setblocking(False)
        self._introduce()
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
            hello: Who the worker is.
            fd: A socket to a watchdog that already runs (`WatchdogProcess.adopt`), taken over, or what makes one, now and
                after the watchdog's death. With None, and after the death of one that was given, a watchdog is started here.
            woken: Called from a thread of its own when orders have come: keep it short.
            command: The watchdog program.
        """
        process = None
        connect = fd if callable(fd) else None
        if fd is None:
            process = WatchdogProcess(command)
            connection = process.adopt()
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
        """Return the process that was started here, or None while it is the supervisor's."""
        return None if self._process is None else self._process.pid

    def take(self) -> list[AnyOrder]:
        """Return the orders that came since the last call; never waits."""
        orders: list[AnyOrder] = []
        while self._orders:
            orders.append(self._orders.popleft())
        return orders

    def say(self, report: AnyReport) -> None:
        """Send a report; never waits. What a watchdog that dies did not hear is said to the next one if it still counts."""
        line = encode_line(report)
        with self._lock:
            if self._closed:
                return
            if isinstance(report, LASTING):
                self._lasting[type(report)] = report
            self._send(line)

    def progress(self) -> None:
        """Count one turn of the worker's loop."""
        self._memory.bump()

    def show_call(self, since_ns: int) -> None:
        """Show since when the loop has been in its present call of user code; called by the worker's call watch."""
        self._memory.show_call(since_ns, time.monotonic_ns())

    def lease_left_s(self) -> float:
        """Return for how long new work may begin; infinite before the first lease, not positive when it is over."""
        until_ns = self._memory.lease_ns
        return (until_ns - time.monotonic_ns()) / 1e9 if until_ns else math.inf

    def close(self, timeout_s: float = 5.0) -> None:
        """Say no more, and wait until a watchdog that was started here has said goodbye. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._unsent:
                self._connection.settimeout(1.0)
                with contextlib.suppress(OSError):
                    self._connection.sendall(self._unsent)
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)
        self._wake()
        self._thread.join()
        if self._process is not None:
            self._process.close(timeout_s)
        for each in (self._connection, self._wake_reading, self._wake_writing, self._memory):
            each.close()

    # -- sending ---------------------------------------------------------------------------------------------------

    def _introduce(self) -> None:
        """Begin a new connection: the memory, who we are, and what still counts."""
        hello = encode_hello(self._hello)
        with self._lock:
            self._connection.setblocking(False)
            self._unsent.clear()
            with contextlib.suppress(OSError):
                socket.send_fds(self._connection, [b"\0"], [self._memory.fd])
            self._send(hello)
            for kind in LASTING:
                if kind in self._lasting:
                    self._send(encode_line(self._lasting[kind]))

    def _send(self, line: bytes) -> None:
        """Send a line, or keep what the socket does not take for the link's thread. The lock is held."""
        sent = 0
        if not self._unsent:
            try:
                sent = self._connection.send(line)
            except BlockingIOError:
                pass
            except OSError:  # the watchdog is gone, as the link's thread is about to see
                return
        if sent < len(line):
            self._unsent += line[sent:]
            self._wake()

    def _flush(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            while self._unsent:
                del self._unsent[: self._connection.send(self._unsent)]

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_writing.send(b"\0")

    # -- the link's thread -----------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            self._receive()
            if self._closed:
                return
            _log.warning("the watchdog is gone; connecting to another")
            self._connect_again()

    def _receive(self) -> None:
        """Take in orders until the watchdog or this link ends."""
        reader = LineReader(self._connection)
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_reading, selectors.EVENT_READ)
            selector.register(self._connection, selectors.EVENT_READ)
            while not self._closed:
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
                selector.modify(self._connection, wanted)
                ready = {key.fileobj: events for key, events in selector.select()}
                if self._wake_reading in ready:
                    with contextlib.suppress(BlockingIOError):
                        self._wake_reading.recv(512)
                events = ready.get(self._connection, 0)
                if events & selectors.EVENT_WRITE:
                    self._flush()
                if events & selectors.EVENT_READ:
                    lines, ended = reader.read()
                    self._take_in(lines)
                    if ended:
                        return

    def _take_in(self, lines: list[bytes]) -> None:
        for line in lines:
            try:
                order = decode_order(line)
            except msgspec.MsgspecError as error:
                _log.error("the watchdog said what no order is: %s", error)
                continue
            if isinstance(order, Welcome):
                self._hello = msgspec.structs.replace(self._hello, welcomed=True)
            self._orders.append(order)
        if lines:
            self._woken()

    def _connect_again(self) -> None:
        """Replace the watchdog; tries until it works or the link is closed."""
        if time.monotonic() - self._began_s >= _HEALTHY_S:
            self._again_s = _AGAIN_S
        else:
            self._pause()
        while not self._closed:
            try:
                connection = self._next_connection()
            except OSError as error:
                _log.error("can't start a watchdog: %s; trying again", error)
                self._pause()
                continue
            self._began_s = time.monotonic()
            with self._lock:
                if self._closed:
                    connection.close()
                    return
                self._connection.close()
                self._connection = connection
            self._introduce()
            return

    def _next_connection(self) -> socket.socket:
        if self._connect is not None:
            return socket.socket(fileno=self._connect())
        if self._process is not None:
            self._process.close(0)
        self._process = WatchdogProcess(self._command)
        return self._process.adopt()

    def _pause(self) -> None:
        """Wait a little longer each time, or until the link is closed."""
        deadline_s = time.monotonic() + self._again_s
        self._again_s = min(self._again_s * 2, _AGAIN_MAX_S)
        while not self._closed and time.monotonic() < deadline_s:
            time.sleep(0.02)
