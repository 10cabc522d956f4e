"""Windows: how a stream is cut by time, and when a window is closed.

Sizes and times are milliseconds. A window is closed for good from one moment of the stream's time on, and that moment
(`closes_at`) is the only rule: late records, results on close and `suppress` all go by it. Kafka Streams has two rules
for sliding and session windows, a millisecond apart, and can so give two final results for one window.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import ClassVar, Final, Literal, NamedTuple, get_args
from zoneinfo import ZoneInfo

from tidewheel.streams.durations import Duration, to_ms
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.user_functions import caller_location

#: When a windowed aggregation forwards: each update, or one final result per window.
EmitStrategy = Literal["on_window_update", "on_window_close"]

#: What a calendar window covers.
CalendarUnit = Literal["day", "week", "month"]

#: The days with which weeks may begin, as Python counts them.
WeekDay = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]

_MIDNIGHT: Final = time()

#: The end of an unlimited window: the largest timestamp.
FOREVER: Final = (1 << 63) - 1

#: For how much stream time final results may wait.
_WAITING_MS: Final = 60_000

_NEGATIVE_TOO: Final = -FOREVER


class Windows(ABC):
    """What all kinds of windows have in common: grace, and the moment a window closes.

    Attributes:
        grace_ms: How long after its end a window still takes late records (ms).
    """

    grace_ms: int

    #: A store forgets a row in the millisecond in which its retention is over. Sessions and sliding windows are still
    #: open then, and the window before a sliding window's first record is still asked for.
    _longer_ms: ClassVar[int] = 2

    @abstractmethod
    def closes_at(self, end: int) -> int:
        """Return the smallest stream time (ms) at which a window that ends at `end` is closed."""

    @property
    @abstractmethod
    def retention_ms(self) -> int:
        """Return how long a store must keep a window after its start (time windows) or its end (sessions), in ms."""

    def kept_ms(self, emit: EmitStrategy) -> int:
        """Return how long a store of Tidewheel's keeps a window, which is a little longer than it must."""
        # Final results may wait for the clock, and are emitted early only when stream time runs away from them.
        waiting = min(self.retention_ms, _WAITING_MS) if emit == "on_window_close" else 0
        return min(self.retention_ms + self._longer_ms + waiting, FOREVER)


class FixedWindows(Windows):
    """Windows whose place on the time axis does not depend on the records: tumbling, hopping, calendar, unlimited."""

    _longer_ms = 0

    @abstractmethod
    def starts_for(self, timestamp: int) -> Iterable[int]:
        """Return the starts of the windows a record belongs to, ascending."""

    @abstractmethod
    def end_of(self, start: int) -> int:
        """Return the end (exclusive) of the window that starts at `start`."""

    @property
    def longest_ms(self) -> int:
        """Return how long a window is at most (ms)."""
        return self.retention_ms - self.grace_ms

    @abstractmethod
    def closed_starts(self, closed_before: int, closed_now: int) -> tuple[int, int]:
        """Return the first and last start of the windows with `closed_before` < end <= `closed_now`.

        There may be none: then the first one is greater than the last one. `closed_before` is -1 when no window was
        closed before.
        """

    def closes_at(self, end: int) -> int:
        """Return the smallest stream time (ms) at which a window that ends at `end` is closed."""
        return end + self.grace_ms


def window_ms(windows: str, duration: Duration, what: str, *, minimum_ms: int = 0) -> int:
    """Return a duration that was given to a class of windows (ms); raises `TopologyError` for what is none."""
    location = caller_location()
    context = f"{windows} ({location})" if location else windows
    return to_ms(duration, f"{context}: {what}", minimum_ms=minimum_ms)


def refused_windows(windows: str, reason: str) -> TopologyError:
    """Return the error of a class of windows, with the user's line."""
    location = caller_location()
    return TopologyError(
        f"{windows} ({location}): {reason}" if location else f"{windows}: {reason}"
    )


