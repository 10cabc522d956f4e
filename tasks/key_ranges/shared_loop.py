"""Event loop of a worker's coroutines, in its own thread.

Key ranges whose user functions are all coroutines run on it: while one awaits, others start and
finish their calls, and a call in flight needs no thread. Other threads wait there for a coroutine.
Each thread or range awaits one call at a time.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from math import inf
from typing import Any, Final, Protocol, cast
from weakref import WeakSet

from tidewheel.tasks.key_ranges.loop_watch import LoopWatch
from tidewheel.tasks.processing.api.call_window import is_window
from tidewheel.tasks.processing.api.coroutines import (
    CoroutineRunner,
    PromptLoop,
    call_limit,
    new_loop,
    unexpected_cancellation,
)

#: Seconds that `is_turning` waits for the event loop to answer.
_PROBE_S: Final = 0.1
#: Seconds that a closing range waits for its background tasks.
_BACKGROUND_TASKS_S: Final = 1.0
#: Seconds between checks whether a coroutine of no record must end.
_CHECK_S: Final = 0.1
#: Seconds that such a coroutine has for its `finally` blocks once it is cancelled.
_CANCELLED_S: Final = 1.0

#: Owner of the running coroutine; tasks it starts get the same owner.
_owner: ContextVar["SharedRunner | None"] = ContextVar("tidewheel_owner", default=None)


def _ignore(_: object) -> None:
    pass


def _never() -> bool:
    return False


class Turning(Protocol):
    @property
    def waiting(self) -> "LoopRunner": ...

    async def turn_on_loop(self) -> None: ...


class SharedRunner(CoroutineRunner):
    """Runner of the coroutines of one key range or thread on the shared loop.

    The range's turns on the loop await them; its turns in other threads use `wait_for`. `done` runs
    on the loop after each turn.
    """

    def __init__(self, turns: "SharedLoop", done: Callable[[Any], None] = _ignore) -> None:
        self.turns = turns
        self.done = done
        self.loop = turns.loop
        self.is_cancelled = False
        self.worked_s = 0.0
        self.waits = 0
        self.awaited: asyncio.Task[Any] | None = None
        self.context = self._owned_context()
        self.started_tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        #: asyncio task to cancel with the range: its turn, or a coroutine of `wait_for`.
        self.current_task: asyncio.Task[Any] | None = None

    @property
    def is_behind(self) -> bool:
        """Return True if the loop is behind its work: waits are longer than their calls."""
        return isinstance(self.loop, PromptLoop) and self.loop.is_behind

    def _owned_context(self) -> Context:
        context = copy_context()
        context.run(_owner.set, self)
        if self.turns.free_calls is not None:
            context.run(call_limit.set, self.limited)
        return context

    def limited(self, coroutine: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        """Return the coroutine, made to wait while `max_calls_in_flight` others are in flight."""
        if self.turns.free_calls is None or is_window(coroutine):
            return coroutine
        return self.turns.limited(coroutine)

    def wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self.is_cancelled:
            coroutine.close()
            raise asyncio.CancelledError
        done = threading.Event()
        # The coroutine sees the context variables of its thread.
        context = self._owned_context()
        self.loop.call_soon_threadsafe(self.begin, self.limited(coroutine), done, context=context)
        done.wait()
        return self.result()

    def begin(self, coroutine: Coroutine[Any, Any, Any], done: threading.Event) -> None:
        """Start a coroutine, on the loop; `done` is set when it has ended."""
        self.current_task = asyncio.Task(coroutine, loop=self.loop)
        self.current_task.add_done_callback(lambda _: done.set())
        if self.is_cancelled:
            self.current_task.cancel()

    def result(self) -> Any:
        """Return the result of the coroutine of `begin`, which has ended; raise its error."""
        task, self.current_task = self.current_task, None
        assert task is not None, "it was started"
        try:
            return task.result()
        except asyncio.CancelledError as error:
            if self.is_cancelled:
                raise
            raise unexpected_cancellation(error) from error

    def has(self, task: asyncio.Task[Any]) -> bool:
        return task is self.awaited or task is self.current_task or task in self.started_tasks

    def cancel(self) -> None:
        self.is_cancelled = True
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self.current_task is not None:
            self.current_task.cancel()

    def close(self) -> None:
        if not self.started_tasks or self.loop.is_closed():
            return
        ended = threading.Event()
        self.loop.call_soon_threadsafe(self._end, ended)
        ended.wait(_BACKGROUND_TASKS_S)

    def _end(self, ended: threading.Event) -> None:
        tasks = [task for task in self.started_tasks if not task.done()]
        for task in tasks:
            task.cancel()
        ending = asyncio.gather(*tasks, return_exceptions=True)
        ending.add_done_callback(lambda _: ended.set())


class LoopRunner(CoroutineRunner):
    """Runner of one key range or thread, which joins the worker's loop at its first coroutine.

    Attributes:
        shared: Its runner on the loop; None before `join`.
    """

    def __init__(self, share: Callable[[], SharedRunner]) -> None:
        self._share = share
        self._is_cancelled = False
        self.shared: SharedRunner | None = None

    def join(self) -> SharedRunner:
        shared = self.shared
        if shared is None:
            shared = self.shared = self._share()
            if self._is_cancelled:
                shared.cancel()
        return shared

    def wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.join().wait_for(coroutine)

    def cancel(self) -> None:
        self._is_cancelled = True
        if self.shared is not None:
            self.shared.cancel()

    def close(self) -> None:
        if self.shared is not None:
            self.shared.close()


class SharedLoop:
    """Event loop and its thread.

    Args:
        calls_max: Maximum coroutines in flight; 0: no limit.
    """

    def __init__(self, calls_max: int = 0) -> None:
        #: Free places for coroutines; None: no limit.
        self.free_calls = asyncio.Semaphore(calls_max) if calls_max else None
        self._ready: deque[Turning] = deque()
        self._woken = False
        self._closed = False
        #: Last probe of `is_turning`; while a blocked loop does not answer, none is added.
        self._probe: threading.Event | None = None
        #: Running turns: asyncio itself has only weak references to them.
        self._turns: set[asyncio.Task[None]] = set()
        self._runner = asyncio.Runner(loop_factory=new_loop)
        self.loop = self._runner.get_loop()
        self.loop.set_task_factory(cast("Any", _task_factory))
        thread = threading.Thread(target=self._run, name="tidewheel-awaiting", daemon=True)
        #: Seconds that steps of key ranges have occupied the loop.
        self.worked_s = 0.0
        self.watch = LoopWatch(self.loop, thread, lambda: self.worked_s)
        thread.start()

    async def limited(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        assert self.free_calls is not None, "there is a limit"
        try:
            async with self.free_calls:
                return await coroutine
        finally:
            coroutine.close()  # if it was cancelled while it waited for a place

    def begin(self, key_range: Turning) -> None:
        """Queue a turn of a range. Called by any thread, one at a time."""
        self._ready.append(key_range)
        if not self._woken:
            self._woken = True
            self.loop.call_soon_threadsafe(self._start_turns)

    def is_turning(self) -> bool:
        probe, wait_s = self._probe, 0.0
        if probe is None or probe.is_set():
            probe, wait_s = threading.Event(), _PROBE_S
            self._probe = probe
            self.loop.call_soon_threadsafe(probe.set)
        return probe.wait(wait_s)

    def close(self) -> None:
        """End the thread when the loop runs again. Does not wait."""
        self._closed = True
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _run(self) -> None:
        with self._runner:
            while not self._closed:
                try:
                    self.loop.run_forever()
                except (SystemExit, KeyboardInterrupt):
                    continue  # the awaiting code gets this error, too

    def _start_turns(self) -> None:
        self._woken = False
        while self._ready:
            key_range = self._ready.popleft()
            shared = key_range.waiting.shared
            assert shared is not None, "it has joined"
            turn = asyncio.Task(
                self._turn(key_range, shared), loop=self.loop, context=shared.context
            )
            self._turns.add(turn)
            turn.add_done_callback(self._turns.discard)

    async def _turn(self, key_range: Turning, shared: SharedRunner) -> None:
        # Not earlier: a task cancelled before its first step would never call `done`.
        shared.current_task = asyncio.current_task()
        await key_range.turn_on_loop()
        shared.current_task = None
        shared.done(key_range)


def _task_factory(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    task = asyncio.Task(coroutine, loop=loop, **options)
    owner = _owner.get()
    if owner is not None:
        owner.started_tasks.add(task)
    return task


class WorkerLoop:
    """The event loop of a process's coroutines, started with the first of them.

    All workers of the process share it. If a coroutine blocks it for good, ranges of a task that is
    abandoned stay on it, and later ones get a new loop.

    Args:
        calls_max: Maximum coroutines in flight; 0: no limit.
    """

    def __init__(self, calls_max: int = 0) -> None:
        self._calls_max = calls_max
        self._lock = threading.Lock()
        self._current: SharedLoop | None = None
        self._loops: list[SharedLoop] = []

    def share(self, done: Callable[[Any], None] = _ignore) -> SharedRunner:
        """Return a new runner on the loop; `done` runs there after each turn of its range."""
        with self._lock:
            if self._current is None:
                self._current = SharedLoop(self._calls_max)
                self._loops.append(self._current)
            return SharedRunner(self._current, done)

    def replace(self, blocked: SharedLoop) -> None:
        """Give later runners a new loop."""
        with self._lock:
            if self._current is blocked:
                self._current = None

    def run(
        self,
        coroutine: Coroutine[Any, Any, Any],
        *,
        timeout_s: float = inf,
        is_stopping: Callable[[], bool] = _never,
    ) -> Any:
        """Run a coroutine that belongs to no record; return its result.

        Tasks that it leaves behind live as long as the loop.

        Raises:
            TimeoutError: It took longer, or `is_stopping()` became true. It is cancelled.
        """
        shared, returned = self.share(), threading.Event()
        shared.loop.call_soon_threadsafe(shared.begin, coroutine, returned)
        until_s = time.monotonic() + timeout_s
        while not returned.wait(max(min(until_s - time.monotonic(), _CHECK_S), 0.0)):
            if time.monotonic() >= until_s or is_stopping():
                shared.cancel()
                returned.wait(_CANCELLED_S)
                raise TimeoutError(f"it did not return within {timeout_s:g} s")
        return shared.result()

    def watch(self, now_s: float) -> None:
        for loop in list(self._loops):
            loop.watch.check(now_s)

    def is_inside(self) -> bool:
        me = threading.current_thread()
        return any(loop.watch.thread is me for loop in list(self._loops))

    def close(self) -> None:
        """End the loops; a blocked one when its coroutine returns. Does not wait."""
        with self._lock:
            self._current = None
            loops, self._loops = self._loops, []
        for loop in loops:
            loop.close()
