"""What groups promise, each promise on a real Kafka: moves are paced, passers-by disturb nobody, the log remembers.

`TIDEWHEEL_TEST_EPHEMERAL_S` makes the passers-by come for longer (120 is the requirement's two minutes).
"""

import itertools
import os
import random
import secrets
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from rebalance.group import replay
from rebalance.messages import Join, SeenTask
from rebalance.orders import AnyOrder
from rebalance.records import MemberRecord, TaskRecord, decode_record
from streams.exit_codes import ExitCode
from streams.watchdog.watchdog import make_runtime
from tests.integration.cluster import until
from tests.integration.processes import WorkerProcess
from tests.integration.test_groups_basic import PARTITIONS, Group, group, topics
from tests.streams.watchdog.playing import hello

__all__ = ["group", "topics"]

_EPHEMERAL_S: Final = float(os.environ.get("TIDEWHEEL_TEST_EPHEMERAL_S", "12"))
#: A hundred in two minutes.
_JOINS_PER_S: Final = 100 / 120
_LIFE_MAX_S: Final = 5.0
_PACE_MS: Final = 2_000
#: Records that are fed in about half a second.
_LAG_MAX: Final = 250


def _log(group: Group) -> list[tuple[int, Any]]:
    """Return the group log: timestamp (ms) and record."""
    topic = f"{group.config['application_id']}-group-state"
    return [
        (each.timestamp, record)
        for each in group.cluster.read(topic)
        if (record := decode_record(each.value)) is not None
    ]


def _grants(group: Group) -> list[tuple[int, TaskRecord]]:
    return [
        (at_ms, record)
        for at_ms, record in _log(group)
        if isinstance(record, TaskRecord) and record.event == "GRANT"
    ]


