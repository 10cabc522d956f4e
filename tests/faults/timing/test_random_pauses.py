"""Workers and watchdogs are stopped at random moments, most of them inside commits.

`TIDEWHEEL_FAULTS_SEED` repeats the choices of an earlier run; their moments differ.
"""

import logging
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import psutil
import pytest

from tests.faults.conftest import MakeRun
from tests.faults.fault_run import WORKERS
from tests.integration.cluster import until
from tests.integration.processes import WorkerProcess

_log: Final = logging.getLogger(__name__)

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.nightly("TIDEWHEEL_FAULTS"),
]

STOPS: Final = 201
SHORTEST_S: Final = 0.2
LONGEST_S: Final = 6.0
#: A commit lasts a few of these.
_MOMENT_S: Final = 0.005
_AIM_S: Final = 2.0


@pytest.mark.fault("14")
def test_workers_stopped_at_random_in_commits_lose_and_repeat_nothing(
    make_run: MakeRun, record_property: Callable[..., None]
) -> None:
    seed = int(os.environ.get("TIDEWHEEL_FAULTS_SEED", time.time_ns() % 1_000_000))
    _log.info("TIDEWHEEL_FAULTS_SEED=%d", seed)
    record_property("seed", seed)
    run = make_run(config={"worker_hang_timeout_ms": 2_000})
    run.begin()
    chances = [random.Random(f"{seed}/{name}") for name in run.workers]
    with ThreadPoolExecutor(len(chances)) as pool:
        hits = list(pool.map(_stop_often, run.workers.values(), chances))
    _log.info("%d stops, inside a commit: %s", STOPS, hits)
    record_property("times", STOPS)
    record_property("in_commit", sum(hits))
    record_property("recovery_s", run.until_owned())
    assert sum(hits) > STOPS / 10
    run.until_shared()
    run.verify()
    assert run.trace().fenced(), "some stops were longer than the session time-out"


def _stop_often(worker: WorkerProcess, chance: random.Random) -> int:
    """Stop a worker or its watchdog or both, again and again; return the number inside a commit."""
    hits = 0
    for _ in range(STOPS // len(WORKERS)):
        processes = worker.processes()
        chosen = chance.choice((processes, processes[:1], processes[1:]))
        if chance.random() < 2 / 3:
            with suppress(AssertionError):  # it has no task at present
                until(lambda: worker.numbers().get("committing"), "a commit", _AIM_S)
            time.sleep(chance.random() * _MOMENT_S)
        for process in chosen:
            process.suspend()
        hits += worker.is_stopped and worker.numbers().get("committing") == 1
        time.sleep(SHORTEST_S * (LONGEST_S / SHORTEST_S) ** chance.random())
        for process in chosen:
            with suppress(psutil.NoSuchProcess):
                process.resume()
        time.sleep(chance.random())
    assert not worker.has_ended
    return hits
