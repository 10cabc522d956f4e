"""Windows: assignment of records to windows, and the close of windows.

One rule, `closes_at`, decides late records, results on close and `suppress`. Kafka Streams has two
rules for sliding and session windows, one millisecond apart, and can emit two final results for one
window.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import ClassVar, Final, Literal, NamedTuple, get_args
from zoneinfo import ZoneInfo

from tidewheel.streams.durations import to_ms
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.user_functions import caller_location
from tidewheel.tasks.durations import Duration

#: Emit each update of a window, or one final result after its close.
EmitStrategy = Literal["on_window_update", "on_window_close"]

CalendarUnit = Literal["day", "week", "month"]

WeekDay = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]

_MIDNIGHT: Final = time()

#: The largest timestamp.
FOREVER: Final = (1 << 63) - 1

#: Maximum extra retention (ms) for closed windows whose final results are not emitted yet.
_WAITING_MS: Final = 60_000

_NEGATIVE_TOO: Final = -FOREVER


class Windows(ABC):
    """Base of all windows; `grace_ms` is the time for late records after a window's end."""

    grace_ms: int

    #: Extra retention (ms). Without it, rows would expire 1 ms before their session closes. Sliding
    #: windows need 2 ms: creating the oldest open one reads the window that ends just before it.
    _longer_ms: ClassVar[int] = 2

    @abstractmethod
    def closes_at(self, end: int) -> int:
        """Return the smallest stream time at which a window with this end is closed."""

    @property
    @abstractmethod
    def retention_ms(self) -> int:
        """Return the minimum retention after a window's start, or a session's end."""

    def kept_ms(self, emit: EmitStrategy) -> int:
        """Return the retention in Tidewheel's stores (ms), slightly above the minimum."""
        # Final results wait for `emit_interval_ms`. Stream time that advances beyond this extra
        # retention emits them earlier.
        waiting = min(self.retention_ms, _WAITING_MS) if emit == "on_window_close" else 0
        return min(self.retention_ms + self._longer_ms + waiting, FOREVER)


class FixedWindows(Windows):
    """Windows at fixed times, independent of records."""

    _longer_ms = 0

    @abstractmethod
    def starts_for(self, timestamp: int) -> Iterable[int]:
        """Return the starts of a timestamp's windows, ascending."""

    @abstractmethod
    def end_of(self, start: int) -> int:
        """Return the exclusive end of the window with this start."""

    @property
    def longest_ms(self) -> int:
        """Return the maximum window length (ms)."""
        return self.retention_ms - self.grace_ms

    @abstractmethod
    def closed_starts(self, closed_before: int, closed_now: int) -> tuple[int, int]:
        """Return the first and last start of windows with `closed_before` < end <= `closed_now`.

        Both are stream times less `grace_ms`: at the last call (negative at first), and now.
        Without such windows, first > last.
        """

    def closes_at(self, end: int) -> int:
        return end + self.grace_ms


def window_ms(windows: str, duration: Duration, what: str, *, minimum_ms: int = 0) -> int:
    """Return a duration (ms); raise `TopologyError` for other values."""
    location = caller_location()
    context = f"{windows} ({location})" if location else windows
    return to_ms(duration, f"{context}: {what}", minimum_ms=minimum_ms)


def refused_windows(windows: str, reason: str) -> TopologyError:
    """Return the `TopologyError` for bad windows, with the user's file and line."""
    location = caller_location()
    return TopologyError(
        f"{windows} ({location}): {reason}" if location else f"{windows}: {reason}"
    )


