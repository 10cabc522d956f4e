"""Descriptors, threads and memory of a worker that stays while others come and go."""

import os
import signal
import time
from collections.abc import Callable
from itertools import cycle
from typing import Final

import pytest

from tests.faults.bounds.resources import ResourceWatch, trend
from tests.faults.conftest import MakeRun
from tests.integration.cluster import until

MINUTES: Final = float(os.environ.get("TIDEWHEEL_REBALANCE_MINUTES", "5"))
#: Seconds between a join and the following departure, and to the next join.
_PAUSE_S: Final = 10.0
_RECORDS_PER_S: Final = 300

pytestmark = [
    pytest.mark.timeout(int(MINUTES * 60) + 900),
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.nightly("TIDEWHEEL_FAULTS"),
]


@pytest.mark.fault("BOUNDS")
@pytest.mark.parametrize("factor", [1, 4])
def test_worker_stays_flat_while_others_come_and_go(
    make_run: MakeRun, factor: int, record_property: Callable[..., None]
) -> None:
    """Members leave in order, or are killed; each move opens and closes databases and consumers."""
    run = make_run(
        config={
            "parallelising_factor": factor,
            "num_standby_replicas": 1,
            # Reached before the second quarter: later growth is a leak.
            "rocksdb": {"block_cache_bytes": 8 << 20, "write_buffer_bytes": 4 << 20},
        },
        rate=_RECORDS_PER_S,
    )
    run.begin(["stays", "b"])
    changes = 0
    with ResourceWatch(run.workers["stays"].process.pid, every_s=1.0) as watch:
        end_s = time.monotonic() + MINUTES * 60
        for name, kills in cycle([("c", False), ("b", True), ("c", True), ("b", False)]):
            if time.monotonic() > end_s:
                break
            pause_s = time.monotonic() + _PAUSE_S
            if name not in run.workers:
                run.start(name, runs_from=100)
                run.until_shared()
                changes += 1
            until(lambda: time.monotonic() > pause_s, "the pause is over")  # noqa: B023
            pause_s = time.monotonic() + _PAUSE_S
            if kills:
                run.kill(name)
            else:
                worker = run.workers.pop(name)
                worker.send(signal.SIGTERM)
                assert worker.wait() == 0, worker.log[-3_000:]
                worker.close()
            changes += 1
            run.until_owned()
            until(lambda: time.monotonic() > pause_s, "the pause is over")  # noqa: B023
    record_property("times", changes)
    record_property("seconds", MINUTES * 60)
    record_property("peak_rss_mb", round(watch.peak_mib))
    grown: dict[str, list[str]] = {}
    for role, samples in watch.samples.items():
        if samples[-1].at_s - samples[0].at_s > MINUTES * 60 * 0.8:
            found = trend(samples)
            record_property(role, str(found))
            grown[role] = found.growth(rss_share=0.05, rss_mib=8)
    assert set(grown) >= {"worker", "watchdog"}
    assert not any(grown.values()), grown
    run.verify()
