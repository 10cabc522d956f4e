"""The table of docs/dsl.md: null keys, null values and late records per operator."""

from collections.abc import Callable
from typing import Any

import pytest

from tidewheel import (
    CalendarWindows,
    JoinWindows,
    Serdes,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    StreamsConfig,
    TimeWindows,
    UnlimitedWindows,
)
from tidewheel.testing import TopologyTestDriver

JSON = Serdes.json()
NEAR = JoinWindows(5)
CONFIG = StreamsConfig(application_id="nulls", default_key_serde=str, default_value_serde=JSON)

Build = Callable[[StreamsBuilder], Any]
Records = list[tuple[str, Any, Any, int]]


def both(left: Any, right: Any) -> str:
    return f"{left}+{right}"


def window(key: Any, _: Any) -> str:
    return f"{key.key} {key.start}"


def counted(windows: Any, *, start: int = 0) -> Build:
    merger = {"merger": lambda _key, one, two: one + two} if type(windows) is SessionWindows else {}
    return lambda b: (
        b.stream("in")
        .group_by_key()
        .windowed_by(windows)
        .aggregate(lambda: start, lambda _key, _value, total: total + 1, **merger)
        .to_stream(window)
    )


def run(build: Build, records: Records) -> tuple[list[tuple[Any, Any, int]], int]:
    builder = StreamsBuilder()
    build(builder).to("out", key_serde=str, value_serde=JSON)
    with TopologyTestDriver(builder.build(CONFIG)) as driver:
        for topic, key, value, timestamp in records:
            source = driver.create_input_topic(topic, key_serde=str, value_serde=JSON)
            source.pipe_input(key, value, timestamp)
        output = driver.create_output_topic("out", key_serde=str, value_serde=JSON)
        found = [(record.key, record.value, record.timestamp) for record in output.read_records()]
        dropped = sum(metrics["dropped-records-total"] for metrics in driver.metrics().values())
    return found, int(dropped)


NO_KEY_NO_VALUE: Records = [("in", None, 1, 0), ("in", "a", None, 1)]
SIDES: Records = [("left", None, 1, 0), ("right", None, 2, 1), ("left", "a", None, 2), ("right", "a", None, 3)]  # fmt: skip
LEFT: Records = [("right", "a", 9, 0), ("left", None, 1, 1), ("left", "a", None, 2)]
ROWS: Records = [
    ("left", None, 1, 0), ("right", None, 2, 1), ("left", "a", 1, 1), ("right", "a", 2, 2), ("right", "a", None, 3),
]  # fmt: skip
FOREIGN: Records = [
    ("right", "u", 1, 0), ("left", None, {"f": "u"}, 1), ("left", "a", {"f": "u"}, 2), ("left", "a", {}, 3),
    ("left", "b", {}, 4), ("left", "a", None, 5),
]  # fmt: skip


def stream_join(kind: str) -> Build:
    return lambda b: getattr(b.stream("left"), kind)(b.stream("right"), both, within=NEAR)


def stream_table(kind: str) -> Build:
    return lambda b: getattr(b.stream("left"), kind)(b.table("right"), both)


def stream_global(kind: str, selector: Callable[..., Any]) -> Build:
    return lambda b: getattr(b.stream("left"), kind)(
        b.global_table("right"), both, key_selector=selector
    )


def table_join(kind: str, **options: Any) -> Build:
    return lambda b: getattr(b.table("left"), kind)(b.table("right"), both, **options).to_stream()


