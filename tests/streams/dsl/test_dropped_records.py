"""Dropped records: a warning names operator, reason, count and first position."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from tidewheel import (
    JoinWindows,
    Materialized,
    Processor,
    Record,
    Serdes,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    TimeWindows,
)
from tidewheel.tasks.processing.api.record import RecordMetadata
from tidewheel.tasks.processing.engine.drops import Drop, DropLog
from tidewheel.testing import TopologyTestDriver

MINUTE = 60_000
Rows = list[tuple[str | None, str | None, int]]

#: One record far ahead, then late ones; the first late offset is 1.
LATE: Rows = [("k", "v", 50 * MINUTE), *[("k", "v", MINUTE)] * 3]
NO_KEY: Rows = [("k", "v", 1), (None, "v", 2), ("k", "v", 3), (None, "v", 4), (None, "v", 5)]


def _in(builder: StreamsBuilder, topic: str = "in", **more: Any) -> Any:
    return builder.stream(topic, key_serde=str, value_serde=str, **more)


def _window(windows: Any) -> Callable[[StreamsBuilder], object]:
    return lambda builder: _in(builder).group_by_key().windowed_by(windows).count()


def _fold(windows: Any) -> Callable[[StreamsBuilder], object]:
    return lambda builder: (
        _in(builder).group_by_key().windowed_by(windows).reduce(lambda a, b: a + b)
    )


def _table(builder: StreamsBuilder, topic: str) -> Any:
    return builder.table(topic, key_serde=str, value_serde=str)


def _foreign(builder: StreamsBuilder) -> None:
    left, right = _table(builder, "in"), _table(builder, "other")
    left.join(right, lambda a, b: a + b, foreign_key=lambda value: None if value == "v" else value)


class _Puts(Processor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        self.context.get_state_store("window").put(record.key, record.value, record.timestamp)


def _processor(builder: StreamsBuilder) -> None:
    builder.add_state_store(
        Stores.window("window", retention=MINUTE, window_size=1_000, key_serde=str, value_serde=str)
    )
    _in(builder).process(_Puts, stores=["window"])


SHAPES: dict[str, tuple[Callable[[StreamsBuilder], object], Rows]] = {
    "tumbling": (_window(TimeWindows(MINUTE)), LATE),
    "tumbling, folded": (_fold(TimeWindows(MINUTE)), LATE),
    "hopping": (_fold(TimeWindows(MINUTE, advance=MINUTE)), LATE),
    "sliding": (_fold(SlidingWindows(MINUTE)), LATE),
    "sessions": (_fold(SessionWindows(MINUTE)), LATE),
    "sessions, counted": (_window(SessionWindows(MINUTE)), LATE),
    "count": (lambda builder: _in(builder).group_by_key().count(), NO_KEY),
    "table": (lambda builder: _table(builder, "in").map_values(str.upper), NO_KEY),
    "repartition": (lambda builder: _in(builder).repartition(), NO_KEY),
    "stream-stream join": (
        lambda builder: _in(builder).join(
            _in(builder, "other"), lambda a, b: a, within=JoinWindows(MINUTE)
        ),
        NO_KEY,
    ),
    "outer join of streams": (
        lambda builder: _in(builder).left_join(
            _in(builder, "other"), lambda a, b: a, within=JoinWindows(MINUTE)
        ),
        [("k", "v", 1), *[("k", None, 2)] * 3],
    ),
    "stream-table join": (
        lambda builder: _in(builder).join(_table(builder, "other"), lambda a, b: a),
        NO_KEY,
    ),
    "global join": (
        lambda builder: _in(builder).join(
            builder.global_table("other", key_serde=str, value_serde=str),
            lambda a, b: a,
            key_selector=lambda key, value: key,
        ),
        NO_KEY,
    ),
    "foreign keys": (_foreign, [("k", "x", 1), *[("k", "v", 2)] * 3]),
    "negative times": (
        lambda builder: _in(
            builder, timestamp_extractor=lambda record, _: -1 if record.value == "late" else 5
        ).foreach(print),
        [("k", "v", 1), *[("k", "late", 2)] * 3],
    ),
    "partitioner": (
        lambda builder: _in(builder).to(
            "out",
            key_serde=str,
            value_serde=str,
            partitioner=lambda _t, _k, value, _n: [] if value == "none" else 0,
        ),
        [("k", "v", 1), *[("k", "none", 2)] * 3],
    ),
}


def _pipe(build: Callable[[StreamsBuilder], object], rows: Rows) -> None:
    builder = StreamsBuilder()
    build(builder)
    with TopologyTestDriver(
        builder.build(), StreamsConfig(application_id="a", statestore_cache_max_bytes=0)
    ) as driver:
        driver.create_input_topic(
            "in", key_serde=Serdes.string(), value_serde=Serdes.string()
        ).pipe_batch(rows)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_drop_is_logged_with_its_first_position(
    shape: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    build, rows = SHAPES[shape]
    _pipe(build, rows)
    (warning,) = [each.getMessage() for each in caplog.records if "dropped" in each.getMessage()]
    assert "3 records at K" in warning
    assert "first in-0 offset 1)" in warning


def test_late_puts_of_a_processor_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    _pipe(_processor, LATE)
    (warning,) = [each.getMessage() for each in caplog.records if "dropped" in each.getMessage()]
    assert "3 records" in warning
    assert "a processor of task 0_0" in warning


def test_a_versioned_table_reports_records_older_than_its_history(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def build(builder: StreamsBuilder) -> None:
        store: Any = Materialized("v", store_type="versioned", history_retention=MINUTE)
        builder.table("in", key_serde=str, value_serde=str, store=store)

    _pipe(build, LATE)
    (warning,) = [each.getMessage() for each in caplog.records if "dropped" in each.getMessage()]
    assert "3 records at KTABLE-SOURCE" in warning
    assert "first in-0 offset 1)" in warning


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def _drop(count: int, offset: int) -> Drop:
    return Drop(count, RecordMetadata("in", 0, offset))


def test_one_operator_warns_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = DropLog(clock)
    log.add("A", "late", _drop(1, 7))
    log.add("B", "late", _drop(2, 8))
    log.report()
    assert len(caplog.records) == 2
    clock.now_s = 59.0
    log.add("A", "late", _drop(10, 20))
    log.add("A", "late", _drop(10, 30))
    log.report()
    assert len(caplog.records) == 2
    clock.now_s = 60.0
    log.report()
    assert "20 records at A: late (first in-0 offset 20)" in caplog.records[-1].getMessage()
    log.add("A", "null key", _drop(1, 40))
    log.report()
    assert len(caplog.records) == 3
    log.report(at_end=True)
    assert len(caplog.records) == 4


def test_grouped_records_without_a_key_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    def build(builder: StreamsBuilder) -> None:
        none: Any = lambda _key, _value: None  # noqa: E731 - untyped on purpose
        _in(builder).select_key(none).group_by_key(key_serde=str, value_serde=str).count()

    _pipe(build, [("k", "v", 1), ("k", "v", 2)])
    assert "2 records at K" in caplog.text
