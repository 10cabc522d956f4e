"""One worker of a program, in a thread of its own: its slot, its clients, its tasks, and its lives one after another.

A life begins with a slot of the state directory and ends with everything closed. In a group each life is a new incarnation
of the same member; one that was fenced is followed by the next by itself, as the group asks.
"""

import logging
import threading
from typing import Final, Literal, Protocol

from tidewheel.streams.errors import ApplicationShutdownError, FencedError, StreamsError
from tidewheel.streams.gc_tuning import collect_by_batches
from tidewheel.streams.worker.application.application import Application
from tidewheel.streams.worker.group_membership import Departure, said_to_users
from tidewheel.streams.worker.host_watchdog import HostWatchdog
from tidewheel.streams.worker.incarnation import WorkerLife
from tidewheel.tasks.errors import GlobalStoreDamagedError
from tidewheel.tasks.loop.stream_worker import StreamWorker

_log = logging.getLogger("tidewheel")

#: How long a worker waits before it is started again because the user's handler said so.
_REPLACE_WAIT_S: Final = 1.0

#: Waits before a fenced incarnation is followed by the next: doubled each time, short again after a minute in the group.
_REJOIN_WAIT_S: Final = 0.25
_REJOIN_WAIT_MAX_S: Final = 30.0
_REJOIN_HEALTHY_S: Final = 60.0

#: Global stores that are damaged again so soon after they were made anew are not to be trusted any more.
_WIPE_AGAIN_S: Final = 60.0


#: What a user wants after an error that ended a worker: start it again, end this program, or end the whole application.
Answer = Literal["replace_thread", "shutdown_client", "shutdown_application"]


class ThreadListener(Protocol):
    """Whom a thread tells what becomes of it; called by that thread."""

    def on_running(self) -> None:
        """The thread's tasks all run, or some don't any more (`StreamThread.running`)."""
        ...

    def answer_to(self, error: BaseException) -> Answer:
        """Return what the user wants after this error."""
        ...

    def on_shutdown(self, reason: str) -> None:
        """Another member has ended the whole application."""
        ...

    def on_end(self, thread: "StreamThread") -> None:
        """The thread is over; `StreamThread.error` is what ended it, if an error did. Its last word."""
        ...


