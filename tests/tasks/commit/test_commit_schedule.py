"""Early commits with caches, by the share of keys that are forwarded twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.tasks.commit.commit_schedule import EarlyCommitLimit


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
