"""The worker process: `python -m tidewheel.streams.cli.worker_main`, started by a supervisor.

It reads its settings from standard input, runs one `KafkaStreams`, and reports through a pipe. Only
the supervisor ends it: SIGINT and SIGTERM have no effect. When the supervisor is gone (its pipe has
ended), the worker drains, commits, closes and exits by itself.
"""

import gc
import logging
import os
import selectors
import signal
import sys
import threading
import time
from collections import deque
from functools import partial
from types import FrameType
from typing import Final

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.state_stores.user_code import located, log_trace
from tidewheel.streams.console_log import adopt_program, configure_logging, show_slot
from tidewheel.streams.errors import SchemaRegistryError
from tidewheel.streams.exit_codes import ExitCode, exit_code_of
from tidewheel.streams.kafka_streams import KafkaStreams
from tidewheel.streams.processes.child import LineReader, WakePipe
from tidewheel.streams.processes.supervisor.worker_messages import (
    LINE_BYTES_MAX,
    MetricsReported,
    NextRecord,
    Order,
    Report,
    SlotTaken,
    StartWorker,
    StateChanged,
    StopWorker,
    WorkerCrashed,
    WorkerReady,
    WorkerStopped,
    decode_order,
    encode,
)
from tidewheel.streams.processes.user_program import load_program
from tidewheel.streams.worker.application.application_state import KafkaStreamsState
from tidewheel.streams.worker.application.run_options import RunOptions

_log = logging.getLogger("tidewheel.worker")

#: Maximum length of an error message in a report.
_MESSAGE_MAX: Final = 4_000
#: Without a supervisor, a worker that does not stop exits this long after its drain timeout.
_ABANDONED_GRACE_S: Final = 5.0
_ENDED: Final = frozenset({KafkaStreamsState.NOT_RUNNING, KafkaStreamsState.ERROR})


