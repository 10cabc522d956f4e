"""`CustomWindows`: windows computed by a user function, which is checked."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any, Final, cast

from tidewheel.state_stores.user_code import located
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.user_functions import function_name
from tidewheel.streams.windows import FOREVER, FixedWindows, refused_windows, window_ms
from tidewheel.tasks.durations import Duration

#: Windows of one timestamp, ascending: (start, end).
Spans = tuple[tuple[int, int], ...]

_MOST_WINDOWS: Final = 10_000

_REMEMBERED: Final = 4_096

_DAY_MS: Final = 86_400_000

#: Timestamps (ms since the epoch) for which creation tests `of`: some of the first 100 ms, then one
#: every 91 days and 3.4 hours for 100 years, which varies weekday and time of day.
_PROBES: Final = tuple(
    chain(range(0, 100, 7), range(1_000, 36_525 * _DAY_MS, 91 * _DAY_MS + 12_345_678))
)


@dataclass(frozen=True, slots=True, init=False, eq=False)
class CustomWindows(FixedWindows):
    """Windows computed by a function of the timestamp.

    `of(timestamp)` returns pairs of start (inclusive) and end (exclusive), in milliseconds since
    the epoch, or nothing. It must be pure, with these laws:

    - each window contains the timestamp, and every timestamp in a window returns that window;
    - no two windows start together, and a later start never has an earlier end.

    Creation checks the laws for about 400 timestamps, and processing for the first record of each
    window. Violations in processing go to the processing exception handler. Windows are clipped at
    the epoch. Kafka Streams' counterpart is a subclass of `Windows` (`windowsFor`, `size`,
    `gracePeriodMs`).

    Args:
        longest: Maximum window length. Stores retain rows for it and the grace. Default: twice the
            longest probed window.

    Raises:
        TopologyError: `of` is not callable, or raises or breaks a law at creation.

    >>> def shifts(timestamp):  # from 06:00, 14:00 and 22:00 UTC
    ...     start = (timestamp - 21_600_000) // 28_800_000 * 28_800_000 + 21_600_000
    ...     return [(start, start + 28_800_000)]
    >>> windows = CustomWindows(shifts, grace=60_000)
    >>> list(windows.starts_for(43_200_000)), windows.end_of(21_600_000)
    ([21600000], 50400000)
    """

    of: Callable[[int], Iterable[tuple[int, int]]]
    grace_ms: int
    _longest_ms: int = field(repr=False)
    _spans: Callable[[int], Spans] = field(repr=False)
    _checked: Callable[[int, int], None] = field(repr=False)

    def __init__(
        self,
        of: Callable[[int], Iterable[tuple[int, int]]],
        grace: Duration = 0,
        longest: Duration | None = None,
    ) -> None:
        if not callable(of):
            raise refused_windows(
                "CustomWindows",
                f"of={of!r} is no function; give one that returns the windows a timestamp is in: (start, end) pairs",
            )
        object.__setattr__(self, "of", of)
        object.__setattr__(self, "grace_ms", window_ms("CustomWindows", grace, "grace"))
        # Cache both: each window is checked once, and records of a batch often share a timestamp.
        object.__setattr__(self, "_spans", lru_cache(_REMEMBERED)(self._ask))
        object.__setattr__(self, "_checked", lru_cache(_REMEMBERED)(self._check))
        longest_ms = None
        if longest is not None:
            longest_ms = window_ms("CustomWindows", longest, "longest", minimum_ms=1)
        object.__setattr__(self, "_longest_ms", _ANY_LENGTH if longest_ms is None else longest_ms)
        try:
            spans = [span for probe in _PROBES for span in self._probed(probe)]
        except StreamsError as error:
            raise refused_windows("CustomWindows", str(error)) from error
        if longest_ms is None:
            if not spans:
                raise refused_windows(
                    "CustomWindows",
                    f"{function_name(of)} gives no window for any of {len(_PROBES)} times from 1970 to 2069, so "
                    "the length of a window is unknown; give longest=",
                )
            object.__setattr__(self, "_longest_ms", 2 * max(end - start for start, end in spans))

    @property
    def longest_ms(self) -> int:
        return self._longest_ms

    @property
    def retention_ms(self) -> int:
        return self._longest_ms + self.grace_ms

    def starts_for(self, timestamp: int) -> Iterable[int]:
        """Return the starts of a timestamp's windows, ascending, or raise for a broken law."""
        spans = self._spans(timestamp)
        for start, end in spans:
            self._checked(start, end)
        return [start for start, _ in spans]

    def end_of(self, start: int) -> int:
        for other, end in self._spans(start):
            if other == start:
                return end
        raise self._broken(
            start, f"gives no window that starts there, and there was one from {start} on"
        )

    def closed_starts(self, closed_before: int, closed_now: int) -> tuple[int, int]:
        if closed_now < 0:
            return 0, -1
        first = 0
        if closed_before >= 0:
            first = min(
                (start for start, _ in self._spans(closed_before)), default=closed_before + 1
            )
        return first, min((start - 1 for start, _ in self._spans(closed_now)), default=closed_now)

    def _probed(self, timestamp: int) -> Spans:
        spans = self._spans(timestamp)
        if self._ask(timestamp) != spans:
            raise self._broken(
                timestamp, "gives other windows when it is asked again; it must be a pure function"
            )
        for start, end in spans:
            self._check(start, end)
        return spans

    def _ask(self, timestamp: int) -> Spans:
        try:
            pairs: list[Any] = list(self.of(timestamp))
        except Exception as error:
            raise self._broken(timestamp, f"raised {located(error)}") from error
        if len(pairs) > _MOST_WINDOWS:
            raise self._broken(timestamp, f"gives {len(pairs)} windows, of at most {_MOST_WINDOWS}")
        spans: dict[int, int] = {}
        cut: tuple[int, int] | None = None
        for pair in pairs:
            start, end = self._span(timestamp, pair)
            if start < 0:
                cut = max(cut or (start, end), (start, end))
            elif start in spans:
                raise self._broken(
                    timestamp, f"gives two windows that start at {start}; one start is one window"
                )
            else:
                spans[start] = end
        if cut is not None:
            spans.setdefault(0, cut[1])
        ordered = tuple(sorted(spans.items()))
        ends = [end for _, end in ordered]
        if ends != sorted(ends):
            raise self._broken(
                timestamp, f"gives windows of which a later one ends earlier ({list(ordered)})"
            )
        return ordered

    def _span(self, timestamp: int, pair: Any) -> tuple[int, int]:
        parts = list(cast("Sequence[Any]", pair)) if isinstance(pair, tuple | list) else []
        if list(map(type, parts)) != [int, int]:
            raise self._broken(
                timestamp, f"gives {pair!r}; a window is a pair of int: (start, end)"
            )
        start: int = parts[0]
        end: int = parts[1]
        if end > FOREVER:
            raise self._broken(timestamp, f"gives a window that ends at {end}, past all times")
        if not start <= timestamp < end:
            raise self._broken(
                timestamp, f"gives the window ({start}, {end}), which does not hold that time"
            )
        if end - start > self._longest_ms:
            raise self._broken(
                timestamp,
                f"gives the window ({start}, {end}) of {end - start} ms, longer than the longest ({self._longest_ms} ms); "
                "give longest= at least that",
            )
        return start, end

    def _check(self, start: int, end: int) -> None:
        """Raise if a window is not returned for its first, a middle and its last timestamp."""
        for timestamp in (start, (start + end) // 2, end - 1):
            if (start, end) not in self._spans(timestamp):
                raise self._broken(
                    timestamp, f"does not give the window ({start}, {end}), which holds that time"
                )

    def _broken(self, timestamp: int, what: str) -> StreamsError:
        return StreamsError(f"{function_name(self.of)}({timestamp}) {what}")


_ANY_LENGTH: Final = 1 << 62
