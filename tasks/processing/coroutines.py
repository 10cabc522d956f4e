"""Waits for users' coroutines, one at a time, on a private event loop of the thread that processes the task.

What a coroutine started and left behind (background tasks, asynchronous generators) goes on whenever the loop runs
again, and is cancelled when the loop is closed with the task.
"""

import asyncio
import inspect
import threading
from collections.abc import Coroutine
from typing import Any

from state_stores.errors import StreamsError


class _Loops(threading.local):
    """The event loop of each thread; made when the first coroutine is waited for."""

    runner: asyncio.Runner | None = None


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
    runner = _loops.runner
    if runner is None:
        runner = _loops.runner = asyncio.Runner()
    # Not `Runner.run`, which would take over SIGINT for each record.
    return runner.get_loop().run_until_complete(coroutine)


def close_loop() -> None:
    """Close this thread's loop, if it has one; the next coroutine gets a new one."""
    runner, _loops.runner = _loops.runner, None
    if runner is not None:
        runner.close()


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