@dataclass(frozen=True, slots=True, init=False)
class TimeWindows(FixedWindows):
    """Windows of one size, aligned to the epoch: tumbling, or hopping with an `advance` below the size.

    A window holds the records with start <= timestamp < end. Without `grace` it closes when the stream's time
    reaches its end. No window begins before the epoch: with an `offset` the first one begins at 0 and is shorter.

    Args:
        size: Length of a window, at least 1 ms.
        advance: From one start to the next, at least 1 ms and at most `size`; `size` if not given.
        grace: How long after its end a window still takes late records.
        offset: How much later than a multiple of `advance` windows start, or earlier, if it is negative.
            Kafka Streams has no such windows.

    Attributes:
        size_ms: Length of a window (ms).
        advance_ms: From one start to the next (ms).
        grace_ms: How long after its end a window still takes late records (ms).
        offset_ms: How much later than a multiple of the advance windows start (ms): from 0 to below the advance.

    Raises:
        TopologyError: A value that makes no window.

    >>> from datetime import timedelta
    >>> list(TimeWindows(timedelta(seconds=10), advance=timedelta(seconds=5)).starts_for(12_000))
    [5000, 10000]
    >>> hours = TimeWindows(timedelta(hours=1), offset=timedelta(minutes=15))
    >>> list(hours.starts_for(3_600_000)), hours.end_of(900_000)
    ([900000], 4500000)
    """

    size_ms: int
    advance_ms: int
    grace_ms: int
    offset_ms: int

    def __init__(
        self,
        size: Duration,
        advance: Duration | None = None,
        grace: Duration = 0,
        offset: Duration = 0,
    ) -> None:
        size_ms = window_ms("TimeWindows", size, "size", minimum_ms=1)
        advance_ms = (
            size_ms
            if advance is None
            else window_ms("TimeWindows", advance, "advance", minimum_ms=1)
        )
        if advance_ms > size_ms:
            raise refused_windows(
                "TimeWindows",
                f"advance={advance!r} is longer than size={size!r}, so records would fall between windows; "
                "give at most the size",
            )
        object.__setattr__(self, "size_ms", size_ms)
        object.__setattr__(self, "advance_ms", advance_ms)
        object.__setattr__(self, "grace_ms", window_ms("TimeWindows", grace, "grace"))
        offset_ms = window_ms("TimeWindows", offset, "offset", minimum_ms=_NEGATIVE_TOO)
        object.__setattr__(self, "offset_ms", offset_ms % advance_ms)

    @property
    def retention_ms(self) -> int:
        """Return the least time (ms) a store must keep a window after its start: size and grace."""
        return self.size_ms + self.grace_ms

    def starts_for(self, timestamp: int) -> Iterable[int]:
        """Return the starts of the windows a record belongs to, ascending."""
        advance, offset = self.advance_ms, self.offset_ms
        if not offset:
            first = max(0, timestamp - self.size_ms + advance) // advance * advance
            return range(first, timestamp + 1, advance)
        first = (timestamp - offset - self.size_ms + advance) // advance * advance + offset
        later = range(max(first, offset), timestamp + 1, advance)
        return (0, *later) if timestamp < self._first_end_ms else later

    @property
    def _first_end_ms(self) -> int:
        """Return the end of the window that is cut at the epoch, with an offset."""
        return self.offset_ms - self.advance_ms + self.size_ms

    def end_of(self, start: int) -> int:
        """Return the end (exclusive) of the window that starts at `start`."""
        return self._first_end_ms if start == 0 and self.offset_ms else start + self.size_ms

    def closed_starts(self, closed_before: int, closed_now: int) -> tuple[int, int]:
        """Return the first and last start of the windows with `closed_before` < end <= `closed_now`."""
        advance, offset = self.advance_ms, self.offset_ms
        first = max(0, closed_before - self.size_ms + 1)
        # Only multiples of the advance are starts; rounding tells that there is none between.
        first = -((offset - first) // advance) * advance + offset
        last = (closed_now - self.size_ms - offset) // advance * advance + offset
        if not offset:
            return first, last
        if closed_before < self._first_end_ms:
            first = 0
        return first, (last if last >= offset else 0 if closed_now >= self._first_end_ms else -1)


@dataclass(frozen=True, slots=True, init=False)
class SlidingWindows(Windows):
    """Windows that slide with the records: one for each set of records at most `difference` apart.

    A window holds the records with start <= timestamp <= end (both inclusive), end = start + `difference`. Without
    `grace` it closes when the stream's time has passed its end.

    Args:
        difference: How far apart two records of one window may be; 0 puts only equal timestamps together.
        grace: How long after its end a window still takes late records.

    Attributes:
        difference_ms: How far apart two records of one window may be (ms).
        grace_ms: How long after its end a window still takes late records (ms).

    Raises:
        TopologyError: A value that makes no window.

    >>> SlidingWindows(5_000, grace=1_000)
    SlidingWindows(difference_ms=5000, grace_ms=1000)
    """

    difference_ms: int
    grace_ms: int

    def __init__(self, difference: Duration, grace: Duration = 0) -> None:
        object.__setattr__(
            self, "difference_ms", window_ms("SlidingWindows", difference, "difference")
        )
        object.__setattr__(self, "grace_ms", window_ms("SlidingWindows", grace, "grace"))

    def closes_at(self, end: int) -> int:
        """Return the smallest stream time (ms) at which a window that ends at `end` is closed."""
        return end + self.grace_ms + 1

    def end_of(self, start: int) -> int:
        """Return the end (inclusive) of the window that starts at `start`."""
        return start + self.difference_ms

    @property
    def longest_ms(self) -> int:
        """Return how long a window is (ms)."""
        return self.difference_ms

    @property
    def retention_ms(self) -> int:
        """Return the least time (ms) a store must keep a window after its start: twice the difference, and grace."""
        return 2 * self.difference_ms + self.grace_ms


@dataclass(frozen=True, slots=True, init=False)
class SessionWindows(Windows):
    """Sessions: records of a key belong together while no pause between them is longer than `gap`.

    A session goes from its first record's timestamp to its last one's, both inclusive; a record between two sessions
    merges them. It closes when the stream's time has passed its end by more than gap and grace.

    Args:
        gap: The longest pause inside a session, at least 1 ms.
        grace: How long a session that is over still takes late records.

    Attributes:
        gap_ms: The longest pause inside a session (ms).
        grace_ms: How long a session that is over still takes late records (ms).

    Raises:
        TopologyError: A value that makes no session.

    >>> from datetime import timedelta
    >>> SessionWindows(timedelta(minutes=30)).gap_ms
    1800000
    """

    gap_ms: int
    grace_ms: int

    def __init__(self, gap: Duration, grace: Duration = 0) -> None:
        object.__setattr__(self, "gap_ms", window_ms("SessionWindows", gap, "gap", minimum_ms=1))
        object.__setattr__(self, "grace_ms", window_ms("SessionWindows", grace, "grace"))

    def closes_at(self, end: int) -> int:
        """Return the smallest stream time (ms) at which a session that ends at `end` is closed."""
        return end + self.gap_ms + self.grace_ms + 1

    @property
    def retention_ms(self) -> int:
        """Return the least time (ms) a store must keep a session after its end: gap and grace."""
        return self.gap_ms + self.grace_ms


@dataclass(frozen=True, slots=True, init=False)
class UnlimitedWindows(FixedWindows):
    """One window from `start` on, without an end; earlier records are in no window.

    It never closes, so there is no result on close.

    Args:
        start: Where it starts (ms since the epoch).

    Attributes:
        start_ms: Where it starts (ms since the epoch).
        grace_ms: 0; nothing is ever late.

    Raises:
        TopologyError: A start before the epoch.

    >>> list(UnlimitedWindows(start=1_000).starts_for(999)), list(UnlimitedWindows().starts_for(999))
    ([], [0])
    """

    start_ms: int
    grace_ms: int

    def __init__(self, start: int = 0) -> None:
        if type(start) is not int or start < 0:
            raise refused_windows(
                "UnlimitedWindows",
                f"start={start!r} is no time; give int milliseconds since the epoch, at least 0",
            )
        object.__setattr__(self, "start_ms", start)
        object.__setattr__(self, "grace_ms", 0)

    @property
    def retention_ms(self) -> int:
        """Return the largest time there is: the window is kept for ever."""
        return FOREVER

    def starts_for(self, timestamp: int) -> Iterable[int]:
        """Return the window's start, or nothing for a record before it."""
        return (self.start_ms,) if timestamp >= self.start_ms else ()

    def end_of(self, start: int) -> int:  # noqa: ARG002 - the windows' common signature
        """Return the largest timestamp."""
        return FOREVER

    def closed_starts(self, closed_before: int, closed_now: int) -> tuple[int, int]:  # noqa: ARG002 - as above
        """Return an empty range: it never closes."""
        return self.start_ms, self.start_ms - 1


@dataclass(frozen=True, slots=True, init=False)
class CalendarWindows(FixedWindows):
    """Days, weeks or months of a time zone, by its own clock.

    A window goes from midnight to midnight there, or from `day_start` to `day_start`. So a day has 23 or 25 hours where
    the clocks change, and a month its own number of days. A day begins when the clock shows `day_start` for the first
    time on its date; where the clocks are set forward over it, at that moment. Kafka Streams has no such windows.

    Args:
        unit: "day", "week" or "month".
        tz: Name of a time zone ("Europe/Berlin"), or a `ZoneInfo`.
        grace: How long after its end a window still takes late records.
        day_start: The time of day at which days begin, and so weeks and months: "18:00", or a `datetime.time`.
        week_start: The day with which weeks begin: "monday" to "sunday". Only for weeks.

    Attributes:
        unit: "day", "week" or "month".
        tz: Name of the time zone.
        grace_ms: How long after its end a window still takes late records (ms).
        day_start: The time of day at which days begin.
        week_start: The day with which weeks begin.

    Raises:
        TopologyError: Another unit, a time zone that this machine does not know, no time of day or no day of the week.

    >>> days = CalendarWindows("day", tz="Europe/Berlin")
    >>> (start,) = days.starts_for(1_711_843_200_000)  # 2024-03-31 00:00 UTC, the day summer time starts
    >>> (days.end_of(start) - start) / 3_600_000
    23.0
    >>> (start,) = CalendarWindows("week", day_start="18:00", week_start="sunday").starts_for(1_711_843_200_000)
    >>> datetime.fromtimestamp(start / 1_000, ZoneInfo("UTC")).strftime("%A %H:%M")
    'Sunday 18:00'
    """

    unit: CalendarUnit
    tz: str
    grace_ms: int
    day_start: time
    week_start: WeekDay

    def __init__(
        self,
        unit: CalendarUnit,
        tz: str | ZoneInfo = "UTC",
        grace: Duration = 0,
        day_start: str | time = _MIDNIGHT,
        week_start: WeekDay = "monday",
    ) -> None:
        if unit not in get_args(CalendarUnit):
            raise refused_windows(
                "CalendarWindows", f"unit={unit!r}; give 'day', 'week' or 'month'"
            )
        name: object = tz.key if isinstance(tz, ZoneInfo) else tz  # what untyped code may give
        if isinstance(name, tzinfo):
            raise refused_windows(
                "CalendarWindows",
                f"tz={tz!r} is no named time zone; give a name such as 'UTC' or 'Europe/Berlin'",
            )
        if not _is_zone(name):
            raise refused_windows(
                "CalendarWindows",
                f"tz={tz!r} is no time zone this machine knows; give a name such as 'Europe/Berlin' "
                "(or install the tzdata package)",
            )
        start = _time_of_day(day_start)
        if start is None:
            raise refused_windows(
                "CalendarWindows",
                f"day_start={day_start!r} is no time of day; give one such as '18:00', or a datetime.time "
                "without a time zone",
            )
        if week_start not in get_args(WeekDay):
            days = ", ".join(map(repr, get_args(WeekDay)))
            raise refused_windows(
                "CalendarWindows", f"week_start={week_start!r}; give one of {days}"
            )
        if week_start != "monday" and unit != "week":
            raise refused_windows(
                "CalendarWindows",
                f"week_start={week_start!r} belongs to weeks, and unit={unit!r}; leave it out, or give unit='week'",
            )
        object.__setattr__(self, "unit", unit)
        object.__setattr__(self, "tz", name)
        object.__setattr__(self, "grace_ms", window_ms("CalendarWindows", grace, "grace"))
        object.__setattr__(self, "day_start", start)
        object.__setattr__(self, "week_start", week_start)

    @property
    def retention_ms(self) -> int:
        """Return the least time (ms) a store must keep a window after its start: its longest length, and grace."""
        return _LONGEST_MS[self.unit] + self.grace_ms

    def starts_for(self, timestamp: int) -> Iterable[int]:
        """Return the start of the one window a record belongs to."""
        return (self._around(timestamp)[0],)

    def end_of(self, start: int) -> int:
        """Return the end (exclusive) of the window that starts at `start`."""
        return self._around(start)[1]

    def closed_starts(self, closed_before: int, closed_now: int) -> tuple[int, int]:
        """Return the first and last start of the windows with `closed_before` < end <= `closed_now`."""
        if closed_now < 0:
            return 0, -1
        return self._around(max(closed_before, 0))[0], self._around(closed_now)[0] - 1

    def _around(self, timestamp: int) -> tuple[int, int]:
        calendar = _Calendar(self.unit, self.tz, self.day_start, self.week_start)
        return _calendar_window(calendar, timestamp)


@dataclass(frozen=True, slots=True, init=False)
class JoinWindows:
    """How far apart in time two records may be that a stream-stream join puts together.

    The other record's timestamp must be from `before` earlier to `after` later than this stream's record's, both
    inclusive. `difference` sets both sides; `before` and `after` override one, and may be negative as long as the
    window is not empty.

    Args:
        difference: How far apart, on both sides.
        before: How much earlier the other record may be.
        after: How much later the other record may be.
        grace: How long the join waits for late records.

    Attributes:
        before_ms: How much earlier the other record may be (ms).
        after_ms: How much later the other record may be (ms).
        grace_ms: How long the join waits for late records (ms).

    Raises:
        TopologyError: A side that was not given, or an empty window.

    >>> JoinWindows(5_000, after=0)
    JoinWindows(before_ms=5000, after_ms=0, grace_ms=0)
    """

    before_ms: int
    after_ms: int
    grace_ms: int

    def __init__(
        self,
        difference: Duration | None = None,
        before: Duration | None = None,
        after: Duration | None = None,
        grace: Duration = 0,
    ) -> None:
        if difference is not None:
            window_ms("JoinWindows", difference, "difference")
        before = difference if before is None else before
        after = difference if after is None else after
        if before is None or after is None:
            raise refused_windows(
                "JoinWindows",
                f"no {'before' if before is None else 'after'}; give difference (both sides), or before and after",
            )
        before_ms = window_ms("JoinWindows", before, "before", minimum_ms=_NEGATIVE_TOO)
        after_ms = window_ms("JoinWindows", after, "after", minimum_ms=_NEGATIVE_TOO)
        if before_ms + after_ms < 0:
            raise refused_windows(
                "JoinWindows",
                f"before={before!r} and after={after!r} leave no time between them; their sum must not be negative",
            )
        object.__setattr__(self, "before_ms", before_ms)
        object.__setattr__(self, "after_ms", after_ms)
        object.__setattr__(self, "grace_ms", window_ms("JoinWindows", grace, "grace"))

    @property
    def size_ms(self) -> int:
        """Return how long the window is (ms): both sides together."""
        return self.before_ms + self.after_ms

    @property
    def retention_ms(self) -> int:
        """Return how long a join's stores must keep a record (ms): both sides and grace."""
        return self.size_ms + self.grace_ms


# -- calendars ---------------------------------------------------------------------------------------------------------

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS

#: No clock was ever set back by more than a day since 1970.
_LONGEST_MS: Final = {"day": 2 * _DAY_MS, "week": 8 * _DAY_MS, "month": 32 * _DAY_MS}

#: Windows are looked up once for each quarter of an hour.
_STEP_MS: Final = _HOUR_MS // 4

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=ZoneInfo("UTC"))
_MILLISECOND: Final = timedelta(milliseconds=1)


