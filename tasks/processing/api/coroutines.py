"""Waits for users' coroutines, one at a time, on a private event loop: of the thread, or of the key range at work in it.

What a coroutine started and left behind (background tasks, asynchronous generators) goes on whenever the loop runs
again, and is cancelled when the loop is closed with the task.

A key range keeps to one loop (`Waiting`), whichever thread runs it, so that a client which is bound to a loop can be
kept in a processor, and a range that is given away can be told to stop waiting without touching another one. It is its own
(`PrivateLoop`), or one that the worker's ranges share (`tidewheel.tasks.key_ranges.shared_loop`).
"""

import asyncio
import inspect
import selectors
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final, Self

from tidewheel.state_stores.errors import StreamsError

#: What one turn of a loop finds ready.
_Ready = list[tuple[selectors.SelectorKey, int]]

#: The end of the pipe by which a loop is woken.
_OWN_FILES: Final = 1
#: As often in a row a loop may do without the system: signals that a program handles on it come through the pipe.
_UNASKED_MAX: Final = 100


class _OwnSelector(selectors.DefaultSelector):
    """Asks the system only if something may be there.

    A loop looks at its files between any two steps of a coroutine. Where none is open but its own, by which it is woken
    from waiting, there is nothing to see; but looking gives the interpreter away, and then this thread has to wait until
    those of other ranges let go of it.
    """

    _unasked = 0

    def select(self, timeout: float | None = None) -> _Ready:
        """Return what is ready, as the loop wants it."""
        waits = timeout is None or timeout > 0
        if not waits and self._unasked < _UNASKED_MAX and len(self.get_map()) <= _OWN_FILES:
            self._unasked += 1
            return []
        self._unasked = 0
        return super().select(timeout)


class PromptLoop(asyncio.SelectorEventLoop):
    """A loop that asks the system less often, and on which a callback may come before those that are due."""

    #: asyncio's own queue of what is due: callbacks are put at its end and taken from its beginning.
    _ready: deque[asyncio.Handle]

    def __init__(self) -> None:
        super().__init__(_OwnSelector())

    def come_next(self) -> None:
        """Have the callback that was scheduled last come next."""
        self._ready.appendleft(self._ready.pop())


def come_next(loop: asyncio.AbstractEventLoop) -> None:
    """Have the callback that was scheduled last come next, where the loop is ours; else it comes when it comes."""
    if type(loop) is PromptLoop:
        loop.come_next()


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a loop as the program's policy makes them; in place of asyncio's own one, a prompt one."""
    loop = asyncio.new_event_loop()
    if type(loop) is not asyncio.SelectorEventLoop:
        return loop
    loop.close()
    return PromptLoop()


def cancelled_by_nobody(error: asyncio.CancelledError) -> StreamsError:
    """Return the failure of a coroutine that ended as if it had been cancelled."""
    failure = StreamsError(
        "an async function ended with asyncio.CancelledError, but nobody cancelled it: something it waited for was "
        "cancelled; catch that where it is waited for"
    )
    failure.__cause__ = error
    return failure


class Waiting(ABC):
    """What waits for one owner's coroutines, one at a time.

    As a context it is what `wait_for` uses in this thread. One thread at a time may be in it; `cancel` may be called by
    any.
    """

    def __enter__(self) -> Self:
        """Let this thread wait here."""
        _loops.entered = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let this thread wait on its own loop again."""
        _loops.entered = None

    @abstractmethod
    def wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end and return its result; raises what it raises.

        After `cancel` it raises `asyncio.CancelledError`, which no handler takes for a record that failed. A coroutine
        that ends with that error although nobody cancelled it has failed: `StreamsError`.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Cancel what is waited for now, at its next `await`, and all that comes later: the owner is given up.

        A coroutine that blocks instead of awaiting can't be cancelled; it is when it awaits again.
        """

    @abstractmethod
    def close(self) -> None:
        """Cancel what the owner's coroutines left behind. Nobody may be waiting here."""


class PrivateLoop(Waiting):
    """An event loop that runs one coroutine at a time, for one owner; made when the first one is waited for.

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
        #: What is waited for now.
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False

    def wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run the loop until a coroutine has ended."""
        task = self._begin(coroutine)
        try:
            return task.get_loop().run_until_complete(task)
        except asyncio.CancelledError as error:
            if self._cancelled:
                raise
            raise cancelled_by_nobody(error) from error
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
            # Not `Runner.run`, which would take over SIGINT for each record.
            self._task = self._runner.get_loop().create_task(coroutine)
            return self._task

    def cancel(self) -> None:
        """Give the owner up."""
        with self._lock:
            self._cancelled = True
            if self._task is not None:
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    def close(self) -> None:
        """Cancel what coroutines left behind, and close the loop; the next coroutine gets a new one."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()


class _Loops(threading.local):
    """The loops of each thread: the one it has entered, and its own."""

    entered: Waiting | None = None
    own: PrivateLoop | None = None


_loops = _Loops()


def wait_for(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end and return its result; raises what it raises.

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


def close_loop() -> None:
    """Close this thread's own loop, if it has one; the next coroutine gets a new one."""
    loop, _loops.own = _loops.own, None
    if loop is not None:
        loop.close()


def refuse_awaitable(result: object, what: str) -> None:
    """Raise `TypeError` if a function that nobody waits for returned something to wait for, which is closed.

    >>> async def choose():
    ...     return 1
    >>> refuse_awaitable(choose(), "the partitioner 'choose'")
    Traceback (most recent call last):
        ...
    TypeError: the partitioner 'choose' returned a coroutine, which nobody waits for here; give a plain function that returns the answer
    """
    if inspect.iscoroutine(result):
        result.close()
        what_came = "a coroutine"
    elif inspect.isawaitable(result) or inspect.isasyncgen(result):
        what_came = f"an object of type {type(result).__name__}, made to be awaited"
    else:
        return
    raise TypeError(
        f"{what} returned {what_came}, which nobody waits for here; give a plain function that returns the answer"
    )


class Awaiting:
    """A coroutine function, called as a plain one: returns when the coroutine has ended.

    >>> async def shout(text):
    ...     return text.upper()
    >>> Awaiting(shout)("hello")
    'HELLO'
    >>> close_loop()
    """

    __slots__ = ("_function",)

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        """Call the function and wait for it; a wrapper that has waited already gives its result as it is."""
        result: Any = self._function(*arguments)
        return wait_for(result) if inspect.iscoroutine(result) else result
