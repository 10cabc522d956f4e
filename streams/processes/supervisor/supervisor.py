"""The supervisor: starts workers, restarts crashed ones, turns signals into orders to workers.

One thread runs one loop. It never imports the user's program, so user code can crash workers only.
SIGTERM and SIGINT become the order to stop; workers then drain, commit and close within
`drain_timeout_ms`. A second SIGINT kills all workers. If this process dies, its workers read the
end of their pipes and stop by themselves.

    started ──ready──▶ running ──crash──▶ waiting (back-off) ──▶ started
       │                  │                   │
       └──────────────────┴─────── stop ──────┴──▶ stopping ──▶ gone
"""

import contextlib
import logging
import selectors
import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from types import FrameType
from typing import Any, Final

import msgspec

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.processes.child import WakePipe
from tidewheel.streams.processes.signals import signals_handled
from tidewheel.streams.processes.supervisor.restart_policy import (
    Crash,
    CrashHistory,
    RestartSettings,
    StopRestarting,
    judge,
)
from tidewheel.streams.processes.supervisor.worker_messages import (
    MetricsReported,
    NextRecord,
    Report,
    SlotTaken,
    StartWorker,
    StateChanged,
    StopWorker,
    WorkerCrashed,
    WorkerReady,
    WorkerStopped,
)
from tidewheel.streams.processes.supervisor.worker_process import WORKER_COMMAND, WorkerProcess
from tidewheel.streams.processes.watchdog.watchdog_process import WatchdogProcess

_log = logging.getLogger("tidewheel.supervisor")

#: Drain timeout that applies until a worker reports its own `drain_timeout_ms`.
_DRAIN_TIMEOUT_MS: Final = 25_000
#: Extra time after the drain, for the last commit and closing databases.
_CLOSE_GRACE_MS: Final = 5_000
#: Interval of exit checks when a worker's pipe has ended but its process still lives.
_DYING_CHECK_S: Final = 0.05
#: A process that lives this long after the end of its pipe is killed.
_DYING_MAX_S: Final = 10.0
_CHECK_S: Final = 60.0
#: Time at exit for the watchdog to send dead workers' last messages to the group.
_GOODBYE_S: Final = 5.0

#: Called with a worker's number (slot) and its report.
ReportListener = Callable[[int, Report], None]


class _Slot:
    """One worker's place: its present process and the crash history of earlier ones."""

    def __init__(self, start: StartWorker) -> None:
        self.start = start
        self.process: WorkerProcess | None = None
        self.history = CrashHistory()
        #: Time of the next start; None while a process lives, or if no restart follows.
        self.due_s: float | None = 0.0
        self.running_since_s: float | None = None
        self.healthy_s = 0.0
        self.last_report: WorkerStopped | WorkerCrashed | None = None
        self.next_record: NextRecord | None = None
        self.pipe_ended_s: float | None = None
        #: True once a worker of this place has loaded the program.
        self.is_ready = False
        self.metrics: Mapping[str, Any] = {}

    @property
    def number(self) -> int:
        return self.start.slot

    @property
    def label(self) -> str:
        """Return the worker's name in messages: without a number until its slot is known."""
        return "the worker" if self.start.next_free else f"worker {self.number}"

    def leave_running(self, now_s: float) -> None:
        if self.running_since_s is not None:
            self.healthy_s = max(self.healthy_s, now_s - self.running_since_s)
            self.running_since_s = None


