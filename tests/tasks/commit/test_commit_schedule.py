"""The table of a commit's steps as ARCHITECTURE.md prints it, and early commits with caches."""

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.tasks.commit.commit_schedule import (
    CommitSchedule,
    CommitState,
    EarlyCommitLimit,
    Step,
)

ARCHITECTURE = Path(__file__).parents[3] / "ARCHITECTURE.md"
#: A deadline lies an interval of 1 s after the restart, and an early commit may start 0.2 s before.
FAR_S, NEAR_S, PASSED_S = 10.5, 10.9, 11.5


@dataclass(frozen=True)
class Work:
    must_commit: bool
    can_run_ahead: bool
    keeps_up: bool
    uncommitted_bytes: int
    cached_bytes: int = 0


@dataclass(frozen=True)
class Situation:
    state: CommitState
    now_s: float
    has_run_ahead: bool
    work: Work

    def fulfils(self, condition: str) -> bool:
        is_due = self.now_s >= PASSED_S
        pays = self.work.keeps_up and self.work.can_run_ahead and not self.work.uncommitted_bytes
        return {
            "": True,
            "its deadline has passed": is_due,
            "its deadline has passed, or a commit is required": is_due or self.work.must_commit,
            "the deadline is near, and an early commit pays": self.now_s >= NEAR_S and pays,
            "the loop has run ahead for an interval (100 ms at least), or a commit is required": (
                self.has_run_ahead or self.work.must_commit
            ),
            "its deadline has passed, and all tasks may run ahead": (
                is_due and self.work.can_run_ahead
            ),
        }[condition]

    def decided(self) -> Step:
        schedule = CommitSchedule(interval_ms=1_000)
        schedule.restart(10.0, early_s=0.2)
        if self.has_run_ahead:
            schedule.ahead_until_s = self.now_s
        return schedule.decide(self.now_s, self.state, self.work)


def printed_table() -> list[tuple[frozenset[CommitState], str, Step]]:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    head = "| state of the commit | condition | step |\n|---|---|---|\n"
    rows = text.partition(head)[2].partition("\n\n")[0].splitlines()
    table = []
    for row in rows:
        states, condition, step = (cell.strip() for cell in row.strip("|").split("|"))
        names = re.split(", ", states.partition(":")[0])
        chosen = CommitState if names == ["any"] else map(CommitState, names)
        table.append((frozenset(chosen), condition, Step(step)))
    return table


BOTH = (False, True)
SITUATIONS = [
    Situation(state, now_s, ahead, Work(must, may_run_ahead, keeps_up, uncommitted))
    for state, now_s, ahead, must, may_run_ahead, keeps_up, uncommitted in itertools.product(
        CommitState, (FAR_S, NEAR_S, PASSED_S), BOTH, BOTH, BOTH, BOTH, (0, 5 * 1024 * 1024)
    )
]


def test_printed_table_is_the_rule_for_each_step() -> None:
    table = printed_table()
    used = set()
    for situation in SITUATIONS:
        row = next(
            number
            for number, (states, condition, _) in enumerate(table)
            if situation.state in states and situation.fulfils(condition)
        )
        used.add(row)
        assert situation.decided() is table[row][2], situation
    assert used == set(range(len(table)))


def lived(commits: list[tuple[int, int]], interval_s: float = 0.1) -> tuple[int, int, int]:
    limit = EarlyCommitLimit(interval_s)
    done, once, again = 0, 0, 0
    for number, (keys, twice) in enumerate(commits):
        now_s = number * interval_s
        once += keys
        if limit.allows(now_s):
            limit.record(keys=keys, twice=twice, now_s=now_s)
            done += 1
            again += twice
    return done, once, again


def test_keys_that_rarely_repeat_allow_early_commits() -> None:
    assert lived([(1_000, 2)] * 500)[0] == 500


@pytest.mark.parametrize("interval_s", [0.1, 1.0, 30.0])
def test_keys_that_always_repeat_are_forwarded_once(interval_s: float) -> None:
    done, once, again = lived([(50, 50)] * 1_010, interval_s)
    assert done <= 11
    assert again <= once * 0.012


def test_one_repeated_key_of_a_small_commit_is_ignored() -> None:
    assert lived(([(10, 0)] * 49 + [(10, 1)]) * 10)[0] == 500


def test_a_single_repeated_key_stops_early_commits() -> None:
    done, _, again = lived([(1, 1)] * 500)
    assert again == done <= 30


def test_a_separate_early_commit_pauses_early_commits() -> None:
    limit = EarlyCommitLimit(1.0)
    limit.pause(5.0)
    assert not limit.allows(104.9)
    assert limit.allows(105.0)


@given(st.lists(st.integers(1, 500).flatmap(lambda keys: st.tuples(st.just(keys), st.integers(0, keys))), min_size=300, max_size=600))  # fmt: skip
def test_about_a_twentieth_is_forwarded_twice_at_most(commits: list[tuple[int, int]]) -> None:
    done, once, again = lived(commits)
    largest = max(keys for keys, _ in commits)
    pauses = len(commits) // 100 + 1
    assert again <= 0.05 * once + pauses * (largest + 5)
    assert done >= 1
