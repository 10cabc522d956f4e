"""Durations in milliseconds."""

import re
from datetime import timedelta
from typing import Final

from tidewheel.streams.errors import StreamsError, TopologyError

#: An `int` is milliseconds.
Duration = timedelta | int

_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TEXT: Final = re.compile(r"(-?[0-9][0-9_]*)(?:\.([0-9]+))?\s*(ms|s|m|h|d)?")
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

    >>> to_ms(timedelta(minutes=5)), to_ms(250)
    (300000, 250)
    """
    if isinstance(duration, timedelta):
        value = duration // _MILLISECOND
        if value == 0 and duration:
            raise error(f"{what}={duration!r} is shorter than a millisecond; give at least 1 ms")
    elif type(duration) is int:  # excludes bool
        value = duration
    else:
        raise error(
            f"{what}={duration!r} is not a duration; give a datetime.timedelta or int milliseconds"
        )
    if value < minimum_ms:
        raise error(f"{what}={duration!r} is too short; give at least {minimum_ms} ms")
    return value


def parse_ms(text: str) -> int:
    """Return the milliseconds of a text, as in environment variables and files.

    Raise ValueError otherwise. Without a unit: milliseconds. Units: ms, s, m, h and d.

    >>> parse_ms("500ms"), parse_ms("30s"), parse_ms("1.5h"), parse_ms("250")
    (500, 30000, 5400000, 250)
    """
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise ValueError("is not a duration; write it as 250, 500ms, 30s, 5m, 1h or 2d")
    whole, fraction, unit = match.groups()
    factor = _UNIT_MS[unit or "ms"]
    value = int(whole) * factor
    if fraction is not None:
        part, remainder = divmod(int(fraction) * factor, 10 ** len(fraction))
        if remainder:
            raise ValueError("is finer than a millisecond; give whole milliseconds")
        value += -part if whole.startswith("-") else part
    return value
