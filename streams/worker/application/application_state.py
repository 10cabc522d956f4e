"""Application state: legal transitions and the state listener.

The states and transitions are those of Kafka Streams' `KafkaStreams.State`. docs/running.md draws
them.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from tidewheel.state_stores.user_code import located, log_trace

_log = logging.getLogger("tidewheel")

#: Longest sleep of the main thread: only it handles signals, and only once it wakes.
SIGNALS_S: Final = 1.0


class KafkaStreamsState(StrEnum):
    """State of an application.

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
MOVES: dict[KafkaStreamsState, frozenset[KafkaStreamsState]] = {
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

ENDED = frozenset({KafkaStreamsState.NOT_RUNNING, KafkaStreamsState.ERROR})


def legal(state: KafkaStreamsState, to: KafkaStreamsState) -> bool:
    """Return True if the transition is legal.

    >>> legal(KafkaStreamsState.RUNNING, KafkaStreamsState.CREATED)
    False
    """
    return to in MOVES[state]


_MOVING: Final = frozenset({KafkaStreamsState.REBALANCING, KafkaStreamsState.RUNNING})


class ApplicationState:
    """State of an application; thread-safe."""

    def __init__(self) -> None:
        self._current = KafkaStreamsState.CREATED
        self._changed = threading.Condition(threading.RLock())
        self.listener: StateListener | None = None
        self.stopping = threading.Event()
        self._unreported: deque[tuple[KafkaStreamsState, KafkaStreamsState]] = deque()
        self._reporting = threading.Lock()
        self._has_run = False

    @property
    def current(self) -> KafkaStreamsState:
        return self._current

    def move_to(self, state: KafkaStreamsState) -> None:
        with self._changed:
            old = self._current
            if not legal(old, state):
                return
            self._current = state
            self._unreported.append((state, old))
            self._changed.notify_all()
        # Reported without the lock, by one thread at a time, which also reports later transitions.
        while self._unreported and self._reporting.acquire(blocking=False):
            try:
                while self._unreported:
                    self._report(*self._unreported.popleft())
            finally:
                self._reporting.release()

    def _report(self, state: KafkaStreamsState, old: KafkaStreamsState) -> None:
        # After the first start, lines of the tasks tell what moves; the state changes with each.
        is_move = self._has_run and {old, state} <= _MOVING
        self._has_run = self._has_run or state is KafkaStreamsState.RUNNING
        _log.log(
            logging.DEBUG if is_move else logging.INFO,
            "state %s -> %s",
            old.value,
            state.value,
            extra={"state": state.value},
        )
        if self.listener is not None:
            try:
                self.listener(state, old)
            except Exception as error:  # noqa: BLE001 - logged; a listener can't stop a worker
                _log.error(
                    "the state listener failed at %s -> %s: %s",
                    old.value,
                    state.value,
                    located(error),
                    exc_info=log_trace(error),
                )

    def ask_to_stop(self) -> None:
        """Set `stopping` and wake waiting threads.

        In a signal handler, notifying could corrupt the condition that the interrupted code uses,
        so another thread notifies.
        """
        self.stopping.set()
        threading.Thread(target=self._notify, name="tidewheel-notify", daemon=True).start()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def wait_for_end(self, timeout_s: float | None) -> bool:
        with self._changed:
            while timeout_s is None and not self._ending():
                self._changed.wait_for(self._ending, SIGNALS_S)
            return self._changed.wait_for(self._ending, timeout_s)

    def wait_for_running(self, timeout_s: float) -> bool:
        with self._changed:
            self._changed.wait_for(
                lambda: self._current is KafkaStreamsState.RUNNING or self._ending(), timeout_s
            )
            return self._current is KafkaStreamsState.RUNNING

    def _ending(self) -> bool:
        return self.stopping.is_set() or self._current in ENDED
