"""Range assignment: laws over random tasks, and common cases."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewheel.rebalance.model import HASH_END, WHOLE, Shard, TaskId
from tidewheel.tasks.key_ranges.range_assignment import (
    TOLERANCE,
    PlacedRange,
    Placement,
    RangeLoad,
    TaskLoad,
    assign_ranges,
)

A, B, C = (TaskId(0, partition) for partition in range(3))


def load(task: TaskId, amount: int, ranges_max: int = 1) -> TaskLoad:
    return TaskLoad(task=task, ranges=(RangeLoad(0, amount),), ranges_max=ranges_max)


def measured(placement: Placement, tasks: Sequence[TaskLoad]) -> list[TaskLoad]:
    return [
        TaskLoad(
            task=task.task,
            ranges=tuple(
                RangeLoad(first, round(load_between(task, first, end)))
                for first, end in bounds(task.task, placement[task.task])
            ),
            ranges_max=task.ranges_max,
        )
        for task in tasks
    ]


def bounds(task: TaskId, ranges: Sequence[PlacedRange]) -> list[tuple[int, int]]:
    return list(pairwise([*(each.first_hash for each in ranges), task.shard.end_hash]))


def load_between(task: TaskLoad, first: int, end: int) -> float:
    edges = pairwise([*(each.first_hash for each in task.ranges), task.task.shard.end_hash])
    return sum(
        each.load * max(min(end, upper) - max(first, lower), 0) / (upper - lower)
        for each, (lower, upper) in zip(task.ranges, edges, strict=True)
    )


def weight_between(tasks: Sequence[TaskLoad], task: TaskLoad, first: int, end: int) -> float:
    """Return a part's load; an idle task counts a sixteenth of the mean."""
    total = sum(each.load for task in tasks for each in task.ranges)
    floor = max(total // 16, 1) / len(tasks)
    width = task.task.shard.end_hash - task.task.shard.first_hash
    return load_between(task, first, end) + floor * (end - first) / width


def busy(tasks: Sequence[TaskLoad], placement: Placement, threads: int) -> list[float]:
    sums = [0.0] * threads
    for task in tasks:
        ranges = placement[task.task]
        for each, (first, end) in zip(ranges, bounds(task.task, ranges), strict=True):
            sums[each.thread] += weight_between(tasks, task, first, end)
    return sums


@st.composite
def task_loads(draw: st.DrawFn, *, most: int = 6) -> list[TaskLoad]:
    tasks: list[TaskLoad] = []
    for partition in range(draw(st.integers(1, most))):
        ranges_max = draw(st.sampled_from((1, 1, 2, 3, 4, 8, 16)))
        count = draw(st.integers(1, ranges_max))
        # In microseconds; so large that nothing is rounded away.
        shard = draw(st.sampled_from((WHOLE, WHOLE, Shard(0, 2), Shard(1, 2), Shard(3, 64))))
        width = shard.end_hash - shard.first_hash
        amounts = st.integers(0, 1_000).map(lambda each: each * 10_000)
        loads = draw(st.lists(amounts, min_size=count, max_size=count))
        tasks.append(
            TaskLoad(
                task=TaskId(0, partition, shard),
                ranges=tuple(
                    RangeLoad(shard.first_hash + index * width // count, each)
                    for index, each in enumerate(loads)
                ),
                ranges_max=ranges_max,
                fixed=draw(st.integers(0, 4)) == 0,
            )
        )
    return tasks


THREADS = st.integers(1, 9)


@given(task_loads(), THREADS)
def test_K4_every_task_is_tiled_by_no_more_ranges_than_its_factor(
    tasks: list[TaskLoad], threads: int
) -> None:
    answer = assign_ranges(tasks, threads)
    assert sorted(answer) == sorted(task.task for task in tasks)
    for task in tasks:
        firsts = [each.first_hash for each in answer[task.task]]
        shard = task.task.shard
        assert firsts[0] == shard.first_hash
        assert all(low < high for low, high in pairwise([*firsts, shard.end_hash]))
        assert all(0 <= each.thread < threads for each in answer[task.task])
        if task.fixed:
            assert firsts == [each.first_hash for each in task.ranges]
        else:
            assert len(firsts) <= task.ranges_max


@given(task_loads(), THREADS)
def test_K5_the_load_is_even_except_for_ranges_that_cannot_be_cut(
    tasks: list[TaskLoad], threads: int
) -> None:
    answer = assign_ranges(tasks, threads)
    sums = busy(tasks, answer, threads)
    gap, mean = max(sums) - min(sums), sum(sums) / threads
    if gap <= TOLERANCE * mean:
        return
    busiest = sums.index(max(sums))
    for task in tasks:
        ranges = answer[task.task]
        for each, (first, end) in zip(ranges, bounds(task.task, ranges), strict=True):
            if each.thread == busiest:
                assert weight_between(tasks, task, first, end) >= gap - mean * TOLERANCE / 8
                assert task.fixed or len(ranges) >= task.ranges_max


@given(task_loads(), THREADS)
def test_K5_no_more_cuts_than_threads_can_need(tasks: list[TaskLoad], threads: int) -> None:
    answer = assign_ranges(tasks, threads)
    cuts = sum(len(answer[task.task]) - 1 for task in tasks if not task.fixed)
    if not any(task.fixed for task in tasks) and all(task.ranges_max >= 16 for task in tasks):
        assert cuts <= threads - 1
    if threads == 1:
        assert cuts == 0


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 1_000))
def test_K5_whole_tasks_where_they_suffice(threads: int, each: int, amount: int) -> None:
    tasks = [load(TaskId(0, partition), amount, 16) for partition in range(threads * each)]
    answer = assign_ranges(tasks, threads)
    assert {len(ranges) for ranges in answer.values()} == {1}
    used = [ranges[0].thread for ranges in answer.values()]
    assert all(used.count(thread) == each for thread in range(threads))


