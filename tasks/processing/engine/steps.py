"""Work that stops at each coroutine of the user's, so that whoever runs it says how that is waited for.

Such work is a generator: it yields a coroutine, and is sent what that returned, or has thrown into it what that raised. A
thread waits for each one (`run_steps`); on an event loop each is awaited, and others go on meanwhile (`await_steps`).
"""

import asyncio
import time
import types
from collections.abc import Coroutine, Generator
from typing import Any, Protocol, TypeVar, cast

from tidewheel.tasks.processing.api.coroutines import cancelled_by_nobody, come_next, wait_for

R = TypeVar("R")

#: Yields coroutines, takes what they returned, and returns something at its end.
Steps = Generator[Coroutine[Any, Any, Any], Any, R]

#: What a coroutine returned, or what it raised.
_Ended = tuple[Any, BaseException | None]


class Owner(Protocol):
    """Whose work it is.

    Attributes:
        given_up: It is given up: no coroutine of it begins any more.
        worked_s: For how long it has kept the loop to itself.
        waits: How often it has let others go on.
        awaited: The task of its coroutine, None before the first one.
    """

    given_up: bool
    worked_s: float
    waits: int
    awaited: asyncio.Task[Any] | None


def run_steps(steps: Steps[R]) -> R:
    """Run work to its end in this thread, and return what it returns.

    >>> async def double(value):
    ...     return 2 * value
    >>> def work():
    ...     return 1 + (yield double(21))
    >>> run_steps(work())
    43
    """
    try:
        coroutine = next(steps)
        while True:
            try:
                result = wait_for(coroutine)
            except BaseException as error:  # noqa: BLE001 - the work's own, which raises it again
                coroutine = steps.throw(error)
            else:
                coroutine = steps.send(result)
    except StopIteration as done:
        return cast("R", done.value)


async def await_steps(steps: Steps[R], owner: Owner) -> R:
    """Run work to its end on the loop that runs, each coroutine in an asyncio task of its own, and return what it returns.

    A task begins when the loop comes to it, behind all that is due there, and who awaits it goes on behind all that is due
    then. On a `PromptLoop` both come next instead: else, where many wait on a loop, a record is in line three times.

    Where the owner is given up, `asyncio.CancelledError` is raised in place of a coroutine. One that ends so although its
    owner is not given up has failed, with `StreamsError`.
    """
    loop = asyncio.get_running_loop()
    result: Any = None
    error: BaseException | None = None
    while True:
        begin_s = time.monotonic()
        try:
            coroutine = steps.send(result) if error is None else steps.throw(error)
        except StopIteration as done:
            return cast("R", done.value)
        finally:
            owner.worked_s += time.monotonic() - begin_s
        if owner.given_up:
            coroutine.close()
            result, error = None, asyncio.CancelledError()  # as if cancelled at its first await
            continue
        ended: asyncio.Future[_Ended] = loop.create_future()
        # Not by the loop's factory, which notes what users' coroutines begin and leave behind.
        owner.awaited = task = asyncio.Task(_carry_out(coroutine, owner, ended), loop=loop)
        come_next(loop)
        try:
            result, error = await ended
        except asyncio.CancelledError:  # the owner is given up, and so is its coroutine
            task.cancel()
            await asyncio.wait((task,))
            result, error = None, asyncio.CancelledError()
        if isinstance(error, asyncio.CancelledError) and not owner.given_up:
            error = cancelled_by_nobody(error)


async def _carry_out(
    coroutine: Coroutine[Any, Any, Any], owner: Owner, ended: "asyncio.Future[_Ended]"
) -> None:
    """Await a coroutine, and tell how it has ended; who waits for that comes next."""
    result: Any = None
    error: BaseException | None = None
    try:
        result = await _timed_steps(coroutine, owner)
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            await asyncio.sleep(0)  # raises, if it was cancelled since it last waited
    except GeneratorExit:  # the loop is gone
        raise
    except BaseException as raised:  # noqa: BLE001 - the work's own, which raises it again
        error = raised
    if not ended.done():
        ended.set_result((result, error))
        come_next(asyncio.get_running_loop())


@types.coroutine
def _timed_steps(coroutine: Coroutine[Any, Any, Any], owner: Owner) -> Generator[Any, Any, Any]:
    """Await a coroutine, and note for how long its steps take and how often it waits."""
    value: Any = None
    error: BaseException | None = None
    while True:
        begin_s = time.monotonic()
        try:
            awaited = coroutine.send(value) if error is None else coroutine.throw(error)
        except StopIteration as done:
            return done.value
        finally:
            owner.worked_s += time.monotonic() - begin_s
        owner.waits += 1
        value = error = None
        try:
            value = yield awaited
        except BaseException as raised:  # noqa: BLE001 - thrown into the coroutine
            error = raised
