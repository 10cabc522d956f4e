"""Operations of a group under load: rolling restarts, changes of key ranges, growth and shrinking."""

import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Any, Final, Self

import pytest

from tests.faults.conftest import MakeRun
from tests.faults.fault_run import PARTITIONS, WORKERS, FaultRun
from tests.integration.cluster import Feed
from tests.integration.processes import numbered
from tidewheel.rebalance.protocol.records import TaskRecord

pytestmark = [pytest.mark.timeout(600), pytest.mark.broker, pytest.mark.slow]

_ROUNDS: Final = 3
_STATE_MB: Final = int(os.environ.get("TIDEWHEEL_FAULTS_STATE_MB", "256"))
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
    """A kill leaves ranges at different offsets; the next life cuts them in another way."""
    run = make_run(is_static=True)
    run.begin(parallelising_factor=4)
    times = [
        _restart(run, name, kill=kill, parallelising_factor=factor)
        for factor in (7, 1, 4)
        for name in WORKERS
    ]
    record_property("times", len(times))
    record_property("recovery_s", max(times))
    run.verify()


def _restart(run: FaultRun, name: str, *, kill: bool = False, **settings: Any) -> float:
    """Restart a worker under load; return the seconds until it has its tasks again."""
    run.until_progress()
    owners, epochs = run.owners(), run.epochs()
    begun_s = time.monotonic()
    if kill:
        run.kill(name)
    else:
        run.leave(name)
    run.start(name, **settings)
    run.until_shared()
    took_s = time.monotonic() - begun_s
    unaffected = {partition for partition, names in owners.items() if names != [name]}
    after = run.epochs()
    assert {each: after[each] for each in unaffected} == {each: epochs[each] for each in unaffected}
    assert run.owners() == owners or kill
    return took_s


@pytest.mark.fault("43")
@pytest.mark.nightly("TIDEWHEEL_FAULTS")
@pytest.mark.timeout(1_800)
def test_groups_grow_and_shrink_with_much_state(
    make_run: MakeRun, record_property: Callable[..., None]
) -> None:
    record_property("state_mb", _STATE_MB)
    run = make_run(config={"drain_timeout_ms": 120_000})
    run.begin("a")
    _fill(run)
    run.until_progress()
    begun_s = time.monotonic()
    with _Pauses(run) as pauses:
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
    record_property("longest_pause_s", round(max(pauses.moves), 3))
    assert len(pauses.moves) >= 2 * (PARTITIONS - 1), "each of three tasks moves and comes back"
    assert max(pauses.moves) < _PAUSE_S
    run.verify()
    released = [
        each
        for each in run.trace().records
        if isinstance(each, TaskRecord) and each.event == "RELEASED"
    ]
    assert {each.source for each in released} == {"ack"}, "workers drain before they leave"


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
