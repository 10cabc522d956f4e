"""Starts workers, restarts those that crash, and turns signals into orders.

One thread, one loop. It never imports the user's program: whatever that does to its process, this one goes on. SIGTERM
and SIGINT become an order to stop; workers then drain, commit and close, and get `drain_timeout_ms` for it. A second SIGINT
ends everything at once. If this process dies, its workers read the end of their pipes and stop by themselves.

    started ──ready──▶ running ──crash──▶ waiting (back-off) ──▶ started
       │                  │                   │
       └──────────────────┴─────── stop ──────┴──▶ stopping ──▶ gone
"""

import contextlib
import logging
import os
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
from tidewheel.streams.processes.signals import signals_handled
from tidewheel.streams.processes.supervisor.messages import (
    MetricsReported,
    RecordInHand,
    Report,
    StartWorker,
    StateChanged,
    StopWorker,
    WorkerCrashed,
    WorkerReady,
    WorkerStopped,
)
from tidewheel.streams.processes.supervisor.process import WORKER_COMMAND, WorkerProcess
from tidewheel.streams.processes.supervisor.restart_policy import (
    Crash,
    CrashHistory,
    GiveUp,
    RestartSettings,
    judge,
)
from tidewheel.streams.processes.watchdog.process import WatchdogProcess

_log = logging.getLogger("tidewheel.supervisor")

#: What a worker gets for its stop before it said what its settings allow.
_DRAIN_TIMEOUT_MS: Final = 25_000
#: A worker needs a moment after its drain, for the last commit and the databases.
_CLOSE_GRACE_MS: Final = 5_000
#: How soon a process is looked at again whose pipe has ended but which is not dead yet.
_DYING_LOOK_S: Final = 0.05
#: A process whose pipe ended this long ago and which still lives is no worker any more.
_DYING_MAX_S: Final = 10.0
_LOOK_S: Final = 60.0
#: How long the watchdog may take to say the last words of workers that are gone.
_GOODBYE_S: Final = 5.0

#: Called with (slot, report) for every report of a worker.
ReportListener = Callable[[int, Report], None]


class _Slot:
    """One worker's place: the process that fills it now, and what is remembered of those before."""

    def __init__(self, start: StartWorker) -> None:
        self.start = start
        self.process: WorkerProcess | None = None
        self.history = CrashHistory()
        #: When the next process is due; None while one lives and once there is to be none.
        self.due_s: float | None = 0.0
        self.running_since_s: float | None = None
        self.healthy_s = 0.0
        self.last_word: WorkerStopped | WorkerCrashed | None = None
        #: What a careful worker was at when it was heard of last.
        self.in_hand: RecordInHand | None = None
        self.pipe_ended_s: float | None = None
        self.metrics: Mapping[str, Any] = {}

    @property
    def number(self) -> int:
        return self.start.slot

    def leave_running(self, now_s: float) -> None:
        if self.running_since_s is not None:
            self.healthy_s = max(self.healthy_s, now_s - self.running_since_s)
            self.running_since_s = None