@dataclass(frozen=True, slots=True, init=False)
class TimeWindows(FixedWindows):
    """Windows of one size: tumbling, or hopping with `advance` below the size.

    A window contains the records with start <= timestamp < end. Windows never start before the
    epoch: with an `offset` the first one starts at 0 and is shorter.

    Args:
        size: Window length, at least 1 ms.
        advance: Time between starts, at most `size`; default: `size`.
        grace: Time for late records after a window's end; default: 0.
        offset: Shift of the starts from multiples of `advance`, may be negative. Not in Kafka
            Streams.

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
        return self.size_ms + self.grace_ms

    def starts_for(self, timestamp: int) -> Iterable[int]:
        advance, offset = self.advance_ms, self.offset_ms
        if not offset:
            first = max(0, timestamp - self.size_ms + advance) // advance * advance
            return range(first, timestamp + 1, advance)
        first = (timestamp - offset - self.size_ms + advance) // advance * advance + offset
        later = range(max(first, offset), timestamp + 1, advance)
        return (0, *later) if timestamp < self._first_end_ms else later

    @property
    def _first_end_ms(self) -> int:
        return self.offset_ms - self.advance_ms + self.size_ms

    def end_of(self, start: int) -> int:
        return self._first_end_ms if start == 0 and self.offset_ms else start + self.size_ms

    def closed_starts(self, closed_before: int, closed_now: int) -> tuple[int, int]:
        advance, offset = self.advance_ms, self.offset_ms
        first = max(0, closed_before - self.size_ms + 1)
        # Starts are multiples of the advance; after rounding, first > last if there is none
        # between.
        first = -((offset - first) // advance) * advance + offset
        last = (closed_now - self.size_ms - offset) // advance * advance + offset
        if not offset:
            return first, last
        if closed_before < self._first_end_ms:
            first = 0
        return first, (last if last >= offset else 0 if closed_now >= self._first_end_ms else -1)


@dataclass(frozen=True, slots=True, init=False)
class SlidingWindows(Windows):
    """Sliding windows: one for each set of records at most `difference` apart.

    A window contains the records with start <= timestamp <= end (both inclusive), end = start +
    `difference`. It closes when stream time passes its end and the grace.

    Args:
        difference: Maximum time between records of one window; 0: equal timestamps only.

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
        return end + self.grace_ms + 1

    def end_of(self, start: int) -> int:
        """Return the inclusive end of the window with this start."""
        return start + self.difference_ms

    @property
    def longest_ms(self) -> int:
        return self.difference_ms

    @property
    def retention_ms(self) -> int:
        return 2 * self.difference_ms + self.grace_ms


@dataclass(frozen=True, slots=True, init=False)
class SessionWindows(Windows):
    """Sessions: records of a key with no pause longer than `gap` (at least 1 ms) between them.

    A session extends from its first to its last timestamp, both inclusive; a record between two
    sessions merges them. It closes when stream time exceeds its end by more than gap and grace.

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
        return end + self.gap_ms + self.grace_ms + 1

    @property
    def retention_ms(self) -> int:
        return self.gap_ms + self.grace_ms


@dataclass(frozen=True, slots=True, init=False)
class UnlimitedWindows(FixedWindows):
    """One endless window from `start` (ms since the epoch); earlier records are in no window.

    It never closes, so it never has a final result. Raises `TopologyError` for a negative start.

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
        """Return the largest timestamp: rows never expire."""
        return FOREVER

    def starts_for(self, timestamp: int) -> Iterable[int]:
        return (self.start_ms,) if timestamp >= self.start_ms else ()

    def end_of(self, start: int) -> int:  # noqa: ARG002 - common signature of windows
        return FOREVER

    def closed_starts(self, closed_before: int, closed_now: int) -> tuple[int, int]:  # noqa: ARG002 - as above
        return self.start_ms, self.start_ms - 1


