"""Call watch of a worker: a thread that detects and logs long calls of user code.

A worker whose loop waits for user code is slow, not dead. The watch reads the loop's stack while
the loop makes no progress.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from tidewheel.rebalance.protocol.orders import AnyReport, WorkerInCall
from tidewheel.rebalance.protocol.plain_text import plain_text
from tidewheel.rebalance.protocol.task_status import RunningCall
from tidewheel.tasks.calls.long_calls import UserCall, call_of
from tidewheel.tasks.key_ranges.range_pool import RangePool

_log = logging.getLogger(__name__)

#: Maximum seconds between two checks of the threads.
_TICK_S: Final = 0.25
#: Minimum number of checks within `worker_hang_timeout_ms`.
_TICKS: Final = 10
#: Seconds from the first to the second error about a call beyond `max_call_ms`.
_AGAIN_S: Final = 60.0


#: Shorter calls (seconds) are not reported to the group.
_REPORTED_S: Final = 1.0
#: Maximum characters of a call in messages to the group.
_TEXT_MAX: Final = 400


class CallReceiver(Protocol):
    def send(self, report: AnyReport, /) -> None: ...

    def show_call(self, since_ns: int) -> None:
        """Send the start (`time.monotonic_ns`) of the loop's call of user code; 0 for none."""
        ...


class Limits(NamedTuple):
    """Limits on the duration of a call of user code, in seconds.

    Attributes:
        hang_s: A loop that pauses longer without such a call counts as hanging.
        call_s: Longest allowed call; None for no limit.
    """

    hang_s: float
    call_s: float | None

    @classmethod
    def of(cls, hang_ms: int, call_ms: int) -> "Limits":
        return cls(hang_ms / 1000, call_ms / 1000 if call_ms else None)

    @property
    def alarm_s(self) -> float:
        """Return the seconds that make a call `is_long`: `call_s` / 2; without limit, `hang_s`."""
        return self.hang_s if self.call_s is None else self.call_s / 2


class Effect(NamedTuple):
    """Consequences of a long call, for the log: within its limit, and beyond it."""

    slow: str
    over: str


LOOP: Final = Effect(
    "the other tasks of this worker wait as well, unless parallelising_factor or num_stream_threads is above 1",
    "other members take this worker's tasks over and begin the record again; a worker without others keeps waiting",
)
RANGE: Final = Effect(
    "its key range waits, the others continue", "its key range waits, the others continue"
)
GLOBAL: Final = Effect(
    "global stores are not updated meanwhile: running tasks read the present rows, a start waits",
    "global stores are not updated: running tasks read the present rows, a start waits",
)


class _WatchedCall:
    def __init__(self, call: UserCall, since_ns: int) -> None:
        self.call = call
        self.since_ns = since_ns
        self.warned = False
        self.next_error_s: float | None = None