@given(task_loads(), THREADS, st.integers(0))
def test_K5_the_order_of_the_tasks_does_not_matter(
    tasks: list[TaskLoad], threads: int, seed: int
) -> None:
    shuffled = tasks.copy()
    Random(seed).shuffle(shuffled)
    assert assign_ranges(shuffled, threads) == assign_ranges(tasks, threads)


@settings(max_examples=50)
@given(task_loads(), THREADS, st.data())
def test_K5_small_changes_of_load_move_no_range(
    tasks: list[TaskLoad], threads: int, data: st.DataObject
) -> None:
    """Change loads by up to 2 %; only fewer ranges or a much better answer may move them.

    Unsplittable large ranges can make a much better answer depend on a tiny change.
    """
    answer = assign_ranges(tasks, threads)
    changed = [
        TaskLoad(
            task=task.task,
            ranges=tuple(
                RangeLoad(each.first_hash, round(each.load * data.draw(st.floats(0.98, 1.02))))
                for each in task.ranges
            ),
            ranges_max=task.ranges_max,
            fixed=task.fixed,
        )
        for task in (
            task if task.fixed else each
            for task, each in zip(tasks, measured(answer, tasks), strict=True)
        )
    ]
    after = assign_ranges(changed, threads, answer)
    if after == answer or sum(map(len, after.values())) < sum(map(len, answer.values())):
        return
    before, then = (busy(changed, each, threads) for each in (answer, after))
    assert max(then) - min(then) < max(before) - min(before)


@settings(max_examples=50)
@given(task_loads(), THREADS, THREADS)
def test_K5_another_number_of_threads_is_as_fair(
    tasks: list[TaskLoad], before: int, threads: int
) -> None:
    previous = assign_ranges(tasks, before)
    answer = assign_ranges(tasks, threads, previous)
    assert assign_ranges(tasks, threads, answer) == answer
    fresh = assign_ranges(tasks, threads)
    sums, best = busy(tasks, answer, threads), busy(tasks, fresh, threads)
    allowed = max(best) - min(best) + TOLERANCE * sum(best) / threads
    assert max(sums) - min(sums) <= allowed * 1.01 + 1e-6
    assert sum(map(len, answer.values())) <= sum(map(len, fresh.values()))


