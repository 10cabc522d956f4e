"""Key ranges: a call that never returns, and workers killed during many calls.

`TIDEWHEEL_TEST_STUCK_S=60` keeps the call stuck for a minute. `TIDEWHEEL_TEST_PARALLEL_KILLS=30`
kills more often. `TIDEWHEEL_TEST_PARALLEL_IN_FULL=1` does so for both guarantees and for
coroutines.
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
from tests.integration.key_ranges.parallel_run import (
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

pytestmark = [pytest.mark.timeout(600 + int(STUCK_S) + 20 * KILLS), pytest.mark.alone]

COMMIT_INTERVAL_MS: Final = 200
RATE: Final = 400
#: Enough keys to give each range many.
KEYS: Final = 400
#: Hang time-out (ms); a stuck call alone must not trigger it.
HANG_MS: Final = 5_000
#: Number of the stuck record: by then all ranges have work and commits are regular.
STUCK_RECORD: Final = 1_000
#: A range publishes its finished records at least this often (ms), with the time this takes.
HANDED_OVER_EACH_MS: Final = 200
#: Two threads and a broker share two processors: a commit may be this late.
LATE_MS: Final = 5_000


@pytest.fixture
def run(cluster: Cluster, config: dict[str, Any], tmp_path: Path) -> Iterator[ParallelRun]:
    config |= {"commit_interval_ms": COMMIT_INTERVAL_MS, "parallelising_factor": 16}
    made = ParallelRun(cluster=cluster, folder=tmp_path, config=config)
    made.create_topics()
    yield made
    made.close()


def _numbered(index: int) -> tuple[bytes, bytes]:
    return b"key-%03d" % (zlib.crc32(b"%d" % index) % KEYS), b"%d" % index


def _numbered_with_stuck(index: int) -> tuple[bytes, bytes]:
    return (STUCK, b"%d" % index) if index == STUCK_RECORD else _numbered(index)


@pytest.mark.parametrize(
    ("guarantee", "awaits"),
    [
        ("exactly_once", False),
        pytest.param("at_least_once", False, marks=_IN_FULL),
        pytest.param("exactly_once", True, marks=_IN_FULL),
    ],
    ids=["exactly_once", "at_least_once", "exactly_once-coroutine"],
)
def test_K6_stuck_call_blocks_only_its_own_range(
    run: ParallelRun, cluster: Cluster, guarantee: str, awaits: bool
) -> None:
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
    statuses = (
        json.loads(_output("status", run, "--json")),
        json.loads(_output("top", run, "--json", "--count", "1")),
    )
    text = _output("top", run, "--ranges", "--count", "1")
    for status in statuses:
        _assert_named(status, text, stuck)
        _assert_map_is_shown(run, status, text, stuck)
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
    )  # no record runs twice here, so it holds for both guarantees


def _until_stuck(life: Life) -> Call:
    def stuck_calls() -> list[Call]:
        return [call for call in life.calls() if call.key_hash == zlib.crc32(STUCK)]

    until(lambda: life.has_ended or stuck_calls(), "the stuck key's turn")
    life.check()
    return stuck_calls()[0]


def _until_others_are_done(run: ParallelRun, life: Life, stuck: Call) -> None:
    ends = {each.partition: end for each, end in run.cluster.ends(run.source).items()}

    def done() -> bool:
        life.check()
        last = last_commits(run.commits(), before_ms=now_ms() + 1)
        return last.keys() == ends.keys() and all(
            key_range.offset >= ends[partition]
            for partition, commit in last.items()
            for key_range in ranges_of(commit)
            if partition != stuck.place[0] or key_range != range_of(commit, stuck.key_hash)
        )

    until(done, "all other ranges are done")


def _assert_committed_meanwhile(commits: list[CommitRecord], stuck: Call, until_ms: int) -> None:
    """Commits stay as frequent as before, and all other ranges progress."""
    begin_ms = min(commit.at_ms for commit in commits if commit.offset)
    calm_s = (stuck.begun_ms - begin_ms) / 1000
    # One interval later, calls that ran before the stuck one are committed.
    from_ms = stuck.begun_ms + COMMIT_INTERVAL_MS
    for partition in (0, 1):
        times = [commit.at_ms for commit in commits if commit.partition == partition]
        before = [time_ms for time_ms in times if begin_ms <= time_ms <= stuck.begun_ms]
        during = [time_ms for time_ms in times if from_ms < time_ms <= until_ms]
        # Compared with the time before, since the machine may be slow today.
        summary = f"partition {partition}: {len(before)} commits in {calm_s:.0f} s, then {len(during)} in {STUCK_S:.0f} s"
        _log.info(summary)
        assert len(during) / STUCK_S >= 0.5 * len(before) / calm_s, summary
        longest_ms = max(after - earlier for earlier, after in pairwise(during))
        assert longest_ms < LATE_MS, f"partition {partition} waited for {longest_ms} ms"
    later = [
        commit
        for commit in commits
        if commit.partition == stuck.place[0] and from_ms < commit.at_ms <= until_ms
    ]
    # The stuck range's offset: the stuck record, or one that ended just before the call and could
    # not be published any more (`_assert_handed_over` checks how long before).
    stuck_offset = range_of(later[-1], stuck.key_hash).offset
    assert stuck_offset <= stuck.place[1]
    # On a slow machine the first of these commits may include earlier calls of other ranges.
    waiting = list(dropwhile(lambda commit: commit.offset < stuck_offset, later))
    assert waiting[0].at_ms < from_ms + LATE_MS, f"held only {waiting[0].at_ms - from_ms} ms later"
    assert {commit.offset for commit in waiting} == {stuck_offset}, (
        "the lowest offset is the stuck range's"
    )
    assert {range_of(commit, stuck.key_hash).offset for commit in waiting} == {stuck_offset}
    # By hash: while all ranges are at one offset, a commit has it once for all.
    progressed = [
        key_range.offset > range_of(waiting[0], key_range.first_hash).offset
        for key_range in ranges_of(waiting[-1])
    ]
    assert progressed.count(False) == 1, f"ranges with progress: {progressed}"
    assert len(progressed) > 1


def _assert_only_the_stuck_range_ran_again(
    first: Life, second: Life, stuck: Call, commits: list[CommitRecord]
) -> None:
    """The second life runs only unpublished records of the stuck range, behind the stuck call."""
    last = last_commits(commits, before_ms=second.started_ms)
    held = range_of(last[stuck.place[0]], stuck.key_hash)
    _assert_handed_over(first, second, stuck, commits, last)
    for call in second.calls():
        assert call.place[0] == stuck.place[0]
        assert range_of(last[call.place[0]], call.key_hash) == held


def _assert_handed_over(
    first: Life,
    second: Life,
    stuck: Call,
    commits: list[CommitRecord],
    last: dict[int, CommitRecord],
) -> None:
    """Finished records run again only in the stuck range, and only the ones just before the call.

    A range publishes records every `HANDED_OVER_EACH_MS`. On a slow machine, records that ended
    after the last commit but one may also be missing in the last.
    """
    asked_ms = [
        commit.at_ms
        for commit in commits
        if commit.partition == stuck.place[0] and commit.at_ms <= stuck.begun_ms
    ]
    since_ms = min([stuck.begun_ms - HANDED_OVER_EACH_MS, *asked_ms[-2:-1]])
    again = {call.place for call in second.calls()}
    assert stuck.place in again
    held = range_of(last[stuck.place[0]], stuck.key_hash)
    for call in first.calls():
        if call.ended_ms is not None and call.place in again:
            assert call.place[0] == stuck.place[0]
            assert range_of(last[stuck.place[0]], call.key_hash) == held
            assert call.ended_ms >= since_ms


def _assert_named(status: dict[str, Any], text: str, stuck: Call) -> None:
    task = next(each for each in status["tasks"] if each["task"] == f"0_{stuck.place[0]}")
    slowest = task["ranges"][0]
    assert (slowest["key_hash"], slowest["offset"]) == (stuck.key_hash, stuck.place[1])
    assert slowest["age_ms"] >= (STUCK_S - 3) * 1000
    assert f"key hash {stuck.key_hash:08x}, offset {stuck.place[1]}" in text


def _assert_map_is_shown(run: ParallelRun, status: dict[str, Any], text: str, stuck: Call) -> None:
    partition, offset = stuck.place
    inputs = {each["partition"]: each for each in status["key_ranges"]}
    assert {number: each["task"] for number, each in inputs.items()} == {0: "0_0", 1: "0_1"}
    for input_ in inputs.values():
        bounds = [(int(one["first"], 16), int(one["last"], 16)) for one in input_["ranges"]]
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
    assert line in text


def _range_shown(shown: dict[str, Any], key_hash: int) -> dict[str, Any]:
    return next(
        each
        for each in shown["ranges"]
        if int(each["first"], 16) <= key_hash <= int(each["last"], 16)
    )


def _output(command: str, run: ParallelRun, *arguments: str) -> str:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tidewheel", command, run.application_id),
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
def test_K6_clean_stop_abandons_a_stuck_call(
    run: ParallelRun, cluster: Cluster, awaits: bool
) -> None:
    """SIGTERM waits for running calls, then commits; only the stuck range's last records repeat.

    A range publishes its finished records every 100 ms.
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
def test_K6_K7_killed_workers_repeat_only_records_in_progress(
    run: ParallelRun, cluster: Cluster, guarantee: str, awaits: bool, factors: tuple[int, ...]
) -> None:
    run.config["processing_guarantee"] = guarantee
    chance = random.Random(f"{guarantee} {awaits} {factors}")
    # Slower with many lives: the last one processes the input that comes during starts.
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
    """Count repeated records; the last commit before the kill must cover none of them.

    A record that ended before the last commit but one must be in the last one.
    """
    last = last_commits(commits, before_ms=successor.started_ms)
    calls = {call.place: call for call in dead.calls()}
    uncommitted = {place for place, call in calls.items() if not is_done(call, last)}
    for call in successor.calls():
        assert not is_done(call, last), f"{call} was done for good"
    again = calls.keys() & {call.place for call in successor.calls()}
    assert len(again) <= len(uncommitted)
    assert again <= uncommitted
    times = sorted({commit.at_ms for commit in commits if dead.started_ms <= commit.at_ms})
    times = [at_ms for at_ms in times if at_ms < successor.started_ms]
    if len(times) > 1:
        late = _ended_before(times[-2], calls, uncommitted)
        assert not late, f"these had ended before the commit but one: {late}"
    return len(again)


def _ended_before(at_ms: int, calls: dict[Place, Call], places: set[Place]) -> list[Call]:
    candidates = [calls[place] for place in places]
    return [call for call in candidates if call.ended_ms is not None and call.ended_ms < at_ms]
