"""Durations in milliseconds."""

from datetime import timedelta
from typing import Final

from tidewheel.streams.errors import StreamsError, TopologyError
from tidewheel.tasks.durations import Duration, parse_ms

_MILLISECOND: Final = timedelta(milliseconds=1)


def to_ms(
    duration: Duration,
    what: str = "duration",
    *,
    minimum_ms: int = 0,
    error: type[StreamsError] = TopologyError,
) -> int:
    """Return a duration in whole milliseconds, rounded down.

    A non-zero duration below a millisecond is rejected, not rounded to 0.

    >>> to_ms(timedelta(minutes=5)), to_ms(250), to_ms("1m")
    (300000, 250, 60000)
    """
    if isinstance(duration, str):
        try:
            value = parse_ms(duration)
        except ValueError as problem:
            raise error(f"{what}={duration!r} {problem}") from None
    elif isinstance(duration, timedelta):
        value = duration // _MILLISECOND
        if value == 0 and duration:
            raise error(f"{what}={duration!r} is shorter than a millisecond; give at least 1 ms")
    elif type(duration) is int:  # excludes bool
        value = duration
    else:
        raise error(
            f"{what}={duration!r} is not a duration; give a datetime.timedelta, a text such as '30s' or '5m', or "
            "int milliseconds"
        )
    if value < minimum_ms:
        raise error(f"{what}={duration!r} is too short; give at least {minimum_ms} ms")
    return value
