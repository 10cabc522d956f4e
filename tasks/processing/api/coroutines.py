"""Runs users' coroutines for threads that wait for them, one at a time per thread or key range.

A worker's threads wait for its event loop (`tidewheel.tasks.key_ranges.shared_loop`), which runs in
a thread of its own. Other threads, such as that of a test driver, run a loop themselves. asyncio
tasks that a coroutine leaves behind are cancelled when its stream task is closed.
"""

import asyncio
import inspect
import selectors
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Self

from tidewheel.state_stores.errors import StreamsError

_Ready = list[tuple[selectors.SelectorKey, int]]

#: File descriptors in the selector of a loop without users' sockets: its own wake-up pipe.
_OWN_FILES: Final = 1
#: More due callbacks than these: the loop is behind its work.
_BEHIND: Final = 32
#: Maximum polls skipped in a row: a poll lets signals through, which arrive by that pipe.
_UNASKED_MAX: Final = 100


class _OwnSelector(selectors.DefaultSelector):
    """A selector that skips non-blocking polls of a loop without users' sockets.

    Each poll releases the GIL, and this thread then waits for threads of other key ranges.
    """

    _unasked = 0

    def select(self, timeout: float | None = None) -> _Ready:
        waits = timeout is None or timeout > 0
        if not waits and self._unasked < _UNASKED_MAX and len(self.get_map()) <= _OWN_FILES:
            self._unasked += 1
            return []
        self._unasked = 0
        return super().select(timeout)


class PromptLoop(asyncio.SelectorEventLoop):
    #: asyncio's queue of due callbacks.
    _ready: deque[asyncio.Handle]

    def __init__(self) -> None:
        super().__init__(_OwnSelector())

    def come_next(self) -> None:
        """Move the callback scheduled last to the front: its record must not queue again."""
        self._ready.appendleft(self._ready.pop())

    @property
    def is_behind(self) -> bool:
        """Return True if so many callbacks are due that each waits for milliseconds."""
        return len(self._ready) > _BEHIND


def come_next(loop: asyncio.AbstractEventLoop) -> None:
    if type(loop) is PromptLoop:
        loop.come_next()


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a `PromptLoop`, or a loop of the program's own event loop policy."""
    loop = asyncio.new_event_loop()
    if type(loop) is not asyncio.SelectorEventLoop:
        return loop
    loop.close()
    return PromptLoop()


def unexpected_cancellation(error: asyncio.CancelledError) -> StreamsError:
    failure = StreamsError(
        "an async function ended with asyncio.CancelledError, but it was not cancelled: something it awaited was "
        "cancelled; catch the error at that await"
    )
    failure.__cause__ = error
    return failure


class CoroutineRunner(ABC):
    """Runs the coroutines of one owner (a thread or key range), one at a time.

    Within its `with` block, `wait_for` uses it. One thread may enter it; any may call `cancel`.
    """

    _before: "CoroutineRunner | None" = None

    def __enter__(self) -> Self:
        self._before = _loops.entered
        _loops.entered = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _loops.entered = self._before

    @abstractmethod
    def wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end and return its result.

        After `cancel`, raises `asyncio.CancelledError`, about which no exception handler is asked.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Cancel the current coroutine at its next `await`, and all later ones."""

    @abstractmethod
    def close(self) -> None:
        """Cancel asyncio tasks left behind by coroutines; no thread may be in `wait_for`."""


class PrivateLoop(CoroutineRunner):
    """An event loop for one owner, created on first use.

    >>> async def double(value):
    ...     return 2 * value
    >>> loop = PrivateLoop()
    >>> with loop:
    ...     wait_for(double(21))
    42
    >>> loop.close()
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runner: asyncio.Runner | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False

    def wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        task = self._begin(coroutine)
        try:
            return task.get_loop().run_until_complete(task)
        except asyncio.CancelledError as error:
            if self._cancelled:
                raise
            raise unexpected_cancellation(error) from error
        finally:
            with self._lock:
                self._task = None

    def _begin(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        with self._lock:
            if self._cancelled:
                coroutine.close()
                raise asyncio.CancelledError
            if self._runner is None:
                self._runner = asyncio.Runner(loop_factory=new_loop)
            # Not `Runner.run`: in the main thread it replaces the SIGINT handler at each call. That
            # costs time, and makes Ctrl-C cancel the coroutine.
            self._task = self._runner.get_loop().create_task(coroutine)
            return self._task

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._task is not None:
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()


class _Loops(threading.local):
    #: See `answering`.
    results: Iterator[Any] | None = None
    entered: CoroutineRunner | None = None
    own: PrivateLoop | None = None


_loops = _Loops()


def wait_for(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end and return its result.

    >>> async def double(value):
    ...     await asyncio.sleep(0)
    ...     return 2 * value
    >>> wait_for(double(21))
    42
    >>> close_loop()
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        coroutine.close()
        raise StreamsError(
            "an async function can't be waited for in a thread whose event loop is running; in an async test or program "
            "call the driver through asyncio.to_thread()"
        )
    loop = _loops.entered or _loops.own
    if loop is None:
        loop = _loops.own = PrivateLoop()
    return loop.wait_for(coroutine)


async def _returned(result: Any) -> Any:
    return result


def close_loop() -> None:
    """Cancel the asyncio tasks that this thread's coroutines left behind.

    A loop of the thread itself is closed; its next coroutine gets a new one.
    """
    own, _loops.own = _loops.own, None
    if own is not None:
        own.close()
    if _loops.entered is not None:
        _loops.entered.close()


def refuse_awaitable(result: object, what: str) -> None:
    """Raise `TypeError` if a user's function returned an awaitable where none is awaited.

    >>> async def choose():
    ...     return 1
    >>> refuse_awaitable(choose(), "the partitioner 'choose'")
    Traceback (most recent call last):
        ...
    TypeError: the partitioner 'choose' returned a coroutine, which is not awaited here; give a plain function that returns the answer
    """
    if inspect.iscoroutine(result):
        result.close()
        what_came = "a coroutine"
    elif inspect.isawaitable(result) or inspect.isasyncgen(result):
        what_came = f"an object of type {type(result).__name__}, made to be awaited"
    else:
        return
    raise TypeError(
        f"{what} returned {what_came}, which is not awaited here; give a plain function that returns the answer"
    )


#: Set on an event loop that limits coroutines in flight: makes one wait for its place.
call_limit: ContextVar[Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]] | None] = (
    ContextVar("tidewheel_call_limit", default=None)
)


@contextmanager
def answering(results: Iterable[Any]) -> Generator[None]:
    """Make calls of `Awaiting` in this thread return these results, which were awaited before."""
    _loops.results = iter(results)
    try:
        yield
    finally:
        _loops.results = None


class Awaiting:
    """Wrapper that makes a coroutine function callable like a plain one.

    >>> async def shout(text):
    ...     return text.upper()
    >>> Awaiting(shout)("hello")
    'HELLO'
    >>> close_loop()
    """

    __slots__ = ("_function",)

    def __init__(self, function: Any) -> None:
        self._function = function

    def begin(self, *arguments: Any) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of a call, which the caller awaits."""
        result: Any = self._function(*arguments)
        return result if inspect.iscoroutine(result) else _returned(result)

    def __call__(self, *arguments: Any) -> Any:
        results = _loops.results
        if results is not None:
            return next(results)
        result: Any = self._function(*arguments)
        return wait_for(result) if inspect.iscoroutine(result) else result
