"""`retrying`: calls a function again that failed, before its record goes to the processing handler."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar, overload

from tidewheel.streams.durations import Duration, to_ms
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.user_functions import is_async

P = ParamSpec("P")
R = TypeVar("R")

#: A wait is between this part of its length and all of it, so that calls that failed together don't come back together.
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
    """Return a function that calls `function` up to `attempts` times; it may be a coroutine function.

    The last error is raised, so the record goes to the processing handler as if it had been the only one. Between two
    calls it waits `backoff`, twice as long each time up to `max_backoff`, less a random part of up to a half. A coroutine
    that is cancelled, because its task leaves, is not called again. Wrap what asks another system, not what writes to a
    store or forwards: those writes would be made again.

    Args:
        function: What to call. Without it a decorator is returned.
        attempts: How often it is called at most, 1 or more.
        backoff: The first wait, in milliseconds or as a `timedelta`.
        max_backoff: The longest wait.
        timeout: How long one call of a coroutine function may take; then it is cancelled, and has failed with
            `TimeoutError`. A plain function can't be stopped: give the time-out to its client.
        on: Errors after which it is called again; others are raised at once.

    Raises:
        TopologyError: An argument makes no sense, or there is a `timeout` for a plain function.

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
    """How long to wait between the calls for one record."""

    def __init__(self, attempts: int, first_s: float, longest_s: float) -> None:
        self._attempts = attempts
        self._first_s = first_s
        self._longest_s = longest_s

    def __iter__(self) -> Iterator[float | None]:
        """Yield for each call how long to wait if it fails (seconds), None for the last one."""
        wait_s = min(self._first_s, self._longest_s)
        for _ in range(self._attempts - 1):
            yield wait_s * random.uniform(_LEAST_PART, 1)  # noqa: S311 - it need not be secret
            wait_s = min(2 * wait_s, self._longest_s)
        yield None


_Errors = type[Exception] | tuple[type[Exception], ...]


def _of_calls(function: Callable[..., Any], waits: _Waits, on: _Errors) -> Callable[..., Any]:
    @wraps(function)
    def calling(*arguments: Any, **named: Any) -> Any:
        for wait_s in waits:
            try:
                return function(*arguments, **named)
            except on:
                if wait_s is None:
                    raise
                time.sleep(wait_s)
        raise AssertionError("the last call returns or raises")

    return calling


def _of_coroutines(
    function: Callable[..., Any], waits: _Waits, timeout_s: float | None, on: _Errors
) -> Callable[..., Any]:
    @wraps(function)
    async def calling(*arguments: Any, **named: Any) -> Any:
        for wait_s in waits:
            try:
                async with asyncio.timeout(timeout_s):
                    return await function(*arguments, **named)
            except on:
                if wait_s is None:
                    raise
                await asyncio.sleep(wait_s)
        raise AssertionError("the last call returns or raises")

    return calling
