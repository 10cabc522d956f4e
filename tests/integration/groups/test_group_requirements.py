"""Group requirements: paced moves, undisturbed owners, and a complete group log.

`TIDEWHEEL_TEST_EPHEMERAL_S` sets the seconds of short-lived members; 120 is the requirement.
"""

import itertools
import logging
import os
import time
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.cluster import PATIENCE_S, until
from tests.integration.groups.passers_by import JOINS_PER_S, LIFE_MAX_S, PassersBy
from tests.integration.groups.test_groups_basic import PARTITIONS, Group, group, topics
from tests.integration.processes import WorkerProcess, owned
from tidewheel.rebalance.protocol.group import replay
from tidewheel.rebalance.protocol.messages import Ready, decode_message
from tidewheel.rebalance.protocol.records import MemberRecord, TaskRecord, decode_record
from tidewheel.streams.exit_codes import ExitCode

__all__ = ["group", "topics"]

_log_figures: Final = logging.getLogger(__name__)

_EPHEMERAL_S: Final = float(os.environ.get("TIDEWHEEL_TEST_EPHEMERAL_S", "12"))
_PACE_MS: Final = 2_000
#: Broker and leader each have a clock of whole milliseconds.
_CLOCKS_MS: Final = 5
#: Records of about half a second of feed.
_LAG_MAX: Final = 250


def _log(group: Group) -> list[tuple[int, Any]]:
    topic = f"{group.config['application_id']}-group-state"
    return [
        (each.timestamp, record)
        for each in group.cluster.read(topic)
        if (record := decode_record(each.value)) is not None
    ]


def _grants(group: Group) -> list[tuple[int, TaskRecord]]:
    """Return each grant with its first time; a new leader repeats all task states."""
    grants: dict[tuple[str, int], tuple[int, TaskRecord]] = {}
    for at_ms, record in _log(group):
        if isinstance(record, TaskRecord) and record.event == "GRANT":
            grants.setdefault((record.task, record.task_epoch), (at_ms, record))
    return list(grants.values())


def test_N3_grants_to_a_newcomer_are_paced(group: Group) -> None:
    """Grants to a newcomer are at least task_move_interval_ms (2 s) apart in the log.

    The broker stamps each append, and the leader counts from its acknowledgement.
    """
    group.start("first", task_move_interval_ms=_PACE_MS).wait_until_running()
    until(lambda: len(_grants(group)) == PARTITIONS, "every task is granted")
    (first,) = {grant.owner for _, grant in _grants(group)}
    newcomers = [group.start(name, task_move_interval_ms=_PACE_MS) for name in ("b", "c", "d")]
    until(lambda: all(len(owned(newcomer)) == 1 for newcomer in newcomers), "each has its share")
    group.check()
    # One pace for the whole group: three newcomers share the interval.
    times = [at_ms for at_ms, grant in _grants(group) if grant.owner != first]
    assert len(times) == len(newcomers)
    assert all(
        later - earlier >= _PACE_MS - _CLOCKS_MS for earlier, later in itertools.pairwise(times)
    )


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_N10_a_clean_hand_off_repeats_nothing(group: Group, guarantee: str) -> None:
    group.config["processing_guarantee"] = guarantee
    first = group.start("first")
    first.wait_until_running()
    second = group.start("second")
    group.until_shared(first, second)
    assert second.stop() == ExitCode.OK, second.log[-4000:]
    group.until_shared(first)
    group.check()
    moves = [grant for _, grant in _grants(group) if grant.task_epoch > 1]
    assert len(moves) == PARTITIONS


@pytest.mark.alone
def test_N11_ephemeral_members_do_not_disturb_the_group(group: Group, tmp_path: Path) -> None:
    """Members that vanish within 5 s own no stateful task; the rate drops by under a tenth.

    Owners come from the log and from both remaining workers. The rate is the processed share of
    the feed, compared with a quiet stretch before. From a minute on (alone on the machine) two
    more checks run. Fed workers pause in at most a tenth more of the 250 ms polls than before.
    Short-lived members must have had READY copies.
    """
    group.config["settling_ms"] = 6_000
    workers = [group.start("first"), group.start("second")]
    group.until_shared(*workers)
    before = _ownership(group)
    until(lambda: _lag(group, workers) < _LAG_MAX, "the workers have caught up")
    watch = _Watch(group, workers)
    watch.poll_for(min(_EPHEMERAL_S / 2, 30.0))
    quiet, watch = watch, _Watch(group, workers)

    passing = PassersBy(
        app=str(group.config["application_id"]),
        bootstrap_servers=group.cluster.bootstrap_servers,
        records=[record for _, record in _log(group)],
        start=lambda name: group.start(name, state_dir=str(tmp_path / name)),
        for_s=_EPHEMERAL_S,
    )
    passing.start()
    watch.poll_for(_EPHEMERAL_S)
    passing.finish(PATIENCE_S)

    records = [record for _, record in _log(group)]
    joined = {each.incarnation for each in records if isinstance(each, MemberRecord)}
    figures = (
        f"{passing.started} passers-by, there for {max(passing.lives_s):.1f} s at most; "
        f"processed of what was fed: {watch.processed_share():.3f}, quiet {quiet.processed_share():.3f}; "
        f"workers stood still: {watch.paused_share():.3f}, quiet {quiet.paused_share():.3f}"
    )
    _log_figures.info(figures)
    assert passing.started == round(_EPHEMERAL_S * JOINS_PER_S)
    assert len(joined) == 2 + passing.started, "everybody was taken in"
    assert _ownership(group) == before, "a task changed hands"
    assert quiet.owners | watch.owners == {_owners(workers)}
    assert watch.processed_share() > 0.9 * quiet.processed_share(), figures
    if _EPHEMERAL_S >= 60:
        assert sum(life_s > LIFE_MAX_S + 0.5 for life_s in passing.lives_s) <= passing.started // 10
        assert watch.paused_share() - quiet.paused_share() < 0.1, figures
        assert _ready_strangers(group, workers)
    group.check()


