"""Child processes: start a program, watch its end, exchange lines with it over a pipe or socket.

Supervisor, watchdog and restore helper use it on both sides of their connections.
"""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Final

import msgspec

_READ_BYTES: Final = 256 * 1024

#: Decoding errors of a line.
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class ChildProcess:
    """A child program in its own session, so Ctrl-C in the terminal does not reach it.

    It starts with `subprocess`, never by fork, so it inherits no threads and locks.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own program, without a shell
            list(command),
            stdin=stdin,
            stdout=stdout,
            pass_fds=tuple(pass_fds),
            start_new_session=True,
        )
        self.pid = self._process.pid

    def write(self, data: bytes) -> None:
        """Write to the child's standard input (`stdin=PIPE`); do nothing if the child is dead."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def close_stdin(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def exit_code(self) -> int | None:
        """Return the exit code (negative signal number), or None while the process lives."""
        return self._process.poll()

    def wait(self) -> int:
        return self._process.wait()

    def wait_or_kill(self, timeout_s: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        self._process.kill()

    def kill_session(self) -> None:
        """Kill the process and all processes of its session, and wait for its end."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()


def open_pid_fd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process is dead.

    A pipe or socket ends only when all processes that inherited it are gone; this descriptor does
    not wait for them. Return None without support (not Linux, old kernel, sandbox) or for a dead
    process.
    """
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


@contextlib.contextmanager
def new_connection() -> Generator[tuple[socket.socket, socket.socket]]:
    """Yield the two ends of a new connection: our end, and the end for another process.

    The other end is closed when the block ends, our end only if the block raises.
    """
    own_end, child_end = socket.socketpair()
    with child_end:
        try:
            yield own_end, child_end
        except BaseException:
            own_end.close()
            raise


class WakePipe:
    """Wakes a thread that waits in a selector; any thread and a signal handler may call `wake`."""

    def __init__(self) -> None:
        self._reading, self.writing = socket.socketpair()
        self._reading.setblocking(False)
        self.writing.setblocking(False)

    def fileno(self) -> int:
        return self._reading.fileno()

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            self.writing.send(b"\0")

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._reading.recv(512)

    def close(self) -> None:
        self._reading.close()
        self.writing.close()


class LineBuffer:
    r"""Splits a stream of bytes into lines; drops empty ones.

    Args:
        line_bytes_max: Drop longer lines; None: no limit.

    >>> lines = LineBuffer()
    >>> lines.feed(b"first\nsec"), lines.feed(b"ond\n")
    ([b'first'], [b'second'])
    """

    def __init__(self, line_bytes_max: int | None = None) -> None:
        self._line_bytes_max = line_bytes_max
        #: The unfinished line, one part per read: joining after each read would copy it again.
        self._parts: list[bytes] = []
        self._part_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._parts, lines[0]))
            self._parts, self._part_bytes = [], 0
        if rest:
            self._parts.append(rest)
            self._part_bytes += len(rest)
            if self._line_bytes_max is not None and self._part_bytes > self._line_bytes_max:
                self._parts, self._part_bytes = [], 0
        return [line for line in lines if line]


class LineReader:
    """Reads whole lines from a non-blocking pipe or socket."""

    def __init__(self, source: socket.socket | int, line_bytes_max: int | None = None) -> None:
        self._read: Callable[[int], bytes] = (
            partial(os.read, source) if isinstance(source, int) else source.recv
        )
        self._buffer = LineBuffer(line_bytes_max)

    def read(self) -> tuple[list[bytes], bool]:
        """Return the lines that have arrived, and True if the other end is closed. Never waits."""
        lines: list[bytes] = []
        while True:
            try:
                data = self._read(_READ_BYTES)
            except BlockingIOError:
                return lines, False
            except ConnectionError:
                return lines, True
            if not data:
                return lines, True
            lines += self._buffer.feed(data)


class LineWriter:
    """Sends lines over a non-blocking socket from any thread; buffers bytes it can't send yet.

    Ignores socket errors: the reader detects the end.

    Args:
        unsent_bytes_max: Drop new lines while more bytes than this wait; None: no limit.
    """

    def __init__(self, connection: socket.socket, unsent_bytes_max: int | None = None) -> None:
        self._socket = connection
        self._unsent_bytes_max = unsent_bytes_max
        #: Guards `_unsent` and the socket.
        self._lock = threading.Lock()
        self._unsent = bytearray()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, data: bytes) -> bool:
        """Send lines; return False if some bytes wait for `flush`."""
        with self._lock:
            limit = self._unsent_bytes_max
            if limit is None or len(self._unsent) <= limit:
                self._unsent += data
            return self._flush()

    def flush(self) -> bool:
        """Send waiting bytes; return False if some still wait."""
        with self._lock:
            return self._flush()

    def _flush(self) -> bool:
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            return False
        except OSError:
            self._unsent.clear()
        return True

    def finish(self, timeout_s: float) -> None:
        """Send waiting bytes for at most `timeout_s`, then close the sending direction."""
        deadline_s = time.monotonic() + timeout_s
        with self._lock, contextlib.suppress(OSError), selectors.DefaultSelector() as selector:
            if not self._flush():
                selector.register(self._socket, selectors.EVENT_WRITE)
                while not self._flush() and (left_s := deadline_s - time.monotonic()) > 0:
                    selector.select(left_s)
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Drop waiting bytes and close the socket."""
        with self._lock:
            self._unsent.clear()
            self._socket.close()
