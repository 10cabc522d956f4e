"""Stream thread: runs one worker, life after life.

In a group each life is a new incarnation of the same member. A fenced one rejoins by itself.
"""

import logging
import threading
from textwrap import shorten
from typing import Final, Literal, Protocol

from tidewheel.state_stores.errors import DiskFullError
from tidewheel.state_stores.state_directory import StateDirectory
from tidewheel.state_stores.user_code import cause_text, located, log_trace
from tidewheel.streams.console_log import enable_loggers
from tidewheel.streams.errors import ApplicationShutdownError, FencedError
from tidewheel.streams.gc_tuning import collect_by_batches
from tidewheel.streams.worker.application.application import Application
from tidewheel.streams.worker.application.wiring import claim_slot
from tidewheel.streams.worker.group_membership import Departure, user_error
from tidewheel.streams.worker.host_watchdog import HostWatchdog
from tidewheel.streams.worker.incarnation import WorkerLife
from tidewheel.tasks.errors import GlobalStoreDamagedError
from tidewheel.tasks.loop.stream_worker import StreamWorker

_log = logging.getLogger("tidewheel")

_REPLACE_WAIT_S: Final = 1.0

#: Wait before a fenced worker rejoins: doubled each time, reset after a minute in the group.
_REJOIN_WAIT_S: Final = 0.25
_REJOIN_WAIT_MAX_S: Final = 30.0
_REJOIN_HEALTHY_S: Final = 60.0

#: Global stores damaged again within this time after a rebuild end the worker.
_WIPE_AGAIN_S: Final = 60.0

#: Characters of an error that is logged again.
_KNOWN_MAX: Final = 160

Answer = Literal["replace_thread", "shutdown_client", "shutdown_application"]


class ThreadListener(Protocol):
    """Callbacks from a stream thread to its application."""

    def on_running(self) -> None: ...

    def answer_to(self, error: BaseException) -> Answer: ...

    def on_shutdown(self, reason: str) -> None: ...

    def on_end(self, thread: "StreamThread") -> None: ...


