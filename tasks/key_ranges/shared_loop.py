"""Shared event loop, in its own thread, for key ranges whose user functions are all coroutines.

While one range awaits, others start and finish their calls; a call in flight needs no thread. Each
range processes one record at a time and keeps its loop for life.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, Protocol, cast
from weakref import WeakSet

from tidewheel.tasks.key_ranges.loop_watch import LoopWatch
from tidewheel.tasks.processing.api.coroutines import (
    CoroutineRunner,
    new_loop,
    unexpected_cancellation,
)

#: Seconds that `is_turning` waits for the event loop to answer.
_PROBE_S: Final = 0.1
#: Seconds that a closing range waits for its background tasks.
_BACKGROUND_TASKS_S: Final = 1.0

#: Owner of the running coroutine; tasks it starts get the same owner.
_owner: ContextVar["SharedRunner | None"] = ContextVar("tidewheel_owner", default=None)


class Turning(Protocol):
    @property
    def waiting(self) -> CoroutineRunner: ...

    async def turn_on_loop(self) -> None: ...


class SharedRunner(CoroutineRunner):
    """Runner of one key range's coroutines on the shared loop.

    The range's turns on the loop await them; its turns in other threads use `wait_for`.
    """

    def __init__(self, turns: "SharedLoop") -> None:
        self.turns = turns
        self.loop = turns.loop
        self.is_cancelled = False
        self.worked_s = 0.0
        self.waits = 0
        self.awaited: asyncio.Task[Any] | None = None
        self.context: Context = copy_context()
        self.context.run(_owner.set, self)
        self.started_tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        #: asyncio task to cancel with the range: its turn, or a coroutine of `wait_for`.
        self.current_task: asyncio.Task[Any] | None = None

    def wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self.is_cancelled:
            coroutine.close()
            raise asyncio.CancelledError
        done = threading.Event()
        self.loop.call_soon_threadsafe(self._begin, coroutine, done, context=self.context)
        done.wait()
        task, self.current_task = self.current_task, None
        assert task is not None, "it was started_tasks"
        try:
            return task.result()
        except asyncio.CancelledError as error:
            if self.is_cancelled:
                raise
            raise unexpected_cancellation(error) from error

    def _begin(self, coroutine: Coroutine[Any, Any, Any], done: threading.Event) -> None:
        self.current_task = asyncio.Task(coroutine, loop=self.loop)
        self.current_task.add_done_callback(lambda _: done.set())
        if self.is_cancelled:
            self.current_task.cancel()

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


class SharedLoop:
    """Event loop and its thread; `done` runs on the loop after each turn of a range."""

    def __init__(self, done: Callable[[Any], None]) -> None:
        self._done = done
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
        self.watch = LoopWatch(self.loop, thread)
        thread.start()

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
            shared = key_range.waiting
            assert isinstance(shared, SharedRunner), "it has joined"
            turn = asyncio.Task(
                self._turn(key_range, shared), loop=self.loop, context=shared.context
            )
            self._turns.add(turn)
            turn.add_done_callback(self._turns.discard)

    async def _turn(self, key_range: Turning, shared: SharedRunner) -> None:
        # Not earlier: a task cancelled before its first step would never call `_done`.
        shared.current_task = asyncio.current_task()
        await key_range.turn_on_loop()
        shared.current_task = None
        self._done(key_range)


def _task_factory(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    task = asyncio.Task(coroutine, loop=loop, **options)
    owner = _owner.get()
    if owner is not None:
        owner.started_tasks.add(task)
    return task
