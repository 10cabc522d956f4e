"""Windows: starts, ends, closing, errors, clock changes."""

from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel import (
    CalendarWindows,
    CustomWindows,
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    TopologyError,
    UnlimitedWindows,
)
from tidewheel.streams.windows import FOREVER, FixedWindows

HOUR = 3_600_000
YEARS = st.integers(0, 4_000_000_000_000)

EVENINGS = CalendarWindows("day", "Europe/Berlin", day_start="18:00")

#: Clock changes at midnight, across midnight, by half an hour, and a skipped date.
ZONES = [
    "UTC", "Europe/Berlin", "America/Sao_Paulo", "America/St_Johns", "Australia/Lord_Howe", "Pacific/Apia",
    "Asia/Kolkata", "Africa/Monrovia",
]  # fmt: skip


def ms(text: str, zone: str = "UTC") -> int:
    moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@cache
def custom(size: int, advance: int, offset: int) -> CustomWindows:
    def of(timestamp: int) -> list[tuple[int, int]]:
        latest = (timestamp - offset) // advance * advance + offset
        starts = range(latest, timestamp - size, -advance)
        return [(start, start + size) for start in starts]

    return CustomWindows(of)


@given(st.sampled_from([1, 5, 12]), st.integers(-20, 20), st.integers(0, 200))
def test_windows_with_an_offset_are_those_of_a_function(
    advance: int, offset: int, timestamp: int
) -> None:
    windows, model = TimeWindows(12, advance, offset=offset), custom(12, advance, offset)
    starts = list(windows.starts_for(timestamp))
    if offset % advance:
        assert starts == list(model.starts_for(timestamp))
    assert starts
    for start in starts:
        assert start <= timestamp < windows.end_of(start)
        assert windows.end_of(start) == model.end_of(start) or not offset % advance
        assert windows.end_of(start) - start == 12 or start == 0


@pytest.mark.parametrize(
    ("windows", "timestamp", "starts"),
    [
        (TimeWindows(10), 0, [0]),
        (TimeWindows(10), 19, [10]),
        (TimeWindows(12, 5), 21, [10, 15, 20]),
        (TimeWindows(12, 3), 21, [12, 15, 18, 21]),
        (TimeWindows(12, 12), 21, [12]),
        (TimeWindows(10, 5), 4, [0]),
        (TimeWindows(timedelta(seconds=1), timedelta(milliseconds=500)), 1_200, [500, 1_000]),
        (TimeWindows(10, offset=3), 2, [0]),
        (TimeWindows(10, offset=3), 3, [3]),
        (TimeWindows(10, offset=3), 12, [3]),
        (TimeWindows(10, offset=13), 13, [13]),
        (TimeWindows(10, offset=-7), 13, [13]),
        (TimeWindows(10, 5, offset=3), 2, [0]),
        (TimeWindows(10, 5, offset=3), 7, [0, 3]),
        (TimeWindows(10, 5, offset=3), 8, [3, 8]),
        (TimeWindows(10, 5, offset=timedelta(milliseconds=3)), 21, [13, 18]),
        (UnlimitedWindows(10), 9, []),
        (UnlimitedWindows(10), 10, [10]),
    ],
)
def test_a_record_is_in_these_windows(
    windows: FixedWindows, timestamp: int, starts: list[int]
) -> None:
    """As in Kafka Streams' TimeWindowsTest and UnlimitedWindowsTest."""
    assert list(windows.starts_for(timestamp)) == starts


