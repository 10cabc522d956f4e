"""The watchdog's end of one worker's connection: who it is, what it says, what it is told."""

import contextlib
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tidewheel.rebalance.protocol.orders import (
    AnyOrder,
    AnyReport,
    WorkerClosed,
    decode_report,
    encode_line,
)
from tidewheel.streams.processes.child import LineReader
from tidewheel.streams.processes.watchdog.hello import Hello, decode_hello
from tidewheel.streams.processes.watchdog.shared_memory import SharedMemory

_log: Final = logging.getLogger("tidewheel.watchdog")

#: Orders that wait for a worker that does not read. They come again to one that connects anew.
_UNSENT_BYTES_MAX: Final = 16 * 1024 * 1024


class WorkerLine:
    """The port `tidewheel.rebalance.ports.MemberLine`; the runtime's thread calls those methods, the main thread all others.

    Args:
        connection: Taken over.
        wake: Called from any thread when there is something to flush.

    Attributes:
        hello: Who the worker is, once it has said so.
        pid_fd: Becomes readable when its process is dead, whoever else holds its socket; None where there is no such thing.
        closed: Whether it said its last word (`WorkerClosed`).
    """

    def __init__(self, connection: socket.socket, wake: Callable[[], None]) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._wake = wake
        self._reader = LineReader(connection)
        self._memory: SharedMemory | None = None
        #: Guards `_unsent`.
        self._lock = threading.Lock()
        self._unsent = bytearray()
        self.hello: Hello | None = None
        self.pid_fd: int | None = None
        self.closed = False

    def fileno(self) -> int:
        """Return the connection's descriptor."""
        return self._connection.fileno()

    @property
    def incarnation(self) -> str:
        """Return the worker's incarnation, or "" before it has said so."""
        return "" if self.hello is None else self.hello.join.incarnation

    # -- what the runtime does -------------------------------------------------------------------------------------

    def order(self, orders: Sequence[AnyOrder]) -> None:
        """Send orders, or keep them until the worker reads on."""
        data = b"".join(map(encode_line, orders))
        with self._lock:
            if len(self._unsent) > _UNSENT_BYTES_MAX:
                return
            self._unsent += data
        if not self.flush():
            self._wake()

    def lease(self, until_ms: int) -> None:
        """Let the worker begin new work until then."""
        assert self._memory is not None, "its worker has said who it is"
        self._memory.lease_ns = until_ms * 1_000_000

    def progress(self) -> int:
        """Return how often the worker's loop has turned."""
        assert self._memory is not None, "its worker has said who it is"
        return self._memory.progress

    def call_since_ms(self, silent_ms: int) -> int | None:
        """Return since when the worker's loop has been in user code, by the machine's clock.

        Its call watch tells. Where that has been silent for `silent_ms`, some code keeps the interpreter's lock, since
        the last look at least, unless the process was stopped.
        """
        assert self._memory is not None, "its worker has said who it is"
        assert self.hello is not None, "its worker has said who it is"
        pulse_ns, call_ns = self._memory.pulse_ns, self._memory.call_ns
        if not pulse_ns:
            return None
        if time.monotonic_ns() - pulse_ns < silent_ms * 1_000_000:
            return call_ns // 1_000_000 if call_ns else None
        if not _may_run(self.hello.join.pid):
            return None
        return min(call_ns or pulse_ns, pulse_ns) // 1_000_000

    # -- what the main thread does ---------------------------------------------------------------------------------

    @property
    def has_unsent(self) -> bool:
        """Return whether orders wait until the worker reads on."""
        return bool(self._unsent)

    def flush(self) -> bool:
        """Send what the socket takes; return whether that was all. A worker that is gone is noticed elsewhere."""
        with self._lock:
            try:
                while self._unsent:
                    del self._unsent[: self._connection.send(self._unsent)]
            except BlockingIOError:
                return False
            except OSError:
                self._unsent.clear()
            return True

    def receive(self) -> tuple[list[AnyReport], bool]:
        """Return what the worker said, and whether its end of the line is gone. The first words become `hello`."""
        if self._memory is None:
            try:
                self._memory = _memory_of(self._connection)
            except BlockingIOError:
                return [], False
            if self._memory is None:
                return [], True
        lines, ended = self._reader.read()
        reports: list[AnyReport] = []
        for line in lines:
            if self.hello is None:
                self.hello = decode_hello(line)
                self.pid_fd = _pid_fd(self.hello.join.pid)
                continue
            try:
                report = decode_report(line)
            except msgspec.MsgspecError as error:
                _log.error("worker %s said what no report is: %s", self.incarnation, error)
                continue
            self.closed = self.closed or isinstance(report, WorkerClosed)
            reports.append(report)
        return reports, ended

    def close(self) -> None:
        """Let go of the line. The runtime may go on calling: nobody hears it any more."""
        with self._lock:
            self._unsent.clear()
            self._connection.close()
        if self.pid_fd is not None:
            os.close(self.pid_fd)
            self.pid_fd = None


def _memory_of(connection: socket.socket) -> SharedMemory | None:
    """Return the memory that comes with the first byte of a line; None if the line ended before it."""
    with contextlib.suppress(ConnectionError):
        data, fds, _, _ = socket.recv_fds(connection, 1, 1)
        if data and fds:
            return SharedMemory.adopt(fds[0])
    return None


def _may_run(pid: int) -> bool:
    """Return whether a process is there and not stopped; False where the system does not tell."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in {"T", "t", "Z", "X"}


def _pid_fd(pid: int) -> int | None:
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except (
        OSError
    ):  # a kernel or a sandbox without it, or it is dead already; the line's end tells as well
        return None