def test_N3_grants_to_a_newcomer_are_paced(group: Group) -> None:
    """With task_move_interval_ms of 2 s, a newcomer's grants are at least 2 s apart."""
    first = group.start("first", task_move_interval_ms=_PACE_MS)
    first.wait_until_running()
    second = group.start("second", task_move_interval_ms=_PACE_MS)
    group.until_shared(first, second)
    group.check()
    newest = {
        record.incarnation: record.member
        for _, record in _log(group)
        if isinstance(record, MemberRecord)
    }
    # The first member owned everything, so whatever was granted a second time went to the newcomer.
    times = [at_ms for at_ms, grant in _grants(group) if grant.task_epoch > 1]
    assert len(newest) == 2
    assert len(times) == PARTITIONS // 2
    # Timestamps are those of writing, a moment after the decision: two of them may be closer, on a slow machine by far.
    # Without the pace they would come at once.
    assert all(later - earlier >= _PACE_MS // 2 for earlier, later in itertools.pairwise(times))
    assert times[-1] - times[0] >= (len(times) - 1) * _PACE_MS - _PACE_MS // 2


class _PasserBy:
    """A member without a worker: it joins, is given learners like any other, and vanishes."""

    def __init__(self) -> None:
        self.orders: list[AnyOrder] = []
        self._progress = 0

    def order(self, orders: Sequence[AnyOrder]) -> None:
        self.orders += orders

    def lease(self, until_ms: int) -> None:
        pass

    def progress(self) -> int:
        self._progress += 1
        return self._progress


def test_N11_ephemeral_members_disturb_nobody(group: Group) -> None:
    """Members that join and vanish within five seconds take no stateful task, and the rate falls by less than a tenth."""
    group.config["settling_ms"] = 6_000
    workers = [group.start("first"), group.start("second")]
    group.until_shared(*workers)
    grants = len(_grants(group))
    application_id = str(group.config["application_id"])
    until(lambda: _lag(group) < _LAG_MAX, f"{application_id} has caught up")

    passing = threading.Thread(target=_pass_by, args=(group,), daemon=True)
    fed, done = len(group.feed.records), _processed(workers)
    passing.start()
    shares: list[float] = []
    end_s = time.monotonic() + _EPHEMERAL_S
    while time.monotonic() < end_s:
        time.sleep(_EPHEMERAL_S / 24)
        now_fed = len(group.feed.records) - fed
        shares.append((_processed(workers) - done) / max(now_fed, 1))
    passing.join()

    joined = {r.member for _, r in _log(group) if isinstance(r, MemberRecord)}
    assert len(joined) >= 2 + int(_EPHEMERAL_S * _JOINS_PER_S) // 2
    assert len(_grants(group)) == grants, "a passer-by was granted a task"
    # At the best of its last looks: one may fall into a moment in which the machine does something else.
    assert max(shares[-8:]) > 0.9, f"shares of what was fed, processed beside passers-by: {shares}"
    group.check()


def _lag(group: Group) -> int:
    """Return how many records are fed and not committed."""
    committed = group.cluster.committed(str(group.config["application_id"]))
    return len(group.feed.records) - sum(committed.values())


def _processed(workers: list[WorkerProcess]) -> int:
    return sum(
        number
        for worker in workers
        for name, number in worker.numbers().items()
        if name.startswith("position:")
    )


def _pass_by(group: Group) -> None:
    """Have members come and go, hosted by a runtime of this process that everybody else takes for a host program."""
    chance = random.Random(11)
    app = str(group.config["application_id"])
    join = _join_like(group)
    words = hello("nobody", app=app, bootstrap_servers=group.cluster.bootstrap_servers)
    words = msgspec.structs.replace(words, heartbeat_interval_ms=500, join=join)
    runtime = make_runtime(words)
    thread = threading.Thread(target=runtime.run, daemon=True)
    thread.start()
    leaving: list[tuple[float, str]] = []
    end_s, number = time.monotonic() + _EPHEMERAL_S, 0
    while time.monotonic() < end_s or leaving:
        now_s = time.monotonic()
        if now_s < end_s:
            incarnation = secrets.token_hex(8)
            number += 1
            runtime.add(
                msgspec.structs.replace(
                    join,
                    member=f"passing-{number}",
                    incarnation=incarnation,
                    transactional_ids=(f"{app}-{incarnation}-0",),
                ),
                _PasserBy(),
                heartbeat_interval_ms=500,
                hang_timeout_ms=30_000,
                welcomed=False,
            )
            leaving.append((now_s + chance.uniform(1.0, _LIFE_MAX_S), incarnation))
        for _, incarnation in [each for each in leaving if each[0] <= now_s]:
            runtime.died(incarnation, "it has vanished")
        leaving = [each for each in leaving if each[0] > now_s]
        time.sleep(1 / _JOINS_PER_S)
    runtime.finish(2_000)
    thread.join(10.0)


def _join_like(group: Group) -> Join:
    """Return the join of a member that runs the group's program."""
    members = [record for _, record in _log(group) if isinstance(record, MemberRecord)]
    folded = replay([record for _, record in _log(group)])
    one = members[-1]
    return Join(
        app=str(group.config["application_id"]),
        member="passing",
        incarnation="passing",
        transactional_ids=("passing",),
        host="elsewhere",
        pid=os.getpid(),
        process_id="passers-by",
        topology_hash=one.topology_hash,
        assignor=one.assignor,
        tasks=tuple(
            SeenTask(task=str(task), stateful=shape.stateful, changelogs=shape.changelogs)
            for task, shape in folded.tasks.items()
        ),
        partitions=dict(folded.about.partitions),
    )


def test_N4_a_group_that_was_away_goes_on_from_its_log(group: Group) -> None:
    """Everybody leaves; who comes back finds epochs, tasks and members where the log left them."""
    first = group.start("first")
    first.wait_until_running()
    until(lambda: len(_grants(group)) == PARTITIONS, "every task is granted")
    assert first.stop() == ExitCode.OK, first.log[-4000:]
    before = replay([record for _, record in _log(group)])
    again = group.start("again")
    group.until_shared(again)
    group.check()
    after = replay([record for _, record in _log(group)])
    assert after.leader_epoch > before.leader_epoch
    assert after.target.group_epoch >= before.target.group_epoch
    for task, state in before.states.items():
        assert after.states[task].task_epoch == state.task_epoch + 1


def test_H15_nobody_goes_back_however_often_it_is_started(group: Group) -> None:
    """Offsets that a stranger set to 0 stop every worker before it counts again; set right, all goes on exactly once."""
    first = group.start("first")
    first.wait_until_running()
    until(lambda: len(_grants(group)) == PARTITIONS, "every task is granted")
    group.feed.stop()
    application_id = group.config["application_id"]
    group.cluster.wait_until_consumed(application_id, group.source)
    assert first.stop() == ExitCode.OK, first.log[-4000:]
    left = group.cluster.committed(application_id)
    group.cluster.admin.alter_committed(application_id, dict.fromkeys(left, 0))
    for name in ("second", "third"):
        refused = group.start(name)
        assert refused.wait() != ExitCode.OK
        assert "but offset 0 is committed" in refused.log
    assert group.cluster.committed(application_id) == dict.fromkeys(left, 0)
    group.cluster.admin.alter_committed(application_id, left)
    again = group.start("again")
    group.until_shared(again)
    group.check()


def test_H15_an_input_that_was_made_anew_under_a_group_is_not_taken_for_the_old_one(
    group: Group,
) -> None:
    """Brokers forget its offsets with it; the group's log knows where its first owner was when it ended."""
    first = group.start("first")
    first.wait_until_running()
    until(lambda: len(_grants(group)) == PARTITIONS, "every task is granted")
    group.feed.stop()
    application_id = group.config["application_id"]
    group.cluster.wait_until_consumed(application_id, group.source)
    before = group.cluster.values_by_key(group.sink)
    group.cluster.admin.delete_topics([group.source])
    assert first.wait() != ExitCode.OK
    group.cluster.create({group.source: PARTITIONS})
    group.cluster.send(group.source, group.feed.records)
    for name in ("second", "third"):
        refused = group.start(name)
        assert refused.wait() != ExitCode.OK
        assert "but nothing is committed" in refused.log
    assert group.cluster.values_by_key(group.sink) == before
