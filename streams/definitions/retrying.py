"""`retrying`: retries a failed function before its record goes to the processing handler."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar, overload

from tidewheel.streams.durations import to_ms
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.user_functions import is_async
from tidewheel.tasks.durations import Duration

P = ParamSpec("P")
R = TypeVar("R")

#: Smallest fraction of a wait: waits are shortened randomly, so calls that failed together retry at
#: different times.
_LEAST_PART: Final = 0.5


@overload
def retrying(
    function: Callable[P, R],
    *,
    attempts: int = ...,
    backoff: Duration = ...,
    max_backoff: Duration = ...,
    timeout: Duration | None = ...,
    on: type[Exception] | tuple[type[Exception], ...] = ...,
) -> Callable[P, R]: ...
@overload
def retrying(
    function: None = ...,
    *,
    attempts: int = ...,
    backoff: Duration = ...,
    max_backoff: Duration = ...,
    timeout: Duration | None = ...,
    on: type[Exception] | tuple[type[Exception], ...] = ...,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def retrying(
    function: Callable[..., Any] | None = None,
    *,
    attempts: int = 3,
    backoff: Duration = 100,
    max_backoff: Duration = 10_000,
    timeout: Duration | None = None,
    on: type[Exception] | tuple[type[Exception], ...] = Exception,
) -> Any:
    """Return a function that calls `function` up to `attempts` times.

    `function` may be a coroutine function. If the last call fails, its error is raised, with a note
    of an earlier one, and the record goes to the processing handler. Waits start at `backoff`, double up to `max_backoff`, and
    are shortened randomly by up to a half. A coroutine cancelled because its task moves away is not
    retried. Wrap calls to other systems only: a retry repeats store writes and forwards.

    Args:
        function: Function to call; without it a decorator is returned.
        attempts: Maximum number of calls, 1 or more.
        backoff: First wait, in milliseconds, as a `timedelta` or as text ("100ms").
        max_backoff: Longest wait.
        timeout: Time limit of one call of a coroutine function; it is then cancelled with a
            `TimeoutError`, whose text has the last error with a text of its own. A plain function
            can't be stopped: set the time-out in its client.
        on: Errors to retry; others are raised immediately.

    Raises:
        TopologyError: An invalid argument, or a `timeout` for a plain function.

    >>> answers = iter([OSError("busy"), OSError("busy"), 7])
    >>> def ask(value):
    ...     answer = next(answers)
    ...     if isinstance(answer, Exception):
    ...         raise answer
    ...     return value + answer
    >>> retrying(ask, attempts=3, backoff=1, on=OSError)(1)
    8
    """
    if function is not None and not callable(function):
        raise TopologyError(
            f"retrying: the function is of type {type(function).__name__}; give a callable, or use @retrying(attempts=...)"
        )
    if not all(map(_is_error, on if isinstance(on, tuple) else (on,))):
        raise TopologyError(
            f"retrying: on={on!r} is no class of errors; give one, as in on=ConnectionError, or a tuple of them"
        )
    if type(attempts) is not int or attempts < 1:
        raise TopologyError(f"attempts={attempts!r}: give how often to call at most, 1 or more")
    waits = _Waits(
        attempts,
        to_ms(backoff, "backoff") / 1_000,
        to_ms(max_backoff, "max_backoff") / 1_000,
    )
    timeout_s = None if timeout is None else to_ms(timeout, "timeout", minimum_ms=1) / 1_000

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        if is_async(function):
            return _of_coroutines(function, waits, timeout_s, on)
        if timeout_s is not None:
            raise TopologyError(
                f"timeout={timeout!r}: a plain function can't be stopped while it runs; give the time-out to the client it "
                "calls, or make it an async function"
            )
        return _of_calls(function, waits, on)

    return wrap if function is None else wrap(function)


def _is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception)


class _Waits:
    def __init__(self, attempts: int, first_s: float, longest_s: float) -> None:
        self._attempts = attempts
        self._first_s = first_s
        self._longest_s = longest_s

    def __iter__(self) -> Iterator[float | None]:
        """Yield the wait after each failed call (seconds); None for the last call."""
        wait_s = min(self._first_s, self._longest_s)
        for _ in range(self._attempts - 1):
            yield wait_s * random.uniform(_LEAST_PART, 1)  # noqa: S311 - not a secret
            wait_s = min(2 * wait_s, self._longest_s)
        yield None


_Errors = type[Exception] | tuple[type[Exception], ...]


def _of_calls(function: Callable[..., Any], waits: _Waits, on: _Errors) -> Callable[..., Any]:
    @wraps(function)
    def calling(*arguments: Any, **named: Any) -> Any:
        last = ""
        for wait_s in waits:
            try:
                return function(*arguments, **named)
            except on as error:
                if wait_s is None:
                    _note(error, last)
                    raise
                last = _shown(error)
                time.sleep(wait_s)
        raise AssertionError("the last call returns or raises")

    return calling


def _shown(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _late(timeout_s: float, last: str) -> str:
    """Return the text of a time-out, with that of the last other error."""
    text = f"no answer within {timeout_s * 1_000:g} ms"
    return f"{text}; an earlier call failed with {last}" if last else text


def _note(error: Exception, last: str) -> None:
    """Add the failure before an error to its notes, which a traceback shows."""
    if last and last != _shown(error):
        error.add_note(f"an earlier call failed with {last}")


def _of_coroutines(
    function: Callable[..., Any], waits: _Waits, timeout_s: float | None, on: _Errors
) -> Callable[..., Any]:
    @wraps(function)
    async def calling(*arguments: Any, **named: Any) -> Any:
        last = ""
        for wait_s in waits:
            limit = asyncio.timeout(timeout_s)
            try:
                try:
                    async with limit:
                        return await function(*arguments, **named)
                except TimeoutError as error:
                    if not limit.expired() or error.args:
                        raise
                    assert timeout_s is not None, "without a limit none expires"
                    raise TimeoutError(_late(timeout_s, last)) from error.__cause__
            except on as error:
                if wait_s is None:
                    _note(error, last)
                    raise
                if not limit.expired():
                    last = _shown(error)
                await asyncio.sleep(wait_s)
        raise AssertionError("the last call returns or raises")

    return calling
