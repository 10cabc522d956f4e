"""Work that stops at each coroutine of the user's, so that whoever runs it says how that is waited for.

Such work is a generator: it yields a coroutine, and is sent what that returned, or has thrown into it what that raised. A
thread waits for each one (`run_steps`); on an event loop each is awaited, and others go on meanwhile (`await_steps`).
"""

import asyncio
import time
import types
from collections.abc import Coroutine, Generator
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Protocol, TypeVar, cast

from tasks.processing.coroutines import cancelled_by_nobody, wait_for

R = TypeVar("R")

#: Yields coroutines, takes what they returned, and returns something at its end.
Steps = Generator[Coroutine[Any, Any, Any], Any, R]


class Owner(Protocol):
    """Whose work it is.

    Attributes:
        given_up: It is given up: no coroutine of it begins any more.
        worked_s: For how long it has kept the loop to itself.
        waits: How often it has let others go on.
    """

    given_up: bool
    worked_s: float
    waits: int


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
    """Run work to its end on the loop that runs, and return what it returns.

    All coroutines of the work are awaited in the task that calls this, each in a context of its own. A task for each
    would take two more turns of the loop per record, and in each turn a record waits for all others that are due.

    Where the owner is given up, `asyncio.CancelledError` is raised in place of a coroutine. One that ends so although its
    owner is not given up has failed, with `StreamsError`.
    """
    task = asyncio.current_task()
    assert task is not None, "it is awaited on a loop"
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
        result = error = None
        try:
            if owner.given_up:
                coroutine.close()
                raise asyncio.CancelledError  # noqa: TRY301 - as if it had been cancelled at its first await
            result = await _awaited(coroutine, owner)
            if task.cancelling():
                await _end_cancelling(task)
        except asyncio.CancelledError as raised:
            error = raised if owner.given_up else cancelled_by_nobody(raised)
        except BaseException as raised:  # noqa: BLE001 - the work's own, which raises it again
            error = raised
        if error is not None and task.cancelling() and not owner.given_up:
            with suppress(asyncio.CancelledError):  # the coroutine has failed with something else
                await _end_cancelling(task)


async def _end_cancelling(task: asyncio.Task[Any]) -> None:
    """Take back that a coroutine has cancelled the task it runs in: what comes next there has nothing to do with it.

    Raises `asyncio.CancelledError` if the coroutine ended before that could be raised in it.
    """
    try:
        await asyncio.sleep(0)
    finally:
        while task.cancelling():
            task.uncancel()


@types.coroutine
def _awaited(coroutine: Coroutine[Any, Any, Any], owner: Owner) -> Generator[Any, Any, Any]:
    """Await a coroutine in a context of its own, and note for how long its steps take and how often it waits."""
    run = copy_context().run
    value: Any = None
    error: BaseException | None = None
    while True:
        begin_s = time.monotonic()
        try:
            awaited = run(coroutine.send, value) if error is None else run(coroutine.throw, error)
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