@dataclass(frozen=True, slots=True, init=False)
class CalendarWindows(FixedWindows):
    """Days, weeks or months in local time of a time zone.

    A day has 23 or 25 hours at clock changes. It starts when the clock first shows `day_start` on
    its date, or at the moment a clock change skips it. Not in Kafka Streams.

    Args:
        tz: Time zone name ("Europe/Berlin"), or a `ZoneInfo`.
        day_start: Start of days, weeks and months: "18:00", or a `datetime.time`.
        week_start: First day of a week: "monday" to "sunday".

    Raises:
        TopologyError: An invalid argument, or a time zone unknown on this machine.

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
        name: object = tz.key if isinstance(tz, ZoneInfo) else tz  # untyped code may pass any type
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
        return _LONGEST_MS[self.unit] + self.grace_ms

    def starts_for(self, timestamp: int) -> Iterable[int]:
        return (self._around(timestamp)[0],)

    def end_of(self, start: int) -> int:
        return self._around(start)[1]

    def closed_starts(self, closed_before: int, closed_now: int) -> tuple[int, int]:
        if closed_now < 0:
            return 0, -1
        return self._around(max(closed_before, 0))[0], self._around(closed_now)[0] - 1

    def _around(self, timestamp: int) -> tuple[int, int]:
        calendar = _Calendar(self.unit, self.tz, self.day_start, self.week_start)
        return _calendar_window(calendar, timestamp)


@dataclass(frozen=True, slots=True, init=False)
class JoinWindows:
    """Maximum time between two records that a stream-stream join matches.

    The other record's timestamp must be from `before` earlier to `after` later than this record's,
    both inclusive. `difference` sets both sides; `before` and `after` override one, and may be
    negative if the window is not empty. `grace` is the time the join waits for late records.

    Raises:
        TopologyError: `before` or `after` has no value, or the window is empty.

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
        """Return `before` plus `after`: the join window's length (ms)."""
        return self.before_ms + self.after_ms

    @property
    def retention_ms(self) -> int:
        return self.size_ms + self.grace_ms


_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS

#: Maximum window lengths: since 1970 no clock was set back by more than a day.
_LONGEST_MS: Final = {"day": 2 * _DAY_MS, "week": 8 * _DAY_MS, "month": 32 * _DAY_MS}

_STEP_MS: Final = _HOUR_MS // 4

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=ZoneInfo("UTC"))
_MILLISECOND: Final = timedelta(milliseconds=1)


def _is_zone(name: object) -> bool:
    if not isinstance(name, str) or not name:
        return False
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, illegal name, or a folder of zones
        return False
    return True


class _Calendar(NamedTuple):
    unit: CalendarUnit
    tz: str
    day_start: time
    week_start: WeekDay


def _calendar_window(calendar: _Calendar, timestamp: int) -> tuple[int, int]:
    """Return start and end of a timestamp's window.

    Windows start at the first `day_start` of each local date (week, month), so they neither overlap
    nor leave gaps at clock changes and skipped dates.
    """
    first, last = _window_at(calendar, timestamp // _STEP_MS * _STEP_MS)
    return (first, last) if timestamp < last else _window_at(calendar, last)


@lru_cache(maxsize=4_096)
def _window_at(calendar: _Calendar, timestamp: int) -> tuple[int, int]:
    zone, day_start = ZoneInfo(calendar.tz), calendar.day_start
    try:
        day = (_EPOCH + timedelta(milliseconds=timestamp)).astimezone(zone).date()
        first = _first_day(calendar, day)
        while timestamp < _start_of(first, day_start, zone):
            first = _first_day(calendar, first - timedelta(days=1))
        following = _next_day(calendar.unit, first)
        while timestamp >= (end := _start_of(following, day_start, zone)):
            first, following = following, _next_day(calendar.unit, following)
    except OverflowError:
        raise ValueError(
            f"timestamp {timestamp} is in no calendar: the years 1 to 9999 are; are these milliseconds?"
        ) from None
    # Clipped at the epoch: no record is older, and stores can't represent such windows.
    return max(0, _start_of(first, day_start, zone)), end


def _start_of(day: date, clock_time: time, zone: ZoneInfo) -> int:
    """Return the first time (ms) at which a date's clock shows this time or later."""
    local = datetime.combine(day, clock_time, zone)
    moment = (local - _EPOCH) // _MILLISECOND
    # If a clock change skips this time, `fold` selects the clock before or after the change.
    earlier = (local.replace(fold=1) - _EPOCH) // _MILLISECOND
    if earlier >= moment:
        return moment
    low, high = earlier // 1_000 - 1, moment // 1_000
    while high - low > 1:  # clocks change at a full second
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


def _time_of_day(value: object) -> time | None:
    if isinstance(value, str) and re.fullmatch(r"\d\d:\d\d(:\d\d)?", value):
        try:
            return time.fromisoformat(value)
        except ValueError:
            return None
    return value if isinstance(value, time) and value.tzinfo is None else None
