"""The program of a restore helper: takes orders until its worker is gone.

Standard input is a socket: orders come from it, reports go into it. It ignores SIGINT and SIGTERM, because its worker ends
it: by closing the socket, or by dying.
"""

import contextlib
import logging
import os
import selectors
import signal
import socket
import sys
import threading
import time

from tidewheel.state_stores.bulk_restore.location import SnapshotLocation
from tidewheel.streams.console_log import configure_logging
from tidewheel.streams.kafka.clients import KafkaClients
from tidewheel.streams.processes.child import LineReader
from tidewheel.streams.processes.restore_helper.helper import RestoreHelper
from tidewheel.streams.processes.restore_helper.messages import (
    Begin,
    Report,
    decode_begin,
    decode_order,
    encode,
)


class _SystemClock:
    """The clocks of this machine."""

    def now_ms(self) -> int:
        """Return ms since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return seconds that never jump."""
        return time.monotonic()


class _Line:
    """The socket to the worker. `say` may be called from any thread."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._lines = LineReader(connection)
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ)
        self.lost = False

    def lines(self, timeout_s: float | None) -> list[bytes]:
        """Return what has come; waits for it."""
        if not self._selector.select(timeout_s):
            return []
        lines, self.lost = self._lines.read()
        return lines

    def say(self, report: Report) -> None:
        """Send a report, whole; a worker that is gone hears nothing."""
        data = encode(report)
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionError):
            while data:
                try:
                    data = data[self._socket.send(data) :]
                except BlockingIOError:
                    time.sleep(0.01)


def main() -> int:
    """Carry out orders until the worker is gone; the process's exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    line = _Line(socket.socket(fileno=os.dup(sys.stdin.fileno())))
    waiting: list[bytes] = []
    while not waiting:
        waiting = line.lines(None)
        if line.lost and not waiting:
            return 0
    helper = _helper(decode_begin(waiting.pop(0)), line)
    while not line.lost:
        for each in waiting:
            helper.take(decode_order(each))
        if not helper.is_idle:
            helper.step()
        waiting = line.lines(None if helper.is_idle else 0)
    logging.shutdown()
    # Threads may still wait for a location that does not answer; nothing of theirs is needed any more.
    os._exit(0)


def _helper(begin: Begin, line: _Line) -> RestoreHelper:
    configure_logging(begin.log_level)
    # Callbacks of the client settings are imported from where the worker finds them.
    sys.path += [each for each in begin.import_path if each not in sys.path]
    rack = {} if begin.rack_id is None else {"client.rack": begin.rack_id}
    clients = KafkaClients(
        bootstrap_servers=begin.bootstrap_servers,
        application_id=begin.application_id,
        client_id=f"{begin.application_id}-restore-helper",
        consumer={**rack, **begin.consumer},
    )

    def location() -> SnapshotLocation:
        assert begin.snapshot_location is not None, "nobody asks without one"
        return SnapshotLocation(begin.snapshot_location)

    return RestoreHelper(
        begin.application_id,
        make_reader=clients.changelog_reader,
        location=location,
        say=line.say,
        clock=_SystemClock(),
        run_bytes=begin.run_bytes,
    )
