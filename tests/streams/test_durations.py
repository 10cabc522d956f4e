from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel import (
    BufferConfig,
    CalendarWindows,
    JoinWindows,
    Serdes,
    SessionWindows,
    SlidingWindows,
    Stores,
    Suppressed,
    TimeWindows,
)
from tidewheel.streams.durations import to_ms
from tidewheel.streams.errors import ConfigError, TopologyError
from tidewheel.tasks.durations import parse_ms


@given(st.integers(min_value=0, max_value=10**12))
def test_int_and_timedelta_mean_the_same(ms: int) -> None:
    assert to_ms(ms) == to_ms(timedelta(milliseconds=ms)) == ms


@pytest.mark.parametrize(
    "windows",
    [
        (TimeWindows("1m", advance="30s", grace="5s"), TimeWindows(60_000, 30_000, 5_000)),
        (SlidingWindows("1m", "5s"), SlidingWindows(60_000, 5_000)),
        (SessionWindows("30m", grace="1h"), SessionWindows(1_800_000, 3_600_000)),
        (JoinWindows("5s", before="-1s"), JoinWindows(5_000, before=-1_000)),
        (CalendarWindows("day", grace="2d"), CalendarWindows("day", grace=172_800_000)),
    ],
)
def test_a_text_gives_windows_their_times(windows: tuple[object, object]) -> None:
    assert windows[0] == windows[1]


def test_other_durations_may_be_texts() -> None:
    assert Serdes.windowed(str, "1m") == Serdes.windowed(str, 60_000)
    rows = Stores.key_value("rows", key_serde=str, value_serde=str, ttl="1h")
    assert rows.spec.ttl_ms == 3_600_000
    everything = BufferConfig.unbounded()
    assert Suppressed.until_time_limit("5m", everything).limit_ms == 300_000


@pytest.mark.parametrize("text", ["1 minute", "", "-1s"])
def test_a_text_that_is_no_duration_names_the_argument(text: str) -> None:
    with pytest.raises(TopologyError, match=r"TimeWindows \(.*test_durations.py.*: grace="):
        TimeWindows("1m", grace=text)


def test_timedelta_is_rounded_down() -> None:
    assert to_ms(timedelta(milliseconds=1, microseconds=999)) == 1


def test_a_duration_shorter_than_a_millisecond_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"size=.*shorter than a millisecond"):
        to_ms(timedelta(microseconds=500), "size")


@pytest.mark.parametrize("duration", [1.5, True, None])
def test_other_types_are_refused(duration: Any) -> None:
    with pytest.raises(
        TopologyError, match=r"timedelta, a text such as '30s' or '5m', or int milliseconds"
    ):
        to_ms(duration)


@pytest.mark.parametrize("duration", [-1, timedelta(seconds=-1)])
def test_too_short_durations_name_the_bound(duration: int | timedelta) -> None:
    with pytest.raises(ConfigError, match=r"grace=.*at least 0 ms"):
        to_ms(duration, "grace", error=ConfigError)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0), ("250", 250), ("500ms", 500), ("30s", 30_000), ("5m", 300_000), ("1h", 3_600_000), ("2d", 172_800_000),
        ("1.5s", 1_500), (" 10 s ", 10_000), ("10_000", 10_000), ("-1", -1), ("-1.5s", -1_500),
    ],
)  # fmt: skip
def test_text_durations(text: str, ms: int) -> None:
    assert parse_ms(text) == ms


@pytest.mark.parametrize("text", ["", "s", "5 weeks", "1e3", "5s5", "0.5", "1.0001s", "٣s"])
def test_bad_text_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration|is finer than"):
        parse_ms(text)