@pytest.mark.parametrize(
    ("windows", "end", "closes_at"),
    [
        (TimeWindows(10), 20, 20),
        (TimeWindows(10, grace=5), 20, 25),
        (SlidingWindows(10), 20, 21),
        (SlidingWindows(10, grace=5), 20, 26),
        (SessionWindows(10), 20, 31),
        (SessionWindows(10, grace=5), 20, 36),
        (CalendarWindows("day", grace=5), 20, 25),
    ],
)
def test_a_window_closes_at_one_moment(windows: Any, end: int, closes_at: int) -> None:
    assert windows.closes_at(end) == closes_at


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TimeWindows(0), "size=0 is too short; give at least 1 ms"),
        (lambda: TimeWindows(-1), "size=-1 is too short"),
        (lambda: TimeWindows(timedelta(microseconds=5)), "shorter than a millisecond"),
        (lambda: TimeWindows(1.5), "not a duration"),  # type: ignore[arg-type]
        (lambda: TimeWindows(10, 0), "advance=0 is too short"),
        (lambda: TimeWindows(10, 11), "advance=11 is longer than size=10"),
        (lambda: TimeWindows(10, grace=-1), "grace=-1 is too short"),
        (lambda: TimeWindows(10, offset=0.5), "not a duration"),  # type: ignore[arg-type]
        (lambda: SlidingWindows(-1), "difference=-1 is too short"),
        (lambda: SlidingWindows(1, grace=-1), "grace=-1 is too short"),
        (lambda: SessionWindows(0), "gap=0 is too short"),
        (lambda: SessionWindows(1, grace=-1), "grace=-1 is too short"),
        (lambda: UnlimitedWindows(-1), "start=-1 is no time"),
        (lambda: UnlimitedWindows(True), "start=True is no time"),
        (lambda: CalendarWindows("year"), "unit='year'; give 'day', 'week' or 'month'"),  # type: ignore[arg-type]
        (lambda: CalendarWindows("day", "Europe/Nowhere"), "tz='Europe/Nowhere' is no time zone"),
        (lambda: CalendarWindows("day", "../etc/passwd"), "is no time zone"),
        (lambda: CalendarWindows("day", "Europe"), "tz='Europe' is no time zone"),
        (lambda: CalendarWindows("day", 1), "tz=1 is no time zone"),  # type: ignore[arg-type]
        (lambda: CalendarWindows("day", UTC), "give a name such as 'UTC' or 'Europe/Berlin'"),  # type: ignore[arg-type]
        (lambda: CalendarWindows("day", grace=-1), "grace=-1 is too short"),
        (lambda: CalendarWindows("day", day_start="25:00"), "day_start='25:00' is no time of day"),
        (lambda: CalendarWindows("day", day_start="6pm"), "day_start='6pm' is no time of day"),
        (lambda: CalendarWindows("day", day_start=18), "day_start=18 is no time of day"),  # type: ignore[arg-type]
        (lambda: CalendarWindows("day", day_start=time(18, tzinfo=UTC)), "without a time zone"),
        (
            lambda: CalendarWindows("week", week_start="Sunday"),  # type: ignore[arg-type]
            "week_start='Sunday'; give one of 'monday'",
        ),
        (
            lambda: CalendarWindows("day", week_start="sunday"),
            "week_start='sunday' belongs to weeks",
        ),
        (JoinWindows, "no before; give difference"),
        (lambda: JoinWindows(before=1), "no after; give difference"),
        (lambda: JoinWindows(-1), "difference=-1 is too short"),
        (lambda: JoinWindows(before=5, after=-6), "leave no time between them"),
        (lambda: JoinWindows(1, grace=-1), "grace=-1 is too short"),
    ],
)
def test_a_bad_value_is_refused_with_the_users_line(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(TopologyError, match=r"Windows \(.*test_windows\.py:\d+\): ") as caught:
        make()
    assert message in str(caught.value)


def test_a_join_window_may_be_on_one_side() -> None:
    windows = JoinWindows(100, after=timedelta(milliseconds=5), grace=7)
    assert (windows.before_ms, windows.after_ms, windows.grace_ms) == (100, 5, 7)
    assert JoinWindows(before=-5, after=10).size_ms == 5
    assert JoinWindows(100, grace=3).retention_ms == 203


@pytest.mark.parametrize(
    ("windows", "least"),
    [
        (TimeWindows(10, 5, grace=3), 13),
        (SlidingWindows(10, grace=3), 23),
        (SessionWindows(10, grace=3), 13),
        (UnlimitedWindows(5), FOREVER),
    ],
)
def test_a_store_keeps_windows_as_long_as_kafka_streams_does(windows: Any, least: int) -> None:
    assert windows.retention_ms == least
    assert windows.kept_ms("on_window_update") >= least
    assert windows.kept_ms("on_window_close") >= windows.kept_ms("on_window_update")


def test_a_time_zone_may_be_an_object() -> None:
    assert CalendarWindows("day", ZoneInfo("Asia/Tokyo")) == CalendarWindows("day", "Asia/Tokyo")


@pytest.mark.parametrize(
    ("windows", "moment", "start", "end"),
    [
        # A day of a clock change has 23 or 25 hours.
        (CalendarWindows("day", "Europe/Berlin"), "2024-03-31T12:00", "2024-03-31T00:00", "2024-04-01T00:00"),
        (CalendarWindows("day", "Europe/Berlin"), "2024-10-27T02:30", "2024-10-27T00:00", "2024-10-28T00:00"),
        (CalendarWindows("day", "Europe/Berlin"), "2024-10-27T00:00", "2024-10-27T00:00", "2024-10-28T00:00"),
        (CalendarWindows("day", "Europe/Berlin"), "2024-10-26T23:59:59.999", "2024-10-26T00:00", "2024-10-27T00:00"),
        (CalendarWindows("week", "Europe/Berlin"), "2024-03-31T23:59", "2024-03-25T00:00", "2024-04-01T00:00"),
        (CalendarWindows("week", "Europe/Berlin"), "2024-04-01T00:00", "2024-04-01T00:00", "2024-04-08T00:00"),
        (CalendarWindows("month", "Europe/Berlin"), "2024-02-29T12:00", "2024-02-01T00:00", "2024-03-01T00:00"),
        (CalendarWindows("month", "Europe/Berlin"), "2024-12-31T12:00", "2024-12-01T00:00", "2025-01-01T00:00"),
        (CalendarWindows("day", "Asia/Kolkata"), "2024-05-05T00:00", "2024-05-05T00:00", "2024-05-06T00:00"),
        # Days from 18:00, also at clock changes, and weeks from Sunday.
        (EVENINGS, "2024-05-05T17:59:59.999", "2024-05-04T18:00", "2024-05-05T18:00"),
        (EVENINGS, "2024-05-05T18:00", "2024-05-05T18:00", "2024-05-06T18:00"),
        (EVENINGS, "2024-03-31T12:00", "2024-03-30T18:00", "2024-03-31T18:00"),
        (CalendarWindows("month", "Europe/Berlin", day_start=time(18)), "2024-03-01T12:00", "2024-02-01T18:00", "2024-03-01T18:00"),
        (CalendarWindows("week", "Europe/Berlin", week_start="sunday"), "2024-03-31T23:59", "2024-03-31T00:00", "2024-04-07T00:00"),
        (CalendarWindows("week", "Europe/Berlin", week_start="sunday"), "2024-03-30T23:59", "2024-03-24T00:00", "2024-03-31T00:00"),
        (CalendarWindows("week", "Europe/Berlin", day_start="18:00", week_start="sunday"), "2024-03-31T12:00", "2024-03-24T18:00", "2024-03-31T18:00"),
        # The clock skips 02:00 to 03:00: the day starts at 03:00.
        (CalendarWindows("day", "Europe/Berlin", day_start="02:30"), "2024-03-31T03:10", "2024-03-31T03:00", "2024-04-01T02:30"),
        (CalendarWindows("day", "Europe/Berlin", day_start="02:30"), "2024-03-31T01:59", "2024-03-30T02:30", "2024-03-31T03:00"),
    ],
)  # fmt: skip
def test_a_calendar_window_spans_midnight_to_midnight(
    windows: CalendarWindows, moment: str, start: str, end: str
) -> None:
    (found,) = windows.starts_for(ms(moment, windows.tz))
    assert (found, windows.end_of(found)) == (ms(start, windows.tz), ms(end, windows.tz))


def test_days_have_as_many_hours_as_their_clock_shows() -> None:
    lengths = {
        ("Europe/Berlin", "2024-03-31T12:00"): 23,
        ("Europe/Berlin", "2024-10-27T12:00"): 25,
        ("America/Sao_Paulo", "2018-11-04T12:00"): 23,
        ("America/Sao_Paulo", "2018-02-17T12:00"): 25,
        ("Australia/Lord_Howe", "2024-04-07T12:00"): 24.5,
        ("Pacific/Apia", "2011-12-29T12:00"): 24,
        ("Pacific/Apia", "2011-12-31T12:00"): 24,
    }
    for (zone, moment), hours in lengths.items():
        days = CalendarWindows("day", zone)
        (start,) = days.starts_for(ms(moment, zone))
        assert (days.end_of(start) - start) / HOUR == hours


def test_days_from_an_evening_have_23_and_25_hours() -> None:
    lengths = [
        (EVENINGS.end_of(start) - start) / HOUR
        for day in ("2024-03-31", "2024-04-01", "2024-10-27", "2024-10-28")
        for start in EVENINGS.starts_for(ms(f"{day}T12:00", EVENINGS.tz))
    ]
    assert lengths == [23, 24, 25, 24]


@given(
    st.sampled_from(["day", "week", "month"]),
    st.sampled_from(ZONES),
    YEARS,
    st.times().map(lambda at: at.replace(microsecond=0)),
    st.sampled_from(["monday", "wednesday", "sunday"]),
)
def test_calendar_windows_cut_time_without_gaps_or_overlaps(
    unit: Any, zone: str, timestamp: int, day_start: time, week_start: Any
) -> None:
    more = {"week_start": week_start} if unit == "week" else {}
    windows = CalendarWindows(unit, zone, day_start=day_start, **more)
    (start,) = windows.starts_for(timestamp)
    end = windows.end_of(start)
    assert start <= timestamp < end
    assert list(windows.starts_for(end - 1)) == [start]
    assert list(windows.starts_for(end)) == [end]
    assert end - start <= windows.longest_ms


@given(
    st.one_of(
        st.builds(
            TimeWindows, st.just(12), st.sampled_from([1, 5, 12]), offset=st.integers(-20, 20)
        ),
        st.builds(
            CalendarWindows,
            st.just("day"),
            st.sampled_from(ZONES),
            day_start=st.sampled_from(["00:00", "18:00"]),
        ),
        st.builds(custom, st.just(12), st.sampled_from([1, 5, 12, 20]), st.integers(-20, 20)),
        st.builds(UnlimitedWindows, st.integers(0, 100)),
    ),
    st.integers(-1, 400),
    st.integers(-5, 400),
    st.sampled_from([1, HOUR]),
)
def test_closed_starts_are_those_of_the_windows_that_end_in_between(
    windows: FixedWindows, before: int, now: int, unit: int
) -> None:
    before, now = max(before * unit, -1), now * unit
    first, last = windows.closed_starts(before, now)
    starts = {
        start
        for timestamp in range(0, max(now, 0) + 20 * unit, unit)
        for start in windows.starts_for(timestamp)
    }
    assert {start for start in starts if first <= start <= last} == {
        start for start in starts if before < windows.end_of(start) <= now
    }


def test_a_time_outside_the_calendar_is_an_error() -> None:
    with pytest.raises(ValueError, match="are these milliseconds"):
        list(CalendarWindows("day").starts_for(1_700_000_000_000_000))
