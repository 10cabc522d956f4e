"""Rates computed from commits."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.progress import CommitRecord, progress_points, slope, staged_slope


def together(steps: Sequence[tuple[int, int]], partitions: int = 4) -> list[CommitRecord]:
    return [
        CommitRecord(at_ms=at_ms, partition=partition, offset=records // partitions)
        for at_ms, records in steps
        for partition in range(partitions)
    ]


def test_the_rate_is_that_between_two_commits() -> None:
    steps = [(1_000 * second, 100_000 * second) for second in range(1, 11)]
    found = slope(
        together(steps), untimed_records=250_000, records=1_000_000, commit_interval_ms=1_000
    )
    assert (found.start.at_ms, found.start.records) == (3_000, 300_000)
    assert (found.end.at_ms, found.end.records) == (9_000, 900_000)
    assert found.records_per_s == 100_000
    assert found.commits == 6
    assert found.window_end == "last_commit_before_end"


def test_waiting_for_the_last_commit_does_not_slow_a_system_down() -> None:
    steps = [(1_000 * second, 100_000 * second) for second in range(1, 10)]
    waited = [*steps, (10_000, 900_004)]
    found = slope(together(waited), untimed_records=0, records=900_004, commit_interval_ms=1_000)
    assert found.records_per_s == 100_000


def test_a_slow_warm_up_does_not_count() -> None:
    steps = [(60_000, 300_000), *((60_000 + 1_000 * n, 300_000 + 100_000 * n) for n in range(1, 8))]
    found = slope(
        together(steps), untimed_records=250_000, records=1_000_000, commit_interval_ms=1_000
    )
    assert found.records_per_s == 100_000


def test_with_too_few_commits_the_last_one_is_the_end() -> None:
    steps = [(5_000, 100_000), (10_000, 250_000)]
    found = slope(
        together(steps), untimed_records=62_500, records=250_000, commit_interval_ms=5_000
    )
    assert found.records_per_s == 30_000
    assert found.window_end == "final_commit"


@pytest.mark.parametrize("steps", [[(1_000, 500_000)], [(1_000, 40_000), (2_000, 500_000)]])
def test_one_commit_after_the_warm_up_gives_no_rate(steps: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="shorter commit interval"):
        slope(together(steps), untimed_records=100_000, records=500_000, commit_interval_ms=1_000)


def test_a_run_that_did_not_reach_the_end_has_no_rate() -> None:
    with pytest.raises(ValueError, match="committed 400 of 1000 records"):
        slope(together([(1, 400)]), untimed_records=0, records=1_000, commit_interval_ms=100)


def test_without_any_commit_there_is_no_rate() -> None:
    with pytest.raises(ValueError, match="committed 0 of 10 records"):
        slope([], untimed_records=0, records=10, commit_interval_ms=100)


def test_a_decreasing_committed_offset_voids_the_run() -> None:
    commits = [
        CommitRecord(at_ms=1, partition=2, offset=10),
        CommitRecord(at_ms=2, partition=2, offset=9),
    ]
    with pytest.raises(ValueError, match="partition 2 went back from 10 to 9"):
        progress_points(commits, commit_interval_ms=100)


def test_partitions_that_commit_at_other_times_do_not_change_the_rate() -> None:
    commits = [
        CommitRecord(at_ms=shift + 1_000 * n, partition=partition, offset=50_000 * n)
        for partition, shift in enumerate((0, 500))
        for n in range(1, 11)
    ]
    found = slope(commits, untimed_records=200_000, records=1_000_000, commit_interval_ms=1_000)
    assert found.records_per_s == pytest.approx(100_000)


def test_a_waiting_partition_does_not_count_as_moving() -> None:
    commits = [
        CommitRecord(at_ms=1_000, partition=0, offset=100),
        CommitRecord(at_ms=5_000, partition=1, offset=100),
        CommitRecord(at_ms=9_000, partition=0, offset=200),
    ]
    points = progress_points(commits, commit_interval_ms=1_000)
    assert [(point.at_ms, point.records) for point in points] == [
        (1_000, 100),
        (5_000, 200),
        (9_000, 300),
    ]


@given(
    st.lists(
        st.tuples(st.integers(1, 500), st.integers(0, 3), st.integers(0, 10_000)),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 1_000),
)
def test_progress_never_falls_and_ends_with_all_records(
    steps: list[tuple[int, int, int]], commit_interval_ms: int
) -> None:
    at_ms, offsets, commits = 0, [0, 0, 0, 0], list[CommitRecord]()
    for wait_ms, partition, records in steps:
        at_ms += wait_ms
        offsets[partition] += records
        commits.append(CommitRecord(at_ms=at_ms, partition=partition, offset=offsets[partition]))
    points = progress_points(commits, commit_interval_ms=commit_interval_ms)
    totals = [point.records for point in points]
    assert totals == sorted(totals)
    assert (totals[-1] if totals else 0) == sum(offsets)


def test_records_are_done_after_they_passed_every_topic() -> None:
    at_once = [(1_000 * second, 100_000 * second) for second in range(1, 11)]
    first = [(500 * number, 100_000 * number) for number in range(1, 11)]
    then = [(5_000 + 500 * number, 800_000 * number) for number in range(1, 11)]
    eight = [(at_ms, 8 * records) for at_ms, records in at_once]
    rates = [
        staged_slope(
            [together(read), together(counted)],
            untimed_records=250_000,
            records=1_000_000,
            commit_interval_ms=500,
        ).records_per_s
        for read, counted in ((at_once, eight), (first, then))
    ]
    assert rates == [pytest.approx(100_000, rel=0.02)] * 2


def test_transaction_markers_are_not_counted() -> None:
    steps = [(1_000 * second, 100_000 * second) for second in range(1, 11)]
    marked = [(at_ms, records + records // 10) for at_ms, records in steps]
    found = staged_slope(
        [together(steps), together(marked)],
        untimed_records=250_000,
        records=1_000_000,
        commit_interval_ms=1_000,
    )
    assert found.records_per_s == pytest.approx(100_000)
    assert found.start.records == pytest.approx(300_000)


def test_an_input_that_was_not_read_to_its_end_has_no_rate() -> None:
    steps = [(1_000 * second, 100_000 * second) for second in range(1, 11)]
    for stages, records in (([steps], 1_000_004), ([steps, []], 1_000_000)):
        with pytest.raises(ValueError, match="committed"):
            staged_slope(
                [together(stage) for stage in stages],
                untimed_records=0,
                records=records,
                commit_interval_ms=1_000,
            )


def test_pauses_are_late_commits() -> None:
    times = [0, 3_000, 3_100, 3_200, 4_000, 4_100, 4_690, 4_800, 4_900]
    steps = [(at_ms, 100_000 * (number + 1)) for number, at_ms in enumerate(times)]
    found = slope(together(steps), untimed_records=150_000, records=900_000, commit_interval_ms=100)
    assert (found.pauses, found.longest_gap_ms) == (1, 800)
    assert found.pauses_per_million == pytest.approx(1 / 0.6, rel=0.2)


def test_the_actual_commit_interval_is_measured_by_partition() -> None:
    commits = [
        CommitRecord(at_ms=number * 100, partition=number % 2, offset=number * 1_000)
        for number in range(1, 61)
    ]
    found = slope(commits, untimed_records=10_000, records=119_000, commit_interval_ms=100)
    assert found.interval_ms == 200


def test_one_commit_of_each_partition_has_no_interval() -> None:
    commits = [
        CommitRecord(at_ms=3_000 * number, partition=number, offset=1_000) for number in range(3)
    ]
    assert slope(commits, untimed_records=0, records=3_000, commit_interval_ms=100).interval_ms == 0
