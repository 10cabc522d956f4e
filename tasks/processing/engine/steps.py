"""Work as generators that yield users' coroutines; the caller chooses how to await them.

A thread runs each coroutine to its end (`run_steps`); an event loop awaits it (`await_steps`).
"""

import asyncio
import time
import types
from collections.abc import Coroutine, Generator
from typing import Any, Protocol, TypeVar, cast

from tidewheel.tasks.processing.api.coroutines import come_next, unexpected_cancellation, wait_for

R = TypeVar("R")

#: None lets others have the loop.
Steps = Generator[Coroutine[Any, Any, Any] | None, Any, R]

_Ended = tuple[Any, BaseException | None]


class Owner(Protocol):
    """The owner of the work: a key range on an event loop.

    `is_cancelled`: no more coroutines may start. `worked_s`: seconds that its work occupied the loop.
    `waits`: number of its coroutines' suspensions. `awaited`: asyncio task of the current one.
    `limited`: returns a coroutine that waits for a place among those in flight, if these are limited.
    """

    is_cancelled: bool
    worked_s: float
    waits: int
    awaited: asyncio.Task[Any] | None

    def limited(self, coroutine: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]: ...


def run_steps(steps: Steps[R]) -> R:
    """Run work to its end in this thread and return its result.

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
                result = None if coroutine is None else wait_for(coroutine)
            except BaseException as error:  # noqa: BLE001 - the work's own, which raises it again
                coroutine = steps.throw(error)
            else:
                coroutine = steps.send(result)
    except StopIteration as done:
        return cast("R", done.value)


async def await_steps(steps: Steps[R], owner: Owner) -> R:
    """Run work to its end on the running loop; return its result.

    asyncio queues a coroutine's start, and later its waiter's wake-up, behind all due callbacks, so
    a busy loop delays the record twice. A `PromptLoop` runs both next. Once `owner.given_up` is
    set, the work gets `asyncio.CancelledError` instead of a coroutine's result. If a coroutine
    raises that error on its own, the work gets a `StreamsError`.
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
        if owner.is_cancelled:
            if coroutine is not None:
                coroutine.close()
            # As if the coroutine had been cancelled at its first await.
            result, error = None, asyncio.CancelledError()
            continue
        if coroutine is None:
            result, error = None, await _cancelled_turn()
            continue
        ended: asyncio.Future[_Ended] = loop.create_future()
        # Not `create_task`: the loop's task factory tracks tasks that coroutines leave behind.
        carried_out = _carry_out(owner.limited(coroutine), owner, loop, ended)
        owner.awaited = task = asyncio.Task(carried_out, loop=loop)
        come_next(loop)
        try:
            result, error = await ended
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,))
            result, error = None, asyncio.CancelledError()
        if isinstance(error, asyncio.CancelledError) and not owner.is_cancelled:
            error = unexpected_cancellation(error)


async def _cancelled_turn() -> asyncio.CancelledError | None:
    """Let others have the loop once; return the error if the work is cancelled meanwhile."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError as error:
        return error
    return None


async def _carry_out(
    coroutine: Coroutine[Any, Any, Any],
    owner: Owner,
    loop: asyncio.AbstractEventLoop,
    ended: "asyncio.Future[_Ended]",
) -> None:
    result: Any = None
    error: BaseException | None = None
    try:
        result = await _timed_steps(coroutine, owner)
        # Not `current_task()`: before Python 3.12 it costs a system call, as `get_running_loop()`.
        if owner.awaited is not None and owner.awaited.cancelling():
            await asyncio.sleep(0)  # Raises if the task was cancelled since its last await.
    except GeneratorExit:
        raise
    except BaseException as raised:  # noqa: BLE001 - the work's own, which raises it again
        error = raised
    if not ended.done():
        ended.set_result((result, error))
        come_next(loop)


@types.coroutine
def _timed_steps(coroutine: Coroutine[Any, Any, Any], owner: Owner) -> Generator[Any, Any, Any]:
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