class StreamThread:
    """A worker and its thread. Everything but the thread itself may be called from any thread.

    Attributes:
        name: Of the thread.
        life: What it lives now, or lived last.
        running: Whether its tasks all run.
        error: What ended it, if an error did.
    """

    def __init__(
        self,
        application: Application,
        watchdog: HostWatchdog,
        listener: ThreadListener,
        *,
        name: str,
        wanted_slot: int | None,
        alone: bool,
    ) -> None:
        self.name = name
        self._application = application
        self._watchdog = watchdog
        self._listener = listener
        self._wanted_slot = wanted_slot
        self._alone = alone
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._departure: Departure | None = None
        self._paused: frozenset[int] = frozenset()
        self.life: WorkerLife | None = None
        self.running = False
        self.error: BaseException | None = None
        #: The last error that the user was asked about, and the answer.
        self._answered: tuple[BaseException, Answer] | None = None
        self._rejoin_wait_s = _REJOIN_WAIT_S
        #: The next life makes the global stores anew; when that was done last.
        self._wipe_globals = False
        self._wiped_globals_s = -_WIPE_AGAIN_S
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self) -> None:
        """Start; called once."""
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Return whether this thread is the one that asks."""
        return self._thread is threading.current_thread()

    def join(self, timeout_s: float | None) -> bool:
        """Wait for the end; returns whether it has come."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def departs(self) -> bool:
        """Return whether it was told to go."""
        return self._ending.is_set()

    def see_out(self, timeout_s: float, close_s: float) -> bool:
        """Wait until it has gone; after `timeout_s` without the group's word. Returns whether it has in `close_s` more."""
        if not self.join(timeout_s):
            self.stop()
        return self.join(close_s)

    def depart(self, departure: Departure) -> None:
        """Go in order: commit what is done, give tasks up as the group says, close. The first departure counts."""
        with self._lock:
            if self._departure is not None:
                return
            self._departure = departure
            self._ending.set()
            life = self.life
        if life is not None:
            life.depart(departure)

    def stop(self) -> None:
        """Commit, close and end without waiting for the group's word."""
        self._ending.set()
        if self.life is not None:
            self.life.stop()

    @property
    def paused(self) -> frozenset[int]:
        """Return the sub-topologies whose processing stands still."""
        return self._paused

    @paused.setter
    def paused(self, paused: frozenset[int]) -> None:
        with self._lock:
            self._paused = paused
            if self.life is not None:
                self.life.pause(paused=paused)

    @property
    def worker(self) -> StreamWorker | None:
        """Return the loop of the current life, if there is one."""
        return None if self.life is None else self.life.worker

    # -- the thread ------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        collect_by_batches()
        while True:
            life = self._begin()
            born_s = self._application.clock.monotonic_s()
            try:
                life.run()
            except BaseException as error:  # noqa: BLE001 - kept, shown by state and raised by run()
                lived_s = self._application.clock.monotonic_s() - born_s
                if self._goes_on(error, lived_s=lived_s):
                    continue
                self.error = self._what_ended(error)
            if self.error is not None or not life.outdated or self._ending.is_set():
                break
        self.running = False
        self._listener.on_end(self)

    def _begin(self) -> WorkerLife:
        """Return the next life, which others can end from now on."""
        if self.life is not None and self.life.slot is not None:
            self._wanted_slot = self.life.slot  # where its state is
        with self._lock:
            self.life = life = WorkerLife(
                self._application,
                self._watchdog,
                wanted_slot=self._wanted_slot,
                alone=self._alone,
                wipe_globals=self._wipe_globals,
                paused=self._paused,
                ending=self._ending,
                on_running=self._tell_running,
                on_shutdown=self._listener.on_shutdown,
                ends_all=self._ends_all,
                previous=self.life,
            )
            departure = self._departure
        self._wipe_globals = False
        if departure is not None:
            life.depart(departure)
        return life

    def _tell_running(self, running: bool) -> None:
        self.running = running
        self._listener.on_running()

    def _goes_on(self, error: BaseException, *, lived_s: float) -> bool:
        """Log what ended a life; return whether there is another, after the wait that is due."""
        if isinstance(error, FencedError) and not (self._application.is_fixed or error.final):
            return self._rejoins(error, lived_s)
        _log.error("the worker ended: %s", error, exc_info=not isinstance(error, StreamsError))
        if isinstance(error, GlobalStoreDamagedError) and self._may_wipe_globals():
            _log.warning("wiping the global stores and restoring them from their topics")
            self._wipe_globals = True
            self._tell_running(False)
            return True
        if self._answer_to(error) != "replace_thread":
            return False
        self._tell_running(False)
        return not self._ending.wait(_REPLACE_WAIT_S)

    def _ends_all(self, error: BaseException) -> bool:
        """Return whether the whole application is to end after this error; asked while the life can still tell the group."""
        if isinstance(error, GlobalStoreDamagedError):
            return False  # the next life makes the stores anew, without asking anybody
        return self._answer_to(error) == "shutdown_application"

    def _answer_to(self, error: BaseException) -> Answer:
        """Return what the user wants after an error; asked once for each."""
        if isinstance(error, FencedError) or self._ending.is_set():
            return "shutdown_client"
        if self._answered is None or self._answered[0] is not error:
            self._answered = (error, self._asked(error))
        return self._answered[1]

    def _asked(self, error: BaseException) -> Answer:
        try:
            return self._listener.answer_to(error)
        except Exception:  # noqa: BLE001 - logged, and the application shuts down
            _log.exception("the uncaught exception handler failed; shutting down")
            return "shutdown_client"

    def _what_ended(self, error: BaseException) -> BaseException | None:
        """Return an error as users know it; None for what is none."""
        if self._answered == (error, "shutdown_application"):
            ended = ApplicationShutdownError(
                f"the uncaught exception handler has ended the whole application after {type(error).__name__}: {error}"
            )
            ended.__cause__ = error
            return ended
        if not isinstance(error, FencedError):
            return error
        if self._ending.is_set() and not (self._application.is_fixed or error.final):
            # It was leaving: the group has only let it go before it said so, and others have its tasks.
            return None
        return said_to_users(error)

    def _rejoins(self, error: BaseException, lived_s: float) -> bool:
        """Wait before the next incarnation joins; return whether it is still wanted then."""
        if lived_s >= _REJOIN_HEALTHY_S:
            self._rejoin_wait_s = _REJOIN_WAIT_S
        wait_s = self._rejoin_wait_s
        self._rejoin_wait_s = min(wait_s * 2, _REJOIN_WAIT_MAX_S)
        if self._ending.is_set():
            _log.info("%s, which it was about to leave", error)
            return False
        _log.warning(
            "%s; joining the group again in %.2f s, with the state that is here", error, wait_s
        )
        self._tell_running(False)
        return not self._ending.wait(wait_s)

    def _may_wipe_globals(self) -> bool:
        """Return whether damaged global stores are restored once more: not again and again on a broken disk."""
        now_s = self._application.clock.monotonic_s()
        again = now_s - self._wiped_globals_s < _WIPE_AGAIN_S
        self._wiped_globals_s = now_s
        return not again and not self._ending.is_set()
