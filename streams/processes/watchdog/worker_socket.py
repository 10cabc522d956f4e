"""One worker's connection, at the watchdog's end."""

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tidewheel.rebalance.protocol.orders import (
    AnyOrder,
    AnyReport,
    WorkerClosed,
    decode_report,
    encode_line,
)
from tidewheel.streams.processes.child import UNREADABLE, LineReader, LineWriter, open_pid_fd
from tidewheel.streams.processes.watchdog.hello import Hello, decode_hello
from tidewheel.streams.processes.watchdog.shared_memory import SharedMemory

_log: Final = logging.getLogger("tidewheel.watchdog")

#: Bytes that may wait for a worker that does not read; it gets dropped orders when it reconnects.
_UNSENT_BYTES_MAX: Final = 16 * 1024 * 1024


class WorkerSocket:
    """The port `tidewheel.rebalance.runtime.ports.WorkerConnection`.

    The group runtime's thread calls the port; all else is for the main thread.

    Args:
        connection: Owned by this object.
        wake: Called from any thread when orders wait for `flush`.

    Attributes:
        hello: None until the worker has sent it.
        closed: The worker has sent `WorkerClosed`.
    """

    def __init__(self, connection: socket.socket, wake: Callable[[], None]) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._wake = wake
        self._reader = LineReader(connection)
        self._writer = LineWriter(connection, _UNSENT_BYTES_MAX)
        self._memory: SharedMemory | None = None
        self.hello: Hello | None = None
        self.pid_fd: int | None = None
        self.closed = False

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def incarnation(self) -> str:
        """The worker's incarnation (its id for this start), or "" before its `Hello`."""
        return "" if self.hello is None else self.hello.join.incarnation

    # -- the port ----------------------------------------------------------------------------------

    def order(self, orders: Sequence[AnyOrder]) -> None:
        if not self._writer.send(b"".join(map(encode_line, orders))):
            self._wake()

    def lease(self, until_ms: int) -> None:
        assert self._memory is not None, "its worker has sent it"
        self._memory.lease_ns = until_ms * 1_000_000

    def progress(self) -> int:
        assert self._memory is not None, "its worker has sent it"
        return self._memory.progress

    def call_since_ms(self, silent_ms: int) -> int | None:
        """Return the start of the present call of user code (monotonic ms), None if there is none.

        The worker's call watch writes it at each check. Without a check for `silent_ms`, a call
        keeps the GIL, unless the process is stopped: it began at the last check or earlier.
        """
        assert self._memory is not None, "its worker has sent it"
        assert self.hello is not None, "its worker has sent it"
        pulse_ns, call_ns = self._memory.pulse_ns, self._memory.call_ns
        if not pulse_ns:
            return None
        if time.monotonic_ns() - pulse_ns < silent_ms * 1_000_000:
            return call_ns // 1_000_000 if call_ns else None
        if not _may_run(self.hello.join.pid):
            return None
        return min(call_ns or pulse_ns, pulse_ns) // 1_000_000

    # -- the main thread ---------------------------------------------------------------------------

    @property
    def has_unsent(self) -> bool:
        return self._writer.has_unsent

    def flush(self) -> None:
        self._writer.flush()

    def count_turn(self) -> None:
        if self._memory is not None:
            self._memory.count_turn(os.getpid())

    def receive(self) -> tuple[list[AnyReport], bool]:
        """Return reports, and True if the connection has ended; the first line sets `hello`."""
        if self._memory is None:
            try:
                self._memory = _receive_memory(self._connection)
            except BlockingIOError:
                return [], False
            if self._memory is None:
                return [], True
        lines, ended = self._reader.read()
        reports: list[AnyReport] = []
        for line in lines:
            try:
                if self.hello is None:
                    self.hello = decode_hello(line)
                    self.pid_fd = open_pid_fd(self.hello.join.pid)
                    continue
                report = decode_report(line)
            except UNREADABLE as error:
                _log.error(
                    "a message of worker %s is not a report and is skipped: %s",
                    self.incarnation,
                    error,
                )
                continue
            self.closed = self.closed or isinstance(report, WorkerClosed)
            reports.append(report)
        return reports, ended

    def close(self) -> None:
        """Close the connection. The runtime may still call the port, without effect."""
        self._writer.close()
        if self.pid_fd is not None:
            os.close(self.pid_fd)
            self.pid_fd = None


def _receive_memory(connection: socket.socket) -> SharedMemory | None:
    with contextlib.suppress(ConnectionError):
        data, fds, _, _ = socket.recv_fds(connection, 1, 1)
        if data and fds:
            return SharedMemory.adopt(fds[0])
    return None


def _may_run(pid: int) -> bool:
    """Return True if a process lives and is not stopped; False where `/proc` is missing."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in {"T", "t", "Z", "X"}