@pytest.mark.parametrize(
    ("build", "records", "expected", "dropped"),
    [
        (lambda b: b.stream("in").filter(lambda key, value: key is None or value is None), NO_KEY_NO_VALUE, [(None, 1, 0), ("a", None, 1)], 0),
        (lambda b: b.stream("in").repartition(name="r"), NO_KEY_NO_VALUE, [("a", None, 1)], 1),
        (lambda b: b.table("in", store="s").to_stream(), NO_KEY_NO_VALUE, [("a", None, 1)], 1),
        (lambda b: b.stream("in").to_table(store="s").to_stream(), NO_KEY_NO_VALUE, [("a", None, 1)], 1),
        (lambda b: b.stream("in").group_by_key().count().to_stream(), NO_KEY_NO_VALUE, [], 2),
        (lambda b: b.stream("in").group_by_key().cogroup(lambda _key, _value, n: n + 1).aggregate(int).to_stream(), NO_KEY_NO_VALUE, [], 2),
        (counted(TimeWindows(10)), NO_KEY_NO_VALUE, [("a 0", 1, 1)], 1),
        (counted(CalendarWindows("day")), NO_KEY_NO_VALUE, [("a 0", 1, 1)], 1),
        (counted(UnlimitedWindows()), NO_KEY_NO_VALUE, [("a 0", 1, 1)], 1),
        (counted(SlidingWindows(5)), NO_KEY_NO_VALUE, [], 2),
        (counted(SessionWindows(5)), NO_KEY_NO_VALUE, [("a 1", 1, 1)], 1),
        (stream_join("join"), SIDES, [], 4),
        (stream_join("left_join"), SIDES, [(None, "1+None", 0)], 3),
        (stream_join("outer_join"), SIDES, [(None, "1+None", 0), (None, "None+2", 1)], 2),
        (stream_table("join"), LEFT, [], 2),
        (stream_table("left_join"), LEFT, [(None, "1+None", 1)], 1),
        (stream_global("join", lambda _: "a"), LEFT, [(None, "1+9", 1)], 1),
        (stream_global("join", lambda _: None), LEFT, [], 2),
        (stream_global("left_join", lambda _: None), LEFT, [(None, "1+None", 1)], 1),
        (table_join("join"), ROWS, [("a", "1+2", 2), ("a", None, 3)], 2),
        (table_join("left_join"), ROWS, [("a", "1+None", 1), ("a", "1+2", 2), ("a", "1+None", 3)], 2),
        (table_join("outer_join"), ROWS, [("a", "1+None", 1), ("a", "1+2", 2), ("a", "1+None", 3)], 2),
        (table_join("join", foreign_key=lambda row: row.get("f")), FOREIGN, [("a", "{'f': 'u'}+1", 2), ("a", None, 3)], 3),
        (
            table_join("left_join", foreign_key=lambda row: row.get("f")), FOREIGN,
            [("a", "{'f': 'u'}+1", 2), ("a", "{}+None", 3), ("b", "{}+None", 4), ("a", None, 5)], 1,
        ),
    ],
)  # fmt: skip
def test_nulls(
    build: Build, records: Records, expected: list[tuple[Any, Any, int]], dropped: int
) -> None:
    assert run(build, records) == (expected, dropped)


def at(*times: int) -> Records:
    return [("in", "a", 1, time) for time in times]


@pytest.mark.parametrize(
    ("build", "records", "expected", "dropped"),
    [
        (lambda b: b.table("in", store="s").to_stream(), [("in", "a", 1, 9), ("in", "a", 2, 3)], [("a", 1, 9), ("a", 2, 3)], 0),
        (lambda b: b.stream("in").group_by_key().count().to_stream(), at(9, 3), [("a", 1, 9), ("a", 2, 9)], 0),
        (counted(TimeWindows(10)), at(1, 10, 9), [("a 0", 1, 1), ("a 10", 1, 10)], 1),
        (counted(TimeWindows(10, grace=1)), at(1, 10, 9), [("a 0", 1, 1), ("a 10", 1, 10), ("a 0", 2, 9)], 0),
        (counted(SessionWindows(5)), at(0, 20, 14), [("a 0", 1, 0), ("a 20", 1, 20)], 1),
        (stream_join("join"), [("left", "a", 1, 100), ("right", "a", 2, 50), ("left", "a", 3, 52)], [("a", "3+2", 52)], None),
        (stream_join("left_join"), [("right", "a", 1, 100), ("left", "a", 2, 50)], [("a", "2+None", 50)], 0),
        (stream_table("join"), [("right", "a", 1, 100), ("left", "a", 2, 50)], [("a", "2+1", 50)], 0),
    ],
)  # fmt: skip
def test_late_records(
    build: Build, records: Records, expected: list[tuple[Any, Any, int]], dropped: int | None
) -> None:
    found, count = run(build, records)
    assert found == expected
    # A late join record may be too old to be stored, but its results are emitted.
    assert dropped in {count, None}
