"""Thread pool of the key ranges; one lock assigns ranges to threads.

A range whose call hangs keeps its thread; after its task released it, a new thread replaces that
one. Long calls do not count toward the limit (`concurrency.py`), so a call that never returns
blocks no other range.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from heapq import nlargest
from typing import Final, NamedTuple

from tidewheel.tasks.key_ranges.concurrency import MIN_CONCURRENCY, ConcurrencyLimit, waited_s
from tidewheel.tasks.key_ranges.range_worker import RangeWorker, Scheduling
from tidewheel.tasks.key_ranges.shared_loop import SharedRunner, WorkerLoop

#: Seconds between measurements for the concurrency limit.
_WINDOW_S: Final = 0.05
#: Seconds after which a call no longer counts toward that limit.
_LONG_S: Final = 1.0
#: Number of busiest threads whose run-queue times represent all.
_SAMPLE: Final = 4


class _Measurement(NamedTuple):
    at_s: float
    used_s: Mapping[int, float]
    waited_s: Mapping[threading.Thread, float]
    at_work: int


class RangePool:
    """Threads that run a worker's key ranges. The worker's loop thread creates the pool.

    Args:
        event_loop: Loop of the ranges' coroutines; None: a new one, which `close` ends.
    """

    def __init__(self, threads: int, event_loop: WorkerLoop | None = None) -> None:
        self.threads = threads
        self._event_loop = event_loop or WorkerLoop()
        self._owns_loop = event_loop is None
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._ready: deque[RangeWorker] = deque()
        self._waiting = 0
        self._closed = False
        self._running: dict[RangeWorker, threading.Thread] = {}
        #: Threads in calls of closed ranges. Others replace them; they end after the call.
        self._abandoned: set[threading.Thread] = set()
        self._started = 0
        self._concurrency = ConcurrencyLimit(threads)
        self._crowded = threading.Condition(self._lock)
        self._is_measuring = True
        self._clocks: dict[threading.Thread, int] = {}
        #: Ranges in calls longer than `_LONG_S`. Closed ranges' threads are in `_abandoned`
        #: instead.
        self._long: dict[RangeWorker, threading.Thread] = {}
        self._loop_clock = 0
        if threads > MIN_CONCURRENCY and hasattr(time, "pthread_getcpuclockid"):
            self._loop_clock = time.pthread_getcpuclockid(threading.get_ident())
            threading.Thread(
                target=self._adjust_concurrency, name="tidewheel-concurrency", daemon=True
            ).start()
        else:  # at most two threads, or no clock to measure them
            self._concurrency.limit = threads
        for _ in range(threads):
            self._start_thread()

    def _start_thread(self) -> None:
        self._started += 1
        threading.Thread(
            target=self._run, name=f"tidewheel-range-{self._started}", daemon=True
        ).start()

    def wake(self, ranges: Iterable[RangeWorker]) -> None:
        with self._lock:
            for key_range in ranges:
                if (
                    key_range.scheduling is Scheduling.IDLE
                    and key_range.has_work
                    and self._queue(key_range)
                ):
                    self._wake_thread()

    def _queue(self, key_range: RangeWorker) -> bool:
        """Queue a range; True if a thread, not an event loop, must run it. Needs the lock."""
        key_range.scheduling = Scheduling.QUEUED
        if key_range.awaits and key_range.waiting.shared is not None:
            key_range.waiting.shared.turns.begin(key_range)
            return False
        self._ready.append(key_range)
        return True

    def _wake_thread(self) -> None:
        """Wake a thread if the limit allows it. Needs the lock."""
        if self._has_place:
            self._work.notify()
        else:
            self._wake_measuring()

    def share(self) -> SharedRunner:
        """Return a range's runner of coroutines on the event loop. Called in its thread."""
        return self._event_loop.share(self._finish_turn)

    def abandon(self, key_range: RangeWorker) -> None:
        """Replace the thread of a closed range that is still in a call."""
        if key_range.waiting.shared is not None:
            self._abandon_loop(key_range.waiting.shared)
        with self._lock:
            thread = self._running.get(key_range)
            if thread is None or thread in self._abandoned:
                return
            self._abandoned.add(thread)
            self._long.pop(key_range, None)
        if not self._closed:
            self._start_thread()

    def is_blocked(self, key_range: RangeWorker) -> bool:
        """Return True if a coroutine blocks the event loop that this range must run on."""
        shared = key_range.waiting.shared
        if shared is None or key_range.scheduling is Scheduling.IDLE:
            return False
        return not shared.turns.is_turning()

    def watch(self, now_s: float) -> None:
        self._event_loop.watch(now_s)

    def _abandon_loop(self, shared: SharedRunner) -> None:
        """Cancel a range's coroutine; if it blocks the event loop, later ranges get a new one."""
        shared.cancel()
        if not shared.turns.is_turning():
            self._event_loop.replace(shared.turns)

    @property
    def has_free_threads(self) -> bool:
        return self._free > len(self._ready)

    @property
    def may_soon_be_free(self) -> bool:
        return self.has_free_threads or any(not key_range.slow for key_range in list(self._running))

    def close(self) -> None:
        """End the threads, busy ones when their call returns. Does not wait."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
            self._crowded.notify_all()
        if self._owns_loop:
            self._event_loop.close()

    def _run(self) -> None:
        clock = time.pthread_getcpuclockid(threading.get_ident()) if self._loop_clock else 0
        me = threading.current_thread()
        with self._lock:
            self._clocks[me] = clock
        self._work_on(me)
        with self._lock:
            del self._clocks[me]

    def _work_on(self, me: threading.Thread) -> None:
        before: RangeWorker | None = None
        while True:
            with self._lock:
                while not self._ready or not self._has_place:
                    if not self._ready and (self._closed or me in self._abandoned):
                        return
                    self._waiting += 1
                    self._work.wait()
                    self._waiting -= 1
                key_range = self._next(before)
                key_range.scheduling = Scheduling.RUNNING
                self._running[key_range] = me
                if self._is_crowded:
                    self._wake_measuring()
            key_range.turn(others_wait=self._others_wait, alone=self._is_alone)
            before = None if key_range.ended else key_range
            with self._lock:
                del self._running[key_range]
                self._long.pop(key_range, None)
                is_abandoned = me in self._abandoned
                self._abandoned.discard(me)
                # A thread left behind ends here: another must run the range's remaining work.
                if self._requeue(key_range) and is_abandoned:
                    self._wake_thread()
            if is_abandoned:
                return

    def _finish_turn(self, key_range: RangeWorker) -> None:
        with self._lock:
            if self._requeue(key_range):
                self._wake_thread()

    def _requeue(self, key_range: RangeWorker) -> bool:
        key_range.scheduling = Scheduling.IDLE
        return key_range.has_work and self._queue(key_range)

    def _next(self, before: RangeWorker | None) -> RangeWorker:
        """Return the thread's last range if other threads can run the rest, else the first queued.

        The last one's (`before`) objects are still in the processor's cache. Needs the lock.
        """
        free_threads = min(self._waiting, self._concurrency.limit - self._at_work - 1)
        if before is not None and len(self._ready) - 1 <= free_threads:
            with suppress(ValueError):  # `before` has no work
                self._ready.remove(before)
                return before
        return self._ready.popleft()

    def _others_wait(self) -> bool:
        return len(self._ready) > self._free

    def _is_alone(self) -> bool:
        return self._free <= 0

    @property
    def _at_work(self) -> int:
        return len(self._running) - len(self._abandoned) - len(self._long)

    @property
    def _has_place(self) -> bool:
        return self._closed or self._at_work < self._concurrency.limit

    @property
    def _free(self) -> int:
        return min(self._waiting, self._concurrency.limit - self._at_work)

    @property
    def _is_crowded(self) -> bool:
        return self._at_work > MIN_CONCURRENCY or (len(self._ready) > 0 and not self._has_place)

    def _wake_measuring(self) -> None:
        if not self._is_measuring:
            self._crowded.notify()

    def _adjust_concurrency(self) -> None:
        last: _Measurement | None = None
        with self._lock:
            while not self._closed:
                if not self._is_crowded:
                    self._is_measuring, last = False, None
                    self._crowded.wait()
                    self._is_measuring = True
                    continue
                if last is None:
                    in_queue_s = _waited_s(self._some_running)
                    last = _Measurement(time.monotonic(), self._used_s(), in_queue_s, self._at_work)
                self._crowded.wait(_WINDOW_S)
                last = self._measure(last)

    def long_turns(self) -> list[int]:
        now_s = time.monotonic()
        return [
            thread.ident or 0
            for key_range, thread in list(self._running.items())
            if key_range.processing is None
            or (key_range.unit_since_s is not None and now_s - key_range.unit_since_s >= _LONG_S)
        ]

    def is_inside(self) -> bool:
        return threading.current_thread() in self._clocks or self._event_loop.is_inside()

    @property
    def _some_running(self) -> list[threading.Thread]:
        return list(self._running.values())[:_SAMPLE]

    def _used_s(self) -> dict[int, float]:
        used_s: dict[int, float] = {}
        for clock in (*self._clocks.values(), self._loop_clock):
            with suppress(OSError):  # its thread has ended
                used_s[clock] = time.clock_gettime(clock)
        return used_s

    def _measure(self, before: _Measurement) -> _Measurement:
        """Measure processor use since `before`, adapt the limit. Needs the lock."""
        self._find_long_calls()
        at_s, used_s = time.monotonic(), self._used_s()
        elapsed_s = at_s - before.at_s
        share = {
            clock: (used - before.used_s[clock]) / elapsed_s
            for clock, used in used_s.items()
            if clock in before.used_s
        }
        loop = share.pop(self._loop_clock, 0.0)
        for thread in (*self._abandoned, *self._long.values()):
            share.pop(self._clocks[thread], None)
        of_thread = {
            thread: share[clock] for thread, clock in self._clocks.items() if share.get(clock)
        }
        sample = nlargest(_SAMPLE, of_thread, key=of_thread.__getitem__) or self._some_running
        in_queue_s = _waited_s({*before.waited_s, *sample})
        waited = {
            thread: (in_queue_s[thread] - since_s) / elapsed_s
            for thread, since_s in before.waited_s.items()
            if thread in of_thread and thread in in_queue_s
        }
        ranges, sampled = sum(share.values()), sum(of_thread[thread] for thread in waited)
        self._concurrency.adapt(
            elapsed_s,
            ranges=ranges,
            waited=sum(waited.values()) * ranges / sampled if sampled else 0.0,
            loop=loop,
            at_work=max(before.at_work, self._at_work),
            more_wait=len(self._ready) > self._free,
        )
        self._work.notify(min(len(self._ready), max(self._free, 0)))
        of_sample_s = {thread: in_queue_s[thread] for thread in sample if thread in in_queue_s}
        return _Measurement(at_s, used_s, of_sample_s, self._at_work)

    def _find_long_calls(self) -> None:
        since_s = time.monotonic() - _LONG_S
        self._long = {
            key_range: thread
            for key_range, thread in self._running.items()
            if thread not in self._abandoned
            and (unit_since_s := key_range.unit_since_s) is not None
            and unit_since_s < since_s
        }


def _waited_s(threads: Iterable[threading.Thread]) -> dict[threading.Thread, float]:
    waits = ((thread, waited_s(thread.native_id)) for thread in threads if thread.native_id)
    return {thread: seconds for thread, seconds in waits if seconds is not None}
