"""Worker crashes between all steps of a commit (failpoints K1 to K5)."""

import signal
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from tests.integration.cluster import Cluster, SteadyFeed
from tests.integration.conftest import StartWorker
from tests.integration.outcome import assert_counted
from tests.integration.programs.jobs import STORE

pytestmark = pytest.mark.timeout(600)

#: Failpoints before the transaction's commit, or where the loop has run ahead of it: records are
#: processed again.
_UNCOMMITTED = (
    "before_produce",
    "before_flush",
    "before_offsets",
    "before_commit",
    "processed_while_committing",
)
#: Failpoints after the commit and before the database has it.
_UNAPPLIED = ("after_commit", "processed_while_answered", "before_apply")
_EXTENDING = ("before_extend", "after_offsets_ahead")
#: The commit has been requested for a millisecond; its outcome is open.
_DURING_COMMIT = "before_commit:1:kill9=0.001"
_NTH = 3


class _Job(NamedTuple):
    name: str
    record: Callable[[int], tuple[bytes, bytes]]


@pytest.mark.parametrize(
    ("guarantee", "steps"),
    [
        ("exactly_once", (*_UNCOMMITTED, _DURING_COMMIT, *_UNAPPLIED, "after_apply")),
        # Before these steps, at_least_once differs only in sending sink records.
        (
            "at_least_once",
            ("before_produce", "before_commit", "processed_while_answered", "before_apply"),
        ),
    ],
    ids=["exactly_once", "at_least_once"],
)
def test_crash_at_every_step_of_a_commit_leaves_exact_state(
    cluster: Cluster,
    start_worker: StartWorker,
    config: dict[str, Any],
    unique: str,
    guarantee: str,
    steps: tuple[str, ...],
) -> None:
    source, sink, application_id = f"in-{unique}", f"out-{unique}", config["application_id"]
    config["processing_guarantee"] = guarantee
    job = _Job("word_count", _line)
    feed = _lives_end_at(steps, job, cluster, start_worker, config, (source, sink))
    expected = Counter(word for _, line in feed.records for word in line.split())
    assert_counted(cluster, guarantee, application_id, sink, expected)


def test_crash_around_additions_to_an_open_commit_leaves_exact_state(
    cluster: Cluster, start_worker: StartWorker, config: dict[str, Any], unique: str
) -> None:
    source, sink, application_id = f"in-{unique}", f"out-{unique}", config["application_id"]
    steps = (*_EXTENDING, "before_flush", "after_extend", _DURING_COMMIT, "before_apply")
    job = _Job("count_by_key", _keyed)
    feed = _lives_end_at(steps, job, cluster, start_worker, config, (source, sink))
    expected = Counter(key for key, _ in feed.records)
    assert_counted(cluster, "exactly_once", application_id, sink, expected)


def _lives_end_at(
    steps: tuple[str, ...],
    job: _Job,
    cluster: Cluster,
    start_worker: StartWorker,
    config: dict[str, Any],
    topics: tuple[str, str],
) -> SteadyFeed:
    (source, sink), application_id = topics, config["application_id"]
    cluster.create({source: 2, sink: 2})
    feed = SteadyFeed(cluster, source, job.record, rate=2_000)
    feed.start()
    died: list[tuple[str, dict[str, int]]] = []
    ready = start_worker("before-all")
    for step in steps:
        worker, ready = ready, start_worker(f"after-{step}")
        point = step if ":" in step else f"{step}:1:kill9"
        worker.go(job.name, source, sink, config, failpoints=point, armed_at_change=_NTH)
        assert worker.wait() == -signal.SIGKILL, f"{step}: {worker.log[-3000:]}"
        died.append((step, worker.numbers()))
    ready.go(job.name, source, sink, config)
    ready.wait_until_running()
    feed.stop()
    cluster.wait_until_consumed(application_id, source)
    if job.name == "word_count":
        cluster.wait_until_consumed(application_id, f"{application_id}-{STORE}-repartition")
    assert ready.stop() == 0

    lives = [*died, ("", ready.numbers())]
    for (step, dead), (_, successor) in pairwise(lives):
        if step in (*_UNCOMMITTED, *_EXTENDING):
            assert _begun_again(dead, successor), f"{step}: its records were processed again"
        if step in _UNAPPLIED:
            assert _restored(successor), f"{step}: the changelog's tail was replayed"
    return feed


def _keyed(index: int) -> tuple[bytes, bytes]:
    return b"key-%d" % (index % 97), b"x"


def _line(index: int) -> tuple[bytes, bytes]:
    return b"%d" % index, b"word-%d word-%d" % (index % 97, index % 31)


def _begun_again(dead: dict[str, int], successor: dict[str, int]) -> bool:
    return any(
        position > successor["start:" + name.removeprefix("position:")]
        for name, position in dead.items()
        if name.startswith("position:")
    )


def _restored(numbers: dict[str, int]) -> int:
    return sum(count for name, count in numbers.items() if name.startswith("restored:"))
