"""Operations of a group under load: rolling restarts, changes of key ranges, growth and shrinking."""

import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from random import Random
from typing import Any, Final, Self

import pytest

from tests.faults.conftest import MakeRun
from tests.faults.fault_run import PARTITIONS, PATIENT, WORKERS, FaultRun
from tests.integration.cluster import Feed
from tests.integration.processes import numbered, owned
from tidewheel.rebalance.model import TopicPartition
from tidewheel.rebalance.protocol.messages import GrantedOk, Ready
from tidewheel.rebalance.protocol.records import TaskRecord
from tidewheel.tasks.key_ranges.progress_vector import Progress

pytestmark = [pytest.mark.timeout(600), pytest.mark.broker, pytest.mark.slow]

_ROUNDS: Final = 3
_RESETS: Final = 20
_STATE_MB: Final = int(os.environ.get("TIDEWHEEL_FAULTS_STATE_MB", "64"))
#: Two tasks of seven key ranges each. Threads are a worker's capacity, so all have as many.
_THREADS: Final = 14
#: Records per second that workers with so many threads process on a busy machine, too.
_SLOW_RATE: Final = 200
_KEY_BYTES: Final = 1_000
_BATCH: Final = 5_000
#: A pause of a moved task is below half a second on a quiet machine. A busy one shares its two cores
#: with other tests.
_PAUSE_S: Final = 10.0


@pytest.mark.fault("42")
def test_rolling_restarts_move_no_other_task(
    make_run: MakeRun, record_property: Callable[..., None]
) -> None:
    run = make_run(is_static=True)
    run.begin()
    times = [_restart(run, name) for _ in range(_ROUNDS) for name in WORKERS]
    record_property("times", len(times))
    record_property("recovery_s", max(times))
    run.verify()


@pytest.mark.fault("44")
@pytest.mark.nightly("TIDEWHEEL_FAULTS")
@pytest.mark.parametrize("kill", [False, True], ids=["restart", "kill"])
def test_changes_of_key_ranges_keep_the_order_of_each_key(
    make_run: MakeRun, kill: bool, record_property: Callable[..., None]
) -> None:
    """A killed worker leaves ranges at different offsets; its next life divides keys otherwise."""
    run = make_run(
        job="nap_and_count_by_key",
        rate=_SLOW_RATE,
        is_static=True,
        config={**PATIENT, "num_stream_threads": _THREADS},
    )
    factors = (4, 7, 1, 4)
    run.begin(parallelising_factor=factors[0])
    times = [
        _restart(run, name, kills_at=before if kill else 0, parallelising_factor=factor)
        for before, factor in pairwise(factors)
        for name in WORKERS
    ]
    record_property("times", len(times))
    record_property("recovery_s", max(times))
    run.verify()


def _restart(run: FaultRun, name: str, *, kills_at: int = 0, **settings: Any) -> float:
    """Restart a worker under load; return the seconds until it has its tasks again.

    `kills_at`: its number of key ranges, which are at different offsets when it is killed.
    """
    run.until_progress()
    owners, epochs = run.owners(), run.epochs()
    with _delayed_range(run, name, kills_at) if kills_at > 1 else nullcontext():
        begun_s = time.monotonic()
        if kills_at:
            run.kill(name)
        else:
            run.leave(name)
    run.start(name, **settings)
    run.until_shared()
    took_s = time.monotonic() - begun_s
    unaffected = {partition for partition, names in owners.items() if names != [name]}
    after = run.epochs()
    assert {each: after[each] for each in unaffected} == {each: epochs[each] for each in unaffected}
    assert run.owners() == owners
    return took_s


@contextmanager
def _delayed_range(run: FaultRun, name: str, ranges: int) -> Generator[None]:
    """Delay a worker's call in one of a task's key ranges; the others commit their work."""
    partition, path = min(owned(run.workers[name])), run.folder / "call"
    path.touch()
    key = b"call-%d" % partition
    run.cluster.send(run.source, [(key, str(path).encode())], partition=partition)
    run.until(lambda: len(set(_range_offsets(run, partition))) > 1, f"a range of {name} is behind")
    assert len(_range_offsets(run, partition)) == ranges
    yield
    path.unlink()


def _range_offsets(run: FaultRun, partition: int) -> list[int]:
    """Return the committed offset of each key range of a partition; one if all are equal."""
    source = TopicPartition(run.source, partition)
    offset, metadata = run.cluster.admin.committed(run.application_id, [source], stable=True)[
        source
    ]
    progress = Progress.decode(metadata, committed_offset=offset)
    assert progress is not None, metadata
    return list(progress.vector.offsets)


