"""Gaps computed from arrivals, and the check of counts."""

from collections import Counter

import pytest

from benchmarks.handoff.feed import Check
from benchmarks.handoff.gaps import Arrivals, Stretch, event_figures, percentile, quiet_median_ms


def steady(
    until_s: float, writer: str = "a", *, every_s: float = 0.1, from_s: float = 0.0
) -> Arrivals:
    arrivals = Arrivals()
    add_steady(arrivals, from_s, until_s, writer, every_s=every_s)
    return arrivals


def add_steady(
    arrivals: Arrivals, from_s: float, until_s: float, writer: str, *, every_s: float = 0.1
) -> None:
    burst = 0
    while from_s + burst * every_s < until_s:
        for part in range(3):
            arrivals.add(from_s + burst * every_s + part * 0.001, writer)
        burst += 1


def test_the_records_of_one_commit_are_one_burst() -> None:
    gaps = steady(1.0).gaps(0.0, 1.0)
    assert len(gaps) == 9
    assert gaps == pytest.approx([0.098] * 9)


def test_a_move_has_the_gap_in_which_the_writer_changed() -> None:
    moved, stayed = steady(2.0), steady(6.0, "a")
    add_steady(moved, 2.4, 6.0, "b")
    part, quiet = (
        Stretch(event="scale_out", from_s=1.5, until_s=3.5),
        Stretch(event="quiet", from_s=4.0, until_s=6.0),
    )
    assert moved.moves(1.5, 3.5) == [2.4]
    figures = event_figures([moved, stayed], part, quiet)
    assert figures.moved_ms == pytest.approx((498,), abs=2)
    assert figures.unmoved_ms == pytest.approx(98, abs=2)
    assert figures.quiet_longest_ms == pytest.approx(98, abs=2)
    assert quiet_median_ms([stayed], [quiet]) == pytest.approx(98, abs=2)


def test_a_partition_that_waits_for_the_move_of_another_one_is_counted() -> None:
    stayed = steady(2.0)
    add_steady(stayed, 2.7, 6.0, "a")
    figures = event_figures(
        [stayed],
        Stretch(event="kill", from_s=1.0, until_s=3.0),
        Stretch(event="quiet", from_s=4.0, until_s=6.0),
    )
    assert figures.moved_ms == ()
    assert figures.unmoved_ms == pytest.approx(798, abs=2)


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile(list(range(1, 21)), 0.95) == 19
    assert percentile([7.0], 0.95) == 7.0
    assert percentile([], 0.95) == 0.0


def test_counts_must_increase_by_one() -> None:
    check = Check()
    for count in (1, 2, 2, 4):
        check.add(b"k", count)
    assert (check.repeated, check.lost) == (1, 1)
    assert check.missing(Counter({b"k": 4}), preloaded=1) == 2


def test_the_longest_gaps_have_their_starts() -> None:
    arrivals = Arrivals()
    for at_s in (0.0, 0.1, 0.5, 0.6, 0.9):
        arrivals.add(at_s, "a")
    found = arrivals.longest(0.2, 0.8, 5)
    assert [round(gap, 3) for gap, _ in found] == [0.4, 0.1]
    assert [begin for _, begin in found] == [0.1, 0.5]
