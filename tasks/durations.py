"""Durations as users give them."""

import re
from datetime import timedelta
from typing import Final

#: An `int` is milliseconds; a text has its unit, as "500ms", "30s" or "5m".
Duration = timedelta | int | str

_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TEXT: Final = re.compile(r"(-?[0-9][0-9_]*)(?:\.([0-9]+))?\s*(ms|s|m|h|d)?")


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
