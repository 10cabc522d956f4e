"""The worker process: `python -m tidewheel.streams.cli.worker_main`, started and ended by a supervisor.

It reads its settings from standard input, runs one `KafkaStreams`, and reports through the pipe it was given. Only its
supervisor ends it: SIGINT and SIGTERM are not for it. When the supervisor is gone (its pipe has ended), the worker
drains, commits, closes and leaves by itself.
"""

import contextlib
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

from tidewheel import KafkaStreams
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.streams.console_log import configure_logging
from tidewheel.streams.errors import SchemaRegistryError
from tidewheel.streams.exit_codes import ExitCode, exit_code_of
from tidewheel.streams.processes.supervisor.messages import (
    LineBuffer,
    MetricsReported,
    Order,
    RecordInHand,
    Report,
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

_READ_BYTES: Final = 64 * 1024
#: Characters of an error's message that are reported.
_MESSAGE_MAX: Final = 4_000
#: A worker without a supervisor that can't even stop is ended this long after its drain time-out.
_ABANDONED_GRACE_S: Final = 5.0
_ENDED: Final = frozenset({KafkaStreamsState.NOT_RUNNING, KafkaStreamsState.ERROR})


class SupervisorLink:
    """The pipes to the supervisor. `say` and `say_now` may be called from any thread, everything else from the main one."""

    def __init__(self, orders_fd: int, reports_fd: int) -> None:
        self._orders_fd = orders_fd
        self._reports_fd = reports_fd
        self._wake_reading, self._wake_writing = os.pipe()
        os.set_blocking(self._wake_reading, False)
        os.set_blocking(self._wake_writing, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(orders_fd, selectors.EVENT_READ)
        self._selector.register(self._wake_reading, selectors.EVENT_READ)
        self._lines = LineBuffer()
        self._waiting: deque[Report] = deque()
        #: Held for the time of a line, which may be longer than what a pipe takes as one.
        self._writing = threading.Lock()
        #: Orders that came with an earlier one and were not asked for yet.
        self._undelivered: list[Order] = []
        #: Whether the supervisor is gone.
        self.lost = False

    def say(self, report: Report) -> None:
        """Have a report sent by the main thread."""
        self._waiting.append(report)
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_writing, b"\0")

    def flush(self) -> None:
        """Send what waits to be said."""
        while self._waiting:
            self.say_now(self._waiting.popleft())

    def say_now(self, report: Report) -> None:
        """Send a report: it is the supervisor's to read when this returns, whatever becomes of this process."""
        data = encode(report)
        try:
            with self._writing:
                while data:
                    data = data[os.write(self._reports_fd, data) :]
        except BrokenPipeError:
            self.lost = True

    def orders(self, timeout_s: float | None) -> list[Order]:
        """Return orders that came; waits until there is one, a report to send, or the time is up."""
        found, self._undelivered = self._undelivered, []
        for key, _ in self._selector.select(0 if found else timeout_s):
            if key.fd == self._wake_reading:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_reading, 512)
                continue
            data = os.read(self._orders_fd, _READ_BYTES)
            if not data:
                self.lost = True
                self._selector.unregister(self._orders_fd)
            found.extend(decode_order(line) for line in self._lines.feed(data))
        self.flush()
        return found

    def first_order(self) -> StartWorker | None:
        """Return what to run; None if the supervisor went before it said."""
        while not self.lost:
            orders = self.orders(None)
            for index, order in enumerate(orders):
                if isinstance(order, StartWorker):
                    # A stop that came right behind it is for whoever asks next.
                    self._undelivered = orders[index + 1 :]
                    return order
        return None