class Supervisor:
    """Runs workers until they are told to stop or can't go on.

    Args:
        starts: What each worker gets as its first order.
        restart: How patiently crashed workers are started again.
        command: The worker program.
        on_report: Told everything that workers report.
        drain_timeout_ms: How long workers may take to stop, instead of what their settings say.
        start_watchdog: Starts the process that speaks for all workers in their group; None: there is no group.
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
        self._told_drain_ms = drain_timeout_ms
        self._drain_timeout_ms = drain_timeout_ms or _DRAIN_TIMEOUT_MS
        self._selector = selectors.DefaultSelector()
        self._wake_reading, self._wake_writing = os.pipe()
        for end in (self._wake_reading, self._wake_writing):
            os.set_blocking(end, False)
        self._selector.register(self._wake_reading, selectors.EVENT_READ)
        #: Signals that came and were not acted on; a handler only adds, the loop acts.
        self._signals: list[int] = []
        self._deadline_s: float | None = None
        self._exit_code = ExitCode.OK
        self._said: set[str] = set()

    def run(self) -> ExitCode:
        """Start the workers and return when all have ended: how the command is to leave."""
        with self._signals_taken():
            try:
                while not self._done():
                    self._start_due()
                    self._wait()
                    self._obey_signals()
                    self._look_at_processes()
                    self._enforce_deadline()
            finally:
                self._end_at_once()
                if self._watchdog is not None:
                    self._watchdog.close(_GOODBYE_S)
                self._selector.close()
                os.close(self._wake_reading)
                os.close(self._wake_writing)
        return self._exit_code

    def request_stop(self) -> None:
        """Have the workers stop as SIGTERM would; from any thread."""
        self._on_signal(signal.SIGTERM, None)
        with contextlib.suppress(OSError):
            os.write(self._wake_writing, b"\0")

    # -- time and events -------------------------------------------------------------------------------------------

    def _done(self) -> bool:
        return all(slot.process is None and slot.due_s is None for slot in self._slots)

    def _start_due(self) -> None:
        now_s = time.monotonic()
        for slot in self._slots:
            if slot.due_s is not None and slot.due_s <= now_s:
                self._start(slot)

    def _start(self, slot: _Slot) -> None:
        slot.due_s = None
        slot.last_word = slot.in_hand = slot.running_since_s = slot.pipe_ended_s = None
        slot.healthy_s = 0.0
        slot.process = process = WorkerProcess(
            slot.start, self._command, watchdog_fd=self._watchdog_fd()
        )
        self._selector.register(process.reports_fd, selectors.EVENT_READ, slot)
        if process.pid_fd is not None:
            self._selector.register(process.pid_fd, selectors.EVENT_READ, slot)
        _log.info("worker %d started (process %d)", slot.number, process.pid)

    def _watchdog_fd(self) -> int | None:
        """Return where the watchdog takes workers in; one that has died is replaced for those that start now."""
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
        """Wait for the first of: a signal, a report, a death, a worker that is due, the deadline."""
        now_s = time.monotonic()
        moments = [slot.due_s for slot in self._slots if slot.due_s is not None]
        if self._deadline_s is not None:
            moments.append(self._deadline_s)
        timeout_s = min([_LOOK_S, *(moment - now_s for moment in moments)])
        if any(slot.pipe_ended_s is not None for slot in self._slots):
            timeout_s = min(timeout_s, _DYING_LOOK_S)
        for key, _ in self._selector.select(max(timeout_s, 0.0)):
            if key.fd == self._wake_reading:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_reading, 512)
            else:
                self._read(key.data)

    def _read(self, slot: _Slot) -> None:
        process = slot.process
        if process is None or slot.pipe_ended_s is not None:
            return
        reports, ended = process.reports()
        for report in reports:
            self._note(slot, report)
        if ended:
            self._selector.unregister(process.reports_fd)
            slot.pipe_ended_s = time.monotonic()

    def _note(self, slot: _Slot, report: Report) -> None:
        now_s = time.monotonic()
        match report:
            case WorkerReady():
                if self._told_drain_ms is None:
                    self._drain_timeout_ms = report.drain_timeout_ms
            case StateChanged(new="RUNNING"):
                slot.running_since_s = now_s
            case StateChanged():
                slot.leave_running(now_s)
            case MetricsReported():
                slot.metrics = report.metrics
            case RecordInHand():
                slot.in_hand = None if report.topic is None else report
            case WorkerStopped() | WorkerCrashed():
                slot.last_word = report
        if self._on_report is not None:
            self._on_report(slot.number, report)

    # -- deaths ----------------------------------------------------------------------------------------------------

    def _look_at_processes(self) -> None:
        for slot in self._slots:
            if slot.process is None:
                continue
            code = slot.process.exit_code()
            if code is not None:
                self._bury(slot, code)
            elif (
                slot.pipe_ended_s is not None
                and time.monotonic() - slot.pipe_ended_s > _DYING_MAX_S
            ):
                slot.process.kill()

    def _bury(self, slot: _Slot, code: int) -> None:
        """Take in a dead worker's last words and decide what follows."""
        self._read(slot)
        slot.leave_running(time.monotonic())
        process, slot.process = slot.process, None
        assert process is not None
        for fd in (process.reports_fd, process.pid_fd):
            if fd is not None and fd in self._selector.get_map():
                self._selector.unregister(fd)
        process.close()
        slot.pipe_ended_s = None
        if code == 0 and (isinstance(slot.last_word, WorkerStopped) or self._stopping):
            _log.info("worker %d stopped", slot.number)
            return
        crash = _crash_of(slot, code)
        if self._stopping:
            self._fail_while_stopping(slot, crash)
            return
        slot.history, decision = judge(slot.history, crash, self._restart)
        if isinstance(decision, GiveUp):
            self._say(f"worker {slot.number} ended for good: {decision.message}")
            self._stop(decision.exit_code)
            return
        slot.start = msgspec.structs.replace(slot.start, careful=crash.silent)
        slot.due_s = time.monotonic() + decision.delay_ms / 1000
        _log.warning(
            "worker %d ended: %s; starting it again in %.1f s",
            slot.number,
            crash.message,
            decision.delay_ms / 1000,
        )

    def _fail_while_stopping(self, slot: _Slot, crash: Crash) -> None:
        if crash.message not in self._said and self._exit_code is not ExitCode.INTERRUPTED:
            self._say(f"worker {slot.number} ended while stopping: {crash.message}")
        if self._exit_code is ExitCode.OK:
            self._exit_code = crash.exit_code

    def _say(self, message: str) -> None:
        """Log an error; workers that fail for the same reason say it once."""
        self._said.add(message.partition(": ")[2])
        _log.error("%s", message)

    # -- stopping --------------------------------------------------------------------------------------------------

    @property
    def _stopping(self) -> bool:
        return self._deadline_s is not None

    def _obey_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if not self._stopping:
                _log.info("%s: stopping", signal.Signals(number).name)
                self._stop(ExitCode.OK)
            elif number == signal.SIGINT:
                _log.warning("SIGINT while stopping: ending at once; what is committed is safe")
                self._exit_code = ExitCode.INTERRUPTED
                self._end_at_once()

    def _stop(self, exit_code: ExitCode) -> None:
        """Order every worker to stop. What ends the command is what ended it first."""
        self._exit_code = exit_code
        self._deadline_s = time.monotonic() + (self._drain_timeout_ms + _CLOSE_GRACE_MS) / 1000
        for slot in self._slots:
            slot.due_s = None
            if slot.process is not None:
                slot.process.order(StopWorker(timeout_ms=self._drain_timeout_ms))

    def _enforce_deadline(self) -> None:
        if self._deadline_s is None or time.monotonic() < self._deadline_s or self._done():
            return
        late = [str(slot.number) for slot in self._slots if slot.process is not None]
        _log.error(
            "worker %s did not stop within %d ms (drain_timeout_ms) and is killed; what is committed is safe",
            ", ".join(late),
            self._drain_timeout_ms,
        )
        if self._exit_code is ExitCode.OK:
            self._exit_code = ExitCode.NOT_STOPPED_IN_TIME
        self._end_at_once()

    def _end_at_once(self) -> None:
        """Kill what still lives, and forget what was due."""
        for slot in self._slots:
            slot.due_s = None
            if slot.process is not None:
                slot.process.kill()
                for fd in (slot.process.reports_fd, slot.process.pid_fd):
                    if fd is not None and fd in self._selector.get_map():
                        self._selector.unregister(fd)
                slot.process.close()
                slot.process = slot.pipe_ended_s = None

    # -- signals ---------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)

    @contextlib.contextmanager
    def _signals_taken(self) -> Generator[None]:
        """Have signals noted for the block's time; only the main thread can (elsewhere `request_stop` must do)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGTERM, signal.SIGINT)
        with signals_handled(numbers, self._on_signal):
            woken_before = signal.set_wakeup_fd(self._wake_writing, warn_on_full_buffer=False)
            try:
                yield
            finally:
                signal.set_wakeup_fd(woken_before)


def _crash_of(slot: _Slot, code: int) -> Crash:
    """Return how a worker ended: what it said, else what the system says."""
    healthy_ms = int(slot.healthy_s * 1000)
    said = slot.last_word
    if not isinstance(said, WorkerCrashed):
        return _silent(slot.in_hand, code, healthy_ms)
    named = said.topic is not None and said.partition is not None
    return Crash(
        exit_code=_known(said.exit_code),
        message=f"{said.error}: {said.message}",
        healthy_ms=healthy_ms,
        partition=TopicPartition(said.topic or "", said.partition or 0) if named else None,
        offset=said.offset,
    )


def _silent(in_hand: RecordInHand | None, code: int, healthy_ms: int) -> Crash:
    """Return the end of a worker that said nothing: no exit code of it means what ours mean, as any code may be behind it."""
    message, partition, offset = _by_system(code), None, None
    if in_hand is not None:
        partition, offset = TopicPartition(in_hand.topic or "", in_hand.partition), in_hand.offset
        message += f" with topic {in_hand.topic}, partition {in_hand.partition}, offset {in_hand.offset} in hand"
    return Crash(
        exit_code=ExitCode.FAILED,
        message=message,
        healthy_ms=healthy_ms,
        silent=True,
        partition=partition,
        offset=offset,
    )


def _known(code: int) -> ExitCode:
    try:
        known = ExitCode(code)
    except ValueError:
        return ExitCode.FAILED
    return ExitCode.FAILED if known is ExitCode.OK else known


def _by_system(code: int) -> str:
    if code >= 0:
        return f"exit code {code} without a word"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (out of memory, perhaps)" if -code == signal.SIGKILL else ""
    return f"killed by {name}{hint}"
