"""Key ranges on a real Kafka: a call that never returns, and workers that are killed with many calls in hand.

`TIDEWHEEL_TEST_STUCK_S=60` lets the call hang for a minute, `TIDEWHEEL_TEST_PARALLEL_KILLS=30` kills more often,
`TIDEWHEEL_TEST_PARALLEL_IN_FULL=1` does so for both guarantees and for coroutines as well.
"""

import json
import logging
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Iterator
from itertools import dropwhile, pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.progress import CommitRecord
from tests.integration.cluster import PATIENCE_S, Cluster, SteadyFeed, until
from tests.integration.parallel_run import (
    Call,
    Life,
    ParallelRun,
    Place,
    assert_in_order,
    is_done,
    last_commits,
    most_at_once,
    now_ms,
    range_of,
    ranges_of,
)
from tests.integration.programs.slow_member import STUCK

STUCK_S: Final = float(os.environ.get("TIDEWHEEL_TEST_STUCK_S", "10"))
KILLS: Final = int(os.environ.get("TIDEWHEEL_TEST_PARALLEL_KILLS", "3"))

_IN_FULL: Final = pytest.mark.nightly("TIDEWHEEL_TEST_PARALLEL_IN_FULL")

_log = logging.getLogger(__name__)

pytestmark = [pytest.mark.timeout(240 + int(STUCK_S) + 20 * KILLS), pytest.mark.alone]

COMMIT_INTERVAL_MS: Final = 200
RATE: Final = 400
#: A key in so many records, so that each range has many.
KEYS: Final = 400
#: The worker counts as hung after this time without a sign of life: the stuck call is no such.
HANG_MS: Final = 5_000
#: Which record is the stuck one: by then all ranges have work, and commits have their pace.
STUCK_RECORD: Final = 1_000
#: A range hands over what it has done this often, the time for that included.
HANDED_OVER_EACH_MS: Final = 200
#: Two threads of two processors and a broker share the machine: a commit may come late.
LATE_MS: Final = 5_000


@pytest.fixture
def run(cluster: Cluster, config: dict[str, Any], tmp_path: Path) -> Iterator[ParallelRun]:
    """An application of two partitions that has not begun."""
    config |= {"commit_interval_ms": COMMIT_INTERVAL_MS, "parallelising_factor": 16}
    made = ParallelRun(cluster=cluster, folder=tmp_path, config=config)
    made.create_topics()
    yield made
    made.close()


def _numbered(index: int) -> tuple[bytes, bytes]:
    return b"key-%03d" % (zlib.crc32(b"%d" % index) % KEYS), b"%d" % index


def _numbered_with_stuck(index: int) -> tuple[bytes, bytes]:
    return (STUCK, b"%d" % index) if index == STUCK_RECORD else _numbered(index)


# -- a call that never returns -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guarantee", "awaits"),
    [
        ("exactly_once", False),
        pytest.param("at_least_once", False, marks=_IN_FULL),
        pytest.param("exactly_once", True, marks=_IN_FULL),
    ],
    ids=["exactly_once", "at_least_once", "exactly_once-coroutine"],
)
def test_K6_stuck_call_holds_up_its_own_range_only(
    run: ParallelRun, cluster: Cluster, guarantee: str, awaits: bool
) -> None:
    """While one call hangs, all other ranges commit at every interval; after a SIGKILL none of their records runs again."""
    run.config |= {
        "processing_guarantee": guarantee,
        "parallelising_factor": 8,
        "worker_hang_timeout_ms": HANG_MS,
        "settling_ms": 0,
    }
    feed = SteadyFeed(cluster, run.source, _numbered_with_stuck, rate=150)
    life = run.start(sticks=True, awaits=awaits, longest_us=10_000, fixed=False)
    until(lambda: life.has_ended or "-> RUNNING" in life.log, "the worker is RUNNING")
    feed.start()
    stuck = _until_stuck(life)
    until_ms = stuck.begun_ms + int(STUCK_S * 1000)
    until(lambda: now_ms() > until_ms, "it has been stuck for long", timeout_s=STUCK_S + 10)
    life.check()
    _assert_named(run, stuck)
    _assert_map_is_shown(run, stuck)
    feed.stop()
    _until_others_are_done(run, life, stuck)
    life.kill()

    second = run.start(awaits=awaits, longest_us=10_000, fixed=False)
    run.until_consumed(second)
    assert second.stop() == 0

    commits = run.commits()
    _assert_committed_meanwhile(commits, stuck, until_ms)
    _assert_only_the_stuck_range_ran_again(life, second, stuck, commits)
    assert_in_order(life.calls())
    assert_in_order(second.calls())
    run.assert_exact(
        feed.records, "exactly_once"
    )  # nothing is done twice here, so in both guarantees