class SupervisorLink:
    """The pipes to the supervisor.

    Any thread may call `queue` and `send`; everything else is for the main thread.
    """

    def __init__(self, orders_fd: int, reports_fd: int) -> None:
        self._orders_fd = orders_fd
        self._reports_fd = reports_fd
        os.set_blocking(orders_fd, False)
        self._wake = WakePipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(orders_fd, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._lines = LineReader(orders_fd, LINE_BYTES_MAX)
        self._queue: deque[Report] = deque()
        #: Guards the pipe of reports: a line may be longer than one atomic write.
        self._writing = threading.Lock()
        #: Orders that arrived together with the first one.
        self._early_orders: list[Order] = []
        #: True once the supervisor is gone.
        self.lost = False

    def close(self) -> None:
        """Release the selector and its wake pipe; the two pipes stay open."""
        self._selector.close()
        self._wake.close()

    def queue(self, report: Report) -> None:
        """Queue a report for the main thread."""
        self._queue.append(report)
        self._wake.wake()

    def wake(self) -> None:
        """End the main thread's wait in `orders`."""
        self._wake.wake()

    def flush(self) -> None:
        while self._queue:
            self.send(self._queue.popleft())

    def send(self, report: Report) -> None:
        """Write a report. The supervisor can read it even if this process dies afterwards."""
        data = encode(report)
        try:
            with self._writing:
                while data:
                    data = data[os.write(self._reports_fd, data) :]
        except BrokenPipeError:
            self.lost = True

    def orders(self, timeout_s: float | None) -> list[Order]:
        """Wait for an order, a queued report or the timeout; send reports, return orders."""
        orders, self._early_orders = self._early_orders, []
        for key, _ in self._selector.select(0 if orders else timeout_s):
            if key.fileobj is self._wake:
                self._wake.drain()
                continue
            lines, ended = self._lines.read()
            if ended:
                self.lost = True
                self._selector.unregister(self._orders_fd)
            orders.extend(map(decode_order, lines))
        self.flush()
        return orders

    def first_order(self) -> StartWorker | None:
        """Return the first order; None if the supervisor is gone before it."""
        while not self.lost:
            orders = self.orders(None)
            for index, order in enumerate(orders):
                if isinstance(order, StartWorker):
                    self._early_orders = orders[index + 1 :]
                    return order
        return None


def main(arguments: list[str] | None = None) -> int:
    """Run one worker with `--reports FD`, in a group also `--watchdog FD`; return the exit code."""
    command_line = sys.argv[1:] if arguments is None else arguments
    fds = {name: int(fd) for name, fd in zip(command_line[::2], command_line[1::2], strict=True)}
    reports_fd, watchdog_fd = fds["--reports"], fds.get("--watchdog")
    _disable_stop_signals()
    link = SupervisorLink(_move_orders_pipe(), reports_fd)
    # Child processes of user code must not inherit these connections and keep them open.
    for fd in (reports_fd, watchdog_fd):
        if fd is not None:
            os.set_inheritable(fd, False)
    start = link.first_order()
    if start is None:
        return ExitCode.OK
    configure_logging(
        start.log_level,
        start.log_format,
        slot=start.slot if start.workers > 1 and not start.next_free else None,
        levels=start.log_levels,
    )
    try:
        app, drain_timeout_ms = _prepare(start, link, watchdog_fd)
        # The program lives as long as the process: exclude its objects from garbage collection.
        gc.freeze()
    except BaseException as error:  # noqa: BLE001 - reported, and ends the process
        # A schema registry's error needs no traceback: its message names the cause.
        is_registry = isinstance(error, SchemaRegistryError)
        is_unexpected = exit_code_of(error) is ExitCode.FAILED and not is_registry
        trace = log_trace(error)
        if is_unexpected or (error.__cause__ is not None and trace):
            _log.error("the program could not be loaded", exc_info=trace)
        return _crashed(link, error)
    starting = _Starting(app, link)
    _serve(app, link, start, drain_timeout_ms, starting)
    # A failed start still calls functions of on_stop; one that was told to stop sees it later.
    starting.join(drain_timeout_ms / 1000)
    if starting.error is not None:
        return _crashed(link, starting.error)
    if app.error is not None:
        return _crashed(link, app.error)
    if app.state not in _ENDED:
        return _late(link)
    link.queue(WorkerStopped())
    link.flush()
    return ExitCode.OK


class _Starting:
    """The start of an application in a thread of its own: `on_start` may take long, or hang.

    Attributes:
        error: The error of the start, None without one.
    """

    def __init__(self, app: KafkaStreams, link: SupervisorLink) -> None:
        self._app = app
        self._link = link
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._start, name="tidewheel-start", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _start(self) -> None:
        try:
            self._app.start()
        except BaseException as error:  # noqa: BLE001 - reported, and ends the process
            # A function of on_start has ended the application, and is in the log.
            if self._app.error is None and exit_code_of(error) is ExitCode.FAILED:
                _log.error("the application could not start", exc_info=log_trace(error))
            self.error = error
            self._link.wake()


def _prepare(
    start: StartWorker, link: SupervisorLink, watchdog_fd: int | None
) -> tuple[KafkaStreams, int]:
    program = load_program(start.target)
    adopt_program(program.module)
    config = program.config(start.overrides, start.config_file)
    options = RunOptions(
        slot=start.slot,
        next_free=start.next_free,
        on_slot=partial(_report_slot, link, start),
        known_error=start.known_error,
        workers=start.workers,
        fixed=start.fixed,
        tasks=None if start.tasks is None else tuple(map(TaskId.parse, start.tasks)),
        watchdog_fd=watchdog_fd,
        process_id=start.process_id,
        wait_for_topics=start.wait_for_topics,
        create_topics=start.create_topics,
        wait_for_brokers=start.wait_for_brokers,
        on_record=partial(_report_record, link) if start.careful else None,
    )
    app = KafkaStreams(program.topology(config), config, options=options)
    if program.on_start is not None:
        app.on_start(program.on_start)
    if program.on_stop is not None:
        app.on_stop(program.on_stop)
    app.set_state_listener(lambda new, old: link.queue(StateChanged(new=new.value, old=old.value)))
    link.queue(
        WorkerReady(application_id=config.application_id, drain_timeout_ms=config.drain_timeout_ms)
    )
    return app, config.drain_timeout_ms


def _serve(
    app: KafkaStreams,
    link: SupervisorLink,
    start: StartWorker,
    drain_timeout_ms: int,
    starting: _Starting,
) -> None:
    interval_s = start.report_interval_ms / 1000
    next_report_s = time.monotonic() + interval_s
    while app.state not in _ENDED and starting.error is None:
        orders = link.orders(max(next_report_s - time.monotonic(), 0.0))
        stops = [order for order in orders if isinstance(order, StopWorker)]
        if link.lost:
            _log.warning("the supervisor is gone: stopping")
            _end_if_abandoned(drain_timeout_ms / 1000 + _ABANDONED_GRACE_S)
        if stops or link.lost:
            timeout_ms = stops[0].timeout_ms if stops else None
            app.drain(timeout=drain_timeout_ms if timeout_ms is None else timeout_ms)
            return
        if time.monotonic() >= next_report_s:
            link.queue(MetricsReported(metrics=app.metrics()))
            next_report_s = time.monotonic() + interval_s


def _crashed(link: SupervisorLink, error: BaseException) -> int:
    code = exit_code_of(error)
    link.queue(
        WorkerCrashed(
            message=located(error)[:_MESSAGE_MAX],
            exit_code=code,
            topic=getattr(error, "topic", None),
            partition=getattr(error, "partition", None),
            offset=getattr(error, "offset", None),
        )
    )
    link.flush()
    return code


def _late(link: SupervisorLink) -> int:
    code = ExitCode.NOT_STOPPED_IN_TIME
    late = (
        "the worker did not stop within drain_timeout_ms, or no broker answered its last commit; committed work is safe, "
        "and the next owners process later records again"
    )
    link.queue(WorkerCrashed(message=late, exit_code=code))
    link.flush()
    return code


def _report_slot(link: SupervisorLink, start: StartWorker, slot: int) -> None:
    link.queue(SlotTaken(slot=slot))
    if start.workers > 1:
        show_slot(slot)


def _report_record(link: SupervisorLink, partition: TopicPartition | None, offset: int) -> None:
    if partition is None:
        link.send(NextRecord())
    else:
        link.send(NextRecord(topic=partition.topic, partition=partition.partition, offset=offset))


def _move_orders_pipe() -> int:
    """Move the orders pipe elsewhere, so user code finds standard input empty."""
    orders_fd = os.dup(sys.stdin.fileno())
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, sys.stdin.fileno())
    os.close(empty)
    return orders_fd


def _disable_stop_signals() -> None:
    """Install handlers that ignore SIGINT and SIGTERM.

    User code's child processes would inherit SIG_IGN, but not a handler.
    """

    def ignore_signal(_number: int, _frame: FrameType | None) -> None:
        pass

    signal.signal(signal.SIGINT, ignore_signal)
    signal.signal(signal.SIGTERM, ignore_signal)


def _end_if_abandoned(after_s: float) -> None:
    """Exit after `after_s` if the process still lives then; no supervisor can kill it."""

    def end() -> None:
        _log.error("could not stop in time without a supervisor: exiting now")
        logging.shutdown()
        os._exit(ExitCode.NOT_STOPPED_IN_TIME)

    timer = threading.Timer(after_s, end)
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    sys.exit(main())
