"""Exactness: each record counts once and in key order, with any ranges and crashes."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.key_ranges.programs import Fed, counting, counting_mapped, counting_slowly
from tests.tasks.loop.bench import Bench
from tidewheel import Topology

#: Threads (and factor) of a life, how many records come before it, and after how many steps it crashes, if it does.
Life = tuple[int, int, int | None]

_LIVES = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 3, 8]),
        st.integers(0, 300),
        st.none() | st.integers(0, 120),
    ),
    min_size=1,
    max_size=4,
)


def _live(topology: Topology, lives: list[Life], **options: Any) -> None:
    bench = Bench(topology, {"in": 2, "out": 1}, commit_interval_ms=5, **options)
    bench.idle_polls = 3
    fed = Fed(bench, 23)
    for threads, records, crash_after in lives:
        fed.send(records)
        bench.live(threads=threads, crash_after=crash_after)
    assert bench.live(threads=lives[-1][0])
    fed.check()
    assert bench.committed == {
        each: bench.broker.topics["in"].logs[each.partition].last_stable_offset
        for each in bench.committed
    }


@settings(max_examples=20, deadline=None)
@given(lives=_LIVES)
def test_K3_counts_are_exact_over_crashes_and_changes_of_the_factor(lives: list[Life]) -> None:
    _live(counting(), lives)


@settings(max_examples=20, deadline=None)
@given(lives=_LIVES, slice_records=st.integers(1, 40), awaits=st.booleans())
def test_K3_a_keyed_processor_is_exact_over_crashes_and_changes_of_the_factor(
    lives: list[Life], slice_records: int, awaits: bool
) -> None:
    program = counting_slowly(0.002, awaits=awaits)
    bench = Bench(program, {"in": 2, "out": 1}, commit_interval_ms=5)
    bench.idle_polls, bench.slice_records = 3, slice_records
    fed = Fed(bench, 11)
    for threads, records, crash_after in lives:
        fed.send(records // 8)
        bench.live(threads=threads, crash_after=crash_after)
    assert bench.live(threads=lives[-1][0])
    fed.check()


@settings(max_examples=10, deadline=None)
@given(lives=_LIVES, ranges=st.sampled_from([1, 2]))
def test_K3_overlapping_calls_of_a_mapper_are_exact_over_crashes_and_changes_of_the_factor(
    lives: list[Life], ranges: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidewheel.tasks.task.parallel_task._OVERLAPPED_RANGES_MAX", ranges)
        _live(counting_mapped(0.002), lives)


@pytest.mark.parametrize("threads", [2, 4, 16])
def test_K1_counts_in_ranges_equal_those_of_one_range(threads: int) -> None:
    _live(counting(), [(threads, 2_000, None)])