def _is_zone(name: object) -> bool:
    if not isinstance(name, str) or not name:
        return False
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, no legal name, a folder of zones
        return False
    return True


class _Calendar(NamedTuple):
    """Which windows: the key under which those that were looked up are kept."""

    unit: CalendarUnit
    tz: str
    day_start: time
    week_start: WeekDay


def _calendar_window(calendar: _Calendar, timestamp: int) -> tuple[int, int]:
    """Return start and end of the window a time is in.

    The windows cut the time axis at the first start of each local date (week, month), so that they neither overlap
    nor leave gaps where clocks are set back over it or a date is skipped.
    """
    first, last = _window_at(calendar, timestamp // _STEP_MS * _STEP_MS)
    return (first, last) if timestamp < last else _window_at(calendar, last)


@lru_cache(maxsize=4_096)
def _window_at(calendar: _Calendar, timestamp: int) -> tuple[int, int]:
    zone, at = ZoneInfo(calendar.tz), calendar.day_start
    try:
        day = (_EPOCH + timedelta(milliseconds=timestamp)).astimezone(zone).date()
        first = _first_day(calendar, day)
        while timestamp < _start_of(first, at, zone):
            first = _first_day(calendar, first - timedelta(days=1))
        following = _next_day(calendar.unit, first)
        while timestamp >= (end := _start_of(following, at, zone)):
            first, following = following, _next_day(calendar.unit, following)
    except OverflowError:
        raise ValueError(
            f"timestamp {timestamp} is in no calendar: the years 1 to 9999 are; are these milliseconds?"
        ) from None
    # No record is older than the epoch, and stores have no place for such windows.
    return max(0, _start_of(first, at, zone)), end


def _start_of(day: date, at: time, zone: ZoneInfo) -> int:
    """Return when a date's clock first shows a time or, if it skips it, a later one (ms since the epoch)."""
    local = datetime.combine(day, at, zone)
    moment = (local - _EPOCH) // _MILLISECOND
    # Where clocks are set forward over it, `fold` tells the clock before from the one after.
    earlier = (local.replace(fold=1) - _EPOCH) // _MILLISECOND
    if earlier >= moment:
        return moment
    low, high = earlier // 1_000 - 1, moment // 1_000
    while high - low > 1:  # they are set at a full second
        middle = (low + high) // 2
        shown = (_EPOCH + timedelta(seconds=middle)).astimezone(zone).replace(tzinfo=None)
        low, high = (low, middle) if shown >= local.replace(tzinfo=None) else (middle, high)
    return high * 1_000


def _first_day(calendar: _Calendar, day: date) -> date:
    if calendar.unit == "week":
        first = get_args(WeekDay).index(calendar.week_start)
        return day - timedelta(days=(day.weekday() - first) % 7)
    return day.replace(day=1) if calendar.unit == "month" else day


def _next_day(unit: CalendarUnit, first: date) -> date:
    if unit == "month":
        return (first + timedelta(days=31)).replace(day=1)
    return first + timedelta(days=7 if unit == "week" else 1)


def _time_of_day(given: object) -> time | None:
    """Return a time of day, None for what is none."""
    if isinstance(given, str) and re.fullmatch(r"\d\d:\d\d(:\d\d)?", given):
        try:
            return time.fromisoformat(given)
        except ValueError:
            return None
    return given if isinstance(given, time) and given.tzinfo is None else None