class CallWatch:
    """Watch over a worker's threads that run user code. Create it in the loop's thread.

    Args:
        turns: Returns the number of rounds that the loop has made.
        range_threads: Returns the ids of key ranges' threads that may be in a long call.
        receiver: Sends calls to the watchdog process; None without a group.
        elsewhere: Returns the long call that another watch of the process detected.

    Attributes:
        call: Longest call at the last check; None below a second.
    """

    call: RunningCall | None = None

    def __init__(
        self,
        turns: Callable[[], int],
        *,
        range_threads: Callable[[], Iterable[int]],
        receiver: CallReceiver | None,
        limits: Limits,
        effect: Effect = LOOP,
        elsewhere: Callable[[], RunningCall | None] = lambda: None,
        find: Callable[[int], UserCall | None] = call_of,
    ) -> None:
        self._turns = turns
        self._range_threads = range_threads
        self._receiver = receiver
        self._limits = limits
        self._effect = effect
        self._elsewhere = elsewhere
        self._find = find
        self._reported = False
        self._loop = threading.get_ident()
        self._last_turns = -1
        self._checked_ns = time.monotonic_ns()
        self._watched: dict[int, _WatchedCall] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidewheel-calls", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self.call = None

    def _run(self) -> None:
        tick_s = min(_TICK_S, self._limits.hang_s / _TICKS)
        while not self._closed.wait(tick_s):
            try:
                self.check(time.monotonic_ns())
            except Exception:  # noqa: BLE001 - logged; without a watch a slow worker seems dead
                _log.exception("checking for long calls failed; trying again")

    def check(self, now_ns: int) -> None:
        """Find calls of user code, log long ones, and report the loop's to the watchdog."""
        turns, threads = self._turns(), set(self._range_threads())
        since_ns, self._checked_ns = self._checked_ns, now_ns
        lock_held_s = (now_ns - since_ns) / 1e9
        # A check this late means that one call kept the interpreter's lock.
        was_lock_held = lock_held_s >= self._limits.hang_s / 2
        if turns == self._last_turns or was_lock_held:
            threads.add(self._loop)
        self._last_turns = turns
        for thread in self._watched.keys() - threads:
            self._log_end(self._watched.pop(thread), now_ns)
        for thread in threads:
            self._check_thread(thread, since_ns, now_ns, was_lock_held=was_lock_held)
        self.call = self._longest(now_ns)
        if self._receiver is not None:
            in_loop = self._watched.get(self._loop)
            self._receiver.show_call(0 if in_loop is None else in_loop.since_ns)
            self._report(self._receiver)

    def _longest(self, now_ns: int) -> RunningCall | None:
        longest = min(self._watched.values(), key=lambda watched: watched.since_ns, default=None)
        took_s = 0.0 if longest is None else (now_ns - longest.since_ns) / 1e9
        if longest is None or took_s < _REPORTED_S:
            return None
        text = plain_text(longest.call.text)
        is_long = took_s >= self._limits.alarm_s
        return RunningCall(text=text[:_TEXT_MAX], ms=int(took_s * 1000), is_long=is_long)

    def _report(self, receiver: CallReceiver) -> None:
        calls = [call for call in (self.call, self._elsewhere()) if call is not None]
        if calls or self._reported:
            self._reported = bool(calls)
            longest = max(calls, key=lambda call: call.ms, default=None)
            receiver.send(WorkerInCall(call=longest))

    def _check_thread(
        self, thread: int, since_ns: int, now_ns: int, *, was_lock_held: bool
    ) -> None:
        call = self._find(thread)
        if was_lock_held and thread == self._loop:
            self._log_held_lock(call, (now_ns - since_ns) / 1e9)
        watched = self._watched.get(thread)
        if watched is not None and (call is None or watched.call.key != call.key):
            self._log_end(self._watched.pop(thread), now_ns)
            watched = None
        if call is None:
            return
        if watched is None:
            # The call may be as old as the last check; after a held lock it counts from now.
            watched = self._watched[thread] = _WatchedCall(
                call, now_ns if was_lock_held else since_ns
            )
        watched.call = call
        effect = self._effect if thread == self._loop else RANGE
        self._log_long_call(watched, (now_ns - watched.since_ns) / 1e9, effect)

    def _log_held_lock(self, call: UserCall | None, lock_held_s: float) -> None:
        limit_s = self._limits.call_s
        is_over = limit_s is not None and lock_held_s >= limit_s
        where = "a call that is over" if call is None else f"{call.text_so_far}, or just before"
        _log.log(
            logging.ERROR if is_over else logging.WARNING,
            "%s has kept the interpreter's lock for %.0f s%s, and blocked everything else in this worker, including commits and range "
            "threads; release the lock in it, run it in another process, or raise max_call_ms (0: no limit)",
            where,
            lock_held_s,
            f", longer than max_call_ms ({limit_s * 1000:,.0f} ms)"
            if is_over and limit_s is not None
            else "",
        )

    def _log_long_call(self, watched: _WatchedCall, took_s: float, effect: Effect) -> None:
        text, limit_s = watched.call.text, self._limits.call_s
        if limit_s is not None and took_s >= limit_s:
            if watched.next_error_s is None or took_s >= watched.next_error_s:
                watched.next_error_s = (
                    took_s + _AGAIN_S if watched.next_error_s is None else 2 * took_s
                )
                _log.error("%s", too_long(text, took_s, limit_s, effect))
        elif took_s >= self._limits.hang_s and not watched.warned:
            watched.warned = True
            limit_text = (
                "without a limit (max_call_ms=0)"
                if limit_s is None
                else f"for {limit_s:,.0f} s at most (max_call_ms)"
            )
            _log.warning(
                "%s has run for %.0f s: user code is waited for %s; %s",
                text,
                took_s,
                limit_text,
                effect.slow,
            )

    def _log_end(self, watched: _WatchedCall, now_ns: int) -> None:
        if watched.warned or watched.next_error_s is not None:
            _log.warning(
                "%s has ended after %.0f s", watched.call.text, (now_ns - watched.since_ns) / 1e9
            )


def watching(
    turns: Callable[[], int],
    pool: Callable[[], RangePool | None],
    receiver: CallReceiver | None,
    limits: Limits,
    elsewhere: Callable[[], RunningCall | None],
) -> CallWatch:
    def range_threads() -> Iterable[int]:
        ranges = pool()
        return [] if ranges is None else ranges.long_turns()

    watch = CallWatch(
        turns, range_threads=range_threads, receiver=receiver, limits=limits, elsewhere=elsewhere
    )
    watch.start()
    return watch


def longest_ms(watch: CallWatch | None) -> int:
    """Return the ms of the longest running call of user code; 0 below a second.

    >>> longest_ms(None)
    0
    """
    call = None if watch is None else watch.call
    return 0 if call is None else call.ms


def too_long(text: str, took_s: float, limit_s: float, effect: Effect) -> str:
    """Return the error text for a call longer than `max_call_ms`. Pure.

    >>> too_long("enrich (app.py:3) at map (task 0_0), orders-0 offset 5", 301.0, 300.0, RANGE)
    'enrich (app.py:3) at map (task 0_0), orders-0 offset 5 has run for 301 s, longer than max_call_ms (300,000 ms): its key range waits, the others continue; set a time-out in the client that it calls, make the call shorter, or raise max_call_ms (0: no limit)'
    """
    return (
        f"{text} has run for {took_s:.0f} s, longer than max_call_ms ({limit_s * 1000:,.0f} ms): {effect.over}; set a time-out "
        "in the client that it calls, make the call shorter, or raise max_call_ms (0: no limit)"
    )
