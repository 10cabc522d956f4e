"""One started restore helper: its socket and the threads that serve it."""

import contextlib
import logging
import queue
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Final

from tidewheel.streams.processes.child import UNREADABLE, ChildProcess, LineBuffer, new_connection
from tidewheel.streams.processes.restore_helper.helper_messages import (
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
    """A restore helper. One thread sends orders, one receives reports.

    Args:
        on_report: Called in the receiving thread.
        on_end: Called once at the helper's end, in the receiving thread.
        may_end: Called after each `idle_s` without an order; if it returns True, the helper ends.
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
        with new_connection() as (self._socket, child_end):
            self._process = ChildProcess(command, stdin=child_end.fileno())
        self.pid = self._process.pid
        self._orders: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._orders.put(encode(begin))
        for target in (self._send_orders, self._receive_reports):
            threading.Thread(target=target, name="tidewheel-restore-helper", daemon=True).start()

    def send(self, order: Order) -> None:
        """Queue an order. A helper that ends loses it, and `on_end` is called."""
        self._orders.put(encode(order))

    def close(self) -> None:
        self._orders.put(None)
        self._process.kill()

    def _send_orders(self) -> None:
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

    def _receive_reports(self) -> None:
        lines = LineBuffer()
        with self._socket, contextlib.suppress(OSError):
            while data := self._socket.recv(_READ_BYTES):
                for line in lines.feed(data):
                    self._handle_report(line)
        self._orders.put(None)
        code = self._process.wait()
        self._on_end(self, f"the restore helper (process {self.pid}) ended with code {code}")

    def _handle_report(self, line: bytes) -> None:
        try:
            report = decode_report(line)
        except UNREADABLE as error:
            _log.error("a message of the restore helper can't be read and is skipped: %s", error)
            return
        self._on_report(report)
