"""The event loop that key ranges share whose user functions are all coroutines, in a thread of its own.

While one range's call is awaited, others begin and end theirs; no thread stands by for each call in flight. Each range still
does one record after the other, and keeps to this loop for its life.
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

#: Whoever asks whether the loop turns waits for an answer so long.
_ANSWER_S: Final = 0.1
#: So long the end of a range waits for what its coroutines left behind.
_LEFT_BEHIND_S: Final = 1.0

#: Whose coroutine runs; what it begins belongs to the same owner.
_owner: ContextVar["Shared | None"] = ContextVar("tidewheel_owner", default=None)


class Turning(Protocol):
    """What works on the loop: a key range."""

    @property
    def waiting(self) -> CoroutineRunner:
        """Return what waits for its coroutines."""
        ...

    async def turn_on_loop(self) -> None:
        """Work until nothing is left to do there. Never raises."""
        ...


class Shared(CoroutineRunner):
    """One owner's part in a shared loop.

    Its coroutines are awaited by its turns on the loop; `wait_for` is for those of its turns in other threads.
    """

    def __init__(self, turns: "SharedLoop") -> None:
        self.turns = turns
        self.loop = turns.loop
        self.given_up = False
        self.worked_s = 0.0
        self.waits = 0
        self.awaited: asyncio.Task[Any] | None = None
        self.context: Context = copy_context()
        self.context.run(_owner.set, self)
        #: What its coroutines have begun.
        self.begun: WeakSet[asyncio.Task[Any]] = WeakSet()
        #: What is to be cancelled when it is given up: its turn on the loop, or what is waited for elsewhere.
        self.in_hand: asyncio.Task[Any] | None = None

    def wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Have the loop run a coroutine, and wait for its end in this thread."""
        if self.given_up:
            coroutine.close()
            raise asyncio.CancelledError
        done = threading.Event()
        self.loop.call_soon_threadsafe(self._begin, coroutine, done, context=self.context)
        done.wait()
        task, self.in_hand = self.in_hand, None
        assert task is not None, "it was begun"
        try:
            return task.result()
        except asyncio.CancelledError as error:
            if self.given_up:
                raise
            raise unexpected_cancellation(error) from error

    def _begin(self, coroutine: Coroutine[Any, Any, Any], done: threading.Event) -> None:
        self.in_hand = asyncio.Task(coroutine, loop=self.loop)
        self.in_hand.add_done_callback(lambda _: done.set())
        if self.given_up:
            self.in_hand.cancel()

    def has(self, task: asyncio.Task[Any]) -> bool:
        """Return whether a task is the owner's: its turn, its coroutine, or what one has begun."""
        return task is self.awaited or task is self.in_hand or task in self.begun

    def cancel(self) -> None:
        """Give the owner up."""
        self.given_up = True
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self.in_hand is not None:
            self.in_hand.cancel()

    def close(self) -> None:
        """Cancel what the owner's coroutines left behind, and wait for its end, but not for long."""
        if not self.begun or self.loop.is_closed():
            return
        ended = threading.Event()
        self.loop.call_soon_threadsafe(self._end, ended)
        ended.wait(_LEFT_BEHIND_S)

    def _end(self, ended: threading.Event) -> None:
        tasks = [task for task in self.begun if not task.done()]
        for task in tasks:
            task.cancel()
        ending = asyncio.gather(*tasks, return_exceptions=True)
        ending.add_done_callback(lambda _: ended.set())


class SharedLoop:
    """The loop and its thread. `done` is called on it when a range has ended a turn."""

    def __init__(self, done: Callable[[Any], None]) -> None:
        self._done = done
        self._ready: deque[Turning] = deque()
        self._woken = False
        self._closed = False
        #: Who asks next asks no second time while the loop does not answer.
        self._asked: threading.Event | None = None
        #: The loop itself holds its tasks weakly.
        self._turns: set[asyncio.Task[None]] = set()
        self._runner = asyncio.Runner(loop_factory=new_loop)
        self.loop = self._runner.get_loop()
        self.loop.set_task_factory(cast("Any", _noting))
        thread = threading.Thread(target=self._run, name="tidewheel-awaiting", daemon=True)
        self.watch = LoopWatch(self.loop, thread)
        thread.start()

    def begin(self, each: Turning) -> None:
        """Have a range take a turn. Called by any thread, one at a time."""
        self._ready.append(each)
        if not self._woken:
            self._woken = True
            self.loop.call_soon_threadsafe(self._begin_all)

    def is_turning(self) -> bool:
        """Return whether the loop turns: no coroutine blocks it."""
        asked, wait_s = self._asked, 0.0
        if asked is None or asked.is_set():
            asked, wait_s = threading.Event(), _ANSWER_S
            self._asked = asked
            self.loop.call_soon_threadsafe(asked.set)
        return asked.wait(wait_s)

    def close(self) -> None:
        """Have the thread end, when the loop turns again. Waits for nothing."""
        self._closed = True
        self.loop.call_soon_threadsafe(self.loop.stop)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with self._runner:
            while not self._closed:
                try:
                    self.loop.run_forever()
                except (SystemExit, KeyboardInterrupt):
                    continue  # a coroutine's: it is raised where that is awaited, too

    def _begin_all(self) -> None:
        self._woken = False
        while self._ready:
            each = self._ready.popleft()
            shared = each.waiting
            assert isinstance(shared, Shared), "it has joined"
            turn = asyncio.Task(self._turn(each, shared), loop=self.loop, context=shared.context)
            self._turns.add(turn)
            turn.add_done_callback(self._turns.discard)

    async def _turn(self, each: Turning, shared: Shared) -> None:
        # Not before: a task that is cancelled before its first step has none.
        shared.in_hand = asyncio.current_task()
        await each.turn_on_loop()
        shared.in_hand = None
        self._done(each)


def _noting(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    """Make a task, and note whose it is."""
    task = asyncio.Task(coroutine, loop=loop, **options)
    owner = _owner.get()
    if owner is not None:
        owner.begun.add(task)
    return task