class StreamThread:
    """Worker and its thread; `running` is True while all its tasks run."""

    def __init__(
        self,
        application: Application,
        watchdog: HostWatchdog,
        listener: ThreadListener,
        *,
        name: str,
        preferred_slot: int | None,
        alone: bool,
    ) -> None:
        self.name = name
        self._application = application
        self._watchdog = watchdog
        self._listener = listener
        self._preferred_slot = preferred_slot
        self._slot: StateDirectory | None = None
        self._alone = alone
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._departure: Departure | None = None
        self._paused: frozenset[int] = frozenset()
        self.life: WorkerLife | None = None
        self.running = False
        self.error: BaseException | None = None
        self._last_answer: tuple[BaseException, Answer] | None = None
        self._rejoin_wait_s = _REJOIN_WAIT_S
        #: True if the next life rebuilds the global stores; and the time of the last rebuild.
        self._wipe_globals = False
        self._wiped_globals_s = -_WIPE_AGAIN_S
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_current(self) -> bool:
        return self._thread is threading.current_thread()

    def join(self, timeout_s: float | None) -> bool:
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def departs(self) -> bool:
        return self._ending.is_set()

    def wait_for_end(self, timeout_s: float, close_s: float) -> bool:
        """Wait; after `timeout_s` stop without leaving the group, and wait `close_s` more."""
        if not self.join(timeout_s):
            self.stop()
        return self.join(close_s)

    def depart(self, departure: Departure) -> None:
        """Make the worker commit, release tasks as the group orders, and close; only once."""
        with self._lock:
            if self._departure is not None:
                return
            self._departure = departure
            self._ending.set()
            life = self.life
        if life is not None:
            life.depart(departure)

    def stop(self) -> None:
        self._ending.set()
        if self.life is not None:
            self.life.stop()

    @property
    def paused(self) -> frozenset[int]:
        return self._paused

    @paused.setter
    def paused(self, paused: frozenset[int]) -> None:
        with self._lock:
            self._paused = paused
            if self.life is not None:
                self.life.pause(paused=paused)

    @property
    def slot(self) -> int | None:
        """Return the number of its state directory; None before the first life has it."""
        return None if self._slot is None else self._slot.slot

    @property
    def worker(self) -> StreamWorker | None:
        return None if self.life is None else self.life.worker

    def _main(self) -> None:
        collect_by_batches()
        while True:
            life = self._begin()
            born_s = self._application.clock.monotonic_s()
            try:
                life.run()
            except BaseException as error:  # noqa: BLE001 - kept, shown by state and raised by run()
                lived_s = self._application.clock.monotonic_s() - born_s
                if self._continues(error, lived_s=lived_s):
                    continue
                self.error = self._final_error(error)
            if self.error is not None or not life.outdated or self._ending.is_set():
                break
        self.running = False
        self.release_slot()
        self._listener.on_end(self)

    def release_slot(self) -> None:
        if self._slot is not None:
            self._slot.close()

    def claim_slot(self) -> StateDirectory:
        """Return the slot of all lives: between two of them another process could take it."""
        if self._slot is None:
            options = self._application.options
            self._slot = claim_slot(
                self._application.config, self._preferred_slot, next_free=options.next_free
            )
            if options.on_slot is not None and self._preferred_slot is not None:
                options.on_slot(self._slot.slot)
        return self._slot

    def _begin(self) -> WorkerLife:
        with self._lock:
            self.life = life = WorkerLife(
                self._application,
                self._watchdog,
                claim_slot=self.claim_slot,
                alone=self._alone,
                wipe_globals=self._wipe_globals,
                paused=self._paused,
                ending=self._ending,
                on_running=self._report_running,
                on_shutdown=self._listener.on_shutdown,
                ends_all=self._ends_all,
                previous=self.life,
            )
            departure = self._departure
        self._wipe_globals = False
        if departure is not None:
            life.depart(departure)
        return life

    def _report_running(self, running: bool) -> None:
        self.running = running
        self._listener.on_running()

    def _continues(self, error: BaseException, *, lived_s: float) -> bool:
        """Log the error that ended a life, and wait; return True if another life follows."""
        enable_loggers()  # the program may have called `dictConfig` since the start
        if isinstance(error, FencedError) and not (self._application.is_fixed or error.final):
            return self._rejoins(error, lived_s)
        if isinstance(error, DiskFullError) and not self._ending.is_set():
            wait_s = self._next_wait_s(lived_s)
            _log.warning("%s; the worker starts again in %.2f s", error, wait_s)
            self._report_running(False)
            return not self._ending.wait(wait_s)
        known = self._application.options.known_error
        if known is not None and located(error).startswith(known):
            _log.error(
                "the same error ended the worker again: %s",
                shorten(known, _KNOWN_MAX, placeholder=" …"),
            )
        else:
            _log.error("the worker ended: %s", cause_text(error), exc_info=log_trace(error))
        if isinstance(error, GlobalStoreDamagedError) and self._may_wipe_globals():
            _log.warning("wiping the global stores and restoring them from their topics")
            self._wipe_globals = True
            self._report_running(False)
            return True
        if self._answer_to(error) != "replace_thread":
            return False
        self._report_running(False)
        return not self._ending.wait(_REPLACE_WAIT_S)

    def _ends_all(self, error: BaseException) -> bool:
        """Return True if this error must end the whole application, on all members."""
        if isinstance(error, GlobalStoreDamagedError | DiskFullError):
            return False  # another life follows
        return self._answer_to(error) == "shutdown_application"

    def _answer_to(self, error: BaseException) -> Answer:
        if isinstance(error, FencedError) or self._ending.is_set():
            return "shutdown_client"
        if self._last_answer is None or self._last_answer[0] is not error:
            self._last_answer = (error, self._ask_listener(error))
        return self._last_answer[1]

    def _ask_listener(self, error: BaseException) -> Answer:
        try:
            return self._listener.answer_to(error)
        except Exception as failure:  # noqa: BLE001 - logged, and the application shuts down
            _log.error(
                "the uncaught exception handler failed; shutting down: %s",
                located(failure),
                exc_info=log_trace(failure),
            )
            return "shutdown_client"

    def _final_error(self, error: BaseException) -> BaseException | None:
        """Return the error to show to users; None if the end was requested."""
        if self._last_answer == (error, "shutdown_application"):
            ended = ApplicationShutdownError(
                f"the uncaught exception handler has ended the whole application after {located(error)}"
            )
            ended.__cause__ = error
            return ended
        if not isinstance(error, FencedError):
            return error
        if self._ending.is_set() and not (self._application.is_fixed or error.final):
            # The worker was leaving; the group removed it, and other members have its tasks.
            return None
        return user_error(error)

    def _rejoins(self, error: BaseException, lived_s: float) -> bool:
        """Wait before rejoining; return False if the thread is to end."""
        wait_s = self._next_wait_s(lived_s)
        if self._ending.is_set():
            _log.info("%s, while the worker was leaving the group", error)
            return False
        _log.warning("%s; joining the group again in %.2f s with the local state", error, wait_s)
        self._report_running(False)
        return not self._ending.wait(wait_s)

    def _next_wait_s(self, lived_s: float) -> float:
        if lived_s >= _REJOIN_HEALTHY_S:
            self._rejoin_wait_s = _REJOIN_WAIT_S
        wait_s = self._rejoin_wait_s
        self._rejoin_wait_s = min(wait_s * 2, _REJOIN_WAIT_MAX_S)
        return wait_s

    def _may_wipe_globals(self) -> bool:
        """Return False soon after another rebuild: the disk may be broken."""
        now_s = self._application.clock.monotonic_s()
        again = now_s - self._wiped_globals_s < _WIPE_AGAIN_S
        self._wiped_globals_s = now_s
        return not again and not self._ending.is_set()