def _until_stuck(life: Life) -> Call:
    """Wait until it is the stuck key's turn; the call."""

    def found() -> list[Call]:
        return [each for each in life.calls() if each.key_hash == zlib.crc32(STUCK)]

    until(lambda: life.has_ended or found(), "the stuck key's turn")
    life.check()
    return found()[0]


def _until_others_are_done(run: ParallelRun, life: Life, stuck: Call) -> None:
    """Wait until every range but the stuck one has committed all there is."""
    ends = {each.partition: end for each, end in run.cluster.ends(run.source).items()}

    def done() -> bool:
        life.check()
        last = last_commits(run.commits(), before_ms=now_ms() + 1)
        return last.keys() == ends.keys() and all(
            each.offset >= ends[partition]
            for partition, commit in last.items()
            for each in ranges_of(commit)
            if partition != stuck.place[0] or each != range_of(commit, stuck.key_hash)
        )

    until(done, "all other ranges are done")


def _assert_committed_meanwhile(commits: list[CommitRecord], stuck: Call, until_ms: int) -> None:
    """Each partition was committed as often as before, and in the stuck one all ranges but one went on."""
    begin_ms = min(each.at_ms for each in commits if each.offset)
    calm_s = (stuck.begun_ms - begin_ms) / 1000
    # One interval later what was in hand before has been committed.
    from_ms = stuck.begun_ms + COMMIT_INTERVAL_MS
    for partition in (0, 1):
        times = [each.at_ms for each in commits if each.partition == partition]
        before = [each for each in times if begin_ms <= each <= stuck.begun_ms]
        found = [each for each in times if from_ms < each <= until_ms]
        # Against the time before, for all it is worth on a machine that is slow today.
        told = f"partition {partition}: {len(before)} commits in {calm_s:.0f} s, then {len(found)} in {STUCK_S:.0f} s"
        _log.info(told)
        assert len(found) / STUCK_S >= 0.5 * len(before) / calm_s, told
        longest_ms = max(after - earlier for earlier, after in pairwise(found))
        assert longest_ms < LATE_MS, f"partition {partition} waited for {longest_ms} ms"
    later = [
        each
        for each in commits
        if each.partition == stuck.place[0] and from_ms < each.at_ms <= until_ms
    ]
    # Where the stuck range stands: at the stuck record, or at one before it that was done in the same breath and could
    # not be handed over any more (`_assert_handed_over` says how long before).
    stands = range_of(later[-1], stuck.key_hash).offset
    assert stands <= stuck.place[1]
    # On a slow machine what other ranges had in hand when the call began may be in the first of these commits, too.
    held = list(dropwhile(lambda each: each.offset < stands, later))
    assert held[0].at_ms < from_ms + LATE_MS, f"held only {held[0].at_ms - from_ms} ms later"
    assert {each.offset for each in held} == {stands}, "the lowest offset is the stuck range's"
    assert {range_of(each, stuck.key_hash).offset for each in held} == {stands}
    first, last = ranges_of(held[0]), ranges_of(held[-1])
    assert [each.first_hash for each in first] == [each.first_hash for each in last]
    went_on = [after.offset > before.offset for before, after in zip(first, last, strict=True)]
    assert went_on.count(False) == 1, f"ranges that went on: {went_on}"
    assert len(went_on) > 1


def _assert_only_the_stuck_range_ran_again(
    first: Life, second: Life, stuck: Call, commits: list[CommitRecord]
) -> None:
    """The second life did what was behind the stuck call, in its range, and nothing that had been handed over."""
    last = last_commits(commits, before_ms=second.started_ms)
    held = range_of(last[stuck.place[0]], stuck.key_hash)
    _assert_handed_over(first, second, stuck, commits, last)
    for each in second.calls():
        assert each.place[0] == stuck.place[0]
        assert range_of(last[each.place[0]], each.key_hash) == held


