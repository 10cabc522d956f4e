"""A day of a group, on a real Kafka with real processes: it grows, shrinks, is bounced, killed and frozen, under load.

One run, exactly_once. After each operation: the tasks that did not move have gone on processing, planned moves went to
learners that had nothing left to restore, and at the end every result of every key is there once and the state equals
the direct computation. Run by `TIDEWHEEL_TEST_GROUP_KEYS=50000 pytest tests/integration/test_group_operations.py`, not by
`make test`: it needs the machine for itself. From 1000000 keys on, the others must have processed records in every 250 ms;
below that they may wait for the processor for a second.
"""

import os
import signal
import time
from collections.abc import Iterator
from typing import Final

import pytest

from rebalance.records import AnyRecord, LeaderClaim, MemberRecord, TaskRecord
from tests.integration.cluster import Cluster, until
from tests.integration.group_run import GroupRun
from tests.integration.programs.member import STORE

PARTITIONS: Final = 4
KEYS: Final = int(os.environ.get("TIDEWHEEL_TEST_GROUP_KEYS", "0"))

pytestmark = [
    pytest.mark.timeout(560),
    pytest.mark.alone,
    pytest.mark.nightly("TIDEWHEEL_TEST_GROUP_KEYS"),
]
#: Windows of 250 ms in a row in which a task that did not move may process nothing.
STANDSTILL_MAX: Final = 0 if KEYS >= 1_000_000 else 4
RATE: Final = 2_000
MOVE_S: Final = 60.0


@pytest.fixture(scope="module")
def run(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupRun]:
    """The group, after it has counted every key once, with one member and a steady feed."""
    run = GroupRun(
        cluster=cluster,
        folder=tmp_path_factory.mktemp("group"),
        application_id=f"group-day-{time.monotonic_ns() % 10**9}",
        partitions=PARTITIONS,
        keys=KEYS,
        rate=RATE,
        config={
            "processing_guarantee": "exactly_once",
            "statestore_cache_max_bytes": 0,
            "settling_ms": 0,
            "worker_hang_timeout_ms": 5_000,
            "drain_timeout_ms": 60_000,
        },
    )
    run.begin()
    try:
        run.start("a")
        until(lambda: run.observer.results >= KEYS, "every key is counted", timeout_s=180)
        run.feeder.start()
        run.until_shared_by([PARTITIONS], ["a"], MOVE_S)
        yield run
    finally:
        run.close()


def unmoved_worked(run: GroupRun, before: list[str | None], from_s: float, until_s: float) -> None:
    """Fail if a partition that stayed where it was has a quarter of a second without a processed record."""
    after = run.writers()
    for partition, (then, now) in enumerate(zip(before, after, strict=True)):
        moved = run.observer.arrivals[partition].moves(from_s, until_s)
        if then == now and not moved:
            stood = run.standstill(partition, from_s, until_s)
            assert stood <= STANDSTILL_MAX, f"partition {partition} of {now} stood still: {stood}"


def test_L3_N1_scale_out_and_in_moves_only_what_has_to_move(run: GroupRun) -> None:
    """1 -> 2 -> 4 -> 2 -> 1 members: nobody notices but the tasks that move, and these go to learners."""
    for names, shares in ((["a", "b"], [2, 2]), (["a", "b", "c", "d"], [1, 1, 1, 1])):
        before, from_s = run.writers(), time.monotonic()
        for name in names:
            if name not in run.members:
                run.start(name)
        run.until_shared_by(shares, names, MOVE_S)
        unmoved_worked(run, before, from_s, time.monotonic())
    for leaving, names, shares in ((["c", "d"], ["a", "b"], [2, 2]), (["b"], ["a"], [4])):
        before, from_s = run.writers(), time.monotonic()
        for name in leaving:
            run.members[name].terminate()
        ended = [run.members.pop(name) for name in leaving]
        run.until_shared_by(shares, names, MOVE_S)
        assert [each.wait() for each in ended] == [0] * len(ended)
        unmoved_worked(run, before, from_s, time.monotonic())


def test_L1_L2_learners_restore_nothing_after_their_promotion(run: GroupRun) -> None:
    """Each planned grant follows a READY, and its owner read only what was written after that."""
    planned = [
        (grant, granted, ready)
        for grant, granted, ready in run.promotions()
        if grant.task_epoch > 1 and grant.changelog_end
    ]
    assert len(planned) >= 2
    for grant, granted, ready in planned:
        assert ready is not None, f"task {grant.task} went to a copy that had not said READY"
        place = run.changelog_key(int(grant.task.partition("_")[2]))
        assert granted.restored <= max(grant.changelog_end[place] - ready.positions[place], 0)