def test_K5_the_worked_example_of_the_docstring() -> None:
    answer = assign_ranges([load(A, 6, 4), load(B, 3, 4), load(C, 3, 4)], 4)
    assert [each.thread for each in answer[A]] == [0, 3]
    assert answer[A][1].first_hash == pytest.approx(HASH_END / 2, rel=0.05)
    assert answer[B] == (PlacedRange(0, 1),)
    assert answer[C] == (PlacedRange(0, 2),)


@pytest.mark.parametrize("factor", [2, 3, 7, 16, 100])
def test_K4_one_task_is_cut_evenly_for_as_many_threads_as_its_factor(factor: int) -> None:
    (ranges,) = assign_ranges([load(A, 0, factor)], factor).values()
    assert sorted(each.thread for each in ranges) == list(range(factor))
    widths = [end - first for first, end in bounds(A, ranges)]
    assert max(widths) <= min(widths) * 1.01


def test_K5_a_busy_task_that_may_not_be_cut_keeps_a_thread_and_the_others_share_the_rest() -> None:
    answer = assign_ranges([load(A, 90), load(B, 30, 4)], 4)
    assert len(answer[A]) == 1
    assert sorted(each.thread for each in answer[B]) == [1, 2, 3]


def test_K5_a_new_task_moves_only_ranges_that_balance_the_load() -> None:
    before = assign_ranges([load(A, 5), load(B, 5)], 2)
    after = assign_ranges([load(A, 5), load(B, 5), load(C, 5)], 3, before)
    assert {A: after[A], B: after[B]} == before
    assert after[C] == (PlacedRange(0, 2),)


def test_K5_an_unneeded_cut_is_undone() -> None:
    pair = [load(A, 8, 2), load(B, 8, 2)]
    before = assign_ranges(pair, 4)
    assert [len(ranges) for ranges in before.values()] == [2, 2]
    others = [load(C, 8, 2), load(TaskId(0, 3), 8, 2)]
    after = assign_ranges([*measured(before, pair), *others], 4, before)
    assert [len(ranges) for ranges in after.values()] == [1, 1, 1, 1]


def test_K5_a_lower_factor_joins_ranges() -> None:
    before = assign_ranges([load(A, 8, 4)], 4)
    (after,) = assign_ranges(measured(before, [load(A, 8, 2)]), 4, before).values()
    assert len(after) == 2


def test_K5_measured_load_moves_the_cut() -> None:
    before = assign_ranges([load(A, 0, 2)], 2)
    uneven = TaskLoad(task=A, ranges=(RangeLoad(0, 750), RangeLoad(1 << 31, 250)), ranges_max=2)
    (after,) = assign_ranges([uneven], 2, before).values()
    assert len(after) == 2
    assert after[1].first_hash < 0.75 * (1 << 31)


@given(st.lists(st.integers(0, 150), min_size=16, max_size=16))
def test_K5_random_differences_between_idle_threads_move_no_range(worked_ms: list[int]) -> None:
    before = assign_ranges([load(A, 0, 16)], 16)
    ranges = tuple(
        RangeLoad(each.first_hash, worked)
        for each, worked in zip(before[A], worked_ms, strict=True)
    )
    idle = TaskLoad(task=A, ranges=ranges, ranges_max=16)
    assert assign_ranges([idle], 16, before, capacity=5_000) == before


def test_K5_a_range_that_fills_its_thread_gives_keys_away() -> None:
    before = assign_ranges([load(A, 0, 4)], 4)
    ranges = tuple(
        RangeLoad(each.first_hash, 5_000 if index == 0 else 100)
        for index, each in enumerate(before[A])
    )
    busy_task = TaskLoad(task=A, ranges=ranges, ranges_max=4)
    (after,) = assign_ranges([busy_task], 4, before, capacity=5_000).values()
    assert len(after) == 4
    assert after[1].first_hash < before[A][1].first_hash


def test_no_tasks_need_no_ranges() -> None:
    assert assign_ranges([], 4) == {}
