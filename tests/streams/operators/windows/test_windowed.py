"""Windowed aggregations: cases of Kafka Streams' own tests, and ours."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.streams.operators.run import JSON, Row, driver_of, outputs
from tests.streams.operators.window_runs import (
    KEYED,
    AnyWindows,
    driver_for,
    flat_key,
    results,
    run_batches,
    run_each,
)
from tidewheel import (
    CalendarWindows,
    KStream,
    Materialized,
    RecordFailedError,
    Serdes,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
    Windowed,
)
from tidewheel.state_stores.stores.key_value_store import ValueAndTimestamp
from tidewheel.streams.windows import EmitStrategy

GAP = 5 * 60 * 1000
KINDS: list[AnyWindows] = [TimeWindows(10), SlidingWindows(10), SessionWindows(10)]


def texts(stream: KStream[Any, Any], windows: Any, emit: Any) -> Any:
    cut = stream.group_by_key(**KEYED).windowed_by(windows).emit_strategy(emit)
    merger = (lambda _key, one, two: one + two) if isinstance(windows, SessionWindows) else None
    table = cut.aggregate(
        str,
        lambda _key, value, seen: f"{seen}+{value}",
        merger=merger,
        store=Materialized("s", **KEYED),
    )
    return table.to_stream(flat_key)


def run_texts(windows: Any, rows: Sequence[Row], emit: Any = "on_window_update") -> list[Any]:
    with driver_of(lambda stream: texts(stream, windows, emit)) as driver:
        source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        for row in rows:
            source.pipe_input(*row)
        dropped = driver.metrics()["0_0"]["dropped-records-total"]
        return [*results(driver), dropped]


# -- time windows ------------------------------------------------------------------------------------------------------

LATE = [(100, "100"), *((time, str(time)) for time in range(7)), (105, "105"), (106, "106")]


def test_late_records_are_dropped_per_window() -> None:
    windows = TimeWindows(10, 5, grace=90)
    rows = [("k", value, time) for time, value in LATE]
    assert run_texts(windows, rows) == [
        ("k", 95, 105, "+100", 100),
        ("k", 100, 110, "+100", 100),
        ("k", 5, 15, "+5", 5),
        ("k", 5, 15, "+5+6", 6),
        ("k", 100, 110, "+100+105", 105),
        ("k", 105, 115, "+105", 105),
        ("k", 100, 110, "+100+105+106", 106),
        ("k", 105, 115, "+105+106", 106),
        7,
    ]
    assert run_texts(windows, rows, "on_window_close") == [("k", 5, 15, "+5+6", 6), 7]


def test_a_tumbling_window_accepts_late_records_within_its_grace_period() -> None:
    times = [200, 100, 101, 102, 103, 104, 105, 6]
    rows = [("k", time, time) for time in times]
    assert run_texts(TimeWindows(10, grace=90), rows) == [("k", 200, 210, "+200", 200), 7]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # shouldNotEmitFinalIfNotProgressEnough
        (
            [("A", "1", 0), ("B", "2", 5), ("C", "3", 15), ("D", "4", 15), ("E", "5", 19)],
            [[], [], [("A", 0, 10, "+1", 0), ("B", 0, 10, "+2", 5)], [], []],
        ),
        # shouldEmitWithInterval0
        (
            [("A", "1", 0), ("A", "1", 5), ("B", "2", 10), ("C", "3", 15), ("D", "4", 20)],
            [
                [],
                [],
                [],
                [("A", 0, 10, "+1+1", 5)],
                [("A", 5, 15, "+1", 5), ("B", 5, 15, "+2", 10)],
            ],
        ),
        # shouldEmitFromLastEmitTime
        (
            [("A", "1", 0), ("B", "2", 5), ("C", "3", 15), ("D", "4", 25)],
            [
                [],
                [],
                [("A", 0, 10, "+1", 0), ("B", 0, 10, "+2", 5)],
                [("B", 5, 15, "+2", 5), ("C", 10, 20, "+3", 15)],
            ],
        ),
    ],
)
def test_results_on_close_are_emitted_once_after_the_window_closed(
    rows: Sequence[Row], expected: list[Any]
) -> None:
    found: list[Any] = []

    def use(stream: KStream[Any, Any]) -> Any:
        return texts(stream, TimeWindows(10, 5, grace=5), "on_window_close")

    with driver_of(use) as driver:
        source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        for row in rows:
            source.pipe_input(*row)
            found.append(results(driver))
    assert found == expected


def test_a_skipped_window_still_has_its_final_result() -> None:
    """Also where the row has expired in the store (Kafka Streams loses it)."""
    found = run_each(
        [("a", 1, 0), ("b", 2, 3), ("a", 3, 10_000_000)],
        TimeWindows(10),
        emit="on_window_close",
    )
    assert found == [[], [], [("a", 0, 10, [1], 0), ("b", 0, 10, [2], 3)]]


def test_calendar_windows_have_final_results() -> None:
    hour = 3_600_000
    days = CalendarWindows("day", "Asia/Tokyo", grace=hour)
    rows = [("a", 1, 10 * hour), ("a", 2, 14 * hour), ("a", 3, 15 * hour), ("a", 4, 16 * hour)]
    found = run_each(rows, days, emit="on_window_close")
    assert found == [[], [], [], [("a", 0, 15 * hour, [1, 2], 14 * hour)]]


def test_a_time_outside_the_calendar_fails_with_its_record() -> None:
    rows = [("a", 1, 1 << 60), ("a", 2, 5)]
    with (
        driver_for(CalendarWindows("day"), counts=True) as driver,
        pytest.raises(RecordFailedError, match="are these milliseconds"),
    ):
        driver.create_input_topic("in", key_serde=JSON, value_serde=JSON).pipe_batch(rows)


def test_unlimited_windows_never_close() -> None:
    found = run_each(
        [("a", 1, 5), ("a", 2, 10), ("a", 3, 1 << 40), ("a", 4, 20)], UnlimitedWindows(10)
    )
    end = (1 << 63) - 1
    assert found == [
        [],
        [("a", 10, end, [2], 10)],
        [("a", 10, end, [2, 3], 1 << 40)],
        [("a", 10, end, [2, 3, 4], 1 << 40)],
    ]


# -- sliding windows ---------------------------------------------------------------------------------------------------


def test_reduce_over_sliding_windows() -> None:
    rows = [("A", str(n), time) for n, time in enumerate((10, 14, 15, 22, 26, 30), start=1)]

    def run(emit: Any) -> dict[int, list[Any]]:
        def use(stream: KStream[Any, Any]) -> Any:
            cut = stream.group_by_key(**KEYED).windowed_by(SlidingWindows(10, grace=5))
            table = cut.emit_strategy(emit).reduce(lambda one, two: f"{one}+{two}")
            return table.to_stream(flat_key)

        with driver_of(use) as driver:
            source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
            for row in rows:
                source.pipe_input(*row)
            found: dict[int, list[Any]] = {}
            for _, start, _, value, timestamp in results(driver):
                found.setdefault(start, []).append((value, timestamp))
            return found

    closed = {
        0: [("1", 10)],
        4: [("1+2", 14)],
        5: [("1+2+3", 15)],
        11: [("2+3", 15)],
        12: [("2+3+4", 22)],
    }
    assert run("on_window_close") == closed
    assert run("on_window_update") == {
        **closed,
        11: [("2", 14), ("2+3", 15)],
        15: [("3", 15), ("3+4", 22)],
        16: [("4", 22), ("4+5", 26)],
        20: [("4+5+6", 30)],
        23: [("5", 26), ("5+6", 30)],
        27: [("6", 30)],
    }


def test_a_sliding_window_has_one_final_result() -> None:
    """Kafka Streams 4.3.1 gives two: window [5, 10], closed at 26, not at 25."""
    windows = SlidingWindows(5, grace=15)
    rows = [("k1", 1, 10), ("k2", 2, 25), ("k1", 3, 9), ("k2", 4, 26), ("k1", 5, 8)]
    found = run_each(rows, windows, emit="on_window_close", counts=True)
    assert found == [[], [], [], [("k1", 5, 10, 2, 10)], []]


def test_a_sliding_window_of_two_origins_has_a_result_for_each() -> None:
    """It ends at the record and begins after the previous one; Kafka Streams creates it twice."""
    window = ("a", 11, 16, [3], 16)
    rows, windows = [("a", 1, 8), ("a", 2, 10), ("a", 3, 16)], SlidingWindows(5, grace=100)
    assert run_each(rows, windows, statestore_cache_max_bytes=0)[2] == [window, window]
    assert run_each(rows, windows, statestore_cache_max_bytes=1 << 20)[2] == [window]


def test_the_second_result_of_a_sliding_window_retracts_the_first_one() -> None:
    def use(stream: KStream[Any, Any]) -> Any:
        cut = stream.group_by_key(**KEYED).windowed_by(SlidingWindows(5, grace=100))
        counts = cut.count(store=Materialized("s", key_serde=JSON))
        by_key = counts.group_by(lambda window, count: (window.key, count), **KEYED)
        return by_key.aggregate(
            list,
            lambda _key, value, seen: [*seen, value],
            lambda _key, value, seen: [*seen, -value],
            store=Materialized("t", **KEYED),
        ).to_stream()

    with driver_of(use, statestore_cache_max_bytes=0) as driver:
        source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        source.pipe_batch([("a", 1, 8), ("a", 2, 10), ("a", 3, 16)])
        counts = [value for _, value, _ in outputs(driver)]
        assert (counts[-1], sum(counts[-1])) == ([1, 1, 2, 1, -1, 1], 5)


def test_a_value_copied_from_another_window_is_independent_of_it() -> None:
    rows = [("a", 1, 20), ("a", 2, 24), ("a", 3, 22), ("a", 4, 21)]
    found = run_each(rows, SlidingWindows(5, grace=100))
    table = {result[1]: result[3] for each in found for result in each}
    assert table == {
        15: [1], 19: [1, 2, 3, 4], 21: [2, 3, 4], 17: [1, 3, 4], 23: [2], 16: [1, 4], 22: [2, 3],
    }  # fmt: skip


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_sessions_of_kafkas_test() -> None:
    next_ = GAP + 1
    rows = [
        ("a", 1, 0), ("b", 1, 0), ("c", 1, 0), ("d", 1, 0), ("d", 2, GAP // 2), ("a", 2, next_), ("b", 2, next_),
        ("a", 3, next_ + GAP // 2), ("c", 3, next_ + GAP // 2),
    ]  # fmt: skip
    first = [
        ("a", 0, 0, 1, 0),
        ("b", 0, 0, 1, 0),
        ("c", 0, 0, 1, 0),
        ("d", 0, GAP // 2, 2, GAP // 2),
    ]
    windows = SessionWindows(GAP)
    (cached,) = run_batches([rows], windows, counts=True, statestore_cache_max_bytes=1 << 20)
    later = next_ + GAP // 2
    assert cached == [
        *first,
        ("b", next_, next_, 1, next_),
        ("a", next_, later, 2, later),
        ("c", later, later, 1, later),
    ]
    (closed,) = run_batches([rows], windows, counts=True, emit="on_window_close")
    assert closed == first


@pytest.mark.parametrize(("grace", "times"), [(0, [0, 11, 0]), (1, [0, 11, 0, 12, 0])])
def test_a_session_closes_a_millisecond_after_gap_and_grace(grace: int, times: list[int]) -> None:
    rows = [("k" if time == 0 else "dummy", 1, time) for time in times]
    with driver_for(SessionWindows(10, grace=grace), counts=True) as driver:
        driver.create_input_topic("in", key_serde=JSON, value_serde=JSON).pipe_batch(rows)
        assert driver.metrics()["0_0"]["dropped-records-total"] == 1
        assert [row[3] for row in results(driver) if row[0] == "k"] == [1, *([2] if grace else [])]


@pytest.mark.parametrize("emit", ["on_window_update", "on_window_close"])
@pytest.mark.parametrize("cut", [1, 3], ids=["committed", "one batch"])
@pytest.mark.parametrize(
    ("retention", "session"), [(None, 5), (11, 5), (12, 5), (13, 0), (1_000, 0)]
)
def test_a_closed_session_is_merged_within_the_retention(
    retention: int | None, session: int, cut: int, emit: EmitStrategy
) -> None:
    rows = [("a", 1, 0), ("a", 1, 12), ("a", 1, 5)]
    with driver_for(SessionWindows(10), counts=True, retention=retention, emit=emit) as driver:
        source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        for first in range(0, len(rows), cut):
            source.pipe_batch(rows[first : first + cut])
        (*_, last) = driver.get_state_store("store").fetch("a")
        assert last == (Windowed("a", session, 12), 2 if session else 3)


def test_a_closed_session_that_is_merged_is_deleted_and_final_again_as_another() -> None:
    """As in Kafka Streams."""
    rows = [("a", 1, 0), ("a", 1, 12), ("a", 1, 5), ("b", 1, 30)]
    kept: dict[str, Any] = {"counts": True, "retention": 1_000}
    (updates,) = run_batches([rows], SessionWindows(10), **kept)
    merged = [("a", 0, 0, None, 0), ("a", 12, 12, None, 12), ("a", 0, 12, 3, 12)]
    assert updates == [("a", 0, 0, 1, 0), ("a", 12, 12, 1, 12), *merged, ("b", 30, 30, 1, 30)]
    finals = run_each(rows, SessionWindows(10), emit="on_window_close", **kept)
    assert finals == [[], [("a", 0, 0, 1, 0)], [], [("a", 0, 12, 3, 12)]]


@pytest.mark.parametrize("retention", [None, 10, 11])
@pytest.mark.parametrize(("late_by", "value"), [(10, 2), (11, 1)])
def test_a_session_is_found_as_long_as_it_is_open(
    retention: int | None, late_by: int, value: int
) -> None:
    """Kafka Streams hides it in its last millisecond if retention is gap plus grace."""
    rows = [("a", 1, 50), ("b", 1, 50 + late_by), ("a", 1, 50)]
    found = run_each(rows, SessionWindows(10), counts=True, retention=retention)
    assert found[2] == ([("a", 50, 50, value, 50)] if value == 2 else [])


def test_sessions_are_reduced_when_they_merge() -> None:
    def use(stream: KStream[Any, Any]) -> Any:
        cut = stream.group_by_key(**KEYED).windowed_by(SessionWindows(10, grace=100))
        return cut.reduce(lambda one, two: f"{one}+{two}").to_stream(flat_key)

    with driver_of(use) as driver:
        source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        source.pipe_batch([("a", "1", 0), ("a", "2", 20), ("a", "3", 10)])
        assert results(driver)[-1] == ("a", 0, 20, "1+2+3", 20)


# -- all kinds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("windows", KINDS)
@pytest.mark.parametrize("counts", [False, True])
def test_a_null_key_is_dropped_and_counted(windows: AnyWindows, counts: bool) -> None:
    with driver_for(windows, counts=counts) as driver:
        source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        source.pipe_batch([(None, 1, 1_000), ("a", 1, 5)])
        assert driver.metrics()["0_0"]["dropped-records-total"] == 1
        assert len(results(driver)) == 1


@pytest.mark.parametrize(("windows", "results_of_null"), list(zip(KINDS, [2, 1, 2], strict=True)))
def test_a_null_value_counts_except_in_sliding_windows(
    windows: AnyWindows, results_of_null: int
) -> None:
    """As in Kafka Streams: KStreamWindowAggregate checks only the key."""
    found = run_each([("a", 1, 5), ("a", None, 5)], windows, counts=True)
    assert [row[3] for each in found for row in each] == list(range(1, results_of_null + 1))


@pytest.mark.parametrize("windows", KINDS)
@pytest.mark.parametrize("cache", [0, 1 << 20])
def test_an_aggregate_of_none_deletes_the_window(windows: Any, cache: int) -> None:
    def use(stream: KStream[Any, Any]) -> Any:
        cut = stream.group_by_key(**KEYED).windowed_by(windows)
        return cut.reduce(lambda _old, _new: None, store=Materialized("s", **KEYED)).to_stream(
            flat_key
        )

    with driver_of(use, statestore_cache_max_bytes=cache) as driver:
        source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        source.pipe_batch([("a", 1, 5), ("a", 2, 5)])
        values = [row[3] for row in results(driver)]
        assert values == ([] if cache else [1, None])
        source.pipe_batch([("a", 3, 5)])
        source.pipe_batch([("a", 4, 5)])
        assert [row[3] for row in results(driver)] == [3, None]
        assert list(driver.get_state_store("s").fetch_range("a", "a", *_all_times(windows))) == []


def _all_times(windows: AnyWindows) -> tuple[int, ...]:
    return () if isinstance(windows, SessionWindows) else (0, 1_000)


@pytest.mark.parametrize("windows", KINDS)
@pytest.mark.parametrize("record_by_record", [False, True])
def test_a_result_has_the_headers_of_the_latest_record(
    windows: AnyWindows, record_by_record: bool
) -> None:
    for cache in (0, 1 << 20):
        with driver_for(
            windows,
            counts=True,
            record_by_record=record_by_record,
            statestore_cache_max_bytes=cache,
        ) as driver:
            source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
            source.pipe_input("a", 1, 5)
            source.pipe_input("a", 2, 5, (("n", b"2"),))
            output = driver.create_output_topic("out", key_serde=JSON, value_serde=JSON)
            assert [record.headers for record in output.read_records()] == [(), (("n", b"2"),)]
    with driver_for(windows, counts=True, emit="on_window_close") as driver:
        source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        source.pipe_input("a", 1, 5)
        source.pipe_input("b", 2, 500, (("n", b"2"),))
        output = driver.create_output_topic("out", key_serde=JSON, value_serde=JSON)
        assert [(row.key[0], row.headers) for row in output.read_records()] == [
            ("a", (("n", b"2"),))
        ]


@pytest.mark.parametrize("windows", [TimeWindows(10, 5, grace=50), *KINDS])
def test_a_failing_record_changes_no_window(windows: Any) -> None:
    def add(_key: Any, value: Any, seen: list[Any]) -> list[Any]:
        seen.append(value)
        if value == "bad":
            raise ValueError(value)
        return seen

    def use(stream: KStream[Any, Any]) -> Any:
        cut = stream.group_by_key(**KEYED).windowed_by(windows)
        merger: Any = (
            (lambda _key, one, two: one + two) if isinstance(windows, SessionWindows) else None
        )
        store = Materialized("s", **KEYED)
        return cut.aggregate(list, add, merger=merger, store=store).to_stream(flat_key)

    rows = [("a", 1, 12), ("a", "bad", 13), ("a", 2, 13)]
    for record_by_record in (False, True):
        found: list[Any] = []
        for some in (rows, [row for row in rows if row[1] != "bad"]):
            with driver_of(
                use, record_by_record=record_by_record, processing_exception_handler="continue"
            ) as driver:
                source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
                source.pipe_batch(some)
                found.append(results(driver))
        assert found[0] == found[1] != []


@pytest.mark.parametrize(
    ("windows", "closes_at"),
    [
        (TimeWindows(10_000), 40_000),
        (SlidingWindows(10_000, grace=5_000), 35_001),
        (SessionWindows(10_000), 40_001),
    ],
)
def test_final_results_wait_for_the_clock(windows: AnyWindows, closes_at: int) -> None:
    with driver_for(windows, counts=True, emit="on_window_close", emit_interval_ms=1_000) as driver:
        source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        source.pipe_input("a", 1, 30_000)
        driver.advance_wall_clock_time(1_000)
        source.pipe_input("b", 1, closes_at - 1)  # A scan without results.
        for wait, expected in ((0, []), (999, []), (1, ["a"]), (1_000, [])):
            driver.advance_wall_clock_time(wait)
            source.pipe_input("c", 1, closes_at)
            assert [row[0] for row in results(driver) if row[0] == "a"] == expected


@pytest.mark.parametrize("windows", KINDS)
def test_final_results_are_emitted_before_their_rows_expire(windows: Any) -> None:
    with driver_for(windows, counts=True, emit="on_window_close", emit_interval_ms=1_000) as driver:
        source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        source.pipe_input("a", 1, 0)
        source.pipe_input("b", 1, 1_000_000)
        assert [(row[0], row[3]) for row in results(driver)] == [("a", 1)]
        source.pipe_input("b", 1, 1_000_000)
        assert results(driver) == []


@pytest.mark.parametrize("windows", KINDS)
def test_a_child_node_receives_the_old_values_it_requests(windows: Any) -> None:
    def use(stream: KStream[Any, Any]) -> Any:
        cut = stream.group_by_key(**KEYED).windowed_by(windows)
        counts = cut.count(store=Materialized("s", key_serde=JSON))
        regrouped = counts.group_by(lambda _key, count: (count, 1), **KEYED)
        return regrouped.count(store=Materialized("t", key_serde=JSON)).to_stream()

    rows = [("a", 1, 5), ("b", 1, 5), ("a", 1, 5), ("a", 1, 5), ("b", 1, 5)]
    for cache in (0, 1 << 20):
        with driver_of(use, statestore_cache_max_bytes=cache) as driver:
            source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
            for row in rows:
                source.pipe_input(*row)
            table = {key: value for key, value, _ in outputs(driver)}
            assert {key: value for key, value in table.items() if value} == {2: 1, 3: 1}


@pytest.mark.parametrize(
    "windows",
    [TimeWindows(10, grace=20), SlidingWindows(10, grace=20), SessionWindows(10, grace=20)],
)
def test_stream_time_survives_a_restart(windows: Any, tmp_path: Any) -> None:
    found: list[Any] = []
    dropped: list[float] = []
    times: tuple[int, ...] = ()
    for rows in ([("a", 1, 5), ("b", 1, 500)], [("a", 2, 6), ("b", 2, 501)]):
        with driver_of(
            lambda stream: texts(stream, windows, "on_window_close"), state_dir=tmp_path
        ) as driver:
            graph = driver._tasks[0].caches
            assert graph is not None
            (node,) = (
                node
                for node in graph.nodes.values()
                if node.operator is not None and node.operator.times()
            )
            assert node.operator is not None
            if found:
                node.operator.restore_times(times)
            source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
            source.pipe_batch(rows)
            found.append(results(driver))
            times = node.operator.times()
            dropped.append(driver.metrics()["0_0"]["dropped-records-total"])
    assert times == (501, 501)
    assert [[row[0] for row in each] for each in found] == [["a"], []]
    assert dropped == [0, 1]


def test_the_store_of_time_windows_is_a_timestamped_window_store() -> None:
    with driver_for(TimeWindows(10, 5), counts=True) as driver:
        driver.create_input_topic("in", key_serde=JSON, value_serde=JSON).pipe_batch([("a", 1, 12)])
        store = driver.get_state_store("store")
        assert list(store.fetch("a", 0, 100)) == [
            (5, ValueAndTimestamp(1, 12)),
            (10, ValueAndTimestamp(1, 12)),
        ]
        assert [key for key, _ in store.all()] == [Windowed("a", 5, 15), Windowed("a", 10, 20)]


def test_rows_of_calendar_windows_have_their_window_ends() -> None:
    days = CalendarWindows("day", "Europe/Berlin")
    start = 1_711_839_600_000  # 2024-03-31 in Berlin, a day of 23 hours
    with driver_for(days, counts=True) as driver:
        source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        source.pipe_batch([("a", 1, start + 5)])
        ((key, _),) = driver.get_state_store("store").all()
        assert key == Windowed("a", start, start + 23 * 3_600_000)


def test_a_serde_other_than_the_usual_one_counts_too() -> None:
    def use(stream: KStream[Any, Any]) -> Any:
        store = Materialized("s", key_serde=JSON, value_serde=Serdes.json())
        return (
            stream.group_by_key(**KEYED)
            .windowed_by(TimeWindows(10))
            .count(store=store)
            .to_stream(flat_key)
        )

    with driver_of(use) as driver:
        source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        source.pipe_batch([("a", 1, 5), ("a", 1, 6)])
        assert [row[3] for row in results(driver)] == [1, 2]
