"""The threads that key ranges run in. One lock gives ranges to threads; a turn of work is some milliseconds.

A thread takes the range that has waited longest, but first the one that it had before, whose objects are warm. A range whose
call does not return keeps its thread; if its task lets go of it, another thread takes the place of that one.
"""

import threading
from collections import deque
from collections.abc import Iterable
from typing import Final

from tasks.ranges.range_worker import RangeWorker, Scheduling
from tasks.ranges.shared_loop import Shared, SharedLoop

#: How far down the queue a thread looks for the range it had before.
_LOOKED_AT: Final = 8


class RangePool:
    """Threads for the ranges of one worker's tasks.

    Args:
        threads: How many.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._ready: deque[RangeWorker] = deque()
        self._waiting = 0
        self._closed = False
        self._running: dict[RangeWorker, threading.Thread] = {}
        #: Threads whose range was let go while its call still ran: they end when it returns.
        self._left_behind: set[threading.Thread] = set()
        #: Where ranges take their turns that only await; made with the first one.
        self._shared: SharedLoop | None = None
        self._loops: list[SharedLoop] = []
        self._started = 0
        for _ in range(threads):
            self._start_thread()

    def _start_thread(self) -> None:
        self._started += 1
        threading.Thread(
            target=self._run, name=f"tidewheel-range-{self._started}", daemon=True
        ).start()

    # -- the loop --------------------------------------------------------------------------------------------------

    def wake(self, ranges: Iterable[RangeWorker]) -> None:
        """Have ranges worked on that have something to do."""
        with self._lock:
            for each in ranges:
                if each.scheduling is Scheduling.IDLE and each.has_work:
                    self._queue(each)

    def _queue(self, each: RangeWorker) -> None:
        """Have a range worked on where that is to be. The lock is held."""
        each.scheduling = Scheduling.QUEUED
        if each.awaits and isinstance(each.waiting, Shared):
            each.waiting.turns.begin(each)
        else:
            self._ready.append(each)
            self._work.notify()

    def share(self) -> Shared:
        """Return a part in the loop that ranges share, for a new one. Called from the ranges' threads."""
        with self._lock:
            if self._shared is None:
                self._shared = SharedLoop(self._turned)
                self._loops.append(self._shared)
            return Shared(self._shared)

    def leave_behind(self, each: RangeWorker) -> None:
        """Give up the thread of a range that was closed, if it is still in a call; another takes its place."""
        if isinstance(each.waiting, Shared):
            self._leave_loop(each.waiting)
        with self._lock:
            thread = self._running.get(each)
            if thread is None or thread in self._left_behind:
                return
            self._left_behind.add(thread)
        if not self._closed:
            self._start_thread()

    def is_blocked(self, each: RangeWorker) -> bool:
        """Return whether a range is to take a turn on a loop that a coroutine has blocked."""
        waiting = each.waiting
        if not isinstance(waiting, Shared) or each.scheduling is Scheduling.IDLE:
            return False
        return not waiting.turns.is_turning()

    def watch(self, now_s: float) -> None:
        """See which step the loops are at that ranges share, should one of them be blocked."""
        for each in list(self._loops):
            each.watch.look(now_s)

    def _leave_loop(self, waiting: Shared) -> None:
        """Cancel a coroutine; if one has blocked the loop, what comes later gets another loop."""
        waiting.cancel()
        if waiting.turns is self._shared and not waiting.turns.is_turning():
            self._shared = None  # whose ranges go on there when it turns again

    @property
    def has_free_threads(self) -> bool:
        """Return whether some thread waits for work."""
        return self._waiting > len(self._ready)

    @property
    def may_soon_be_free(self) -> bool:
        """Return whether a thread is free, or in a unit of fast records."""
        return self.has_free_threads or any(not each.slow for each in list(self._running))

    def close(self) -> None:
        """Have the threads end, those in a call when it returns. Waits for nothing."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
            for each in self._loops:
                each.close()

    # -- the threads -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        me = threading.current_thread()
        before: RangeWorker | None = None
        while True:
            with self._lock:
                while not self._ready:
                    if self._closed or me in self._left_behind:
                        return
                    self._waiting += 1
                    self._work.wait()
                    self._waiting -= 1
                mine = self._next(before)
                mine.scheduling = Scheduling.RUNNING
                self._running[mine] = me
            mine.turn(others_wait=self._others_wait, alone=self._is_alone)
            before = None if mine.ended else mine
            with self._lock:
                del self._running[mine]
                self._goes_on(mine)
                left_behind = me in self._left_behind
                self._left_behind.discard(me)
            if left_behind:
                return

    def _turned(self, mine: RangeWorker) -> None:
        """Take back a range that has ended a turn on the loop. Called on that."""
        with self._lock:
            self._goes_on(mine)

    def _goes_on(self, mine: RangeWorker) -> None:
        mine.scheduling = Scheduling.IDLE
        if mine.has_work:
            self._queue(mine)

    def _next(self, before: RangeWorker | None) -> RangeWorker:
        for index in range(min(len(self._ready), _LOOKED_AT)):
            found = self._ready[index]
            if found is before:
                del self._ready[index]
                return found
        return self._ready.popleft()

    def _others_wait(self) -> bool:
        return len(self._ready) > self._waiting

    def _is_alone(self) -> bool:
        return self._waiting == 0