def main(arguments: list[str] | None = None) -> int:
    """Run one worker: `--reports FD`, and in a group `--watchdog FD`; the process's exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    fds = {name: int(fd) for name, fd in zip(given[::2], given[1::2], strict=True)}
    reports_fd, watchdog_fd = fds["--reports"], fds.get("--watchdog")
    _leave_signals_to_supervisor()
    link = SupervisorLink(_take_orders_pipe(), reports_fd)
    # Programs that the user's code starts are not to hold these open.
    for fd in (reports_fd, watchdog_fd):
        if fd is not None:
            os.set_inheritable(fd, False)
    start = link.first_order()
    if start is None:
        return ExitCode.OK
    configure_logging(
        start.log_level, start.log_format, slot=start.slot if start.workers > 1 else None
    )
    try:
        app, drain_timeout_ms = _prepare(start, link, watchdog_fd)
    except BaseException as error:  # noqa: BLE001 - reported, and ends the process
        is_told = isinstance(
            error, SchemaRegistryError
        )  # a serde that was built: its text says all
        if error.__cause__ is not None or (exit_code_of(error) is ExitCode.FAILED and not is_told):
            _log.error("the program could not be loaded", exc_info=error)
        return _crashed(link, error)
    # The program stays for as long as the process: no collection is to look at it again, not even the last.
    gc.freeze()
    _serve(app, link, start, drain_timeout_ms)
    if app.error is not None:
        return _crashed(link, app.error)
    if app.state not in _ENDED:
        return _late(link)
    link.say(WorkerStopped())
    link.flush()
    return ExitCode.OK


def _prepare(
    start: StartWorker, link: SupervisorLink, watchdog_fd: int | None
) -> tuple[KafkaStreams, int]:
    """Load the program and make its runtime, not yet started."""
    program = load_program(start.target)
    config = program.config(start.overrides, start.config_file)
    options = RunOptions(
        slot=start.slot,
        workers=start.workers,
        fixed=start.fixed,
        tasks=None if start.tasks is None else tuple(map(TaskId.parse, start.tasks)),
        watchdog_fd=watchdog_fd,
        process_id=start.process_id,
        wait_for_topics=start.wait_for_topics,
        create_topics=start.create_topics,
        on_record=partial(_tell_record, link) if start.careful else None,
    )
    app = KafkaStreams(program.topology(config), config, options=options)
    app.set_state_listener(lambda new, old: link.say(StateChanged(new=new.value, old=old.value)))
    link.say(
        WorkerReady(application_id=config.application_id, drain_timeout_ms=config.drain_timeout_ms)
    )
    return app, config.drain_timeout_ms


def _serve(
    app: KafkaStreams, link: SupervisorLink, start: StartWorker, drain_timeout_ms: int
) -> None:
    """Run until the runtime ends, or the supervisor says so, or is gone."""
    app.start()
    interval_s = start.report_interval_ms / 1000
    next_report_s = time.monotonic() + interval_s
    while app.state not in _ENDED:
        orders = link.orders(max(next_report_s - time.monotonic(), 0.0))
        stops = [order for order in orders if isinstance(order, StopWorker)]
        if link.lost:
            _log.warning("the supervisor is gone: stopping")
            _end_if_abandoned(drain_timeout_ms / 1000 + _ABANDONED_GRACE_S)
        if stops or link.lost:
            told_ms = stops[0].timeout_ms if stops else None
            app.drain(timeout=drain_timeout_ms if told_ms is None else told_ms)
            return
        if time.monotonic() >= next_report_s:
            link.say(MetricsReported(metrics=app.metrics()))
            next_report_s = time.monotonic() + interval_s


def _crashed(link: SupervisorLink, error: BaseException) -> int:
    """Report an error as the last word; the exit code it asks for."""
    code = exit_code_of(error)
    link.say(
        WorkerCrashed(
            error=type(error).__name__,
            message=str(error)[:_MESSAGE_MAX],
            exit_code=code,
            topic=getattr(error, "topic", None),
            partition=getattr(error, "partition", None),
            offset=getattr(error, "offset", None),
        )
    )
    link.flush()
    return code


def _late(link: SupervisorLink) -> int:
    """Report that the runtime has not stopped in its time; the exit code for it."""
    code = ExitCode.NOT_STOPPED_IN_TIME
    late = "the worker did not stop in its time (drain_timeout_ms); what is committed is safe"
    link.say(WorkerCrashed(error="TimeoutError", message=late, exit_code=code))
    link.flush()
    return code


def _tell_record(link: SupervisorLink, partition: TopicPartition | None, offset: int) -> None:
    """Say which record is in hand, before it is processed."""
    if partition is None:
        link.say_now(RecordInHand())
    else:
        link.say_now(
            RecordInHand(topic=partition.topic, partition=partition.partition, offset=offset)
        )


def _take_orders_pipe() -> int:
    """Return the orders' pipe under another number; the user's code finds an empty standard input."""
    orders_fd = os.dup(sys.stdin.fileno())
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, sys.stdin.fileno())
    os.close(empty)
    return orders_fd


def _leave_signals_to_supervisor() -> None:
    """Do nothing at SIGINT and SIGTERM. A handler, as "ignore" would pass on to programs the user's code starts."""

    def nothing(_number: int, _frame: FrameType | None) -> None:
        pass

    signal.signal(signal.SIGINT, nothing)
    signal.signal(signal.SIGTERM, nothing)


def _end_if_abandoned(after_s: float) -> None:
    """End this process later if it still lives then: nobody else is left to do it."""

    def end() -> None:
        _log.error("could not stop in time without a supervisor: ending at once")
        logging.shutdown()
        os._exit(ExitCode.NOT_STOPPED_IN_TIME)

    timer = threading.Timer(after_s, end)
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    sys.exit(main())
