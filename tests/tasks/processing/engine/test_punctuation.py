"""Due times: on the grid, once per gap, not after cancellation."""

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.tasks.processing.engine.punctuation import PunctuationQueue, Schedule, first_due_ms

INTERVALS = st.integers(1, 50)
NOWS = st.lists(st.integers(0, 40), max_size=30)


def schedule(interval_ms: int, due_ms: int, name: str = "node") -> Schedule:
    return Schedule(interval_ms, lambda now_ms: None, due_ms, name)


@given(INTERVALS, st.integers(-1, 1_000), st.none() | st.integers(0, 1_000), st.booleans())
def test_the_first_due_time_is_on_the_grid_ahead(
    interval_ms: int, now_ms: int, start_ms: int | None, stream: bool
) -> None:
    due_ms = first_due_ms(interval_ms, now_ms, start_ms, aligned_at_zero=stream)
    if start_ms is None:
        assert due_ms == (0 if stream else now_ms + interval_ms)
        return
    assert (due_ms - start_ms) % interval_ms == 0
    assert due_ms >= start_ms
    if start_ms < now_ms:
        assert now_ms < due_ms <= now_ms + interval_ms
    else:
        assert due_ms == start_ms


@given(INTERVALS, st.integers(0, 100), NOWS)
def test_a_schedule_fires_once_for_each_time_its_grid_was_passed(
    interval_ms: int, first_ms: int, gaps: list[int]
) -> None:
    queue = PunctuationQueue()
    one = schedule(interval_ms, first_ms)
    queue.add(one)
    now_ms = 0
    passed = -1
    for gap in gaps:
        now_ms += gap
        steps = (now_ms - first_ms) // interval_ms if now_ms >= first_ms else -1
        assert queue.pop_due(now_ms) == ([one] if steps > passed else [])
        passed = max(steps, passed)
        assert one.next_ms > now_ms
        assert (one.next_ms - first_ms) % interval_ms == 0
        assert queue.next_due_ms() == one.next_ms
        assert queue.pop_due(now_ms) == []


@given(st.lists(st.tuples(INTERVALS, st.integers(0, 100)), max_size=8), st.integers(0, 150))
def test_the_earliest_schedule_comes_first(schedules: list[tuple[int, int]], now_ms: int) -> None:
    queue = PunctuationQueue()
    made = [
        schedule(interval, due, str(number)) for number, (interval, due) in enumerate(schedules)
    ]
    for each in made:
        queue.add(each)
    due_ms = {each.node: each.next_ms for each in made if each.next_ms <= now_ms}
    taken = queue.pop_due(now_ms)
    assert sorted(each.node for each in taken) == sorted(due_ms)
    assert [due_ms[each.node] for each in taken] == sorted(due_ms.values())


def test_schedules_of_equal_times_are_ordered_as_in_java() -> None:
    """Kafka Streams' PriorityQueue returns the last of three second."""
    queue = PunctuationQueue()
    for name in ("first", "second", "third"):
        queue.add(schedule(10, 5, name))
    assert [each.node for each in queue.pop_due(5)] == ["first", "third", "second"]


def test_cancelled_schedules_are_forgotten() -> None:
    queue = PunctuationQueue()
    first, second = schedule(10, 5), schedule(10, 7)
    queue.add(first)
    queue.add(second)
    first.cancel()
    first.cancel()
    assert queue.next_due_ms() == 7
    assert queue.pop_due(100) == [second]
    second.cancel()
    assert queue.next_due_ms() is None
    assert queue.pop_due(1_000) == []
    assert len(queue) == 0


@given(
    st.lists(st.tuples(INTERVALS, st.integers(0, 60)), max_size=3),
    st.lists(st.integers(0, 15), max_size=20),
    st.sets(st.integers(0, 19)),
)
def test_K3_a_range_calls_schedules_at_the_times_of_the_whole_task(
    grids: list[tuple[int, int]], gaps: list[int], own_rows: set[int]
) -> None:
    times = [sum(gaps[: row + 1]) for row in range(len(gaps))]
    whole, queue = PunctuationQueue(), PunctuationQueue()
    for interval_ms, due_ms in grids:
        whole.add(schedule(interval_ms, due_ms))
        queue.add(schedule(interval_ms, due_ms))
    expected = [(row, now) for row, now in enumerate(times) for _ in whole.pop_due(now)]
    found: list[tuple[int, int]] = []

    def call(last_row: int, now: int) -> None:
        found.extend((last_row, now) for _ in queue.pop_due(now))

    done = 0
    for row in [*sorted(own for own in own_rows if own < len(times)), len(times)]:
        for now in queue.due_times(times, done, row):
            call(row - 1, now)
        if row < len(times):
            call(row, times[row])
        done = row + 1
    assert [now for _, now in found] == [now for _, now in expected]
    for (row, _), (last_row, now) in zip(expected, found, strict=True):
        assert row <= last_row, "not before it is due"
        assert not any(row < own < last_row for own in own_rows), (
            f"before its next record, at {now}"
        )
