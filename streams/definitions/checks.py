"""Checks of user arguments: flags, texts, times, functions."""

from collections.abc import Iterable
from typing import Any, TypeGuard

from tidewheel.state_stores.failpoints import check_failpoints
from tidewheel.streams.errors import ConfigError, StreamsError, TopologyError
from tidewheel.streams.user_functions import accepts, is_async


def check_flag(
    value: object, what: str, context: str, *, error: type[StreamsError] = TopologyError
) -> bool:
    """Return True or False unchanged; reject other values: text such as "no" would count as true.

    >>> check_flag("no", "logging", "Materialized (app.py:3)")
    Traceback (most recent call last):
    ...
    tidewheel.streams.errors.TopologyError: Materialized (app.py:3): logging='no' is of type str; give True or False
    """
    if isinstance(value, bool):
        return value
    raise error(
        f"{context}: {what}={value!r} is of type {type(value).__name__}; give True or False"
    )


def check_time_ms(
    value: object, what: str, context: str, *, error: type[StreamsError] = TopologyError
) -> int:
    """Return a valid Kafka timestamp (ms).

    >>> check_time_ms("noon", "start_timestamp_ms", "create_input_topic")
    Traceback (most recent call last):
    ...
    tidewheel.streams.errors.TopologyError: create_input_topic: start_timestamp_ms='noon' is no time; give int ms since the epoch, from 0
    """
    if type(value) is int and value >= 0:
        return value
    raise error(f"{context}: {what}={value!r} is no time; give int ms since the epoch, from 0")


def check_callable(
    function: Any,
    what: str,
    parameters: str,
    context: str,
    *,
    error: type[StreamsError] = TopologyError,
) -> Any:
    """Return a function that accepts these parameters, or None; raise `error` otherwise.

    `parameters` is text such as "(key, value, context)". Async functions are rejected: nothing
    awaits them.

    >>> check_callable(5, "partitioner", "(topic, key, value, partitions)", "to (app.py:12)")
    Traceback (most recent call last):
    ...
    tidewheel.streams.errors.TopologyError: to (app.py:12): partitioner is of type int, not a function; give a callable of 4 parameters: (topic, key, value, partitions)
    """
    if function is None:
        return None
    count = parameters.count(",") + 1
    signature = f"{count} parameter{'s' if count > 1 else ''}: {parameters}"
    if not callable(function):
        raise error(
            f"{context}: {what} is of type {type(function).__name__}, not a function; give a callable of {signature}"
        )
    if not accepts(function, count):
        raise error(f"{context}: {what} must take {signature}")
    if is_async(function):
        raise error(
            f"{context}: {what} is an async function, which is not awaited here; give a plain function"
        )
    return function


def check_series(
    values: object, items: str, context: str, *, error: type[StreamsError] = TopologyError
) -> Iterable[Any]:
    """Return an iterable that is not a text; `items` names its items in errors.

    >>> check_series(5, "(key, value) pairs", "pipe_key_values")
    Traceback (most recent call last):
    ...
    tidewheel.streams.errors.TopologyError: pipe_key_values: an object of type int has no (key, value) pairs; give a list of them
    """
    if is_series(values):
        return values
    raise error(
        f"{context}: an object of type {type(values).__name__} has no {items}; give a list of them"
    )


def is_series(values: object) -> TypeGuard[Iterable[Any]]:
    """Return True for an iterable that is not a text."""
    return isinstance(values, Iterable) and not isinstance(values, str | bytes)


def check_environment() -> None:
    """Raise ConfigError if the variable FAILPOINT has a value that arms nothing."""
    try:
        check_failpoints()
    except StreamsError as error:
        raise ConfigError(str(error)) from None