def _assert_handed_over(
    first: Life,
    second: Life,
    stuck: Call,
    commits: list[CommitRecord],
    last: dict[int, CommitRecord],
) -> None:
    """Of what had ended, only the stuck range's own records ran again, and only those that ended just before.

    Just before is what no commit but the last could ask for: on a slow machine that is longer.
    """
    asked_ms = [
        each.at_ms
        for each in commits
        if each.partition == stuck.place[0] and each.at_ms <= stuck.begun_ms
    ]
    since_ms = min([stuck.begun_ms - HANDED_OVER_EACH_MS, *asked_ms[-2:-1]])
    again = {each.place for each in second.calls()}
    assert stuck.place in again
    held = range_of(last[stuck.place[0]], stuck.key_hash)
    for each in first.calls():
        if each.ended_ms is not None and each.place in again:
            assert each.place[0] == stuck.place[0]
            assert range_of(last[stuck.place[0]], each.key_hash) == held
            assert each.ended_ms >= since_ms


def _assert_named(run: ParallelRun, stuck: Call) -> None:
    """`status` and `top` name the record that is stuck: its key's hash, its offset, and for how long it has been so."""
    for told in (
        json.loads(_output("status", run)),
        json.loads(_output("top", run, "--json", "--count", "1")),
    ):
        task = next(each for each in told["tasks"] if each["task"] == f"0_{stuck.place[0]}")
        slowest = task["ranges"][0]
        assert (slowest["key_hash"], slowest["offset"]) == (stuck.key_hash, stuck.place[1])
        assert slowest["age_ms"] >= (STUCK_S - 3) * 1000
    # Not on a terminal `status` is JSON, and `top` is text.
    named = f"key hash {stuck.key_hash:08x}, offset {stuck.place[1]}"
    assert named in _output("top", run, "--count", "1")


def _assert_map_is_shown(run: ParallelRun, stuck: Call) -> None:
    """`status` and `top` show every range with its bounds and offset: the stuck one is the slowest, others are ahead."""
    partition, offset = stuck.place
    for told in (
        json.loads(_output("status", run)),
        json.loads(_output("top", run, "--json", "--count", "1")),
    ):
        inputs = {each["partition"]: each for each in told["key_ranges"]}
        assert {number: each["task"] for number, each in inputs.items()} == {0: "0_0", 1: "0_1"}
        for each in inputs.values():
            bounds = [(int(one["first"], 16), int(one["last"], 16)) for one in each["ranges"]]
            assert [first for first, _ in bounds] == [0, *(last + 1 for _, last in bounds[:-1])]
            assert bounds[-1][1] == 0xFFFFFFFF
        assert len(inputs[partition]["ranges"]) > 1
        slowest = _range_shown(inputs[partition], stuck.key_hash)
        assert slowest["ahead"] == 0
        assert slowest["offset"] == inputs[partition]["committed"] <= offset
        others = [one for one in inputs[partition]["ranges"] if one != slowest]
        assert all(one["offset"] > offset for one in others), "the others are past the stuck record"
        line = (
            f"task 0_{partition} range {slowest['first']}-{slowest['last']} of {run.source}-{partition}: "
            f"offset {slowest['offset']}, 0 ahead"
        )
        assert line in _output("top", run, "--ranges", "--count", "1")


def _range_shown(shown: dict[str, Any], key_hash: int) -> dict[str, Any]:
    """Return the range of what is shown of a partition that a key belongs to."""
    return next(
        each
        for each in shown["ranges"]
        if int(each["first"], 16) <= key_hash <= int(each["last"], 16)
    )


def _output(command: str, run: ParallelRun, *arguments: str) -> str:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "streams", command, run.application_id),
            *("--bootstrap-servers", run.cluster.bootstrap_servers, *arguments),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode in (0, 1), done.stderr  # 1: there are alarms
    return done.stdout