@pytest.mark.fault("43")
@pytest.mark.nightly("TIDEWHEEL_FAULTS")
@pytest.mark.timeout(1_800)
def test_groups_grow_and_shrink_with_much_state(
    make_run: MakeRun, record_property: Callable[..., None]
) -> None:
    record_property("state_mb", _STATE_MB)
    run = make_run(config={**PATIENT, "drain_timeout_ms": 120_000})
    run.begin("a")
    _fill(run)
    run.until_progress()
    begun_s = time.monotonic()
    with _Pauses(run) as pauses:
        for _ in range(_ROUNDS):
            for name in ("b", "c", "d"):
                run.start(name)
            run.until_shared()
            for name in ("b", "c", "d"):
                run.leave(name)
            run.until_shared()
            run.until_progress()
    record_property("recovery_s", time.monotonic() - begun_s)
    record_property("times", len(pauses.moves))
    record_property("median_pause_s", round(statistics.median(pauses.moves), 3))
    record_property(
        "p99_pause_s", round(statistics.quantiles(pauses.moves, n=100, method="inclusive")[-1], 3)
    )
    record_property("longest_pause_s", round(max(pauses.moves), 3))
    moves = 2 * (PARTITIONS - 1) * _ROUNDS
    assert len(pauses.moves) >= moves, "each of three tasks moves and comes back"
    assert max(pauses.moves) < _PAUSE_S
    run.verify()
    _assert_all_moves_waited_for_learners(run)


def _assert_all_moves_waited_for_learners(run: FaultRun) -> None:
    trace = run.trace()
    sources = {
        each.source
        for each in trace.records
        if isinstance(each, TaskRecord) and each.event == "RELEASED"
    }
    assert sources == {"ack"}, "owners release their tasks, and none is fenced"
    ready = {(each.task, each.incarnation) for each in trace.messages if isinstance(each, Ready)}
    grants = [each for each in trace.messages if isinstance(each, GrantedOk)]
    first = {each.task: each.task_epoch for each in reversed(grants)}
    moves = {(each.task, each.incarnation) for each in grants if each.task_epoch > first[each.task]}
    assert moves <= ready, f"granted before their learners were ready: {moves - ready}"


def _fill(run: FaultRun) -> None:
    """Write a key of 1,000 bytes for each kilobyte of state."""
    chance = Random(43)
    with Feed(run.cluster, run.source) as feed:
        for _ in range(_STATE_MB * 1_000_000 // _KEY_BYTES // _BATCH):
            records = [
                (chance.randbytes(_KEY_BYTES // 2).hex().encode(), b"") for _ in range(_BATCH)
            ]
            feed.send(records, first_timestamp=1_000)
            run.look_after_workers()


class _Pauses(threading.Thread):
    """Measures for how long a task processes nothing around each of its moves.

    Attributes:
        moves: Seconds from the last record of the former owner to the first of the next.
    """

    def __init__(self, run: FaultRun) -> None:
        super().__init__(name="pauses", daemon=True)
        self.moves: list[float] = []
        self._run = run
        self._done = threading.Event()
        #: Worker, position and time of each partition's last progress.
        self._last: defaultdict[int, tuple[str, int, float]] = defaultdict(lambda: ("", -1, 0.0))

    def run(self) -> None:
        while not self._done.wait(0.01):
            now_s = time.monotonic()
            for worker in [*self._run.workers.values(), *self._run.dead]:
                for partition, position in numbered(worker, "position").items():
                    self._sample(partition, worker.name, position, now_s)

    def _sample(self, partition: int, name: str, position: int, now_s: float) -> None:
        owner, reached, since_s = self._last[partition]
        if position <= reached:
            return
        if owner not in ("", name):
            self.moves.append(now_s - since_s)
        self._last[partition] = (name, position, now_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()


@pytest.mark.fault("41")
@pytest.mark.nightly("TIDEWHEEL_FAULTS")
def test_offsets_that_another_program_resets_change_nothing_in_a_running_group(
    make_run: MakeRun, record_property: Callable[..., None]
) -> None:
    run = make_run()
    run.begin()
    run.until_progress()
    owners = run.owners()
    for number in range(_RESETS):
        reset = dict.fromkeys(run.cluster.log_ends(run.source), number % 2 * 1_000_000)
        run.cluster.admin.alter_committed(run.application_id, reset)
    record_property("times", _RESETS)
    record_property("recovery_s", run.until_progress())
    assert run.owners() == owners
    run.verify()
