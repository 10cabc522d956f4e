"""One restore helper that was started: its socket, the threads that serve it, its end."""

import contextlib
import logging
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from tidewheel.streams.processes.restore_helper.messages import (
    Begin,
    Order,
    Report,
    decode_report,
    encode,
)

_log = logging.getLogger("tidewheel.restore")

HELPER_COMMAND: Final = (sys.executable, "-m", "tidewheel.streams.processes.restore_helper")

_READ_BYTES: Final = 256 * 1024


class HelperProcess:
    """A helper, in a session of its own, so that a terminal's Ctrl-C does not reach it.

    Args:
        begin: What it is told first.
        on_report: Told what it says, by a thread of this object.
        on_end: Told of its end, by the same thread, whatever ended it; its last word.
        may_end: Asked now and then while nothing was ordered for `idle_s`: whether nothing is under way.
        idle_s: How long it may have nothing to do.
        command: The program.

    Attributes:
        pid: The process.
    """

    def __init__(
        self,
        begin: Begin,
        *,
        on_report: Callable[[Report], None],
        on_end: Callable[["HelperProcess", str], None],
        may_end: Callable[["HelperProcess"], bool],
        idle_s: float,
        command: Sequence[str] = HELPER_COMMAND,
    ) -> None:
        self._on_report = on_report
        self._on_end = on_end
        self._may_end = may_end
        self._idle_s = idle_s
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own program, without a shell
                    list(command),
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except BaseException:
                self._socket.close()
                raise
        self.pid = self._process.pid
        self._orders: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._orders.put(encode(begin))
        for target in (self._write, self._read):
            threading.Thread(target=target, name="tidewheel-restore-helper", daemon=True).start()

    def send(self, order: Order) -> None:
        """Have an order sent; one that is gone does not hear it, its end is told."""
        self._orders.put(encode(order))

    def close(self) -> None:
        """End it at once. Idempotent."""
        self._orders.put(None)
        self._process.kill()

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                try:
                    data = self._orders.get(timeout=self._idle_s)
                except queue.Empty:
                    if self._may_end(self):
                        break
                    continue
                if data is None:
                    break
                self._socket.sendall(data)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        rest = b""
        with self._socket, contextlib.suppress(OSError):
            while data := self._socket.recv(_READ_BYTES):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._report(line)
        self._orders.put(None)
        code = self._process.wait()
        self._on_end(self, f"the restore helper (process {self.pid}) ended with code {code}")

    def _report(self, line: bytes) -> None:
        try:
            report = decode_report(line)
        except msgspec.MsgspecError as error:
            _log.error("the restore helper said what nobody understands: %s", error)
            return
        self._on_report(report)
