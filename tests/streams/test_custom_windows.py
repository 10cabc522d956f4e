from collections.abc import Callable
from typing import Any

import pytest

from tidewheel import (
    BufferConfig,
    CalendarWindows,
    CustomWindows,
    RecordFailedError,
    Serdes,
    StreamsBuilder,
    StreamsConfig,
    Suppressed,
    TimeWindows,
    TopologyError,
    Windowed,
)
from tidewheel.testing import TopologyTestDriver

TEXT: dict[str, Any] = {"key_serde": str, "value_serde": str}
DAY = 86_400_000

Spans = list[tuple[int, int]]


def tens(timestamp: int) -> Spans:
    start = timestamp // 10 * 10
    return [(start, start + 10)]


def of_known_years(timestamp: int) -> Spans:
    start = timestamp // DAY * DAY
    return [(start, start + DAY)] if 3 <= start // DAY < 5 else []


BROKEN: dict[str, tuple[Callable[[int], Any], str]] = {
    "no list": (lambda t: None, "raised TypeError"),
    "raises": (lambda t: [(t, t + 1 // (t % 7))], "raised ZeroDivisionError"),
    "no pair": (lambda t: [t], "a window is a pair of int"),
    "of float": (lambda t: [(t / 1, t + 1.0)], "a window is a pair of int"),
    "of bool": (lambda t: [(False, True)], "a window is a pair of int"),
    "of three": (lambda t: [(t, t + 1, t + 2)], "a window is a pair of int"),
    "empty": (lambda t: [(t, t)], "does not hold that time"),
    "another time": (lambda t: [(t + 5, t + 10)], "does not hold that time"),
    "of each record": (lambda t: [(t, t + 10)], "does not give the window"),
    "two from one start": (
        lambda t: [(t // 10 * 10, t // 10 * 10 + 10), (t // 10 * 10, t // 10 * 10 + 20)],
        "two windows that start at",
    ),
    "one inside another": (
        lambda t: (
            [(t // 100 * 100, t // 100 * 100 + 100)]
            + ([(t // 100 * 100 + 10, t // 100 * 100 + 90)] if 10 <= t % 100 < 90 else [])
        ),
        "a later one ends earlier",
    ),
    "too many": (lambda t: [(t - n, t + 1) for n in range(20_000)], "20000 windows"),
    "without end": (lambda t: [(0, 1 << 63)], "past all times"),
    "no window": (lambda t: [], "give longest="),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_window_function_that_breaks_a_law_is_refused_by_the_call(name: str) -> None:
    of, message = BROKEN[name]
    with pytest.raises(TopologyError, match=r"CustomWindows \(.*test_custom_windows\.py") as caught:
        CustomWindows(of)
    assert message in str(caught.value)


def test_an_impure_function_is_refused() -> None:
    count = iter(range(1_000_000))
    with pytest.raises(TopologyError, match="it must be a pure function"):
        CustomWindows(lambda t: [(t // 10 * 10 - next(count), t // 10 * 10 + 10)])
    wrong: Any = 5
    with pytest.raises(TopologyError, match="of=5 is no function"):
        CustomWindows(wrong)


def test_the_longest_window_is_measured_or_given() -> None:
    assert CustomWindows(tens, grace=7).longest_ms == 20
    assert CustomWindows(tens, grace=7, longest=10).retention_ms == 17
    assert CustomWindows(of_known_years, longest=DAY).longest_ms == DAY
    with pytest.raises(TopologyError, match=r"longer than the longest \(9 ms\); give longest="):
        CustomWindows(tens, longest=9)


def test_windows_that_start_before_the_epoch_start_at_the_epoch() -> None:
    windows = CustomWindows(lambda t: [((t - 3) // 10 * 10 + 3, (t - 3) // 10 * 10 + 13)])
    assert (list(windows.starts_for(2)), windows.end_of(0)) == ([0], 3)
    assert list(windows.starts_for(3)) == [3]


def test_windowed_keys_have_the_end_of_their_window() -> None:
    for windows, start, end in (
        (CustomWindows(tens), 20, 30),
        (TimeWindows(10, offset=3), 0, 3),
        (TimeWindows(10, offset=3), 13, 23),
        (CalendarWindows("day", day_start="18:00"), 18 * 3_600_000, 42 * 3_600_000),
    ):
        serde = Serdes.windowed(str, windows)
        key = Windowed("a", start, end)
        assert serde.deserialize("t", serde.serialize("t", key) or b"") == key


def append(_key: str, value: str, seen: str) -> str:
    return seen + value


AGGREGATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "count": lambda one, _: one.count().map_values(str),
    "reduce": lambda one, _: one.reduce(lambda old, value: old + value),
    "aggregate": lambda one, _: one.aggregate(str, append, value_serde=str),
    "cogroup": lambda _, both: both.aggregate(str, value_serde=str),
}

WINDOWS: dict[str, Any] = {
    "function": (CustomWindows(tens), 0, 10),
    "offset": (TimeWindows(10, offset=3), 3, 13),
    "hopping": (TimeWindows(10, 10, offset=-7), 3, 13),
    "evenings": (CalendarWindows("day", day_start="18:00"), 18 * 3_600_000, 42 * 3_600_000),
    "weeks": (CalendarWindows("week", week_start="sunday"), 3 * DAY, 10 * DAY),
}


@pytest.mark.parametrize(
    "settings_", [{}, {"dsl_store_suppliers": "in_memory"}], ids=["disk", "memory"]
)
@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize("name", WINDOWS)
def test_all_aggregations_accept_all_windows(
    name: str, how: str, settings_: dict[str, Any]
) -> None:
    windows, start, end = WINDOWS[name]
    config = StreamsConfig(
        application_id="t",
        bootstrap_servers="unused:9092",
        statestore_cache_max_bytes=0,
        default_value_serde="string",
        **settings_,
    )
    builder = StreamsBuilder()
    one, two = (builder.stream(topic, **TEXT).group_by_key() for topic in ("one", "two"))
    both = one.cogroup(append).cogroup(two, append).windowed_by(windows)
    table = AGGREGATIONS[how](one.windowed_by(windows), both)

    def flat(key: Any, _value: Any) -> str:
        return f"{key.key} {key.start}-{key.end}"

    table.to_stream(flat).to("out", **TEXT)
    final = table.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    final.to_stream(flat).to("final", **TEXT)
    rows = [("a", "x", start), ("a", "y", end - 1), ("b", "z", end), ("a", "w", start + 1)]
    with TopologyTestDriver(builder.build(config), config) as driver:
        driver.create_input_topic("one", **TEXT).pipe_batch(rows)
        found = driver.create_output_topic("out", **TEXT).read_key_values()
        closed = driver.create_output_topic("final", **TEXT).read_key_values()
    last = "2" if how == "count" else "xy"
    assert [row for row in found if row[0].startswith("a")][-1] == (f"a {start}-{end}", last)
    assert len(found) == 3
    assert closed == [(f"a {start}-{end}", last)]


@pytest.mark.parametrize("name", WINDOWS)
def test_results_on_window_close_are_emitted_once(name: str) -> None:
    windows, start, end = WINDOWS[name]
    builder = StreamsBuilder()
    cut = builder.stream("in", **TEXT).group_by_key().windowed_by(windows)
    counts = cut.emit_strategy("on_window_close").count()
    counts.to_stream(lambda key, _: f"{key.start}-{key.end}").to("out", key_serde=str)
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", **TEXT).pipe_batch(
            [("a", "x", start), ("a", "y", end - 1), ("b", "z", end), ("a", "w", end + 1)]
        )
        output = driver.create_output_topic("out", key_serde=str, value_serde=int)
        assert output.read_key_values() == [(f"{start}-{end}", 2)]


def test_tables_of_custom_windows_are_joined() -> None:
    builder = StreamsBuilder()
    windows = CustomWindows(tens)
    tables = [
        builder.stream(topic, **TEXT).group_by_key().windowed_by(windows).reduce(max)
        for topic in ("one", "two")
    ]
    joined = tables[0].join(tables[1], lambda left, right: left + right)
    joined.to_stream(lambda key, _: f"{key.key} {key.start}-{key.end}").to("out", **TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        for topic, value, time in (("one", "x", 12), ("two", "y", 19), ("two", "z", 20)):
            driver.create_input_topic(topic, **TEXT).pipe_input("a", value, time)
        output = driver.create_output_topic("out", **TEXT)
        assert output.read_key_values() == [("a 10-20", "xy")]


def test_a_law_broken_by_a_later_record_fails_the_record() -> None:
    def of(timestamp: int) -> Spans:
        return [(timestamp, timestamp + 10)] if timestamp == 777_777 else tens(timestamp)

    def run(handler: str) -> list[Any]:
        config = StreamsConfig(
            application_id="t",
            bootstrap_servers="unused:9092",
            processing_exception_handler=handler,
        )
        builder = StreamsBuilder()
        counts = builder.stream("in", **TEXT).group_by_key().windowed_by(CustomWindows(of)).count()
        counts.to_stream(lambda key, _: key.start).to("out", key_serde=int)
        with TopologyTestDriver(builder.build(config), config) as driver:
            source = driver.create_input_topic("in", **TEXT)
            for time in (777_760, 777_777, 777_790):
                source.pipe_input("a", "x", time)
            return driver.create_output_topic(
                "out", key_serde=int, value_serde=int
            ).read_key_values()

    assert run("continue") == [(777_760, 1), (777_790, 1)]
    with pytest.raises(
        RecordFailedError, match=r"\(777786\) does not give the window|does not give"
    ):
        run("fail")


def test_a_window_longer_than_the_longest_fails_the_record() -> None:
    def of(timestamp: int) -> Spans:
        return [(777_000, 778_000)] if 777_000 <= timestamp < 778_000 else tens(timestamp)

    builder = StreamsBuilder()
    builder.stream("in", **TEXT).group_by_key().windowed_by(CustomWindows(of)).count()
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in", **TEXT)
        with pytest.raises(RecordFailedError, match="give longest= at least that"):
            source.pipe_input("a", "x", 777_500)
