"""The state of an application: its legal moves, who waits for it, who is told of it.

The states and moves are those of Kafka Streams' `KafkaStreams.State`:

CREATED -> REBALANCING <-> RUNNING -> PENDING_SHUTDOWN -> NOT_RUNNING
                |             |
                +-------------+--> PENDING_ERROR -> ERROR

NOT_RUNNING and ERROR are final: `close` after an error changes nothing any more.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Final

_log = logging.getLogger("tidewheel")

#: A signal may be delivered to any thread, but only the main one acts on it, once it wakes: it sleeps no longer than this.
SIGNALS_S: Final = 1.0


class KafkaStreamsState(StrEnum):
    """What an application is doing.

    >>> KafkaStreamsState.RUNNING == "RUNNING"
    True
    """

    CREATED = "CREATED"
    REBALANCING = "REBALANCING"
    RUNNING = "RUNNING"
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    NOT_RUNNING = "NOT_RUNNING"
    PENDING_ERROR = "PENDING_ERROR"
    ERROR = "ERROR"


_S = KafkaStreamsState
_MOVES: dict[KafkaStreamsState, frozenset[KafkaStreamsState]] = {
    _S.CREATED: frozenset({_S.REBALANCING, _S.PENDING_SHUTDOWN}),
    _S.REBALANCING: frozenset({_S.RUNNING, _S.PENDING_SHUTDOWN, _S.PENDING_ERROR}),
    _S.RUNNING: frozenset({_S.REBALANCING, _S.PENDING_SHUTDOWN, _S.PENDING_ERROR}),
    _S.PENDING_SHUTDOWN: frozenset({_S.NOT_RUNNING, _S.PENDING_ERROR}),
    _S.PENDING_ERROR: frozenset({_S.ERROR}),
    _S.ERROR: frozenset(),
    _S.NOT_RUNNING: frozenset(),
}

#: Called with (new state, old state).
StateListener = Callable[[KafkaStreamsState, KafkaStreamsState], None]

#: States that an application does not leave again.
ENDED = frozenset({KafkaStreamsState.NOT_RUNNING, KafkaStreamsState.ERROR})


def legal(state: KafkaStreamsState, to: KafkaStreamsState) -> bool:
    """Return whether an application may go from one state to another.

    >>> legal(KafkaStreamsState.RUNNING, KafkaStreamsState.CREATED)
    False
    """
    return to in _MOVES[state]


class ApplicationState:
    """What an application is doing. Any thread may call everything.

    Attributes:
        listener: Told of every change, in their order, by a thread that makes one.
        stopping: Set once somebody wants the application to end.
    """

    def __init__(self) -> None:
        self._current = KafkaStreamsState.CREATED
        self._changed = threading.Condition(threading.RLock())
        self.listener: StateListener | None = None
        self.stopping = threading.Event()
        #: Changes that nobody was told of yet, as (new, old), and the lock of the one thread that tells.
        self._untold: deque[tuple[KafkaStreamsState, KafkaStreamsState]] = deque()
        self._telling = threading.Lock()

    @property
    def current(self) -> KafkaStreamsState:
        """Return what the application is doing."""
        return self._current

    def move_to(self, state: KafkaStreamsState) -> None:
        """Go to another state, log it and tell the listener; a move that is not legal from here is left out."""
        with self._changed:
            old = self._current
            if not legal(old, state):
                return
            self._current = state
            self._untold.append((state, old))
            self._changed.notify_all()
        # Not while the lock is held, and in order all the same: who comes second leaves its change to who tells already.
        while self._untold and self._telling.acquire(blocking=False):
            try:
                while self._untold:
                    self._tell(*self._untold.popleft())
            finally:
                self._telling.release()

    def _tell(self, state: KafkaStreamsState, old: KafkaStreamsState) -> None:
        _log.info("state %s -> %s", old.value, state.value, extra={"state": state.value})
        if self.listener is not None:
            try:
                self.listener(state, old)
            except Exception:  # noqa: BLE001 - logged; listeners are told, not asked
                # Nothing a listener does may stop a worker, or hide why it stopped.
                _log.exception("the state listener failed at %s -> %s", old.value, state.value)

    def ask_to_stop(self) -> None:
        """Set `stopping` and wake who waits; safe in a signal handler, which may hold the lock itself."""
        self.stopping.set()
        threading.Thread(target=self._notify, name="tidewheel-notify", daemon=True).start()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def wait_for_end(self, timeout_s: float | None) -> bool:
        """Wait until the application is asked to stop or has ended; return whether it is so."""
        with self._changed:
            while timeout_s is None and not self._ending():
                self._changed.wait_for(self._ending, SIGNALS_S)
            return self._changed.wait_for(self._ending, timeout_s)

    def wait_for_running(self, timeout_s: float) -> bool:
        """Wait until it is RUNNING; return False when it ended first or the time is up."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._current is KafkaStreamsState.RUNNING or self._ending(), timeout_s
            )
            return self._current is KafkaStreamsState.RUNNING

    def _ending(self) -> bool:
        return self.stopping.is_set() or self._current in ENDED
