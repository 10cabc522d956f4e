"""The table of `CommitSchedule.decide`: every state, with every combination of conditions."""

import itertools
from dataclasses import dataclass

import pytest

from tidewheel.tasks.commit.commit_schedule import (
    CommitSchedule,
    CommitState,
    Step,
    early_start_s,
)

INTERVAL_S, EARLY_S = 0.1, 0.025
BEFORE, EARLY, DUE = 0.05, 0.08, 0.1
NONE, OPENING, OPEN = CommitState.NONE, CommitState.OPENING, CommitState.OPEN
COMMITTING, ANSWERED = CommitState.COMMITTING, CommitState.ANSWERED


@dataclass
class Pending:
    must_commit: bool = False
    can_run_ahead: bool = True
    keeps_up: bool = True
    cached_bytes: int = 0
    uncommitted_bytes: int = 0


def schedule(*, early_s: float = EARLY_S) -> CommitSchedule:
    made = CommitSchedule(round(INTERVAL_S * 1000))
    made.restart(0.0, early_s=early_s)
    return made


def expected(state: CommitState, now_s: float, work: Pending, *, is_too_far_ahead: bool) -> Step:
    rows = {
        NONE: [
            (now_s >= DUE or work.must_commit, Step.PREPARE),
            (now_s >= DUE - EARLY_S and work.can_run_ahead and work.keeps_up, Step.PREPARE_EARLY),
        ],
        OPENING: [(is_too_far_ahead or work.must_commit, Step.COMPLETE)],
        OPEN: [
            (is_too_far_ahead or work.must_commit, Step.COMPLETE),
            (now_s >= DUE and work.can_run_ahead, Step.EXTEND),
            (now_s >= DUE, Step.COMPLETE),
        ],
        COMMITTING: [(is_too_far_ahead or work.must_commit or now_s >= DUE, Step.COMPLETE)],
        ANSWERED: [(True, Step.COMPLETE)],
    }
    return next((step for applies, step in rows[state] if applies), Step.WAIT)


@pytest.mark.parametrize("state", CommitState)
def test_every_state_with_every_combination_of_conditions(state: CommitState) -> None:
    steps: set[Step] = set()
    flags = itertools.product((False, True), repeat=4)
    for now_s, (is_too_far_ahead, *work_flags) in itertools.product((BEFORE, EARLY, DUE), flags):
        work = Pending(*work_flags)
        commits = schedule()
        commits.ahead_until_s = now_s if is_too_far_ahead else now_s + 1
        step = commits.decide(now_s, state, work)
        assert step is expected(state, now_s, work, is_too_far_ahead=is_too_far_ahead), (
            state,
            now_s,
            work,
        )
        steps.add(step)
    assert (
        steps
        == {
            NONE: {Step.WAIT, Step.PREPARE, Step.PREPARE_EARLY},
            OPENING: {Step.WAIT, Step.COMPLETE},
            OPEN: {Step.WAIT, Step.COMPLETE, Step.EXTEND},
            COMMITTING: {Step.WAIT, Step.COMPLETE},
            ANSWERED: {Step.COMPLETE},
        }[state]
    )


@pytest.mark.parametrize(
    ("work", "step"),
    [
        (Pending(uncommitted_bytes=4 << 20), Step.PREPARE_EARLY),
        (Pending(uncommitted_bytes=(4 << 20) + 1), Step.WAIT),
        (Pending(uncommitted_bytes=3 << 20, cached_bytes=1 << 20), Step.PREPARE_EARLY),
        (Pending(uncommitted_bytes=3 << 20, cached_bytes=(1 << 20) + 1), Step.WAIT),
    ],
)
def test_large_parts_are_not_merged(work: Pending, step: Step) -> None:
    assert schedule().decide(EARLY, NONE, work) is step


def test_an_early_commit_is_attempted_once_per_deadline() -> None:
    commits = schedule()
    assert commits.decide(EARLY, NONE, Pending()) is Step.PREPARE_EARLY
    commits.record_early(EARLY)
    assert commits.decide(EARLY, NONE, Pending()) is Step.WAIT
    assert commits.decide(DUE, NONE, Pending()) is Step.PREPARE


def test_cached_records_stop_early_commits_while_their_keys_are_forwarded_twice() -> None:
    commits, cached = schedule(), Pending(cached_bytes=1)
    commits.record_early(EARLY)
    commits.record_extend(DUE, DUE, keys=10, twice=9)
    commits.record_complete(DUE, 0.01, keeps_up=True, was_early=False)
    early_s = DUE + INTERVAL_S - EARLY_S
    assert commits.decide(early_s, NONE, cached) is Step.WAIT
    assert commits.decide(early_s, NONE, Pending()) is Step.PREPARE_EARLY


def test_a_separate_early_commit_stops_early_cache_flushes() -> None:
    commits, cached = schedule(), Pending(cached_bytes=1)
    commits.record_early(EARLY)
    commits.record_complete(DUE, 0.01, keeps_up=True, was_early=True)
    commits.record_prepare(DUE, DUE, is_empty=True)
    assert commits.decide(DUE + INTERVAL_S - EARLY_S, NONE, cached) is Step.WAIT


def test_without_an_early_start_commits_are_prepared_at_their_deadline() -> None:
    commits = schedule(early_s=0.0)
    assert commits.decide(EARLY, NONE, Pending()) is Step.WAIT
    assert commits.wait_s(EARLY, NONE, Pending()) == pytest.approx(DUE - EARLY)


def test_a_commit_in_progress_has_no_deadline_until_one_is_requested() -> None:
    commits = schedule()
    commits.record_prepare(DUE, DUE, is_empty=False)
    assert commits.decide(DUE + 0.05, COMMITTING, Pending()) is Step.WAIT
    commits.request()
    assert commits.decide(DUE + 0.05, COMMITTING, Pending()) is Step.COMPLETE
    commits.record_complete(DUE + 0.05, 0.05, keeps_up=True, was_early=False)
    assert commits.decide(DUE + 0.05, NONE, Pending()) is Step.PREPARE


@pytest.mark.parametrize(
    ("took_s", "keeps_up", "next_s"),
    [
        (0.01, False, DUE + INTERVAL_S),
        (0.3, True, DUE + INTERVAL_S),
        (0.3, False, 1.0 + INTERVAL_S),
    ],
)
def test_the_next_deadline_follows_the_last_one_unless_a_busy_worker_took_long(
    took_s: float, keeps_up: bool, next_s: float
) -> None:
    commits = schedule()
    commits.record_prepare(DUE + 0.004, DUE + 0.004, is_empty=False)
    commits.record_complete(1.0, took_s, keeps_up=keeps_up, was_early=False)
    assert commits.due_s == pytest.approx(next_s)


def test_a_loop_that_waits_for_brokers_has_no_own_deadline() -> None:
    commits = schedule()
    commits.record_early(EARLY)
    assert commits.wait_s(EARLY, OPENING, Pending()) == float("inf")
    assert commits.wait_s(EARLY, OPEN, Pending()) == pytest.approx(DUE - EARLY)


def test_an_early_start_is_a_quarter_of_an_interval_at_most() -> None:
    assert early_start_s(25, 100) == early_start_s(50, 100) == 0.025
    assert early_start_s(6, 100) == 0.006