def test_killed_worker_is_replaced(run: GroupRun) -> None:
    """kill -9: the others take its tasks; theirs go on meanwhile."""
    run.start("b")
    run.until_shared_by([2, 2], ["a", "b"], MOVE_S)
    before, from_s = run.writers(), time.monotonic()
    run.members.pop("b").kill()
    run.until_shared_by([4], ["a"], MOVE_S)
    unmoved_worked(run, before, from_s, time.monotonic())


def test_frozen_worker_is_fenced_and_comes_back_as_another(run: GroupRun) -> None:
    """SIGSTOP for 20 s at a hang time-out of 5 s: others take over, the zombie writes nothing and joins anew."""
    run.start("b")
    run.until_shared_by([2, 2], ["a", "b"], MOVE_S)
    frozen = run.members["b"]
    frozen.process.send_signal(signal.SIGSTOP)
    from_s = time.monotonic()
    try:
        run.until_lasting(lambda: run.writers() == ["a"] * 4, "a has taken over", 19.0)
        time.sleep(max(0.0, 20.0 - (time.monotonic() - from_s)))
    finally:
        frozen.process.send_signal(signal.SIGCONT)
    run.until_shared_by([2, 2], ["a", "b"], MOVE_S)


def test_killed_leader_is_replaced_and_nobody_moves(run: GroupRun) -> None:
    """The leading process (a watchdog) is killed: another one claims, the worker gets a new watchdog, no task moves."""
    records = run.records()
    claim = [each for each in records if isinstance(each, LeaderClaim)][-1]
    epoch, before, from_s = claim.leader_epoch, run.writers(), time.monotonic()
    grants = _grants(records)
    # The leader is a watchdog; its members name it, and a worker's log names its incarnation.
    hosted = {
        each.incarnation
        for each in records
        if isinstance(each, MemberRecord) and each.process_id == claim.leader
    }
    name = next(
        each for each, member in run.members.items() if any(one in member.log for one in hosted)
    )
    for helper in run.members[name].helpers():
        helper.kill()
    until(lambda: max(each.leader_epoch for each in run.records()) > epoch, "a new leader claims")
    run.until_shared_by([2, 2], ["a", "b"], MOVE_S)
    unmoved_worked(run, before, from_s, time.monotonic())
    assert _grants(run.records()) == grants


def _grants(records: list[AnyRecord]) -> set[tuple[str, int]]:
    """Return every grant there ever was: a snapshot says the newest ones again."""
    return {
        (each.task, each.task_epoch)
        for each in records
        if isinstance(each, TaskRecord) and each.event == "GRANT"
    }


def test_S1_S2_rolling_bounce_of_static_members_moves_nothing(run: GroupRun) -> None:
    """Static members stop and start again one after the other: each gets its own tasks back, nobody else is asked."""
    # The whole group stops and starts anew under static names.
    leaving = [run.members.pop(name) for name in ("a", "b")]
    for each in leaving:
        each.terminate()
    assert [each.wait() for each in leaving] == [0, 0]
    for name in ("a", "b"):
        run.start(name, group_instance_id=name)
    run.until_shared_by([2, 2], ["a", "b"], MOVE_S)
    before = run.writers()
    for name in ("a", "b"):
        from_s = time.monotonic()
        old = run.members.pop(name)
        old.terminate()
        assert old.wait() == 0
        run.start(name, group_instance_id=name)
        run.until_shared_by([2, 2], ["a", "b"], MOVE_S)
        assert run.writers() == before
        others = [partition for partition, writer in enumerate(before) if writer != name]
        for partition in others:
            stood = run.standstill(partition, from_s, time.monotonic())
            assert stood <= STANDSTILL_MAX, f"partition {partition} stood still: {stood}"


def test_everything_is_exact(run: GroupRun) -> None:
    """Every record is counted once in the output, and the changelog equals the direct computation."""
    run.check()
    run.feeder.stop()
    wanted = KEYS + sum(run.feeder.written.values())
    until(lambda: run.observer.results >= wanted, "the last results", timeout_s=60)
    time.sleep(1.0)
    run.observer.stop()
    check = run.observer.check
    assert (check.repeated, check.missing(run.feeder.written, KEYS)) == (0, 0)
    assert run.observer.results == wanted
    names = list(run.members)
    for name in names:
        run.members[name].terminate()
    assert [run.members.pop(name).wait() for name in names] == [0] * len(names)
    counts = {
        key: int.from_bytes(value[-8:], "big")
        for key, (value, _) in run.cluster.folded(f"{run.application_id}-{STORE}-changelog").items()
    }
    assert len(counts) == KEYS
    assert {key: counts[key] for key in run.feeder.written} == {
        key: count + 1 for key, count in run.feeder.written.items()
    }
