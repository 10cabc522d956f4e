"""Group operations under load: growth, shrinking, restarts, kills, a freeze and drains.

One run under exactly_once; `GroupRun.operation` lists the checks. It runs by
`TIDEWHEEL_TEST_GROUP_KEYS=50000 pytest tests/integration/groups/test_group_operations.py`, not by `make
test`, because it needs the whole machine. From 1000000 keys on, an unmoved task must process a
record in every window. Below that, four windows in a row may pass without one.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import pytest

from tests.integration.cluster import Cluster, until
from tests.integration.groups.group_run import EXACT_AND_QUICK, GroupRun, begun
from tidewheel.streams.exit_codes import ExitCode

PARTITIONS: Final = 4
KEYS: Final = int(os.environ.get("TIDEWHEEL_TEST_GROUP_KEYS", "0"))

pytestmark = [
    pytest.mark.timeout(560),
    pytest.mark.alone,
    pytest.mark.nightly("TIDEWHEEL_TEST_GROUP_KEYS"),
]
RATE: Final = 2_000
MOVE_S: Final = 60.0
FROZEN_S: Final = 20.0


@pytest.fixture(scope="module")
def run(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupRun]:
    run = GroupRun(
        cluster=cluster,
        folder=tmp_path_factory.mktemp("group"),
        application_id=f"group-day-{time.monotonic_ns() % 10**9}",
        partitions=PARTITIONS,
        keys=KEYS,
        rate=RATE,
        standstill_max=0 if KEYS >= 1_000_000 else 4,
        config=EXACT_AND_QUICK
        | {
            # Two seconds of a partition's load: a READY copy has nearly all state.
            "acceptable_recovery_lag": RATE // PARTITIONS * 2,
            "worker_hang_timeout_ms": 5_000,
            "drain_timeout_ms": 60_000,
        },
    )
    with begun(run):
        run.start("a")
        run.until_counted()
        yield run


def test_L3_N1_scale_out_and_in_moves_only_the_tasks_that_must_move(run: GroupRun) -> None:
    for names, shares in ((["a", "b"], [2, 2]), (["a", "b", "c", "d"], [1, 1, 1, 1])):
        with run.operation(f"out to {names}", unmoved=2, promoted=2):
            for name in names:
                if name not in run.members:
                    run.start(name)
            run.until_shared_by(shares, names, MOVE_S)
    for leaving, names, shares in ((["c", "d"], ["a", "b"], [2, 2]), (["b"], ["a"], [4])):
        with run.operation(f"in to {names}", unmoved=2, promoted=2):
            run.stop(*leaving)
            run.until_shared_by(shares, names, MOVE_S)


def _become(run: GroupRun, *names: str) -> None:
    if run.members.keys() != set(names):
        run.stop(*(run.members.keys() - set(names)))
        for name in set(names) - run.members.keys():
            run.start(name)
        with run.feeding():
            run.until_shared_by([PARTITIONS // len(names)] * len(names), names, MOVE_S)


def _grow_to_two(run: GroupRun) -> None:
    _become(run, "a")
    with run.operation("out to two", unmoved=2, promoted=2):
        run.start("b")
        run.until_shared_by([2, 2], ["a", "b"], MOVE_S)


def test_killed_worker_is_replaced(run: GroupRun) -> None:
    _grow_to_two(run)
    with run.operation("kill -9", unmoved=2, promoted=0):
        run.members.pop("b").kill()
        run.until_shared_by([4], ["a"], MOVE_S)


def test_frozen_worker_is_fenced_and_rejoins_as_a_new_incarnation(run: GroupRun) -> None:
    """SIGSTOP for 20 s at a hang time-out of 5 s: others own the tasks, the zombie writes nothing."""
    _grow_to_two(run)
    frozen = run.members["b"].process
    with ExitStack() as afterwards:
        afterwards.callback(frozen.send_signal, signal.SIGCONT)
        with run.operation("frozen", unmoved=2, promoted=0):
            frozen.send_signal(signal.SIGSTOP)
            from_s = time.monotonic()
            run.until_lasting(lambda: run.writers() == ["a"] * 4, "a has taken over", FROZEN_S - 1)
            time.sleep(max(0.0, FROZEN_S - (time.monotonic() - from_s)))
        with run.operation("back from 20 s", unmoved=2, promoted=2):
            frozen.send_signal(signal.SIGCONT)
            run.until_shared_by([2, 2], ["a", "b"], MOVE_S)


def test_killed_leader_is_replaced_and_no_task_moves(run: GroupRun) -> None:
    _become(run, "a", "b")
    claim = run.claim()
    before = len(run.grants())
    with run.operation("leader killed", unmoved=4, promoted=0):
        run.leader().kill_watchdog()
        until(
            lambda: run.claim().leader_epoch > claim.leader_epoch,
            "a new leader claims",
        )
        run.until_shared_by([2, 2], ["a", "b"], MOVE_S)
    assert len(run.grants()) == before


def test_S2_S1_rolling_bounce_of_static_members_moves_nothing(run: GroupRun) -> None:
    _become(run, "a", "b")
    # The whole group stops and restarts under static names.
    run.stop("a", "b")
    for name in ("a", "b"):
        run.start(name, group_instance_id=name)
    with run.feeding():
        run.until_shared_by([2, 2], ["a", "b"], MOVE_S)
        before = run.writers()
    for name in ("a", "b"):
        with run.operation(f"{name} bounces", unmoved=2, promoted=0):
            run.stop(name)
            run.start(name, group_instance_id=name)
            run.until_shared_by([2, 2], ["a", "b"], MOVE_S)
            assert run.writers() == before


def test_L4_drained_member_hands_over_and_ends(run: GroupRun) -> None:
    _become(run, "a", "b")
    with run.operation("drain", unmoved=2, promoted=2):
        drained = subprocess.run(
            [
                *(sys.executable, "-m", "tidewheel", "drain", "b"),
                *("--application-id", run.application_id),
                *("--bootstrap-servers", run.cluster.bootstrap_servers),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=MOVE_S,
        )
        assert drained.returncode == ExitCode.OK, drained.stderr
        assert run.members.pop("b").wait() == ExitCode.OK
        run.until_shared_by([4], ["a"], MOVE_S)


def test_L1_L2_learners_restore_nothing_after_their_promotion(run: GroupRun) -> None:
    planned = [grant for grant in run.grants() if grant.is_planned]
    assert planned
    for grant in planned:
        assert grant.ready is not None
        assert grant.granted is not None
        place = run.changelog_key(int(grant.record.task.partition("_")[2]))
        assert grant.restored_too_much(place) == 0


def test_N10_all_results_are_exact(run: GroupRun) -> None:
    run.sweep()
    run.check_exact([])
    run.stop(*run.members)
    run.observer.stop()
    assert len(run.expected) == KEYS
