"""Windowed aggregations against models: random, late, out-of-order and equal timestamps."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streams.operators.run import Row
from tests.streams.operators.window_runs import AnyWindows, Result, run_batches, run_each
from tidewheel.streams.custom_windows import CustomWindows
from tidewheel.streams.windows import (
    CalendarWindows,
    FixedWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
)

pytestmark = pytest.mark.slow

HOUR = 3_600_000

#: Close times, so that windows overlap, with occasional jumps.
TIMES = st.one_of(st.integers(0, 40), st.integers(0, 40), st.integers(100, 140))
ROWS = st.lists(st.tuples(st.sampled_from("ab"), TIMES), max_size=14).map(
    lambda pairs: [(key, index, time) for index, (key, time) in enumerate(pairs)]
)
GRACE = st.sampled_from([0, 3, 20, 1_000])


def hopping(size: int, advance: int, grace: int, offset: int = 0) -> TimeWindows:
    return TimeWindows(size, min(size, advance), grace, offset)


def uneven(timestamp: int) -> list[tuple[int, int]]:
    turn, at = timestamp // 20 * 20, timestamp % 20
    spans = [(0, 3), (3, 8), (9, 16), (12, 17), (17, 20)]
    return [(turn + start, turn + end) for start, end in spans if start <= at < end]


def of_a_function(grace: int) -> CustomWindows:
    return CustomWindows(uneven, grace)


def berlin_days(grace: int) -> CalendarWindows:
    return CalendarWindows("day", "Europe/Berlin", grace, day_start="18:00")


TIME_WINDOWS = st.one_of(
    st.builds(
        hopping,
        st.sampled_from([1, 7, 10]),
        st.sampled_from([1, 3, 10]),
        GRACE,
        st.sampled_from([0, 0, 2, -4]),
    ),
    st.builds(of_a_function, GRACE),
)
FIXED = st.one_of(
    TIME_WINDOWS,
    st.builds(UnlimitedWindows, st.sampled_from([0, 5])),
    st.builds(berlin_days, GRACE),
)
SLIDING = st.builds(SlidingWindows, st.sampled_from([0, 1, 5, 10]), GRACE)
SESSIONS = st.builds(SessionWindows, st.sampled_from([1, 4, 10]), GRACE)
ALL = st.one_of(FIXED, SLIDING, SESSIONS)
CLOSING = st.one_of(TIME_WINDOWS, SLIDING, SESSIONS)


LAW = settings(max_examples=15)


def spread_out(rows: Sequence[Row], windows: AnyWindows) -> Sequence[Row]:
    if isinstance(windows, CalendarWindows):
        return [(key, value, time * HOUR * 7) for key, value, time in rows]
    return rows


def fixed_model(rows: Sequence[Row], windows: FixedWindows) -> list[list[Result]]:
    tables: dict[tuple[Any, int], tuple[list[Any], int]] = {}
    time, found = -1, list[list[Result]]()
    for key, value, timestamp in rows:
        time = max(time, timestamp)
        found.append([])
        for start in windows.starts_for(timestamp):
            end = windows.end_of(start)
            if time < end + windows.grace_ms:
                seen, latest = tables.get((key, start), ([], -1))
                tables[key, start] = [*seen, value], max(latest, timestamp)
                found[-1].append((key, start, end, *tables[key, start]))
    return found


def session_model(
    rows: Sequence[Row], windows: SessionWindows, retention: int
) -> list[list[Result]]:
    sessions: dict[Any, list[tuple[int, int, list[Any]]]] = {}
    time, found = -1, list[list[Result]]()
    for key, value, timestamp in rows:
        time = max(time, timestamp)
        closed = time - windows.gap_ms - windows.grace_ms
        mine = sessions.setdefault(key, [])
        near = sorted(
            each
            for each in mine
            if (each[1] >= closed or each[1] > time - retention)
            and each[0] - windows.gap_ms <= timestamp <= each[1] + windows.gap_ms
        )
        near.sort(key=lambda each: each[1])
        start = min([timestamp, *(each[0] for each in near)])
        end = max([timestamp, *(each[1] for each in near)])
        found.append([])
        if end < closed:
            continue
        if start != end:
            found[-1] += [(key, each[0], each[1], None, each[1]) for each in near]
        values = [*chain.from_iterable(each[2] for each in near), value]
        sessions[key] = [each for each in mine if each not in near] + [(start, end, values)]
        found[-1].append((key, start, end, values, end))
    return found


@given(ROWS, FIXED)
@LAW
def test_fixed_windows_equal_the_model(rows: Sequence[Row], windows: FixedWindows) -> None:
    rows = spread_out(rows, windows)
    assert run_each(rows, windows) == fixed_model(rows, windows)


@given(ROWS, SESSIONS, st.integers(0, 40))
@LAW
def test_sessions_equal_the_model(
    rows: Sequence[Row], windows: SessionWindows, longer: int
) -> None:
    retention = windows.retention_ms + longer
    expected = session_model(rows, windows, retention)
    assert run_each(rows, windows, retention=retention) == expected
    assert longer or run_each(rows, windows) == expected


@given(ROWS, st.sampled_from([0, 1, 5, 10]))
@LAW
def test_sliding_windows_contain_every_set_of_near_records_once(
    rows: Sequence[Row], difference: int
) -> None:
    found = run_each(rows, SlidingWindows(difference, grace=1_000))
    table = {result[:3]: result[3:] for result in chain.from_iterable(found)}
    expected: dict[Any, Any] = {}
    for key in {row[0] for row in rows}:
        mine = [(value, time) for each, value, time in rows if each == key]
        starts = {max(0, time - difference) for _, time in mine}
        starts |= {
            time + 1
            for _, time in mine
            if any(time + 1 <= other <= time + 1 + difference for _, other in mine)
        }
        for start in starts:
            within = [row for row in mine if start <= row[1] <= start + difference]
            expected[key, start, start + difference] = (
                sorted(value for value, _ in within),
                max(time for _, time in within),
            )
    assert {key: (sorted(value), latest) for key, (value, latest) in table.items()} == expected


@given(ROWS, SLIDING)
@LAW
def test_a_sliding_window_never_contains_outside_or_late_records(
    rows: Sequence[Row], windows: SlidingWindows
) -> None:
    times = {value: time for _, value, time in rows}
    stream_time = -1
    results = run_each(rows, windows, statestore_cache_max_bytes=0)
    for (key, value, timestamp), found in zip(rows, results, strict=True):
        stream_time = max(stream_time, timestamp)
        # Only a window that begins after the previous record and ends at this one comes twice.
        assert all(found.count(result) <= 1 + (result[2] == timestamp) for result in found)
        for found_key, start, end, values, latest in found:
            assert (found_key, end - start) == (key, windows.difference_ms)
            assert all(start <= times[each] <= end for each in values)
            assert len(set(values)) == len(values)
            assert latest == max(times[each] for each in values)
            if value in values:
                assert stream_time <= end + windows.grace_ms


@given(ROWS, CLOSING)
@LAW
def test_the_only_final_result_of_a_closed_window_is_its_last_one(
    rows: Sequence[Row], windows: FixedWindows | SlidingWindows | SessionWindows
) -> None:
    updates = run_each(rows, windows)
    table: dict[Any, tuple[Any, int]] = {}
    time, done, expected = -1, set[Any](), list[list[Result]]()
    for (_, _, timestamp), found in zip(rows, updates, strict=True):
        time = max(time, timestamp)
        table.update({result[:3]: result[3:] for result in found})
        due = [key for key in table if key not in done and windows.closes_at(key[2]) <= time]
        # Merged sessions have no value.
        final = [(*key, *table[key]) for key in due if table[key][0] is not None]
        done.update(due)
        expected.append(sorted(final, key=lambda result: (result[2], result[1], result[0])))
    assert run_each(rows, windows, emit="on_window_close") == expected


@given(ROWS, ALL, st.booleans(), st.lists(st.integers(1, 5), max_size=6))
@LAW
def test_batches_have_the_results_of_single_records(
    rows: Sequence[Row], windows: AnyWindows, counts: bool, cuts: Sequence[int]
) -> None:
    rows = spread_out(rows, windows)
    batches, rest = list[Sequence[Row]](), rows
    for size in cuts:
        batches.append(rest[:size])
        rest = rest[size:]
    batches = [batch for batch in [*batches, rest] if batch]
    for emit in ("on_window_update", "on_window_close"):
        if emit == "on_window_close" and isinstance(windows, UnlimitedWindows):
            continue
        together = run_batches(batches, windows, counts=counts, emit=emit)
        alone = iter(run_each(rows, windows, counts=counts, emit=emit))
        for batch, found in zip(batches, together, strict=True):
            assert found == list(chain.from_iterable(next(alone) for _ in batch))
        assert together == run_batches(
            batches, windows, counts=counts, emit=emit, record_by_record=True
        )


@pytest.mark.parametrize("counts", [False, True])
@given(rows=ROWS, windows=ALL)
@LAW
def test_a_cache_forwards_the_last_result_of_each_window(
    rows: Sequence[Row], windows: AnyWindows, counts: bool
) -> None:
    rows = spread_out(rows, windows)
    half = len(rows) // 2
    batches = [batch for batch in (rows[:half], rows[half:]) if batch]
    plain = run_batches(batches, windows, counts=counts)
    cached = run_batches(batches, windows, counts=counts, statestore_cache_max_bytes=1 << 20)
    before: dict[Any, Any] = {}
    for updates, found in zip(plain, cached, strict=True):
        last = {result[:3]: result[3:] for result in updates}
        expected = {key: row for key, row in last.items() if row[0] is not None or key in before}
        assert {result[:3]: result[3:] for result in found} == expected
        assert len(found) == len(expected)
        for key, row in last.items():
            if row[0] is None:
                before.pop(key, None)
            else:
                before[key] = row