class Supervisor:
    """Runs workers until they stop or one fails for good.

    Args:
        drain_timeout_ms: Overrides the workers' setting of this name.
        start_watchdog: Starts the watchdog that all workers share; None: they form no group.
    """

    def __init__(
        self,
        starts: Sequence[StartWorker],
        *,
        restart: RestartSettings | None = None,
        command: Sequence[str] = WORKER_COMMAND,
        on_report: ReportListener | None = None,
        drain_timeout_ms: int | None = None,
        start_watchdog: Callable[[], WatchdogProcess] | None = None,
    ) -> None:
        self._slots = [_Slot(start) for start in starts]
        self._restart = restart or RestartSettings()
        self._command = tuple(command)
        self._on_report = on_report
        self._start_watchdog = start_watchdog
        self._watchdog: WatchdogProcess | None = None
        self._drain_ms_override = drain_timeout_ms
        self._drain_timeout_ms = drain_timeout_ms or _DRAIN_TIMEOUT_MS
        self._selector = selectors.DefaultSelector()
        self._wake = WakePipe()
        self._selector.register(self._wake, selectors.EVENT_READ)
        #: Signals not yet handled. The signal handler only appends; the loop handles them.
        self._signals: list[int] = []
        self._deadline_s: float | None = None
        self._exit_code = ExitCode.OK
        self._logged_errors: set[str] = set()

    def run(self) -> ExitCode:
        """Return the command's exit code once all workers have ended."""
        with self._signals_received():
            try:
                while not self._is_done():
                    self._start_due()
                    self._wait()
                    self._handle_signals()
                    self._check_processes()
                    self._enforce_deadline()
            finally:
                self._kill_all()
                if self._watchdog is not None:
                    self._watchdog.close(_GOODBYE_S)
                self._selector.close()
                self._wake.close()
        return self._exit_code

    def request_stop(self) -> None:
        """Stop the workers as SIGTERM does; any thread may call it."""
        self._on_signal(signal.SIGTERM, None)
        self._wake.wake()

    # -- time and events ---------------------------------------------------------------------------

    def _is_done(self) -> bool:
        return all(slot.process is None and slot.due_s is None for slot in self._slots)

    def _start_due(self) -> None:
        now_s = time.monotonic()
        for slot in self._slots:
            if slot.due_s is not None and slot.due_s <= now_s:
                self._start(slot)

    def _start(self, slot: _Slot) -> None:
        slot.due_s = None
        slot.last_report = slot.next_record = slot.running_since_s = slot.pipe_ended_s = None
        slot.healthy_s = 0.0
        slot.process = process = WorkerProcess(
            slot.start, self._command, watchdog_fd=self._watchdog_fd()
        )
        self._selector.register(process.reports_fd, selectors.EVENT_READ, slot)
        if process.pid_fd is not None:
            self._selector.register(process.pid_fd, selectors.EVENT_READ, slot)
        _log.info("%s started (process %d)", slot.label, process.pid)

    def _watchdog_fd(self) -> int | None:
        """Return the socket by which a new worker reaches the watchdog; replace a dead watchdog."""
        if self._start_watchdog is None:
            return None
        if self._watchdog is not None and not self._watchdog.is_alive():
            _log.warning("the watchdog (process %d) is gone; starting another", self._watchdog.pid)
            self._watchdog.close(0)
            self._watchdog = None
        if self._watchdog is None:
            self._watchdog = self._start_watchdog()
        return self._watchdog.intake.fileno()

    def _wait(self) -> None:
        now_s = time.monotonic()
        moments = [slot.due_s for slot in self._slots if slot.due_s is not None]
        if self._deadline_s is not None:
            moments.append(self._deadline_s)
        timeout_s = min([_CHECK_S, *(moment - now_s for moment in moments)])
        if any(slot.pipe_ended_s is not None for slot in self._slots):
            timeout_s = min(timeout_s, _DYING_CHECK_S)
        for key, _ in self._selector.select(max(timeout_s, 0.0)):
            if key.fileobj is self._wake:
                self._wake.drain()
            else:
                self._read(key.data)

    def _read(self, slot: _Slot) -> None:
        process = slot.process
        if process is None or slot.pipe_ended_s is not None:
            return
        reports, ended = process.read_reports()
        for report in reports:
            self._handle_report(slot, report)
        if ended:
            self._selector.unregister(process.reports_fd)
            slot.pipe_ended_s = time.monotonic()

    def _handle_report(self, slot: _Slot, report: Report) -> None:
        now_s = time.monotonic()
        match report:
            case WorkerReady():
                slot.is_ready = True
                if self._drain_ms_override is None:
                    self._drain_timeout_ms = report.drain_timeout_ms
            case SlotTaken():
                slot.start = msgspec.structs.replace(slot.start, slot=report.slot, next_free=False)
            case StateChanged(new="RUNNING"):
                slot.running_since_s = now_s
            case StateChanged():
                slot.leave_running(now_s)
            case MetricsReported():
                slot.metrics = report.metrics
            case NextRecord():
                slot.next_record = None if report.topic is None else report
            case WorkerStopped() | WorkerCrashed():
                slot.last_report = report
        if self._on_report is not None:
            self._on_report(slot.number, report)

    # -- deaths ------------------------------------------------------------------------------------

    def _check_processes(self) -> None:
        for slot in self._slots:
            if slot.process is None:
                continue
            code = slot.process.exit_code()
            if code is not None:
                self._handle_exit(slot, code)
            elif (
                slot.pipe_ended_s is not None
                and time.monotonic() - slot.pipe_ended_s > _DYING_MAX_S
            ):
                slot.process.kill()

    def _handle_exit(self, slot: _Slot, code: int) -> None:
        self._read(slot)
        slot.leave_running(time.monotonic())
        process, slot.process = slot.process, None
        assert process is not None
        self._close(process)
        slot.pipe_ended_s = None
        if code == 0 and (isinstance(slot.last_report, WorkerStopped) or self._is_stopping):
            _log.info("%s stopped", slot.label)
            return
        crash = _crash_of(slot, code)
        if self._is_stopping:
            self._fail_while_stopping(slot, crash)
            return
        slot.history, decision = judge(slot.history, crash, self._restart)
        if isinstance(decision, StopRestarting):
            # A program that can't start is no crash of a worker.
            began = f"{slot.label} ended for good: " if slot.is_ready else ""
            self._log_error(began + decision.message)
            self._stop(decision.exit_code)
            return
        known_error = None if crash.silent else crash.message
        slot.start = msgspec.structs.replace(
            slot.start, careful=crash.silent, known_error=known_error
        )
        slot.due_s = time.monotonic() + decision.delay_ms / 1000
        _log.warning(
            "%s ended%s; starting it again in %.1f s",
            slot.label,
            f": {crash.message}" if crash.silent else " by the error above",
            decision.delay_ms / 1000,
        )

    def _close(self, process: WorkerProcess) -> None:
        for fd in (process.reports_fd, process.pid_fd):
            if fd is not None and fd in self._selector.get_map():
                self._selector.unregister(fd)
        process.close()

    def _fail_while_stopping(self, slot: _Slot, crash: Crash) -> None:
        if crash.message not in self._logged_errors and self._exit_code is not ExitCode.INTERRUPTED:
            self._log_error(f"{slot.label} ended while stopping: {crash.message}")
        if self._exit_code is ExitCode.OK:
            self._exit_code = crash.exit_code

    def _log_error(self, message: str) -> None:
        """Log an error. While stopping, other workers' errors with its text are not logged."""
        self._logged_errors |= {message, message.partition(": ")[2]}
        _log.error("%s", message)

    # -- stopping ----------------------------------------------------------------------------------

    @property
    def _is_stopping(self) -> bool:
        return self._deadline_s is not None

    def _handle_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if not self._is_stopping:
                again = "; Ctrl-C again kills all workers" if number == signal.SIGINT else ""
                _log.info("%s: stopping%s", signal.Signals(number).name, again)
                self._stop(ExitCode.OK)
            elif number == signal.SIGINT:
                _log.warning("SIGINT while stopping: killing all workers; committed work is safe")
                self._exit_code = ExitCode.INTERRUPTED
                self._kill_all()

    def _stop(self, exit_code: ExitCode) -> None:
        self._exit_code = exit_code
        self._deadline_s = time.monotonic() + (self._drain_timeout_ms + _CLOSE_GRACE_MS) / 1000
        for slot in self._slots:
            slot.due_s = None
            if slot.process is not None:
                slot.process.send(StopWorker(timeout_ms=self._drain_timeout_ms))

    def _enforce_deadline(self) -> None:
        if self._deadline_s is None or time.monotonic() < self._deadline_s or self._is_done():
            return
        late = [slot.label for slot in self._slots if slot.process is not None]
        _log.error(
            "%s did not stop within %d ms (drain_timeout_ms) and is killed; committed work is safe",
            ", ".join(late),
            self._drain_timeout_ms,
        )
        if self._exit_code is ExitCode.OK:
            self._exit_code = ExitCode.NOT_STOPPED_IN_TIME
        self._kill_all()

    def _kill_all(self) -> None:
        for slot in self._slots:
            slot.due_s = None
            if slot.process is not None:
                slot.process.kill()
                self._close(slot.process)
                slot.process = slot.pipe_ended_s = None

    # -- signals -----------------------------------------------------------------------------------

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)

    @contextlib.contextmanager
    def _signals_received(self) -> Generator[None]:
        """Receive signals during the block; outside the main thread, do nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGTERM, signal.SIGINT)
        with signals_handled(numbers, self._on_signal):
            previous = signal.set_wakeup_fd(self._wake.writing.fileno(), warn_on_full_buffer=False)
            try:
                yield
            finally:
                signal.set_wakeup_fd(previous)


def _crash_of(slot: _Slot, code: int) -> Crash:
    healthy_ms = int(slot.healthy_s * 1000)
    report = slot.last_report
    if not isinstance(report, WorkerCrashed):
        return _silent_crash(slot.next_record, code, healthy_ms)
    has_partition = report.topic is not None and report.partition is not None
    return Crash(
        exit_code=_exit_code_of(report.exit_code),
        message=report.message,
        healthy_ms=healthy_ms,
        partition=TopicPartition(report.topic or "", report.partition or 0)
        if has_partition
        else None,
        offset=report.offset,
    )


def _silent_crash(record: NextRecord | None, code: int, healthy_ms: int) -> Crash:
    """Return the crash of a worker that reported none.

    Its exit code is never mapped to an `ExitCode`: user code may have chosen it.
    """
    message, partition, offset = _exit_text(code), None, None
    if record is not None:
        partition, offset = TopicPartition(record.topic or "", record.partition), record.offset
        message += (
            f" while processing topic {record.topic}, partition {record.partition}, "
            f"offset {record.offset}"
        )
    return Crash(
        exit_code=ExitCode.FAILED,
        message=message,
        healthy_ms=healthy_ms,
        silent=True,
        partition=partition,
        offset=offset,
    )


def _exit_code_of(number: int) -> ExitCode:
    try:
        code = ExitCode(number)
    except ValueError:
        return ExitCode.FAILED
    return ExitCode.FAILED if code is ExitCode.OK else code


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"exit code {code} without a report"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (out of memory, perhaps)" if -code == signal.SIGKILL else ""
    return f"killed by {name}{hint}"