@pytest.mark.parametrize(
    "awaits", [False, pytest.param(True, marks=_IN_FULL)], ids=["blocking", "coroutine"]
)
def test_K6_clean_stop_leaves_a_stuck_call_behind(
    run: ParallelRun, cluster: Cluster, awaits: bool
) -> None:
    """SIGTERM waits for calls in hand, then commits what is done and goes; the others' records do not run again.

    Of the stuck range's own, those may that ended just before: a range hands over what it has done every 100 ms.
    """
    feed = SteadyFeed(cluster, run.source, _numbered_with_stuck, rate=RATE)
    feed.start()
    life = run.start({"drain_timeout_ms": 2_000}, sticks=True, awaits=awaits, longest_us=10_000)
    stuck = _until_stuck(life)
    life.until_begun(STUCK_RECORD + 200)
    assert life.stop() == 0
    stopped_ms = now_ms()

    second = run.start(awaits=awaits, longest_us=10_000)
    second.until_begun(100)
    feed.stop()
    run.until_consumed(second)
    assert second.stop() == 0

    commits = run.commits()
    _assert_handed_over(life, second, stuck, commits, last_commits(commits, before_ms=stopped_ms))
    run.assert_exact(feed.records, "exactly_once")


# -- killed with many calls in hand ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guarantee", "awaits", "factors"),
    [
        pytest.param("exactly_once", False, (16,), marks=_IN_FULL),
        pytest.param("exactly_once", True, (16,), marks=_IN_FULL),
        pytest.param("at_least_once", False, (16,), marks=_IN_FULL),
        ("exactly_once", False, (16, 4, 1, 32)),
    ],
    ids=["blocking", "coroutine", "at_least_once", "changing-factor"],
)
def test_K6_K7_killed_workers_repeat_what_was_in_hand_and_no_more(
    run: ParallelRun, cluster: Cluster, guarantee: str, awaits: bool, factors: tuple[int, ...]
) -> None:
    """SIGKILL at random moments: exact results in order, and done twice is only what no commit said was done."""
    run.config["processing_guarantee"] = guarantee
    chance = random.Random(f"{guarantee} {awaits} {factors}")
    # Slower for many lives: what comes while workers start is left for the last one.
    feed = SteadyFeed(cluster, run.source, _numbered, rate=max(3 * RATE // KILLS, 100))
    feed.start()
    for number in range(KILLS):
        factor = factors[number % len(factors)]
        life = run.start({"parallelising_factor": factor}, awaits=awaits)
        life.until_begun(chance.randint(20, 600 if factor > 1 else 100))
        life.kill()
    final = run.start({"parallelising_factor": factors[0]}, awaits=awaits)
    final.until_begun(200)
    feed.stop()
    run.until_consumed(final)
    assert final.stop() == 0

    commits = run.commits()
    assert sum(_count_repeated(before, after, commits) for before, after in pairwise(run.lives)) > 0
    for life in run.lives:
        assert_in_order(life.calls())
    parallel = [life for life in run.lives if _factor(run.lives, life, factors) == 16]
    assert max(most_at_once(life.calls()) for life in parallel) > 8, "calls overlap"
    run.assert_exact(feed.records, guarantee)


def _factor(lives: list[Life], life: Life, factors: tuple[int, ...]) -> int:
    return factors[lives.index(life) % len(factors)] if life is not lives[-1] else factors[0]


def _count_repeated(dead: Life, successor: Life, commits: list[CommitRecord]) -> int:
    """Return how many records ran again, after checking that each of them was in hand when the worker was killed.

    In hand is what the last commit does not say is done. And no more was in hand than had to be: what had ended before
    the last commit but one was in the last one.
    """
    last = last_commits(commits, before_ms=successor.started_ms)
    calls = {each.place: each for each in dead.calls()}
    in_hand = {place for place, call in calls.items() if not is_done(call, last)}
    for each in successor.calls():
        assert not is_done(each, last), f"{each} was done for good"
    again = calls.keys() & {each.place for each in successor.calls()}
    assert len(again) <= len(in_hand)
    assert again <= in_hand
    times = sorted({each.at_ms for each in commits if dead.started_ms <= each.at_ms})
    times = [at_ms for at_ms in times if at_ms < successor.started_ms]
    if len(times) > 1:
        late = _ended_before(times[-2], calls, in_hand)
        assert not late, f"these had ended before the commit but one: {late}"
    return len(again)


def _ended_before(at_ms: int, calls: dict[Place, Call], places: set[Place]) -> list[Call]:
    found = [calls[place] for place in places]
    return [each for each in found if each.ended_ms is not None and each.ended_ms < at_ms]
