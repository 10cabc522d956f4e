"""The program of a restore helper: executes orders until its worker is gone.

Standard input is a socket for orders from the worker and reports to it. The helper ignores SIGINT
and SIGTERM; it ends when the worker closes the socket or dies.
"""

import logging
import os
import selectors
import signal
import socket
import sys
import time

from tidewheel.state_stores.bulk_restore.location import SnapshotLocation
from tidewheel.streams.console_log import UNREACHABLE_LOGGER, configure_logging
from tidewheel.streams.kafka.clients import KafkaClients
from tidewheel.streams.processes.child import LineReader, LineWriter
from tidewheel.streams.processes.restore_helper.helper_messages import (
    Begin,
    Report,
    decode_begin,
    decode_order,
    encode,
)
from tidewheel.streams.processes.restore_helper.run_making import RestoreHelper

_RETRY_S = 0.01


class _SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()


class _WorkerSocket:
    """The connection to the worker. Any thread may call `send`."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._reader = LineReader(connection)
        self._writer = LineWriter(connection)
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ)
        self.is_lost = False

    def receive(self, timeout_s: float | None) -> list[bytes]:
        if not self._selector.select(timeout_s):
            return []
        lines, self.is_lost = self._reader.read()
        return lines

    def send(self, report: Report) -> None:
        """Send a report; waits until the socket accepts it, so reports don't pile up in memory."""
        is_sent = self._writer.send(encode(report))
        while not is_sent:
            time.sleep(_RETRY_S)
            is_sent = self._writer.flush()


def main() -> int:
    """Execute orders until the worker is gone; return the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    worker = _WorkerSocket(socket.socket(fileno=os.dup(sys.stdin.fileno())))
    lines: list[bytes] = []
    while not lines:
        lines = worker.receive(None)
        if worker.is_lost and not lines:
            return 0
    helper = _make_helper(decode_begin(lines.pop(0)), worker)
    while not worker.is_lost:
        for line in lines:
            helper.accept(decode_order(line))
        if not helper.is_idle:
            helper.step()
        lines = worker.receive(None if helper.is_idle else 0)
    logging.shutdown()
    # `os._exit`, because threads may still wait for an unresponsive snapshot location.
    os._exit(0)


def _make_helper(settings: Begin, worker: _WorkerSocket) -> RestoreHelper:
    configure_logging(settings.log_level, levels={UNREACHABLE_LOGGER: "error"})
    # Callbacks of the client settings are imported from the worker's path.
    sys.path += [path for path in settings.import_path if path not in sys.path]
    rack = {} if settings.rack_id is None else {"client.rack": settings.rack_id}
    clients = KafkaClients(
        bootstrap_servers=settings.bootstrap_servers,
        application_id=settings.application_id,
        client_id=f"{settings.application_id}-restore-helper",
        consumer={**rack, **settings.consumer},
    )

    def location() -> SnapshotLocation:
        assert settings.snapshot_location is not None, "no worker sends FindSnapshot without one"
        return SnapshotLocation(settings.snapshot_location)

    return RestoreHelper(
        settings.application_id,
        make_reader=clients.changelog_reader,
        location=location,
        send=worker.send,
        clock=_SystemClock(),
        run_bytes=settings.run_bytes,
    )