def _ownership(group: Group) -> set[tuple[str, int, str]]:
    return {
        (record.task, record.task_epoch, record.event)
        for _, record in _log(group)
        if isinstance(record, TaskRecord)
    }


def _ready_strangers(group: Group, workers: list[WorkerProcess]) -> set[str]:
    inbox = group.cluster.read(f"{group.config['application_id']}-group-inbox")
    messages = [decode_message(record.value) for record in inbox if record.value is not None]
    ready = {message.incarnation for message in messages if isinstance(message, Ready)}
    return {
        incarnation
        for incarnation in ready
        if not any(incarnation in worker.log for worker in workers)
    }


Owners = tuple[frozenset[int], ...]


def _owners(workers: list[WorkerProcess]) -> Owners:
    return tuple(frozenset(owned(worker)) for worker in workers)


class _Watch:
    def __init__(self, group: Group, workers: list[WorkerProcess]) -> None:
        self.owners: set[Owners] = set()
        self._group, self._workers = group, workers
        self._polls: list[tuple[int, tuple[int, ...]]] = []
        self._poll()

    def poll_for(self, for_s: float) -> None:
        end_s = time.monotonic() + for_s
        while time.monotonic() < end_s:
            time.sleep(0.25)
            self._poll()

    def _poll(self) -> None:
        processed = tuple(_processed(worker) for worker in self._workers)
        self._polls.append((len(self._group.feed.records), processed))
        self.owners.add(_owners(self._workers))

    def processed_share(self) -> float:
        """Return the best processed share of the feed in the last third of the polls.

        The machine may be busy during a single one.
        """
        fed, processed = self._polls[0]
        return max(
            (sum(now) - sum(processed)) / max(now_fed - fed, 1)
            for now_fed, now in self._polls[-len(self._polls) // 3 :]
        )

    def paused_share(self) -> float:
        pairs = [
            (earlier[worker], later[worker], later_fed - fed)
            for (fed, earlier), (later_fed, later) in itertools.pairwise(self._polls)
            for worker in range(len(self._workers))
        ]
        return sum(fed > 0 and before == after for before, after, fed in pairs) / len(pairs)


def _lag(group: Group, workers: list[WorkerProcess]) -> int:
    """Return the unprocessed records; commits take over a second on a busy broker."""
    return len(group.feed.records) - sum(_processed(worker) for worker in workers)


def _processed(worker: WorkerProcess) -> int:
    return sum(number for name, number in worker.numbers().items() if name.startswith("position:"))


def _alone(group: Group) -> WorkerProcess:
    first = group.start("first")
    first.wait_until_running()
    until(lambda: len(_grants(group)) == PARTITIONS, "every task is granted")
    return first


def test_N4_a_stopped_group_continues_from_its_log(group: Group) -> None:
    first = _alone(group)
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


def test_H15_no_restart_accepts_offsets_that_were_moved_back(group: Group) -> None:
    first = _alone(group)
    group.stop_feeding()
    application_id = group.config["application_id"]
    assert first.stop() == ExitCode.OK, first.log[-4000:]
    left = group.cluster.committed(application_id)
    group.cluster.admin.alter_committed(application_id, dict.fromkeys(left, 0))
    for name in ("second", "third"):
        refused = group.start(name)
        assert refused.wait() != ExitCode.OK
        assert "but offset 0 is committed" in refused.log
    assert group.cluster.committed(application_id) == dict.fromkeys(left, 0)
    # The group log does not tell whether the refused workers had committed more than that.
    group.cluster.admin.alter_committed(application_id, left)
    refused = group.start("fourth")
    assert refused.wait() != ExitCode.OK
    again = group.start("again", accept_offsets=True)
    group.until_shared(again)
    group.check()


def test_H15_an_input_recreated_under_a_group_is_recognised_as_new(
    group: Group,
) -> None:
    first = _alone(group)
    group.stop_feeding()
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
