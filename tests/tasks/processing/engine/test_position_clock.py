"""Position clock: equals the stream time of an operator of the whole task."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.tasks.processing.engine.operator_times import OperatorTimes
from tidewheel.tasks.processing.engine.position_clock import Counted, PositionClock
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, SourceRecords

ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", None]), st.sampled_from([1, None]), st.integers(0, 50), st.booleans()
    ),
    max_size=20,
)
IN = frozenset({"in"})


def batches(rows: list[tuple[Any, Any, int, bool]]) -> tuple[SourceRecords, RecordBatch]:
    count = len(rows)
    records = SourceRecords("in", 0, range(count), [b""] * count, [b""] * count, [0] * count, None)
    keys, values, timestamps, _ = map(list, zip(*rows, strict=True)) if rows else ([], [], [], [])
    batch = RecordBatch(keys, values, timestamps, None, range(count), records)
    return records, batch.select([accepted for *_, accepted in rows])


@pytest.mark.parametrize("null_keys", [False, True])
@pytest.mark.parametrize("null_values", [False, True])
@given(runs=st.lists(ROWS, max_size=4), before=st.integers(-1, 60))
def test_K3_a_row_has_the_time_of_all_counted_rows_before_it(
    null_keys: bool, null_values: bool, runs: list[list[Any]], before: int
) -> None:
    clock = PositionClock(Counted(IN, null_keys, null_values), before)
    now = before
    for rows in runs:
        expected: list[int] = []
        for key, value, timestamp, accepted in rows:
            if accepted and (null_keys or key is not None) and (null_values or value is not None):
                now = max(now, timestamp)
            expected.append(now)
        assert clock.times("in", *batches(rows)) == expected
        assert clock.time_ms == now


def test_K3_other_sources_read_the_time_but_do_not_advance_it() -> None:
    clock = PositionClock(Counted(IN), 5)
    assert clock.times("side", *batches([("a", 1, 90, True), ("a", 1, 95, True)])) == [5, 5]
    assert clock.times("in", *batches([("a", 1, 7, True)])) == [7]


class Windowed:
    def __init__(self, observed: int) -> None:
        self.observed_time_ms = observed

    def times(self) -> tuple[int, ...]:
        return (self.observed_time_ms, -1)

    def restore_times(self, times: tuple[int, ...]) -> None:
        self.observed_time_ms, _ = times

    def times_at(self, position_ms: int) -> tuple[int, ...]:
        return (position_ms, -1)


class Store:
    def times(self) -> tuple[int, ...]:
        return (70,)

    def restore_times(self, times: tuple[int, ...]) -> None:
        assert times == (-1,)


def test_K6_the_committed_time_is_that_of_the_lowest_position() -> None:
    committed = OperatorTimes({"window": Windowed(90), "store": Store()}).collect_at(40)
    assert committed == (40, -1, -1)
    next_life = OperatorTimes({"window": Windowed(-1), "store": Store()})
    next_life.restore(committed, "0_0")
    assert next_life.position_time_ms(55) == 40
    assert OperatorTimes({"store": Store()}).position_time_ms(55) == 55
